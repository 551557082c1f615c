"""config.json of a checkpoint: what kind of decoder it describes."""

from __future__ import annotations

from fuzz.files import folder_of, refusing
from omnidraft.export.checkpoint.safetensors import describe
from omnidraft.runtime.storage.checkpoints import load_json


def check(data: bytes) -> None:
    with folder_of({"config.json": data}) as folder, refusing():
        describe(load_json(folder / "config.json"), folder)
