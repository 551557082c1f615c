"""omnidraft.json of an exported drafter; without a digest it is given the right one."""

from __future__ import annotations

import hashlib
import json

from fuzz.files import file_inside, folder_of, parsed, refusing, unheard
from omnidraft.cli.inspect import inspect
from omnidraft.runtime.models.listing import list_models
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
    with folder_of({f"learnable/a/{BUNDLE_FILE}": data, "learnable/a/a.onnx": b"graph"}) as cache:
        folder = cache / "learnable" / "a"
        with refusing():
            bundle = Bundle.read(folder)
            _ = (bundle.decoders, bundle.promised_share, bundle.weights_text, bundle.size)
        with refusing():
            bundle = Bundle.load(folder)
            assert all(file_inside(folder, name) for name in bundle.files)
        with unheard(OMNIDRAFT_CACHE=str(cache)):
            list_models()
            for as_json in (False, True):
                with refusing():
                    inspect(folder, as_json=as_json)
