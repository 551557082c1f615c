"""Weights that PyTorch saved: a pickle, put into an archive with a storage; or a whole archive."""

from __future__ import annotations

import io
import json
import zipfile

from fuzz.files import folder_of, refusing
from fuzz.safetensors import CONFIG, use
from omnidraft.export.checkpoint import open_checkpoint

STORAGE = bytes(1024)


def check(data: bytes) -> None:
    content = data if data.startswith(b"PK") else archive(data)
    files = {"config.json": json.dumps(CONFIG).encode(), "pytorch_model.bin": content}
    with folder_of(files) as folder, refusing():
        use(open_checkpoint(folder))


def archive(pickled: bytes) -> bytes:
    """The file of a pickle, whose one storage is called 0."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/data.pkl", pickled)
        file.writestr("archive/byteorder", "little")
        file.writestr("archive/data/0", STORAGE)
    return buffer.getvalue()
