"""omnidraft-model.json of a converted model; what was measured, was measured here."""

from __future__ import annotations

import json

from fuzz.files import folder_of, parsed, refusing
from omnidraft.runtime.engines.environment import environment, measured_here
from omnidraft.runtime.storage.manifest import MANIFEST_FILE, Manifest, is_outdated


def check(data: bytes) -> None:
    values = parsed(data)
    if isinstance(values, dict) and isinstance(values.get("invariance"), dict):
        values["invariance"] |= environment()
        data = json.dumps(values).encode()
    with folder_of({MANIFEST_FILE: data, "model.onnx": b"graph"}) as folder:
        is_outdated(folder)
        with refusing():
            manifest = Manifest.load(folder)
            _ = manifest.batch_invariant
            measured_here(manifest)
            manifest.verify(folder, checksums=True)
