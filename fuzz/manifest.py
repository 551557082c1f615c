"""omnidraft-model.json of a converted model; what was measured, was measured here."""

from __future__ import annotations

import json

from fuzz.files import file_inside, folder_of, parsed, refusing, unheard
from omnidraft.runtime.engines.environment import environment, measured_here
from omnidraft.runtime.models.listing import list_models
from omnidraft.runtime.storage.manifest import MANIFEST_FILE, Manifest, is_outdated


def check(data: bytes) -> None:
    values = parsed(data)
    if isinstance(values, dict) and isinstance(values.get("invariance"), dict):
        values["invariance"] |= environment()
        data = json.dumps(values).encode()
    with folder_of({f"models/a/{MANIFEST_FILE}": data, "models/a/model.onnx": b"graph"}) as cache:
        folder = cache / "models" / "a"
        is_outdated(folder)
        with unheard(OMNIDRAFT_CACHE=str(cache)):
            list_models()
        with refusing():
            manifest = Manifest.load(folder)
            _ = manifest.batch_invariant
            measured_here(manifest)
            manifest.verify(folder, checksums=True)
            assert all(file_inside(folder, name) for name in manifest.files)
