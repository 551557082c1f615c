"""omnidraft.json of an exported drafter; without a digest it is given the right one."""

from __future__ import annotations

import hashlib
import json

from fuzz.files import folder_of, parsed, refusing
from omnidraft.runtime.storage.bundle import BUNDLE_FILE, Bundle


def check(data: bytes) -> None:
    values = parsed(data)
    if isinstance(values, dict) and "digest" not in values:
        try:
            text = json.dumps(values, sort_keys=True)
            values["digest"] = hashlib.sha256(text.encode()).hexdigest()
            data = json.dumps(values).encode()
        except RecursionError:
            pass
    with folder_of({BUNDLE_FILE: data, "a.onnx": b"graph"}) as folder:
        with refusing():
            bundle = Bundle.read(folder)
            _ = (bundle.decoders, bundle.promised_share, bundle.weights_text, bundle.size)
        with refusing():
            Bundle.load(folder)
