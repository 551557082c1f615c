"""An adapter's file: JSON of its metadata and of its tensors' types and shapes, or its bytes.

Checksums are made right where they are not given.
"""

from __future__ import annotations

import json
import math
import zlib
from contextlib import suppress
from typing import Any

import numpy as np

from fuzz.files import folder_of, parsed, refusing, unheard
from omnidraft._native import CacheDamagedError, CacheMismatchError, Vocabulary, VocabularyPair
from omnidraft.cli import adapters as commands
from omnidraft.runtime.learning.adapter_file import exported_name
from omnidraft.runtime.learning.head import AcceptanceHead
from omnidraft.runtime.learning.head_trainer import HeadTrainer
from omnidraft.runtime.learning.lessons import Lessons
from omnidraft.runtime.learning.store import AdapterStore
from omnidraft.runtime.storage.lora import complete_adapter

DTYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "U8": "u1", "I8": "i1", "I64": "i8", "BOOL": "?"}
WIDTHS = {"BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I32": 4, "C64": 8}
MOST_BYTES = 100_000
PAIR = VocabularyPair(Vocabulary([b"a", b"b"]), Vocabulary([b"a", b"ab"]))


def check(data: bytes) -> None:
    described = parsed(data)
    if isinstance(described, dict):
        data = file_of(described)
    with folder_of({"adapters/a.adapter": data}) as folder:
        store = AdapterStore(folder / "adapters")
        store.list()
        exported_name(folder / "adapters" / "a.adapter")
        show(str(folder))
        with refusing():
            store.import_(folder / "adapters" / "a.adapter", "b")
        with refusing():
            adapter = store.read("a")
            with refusing():
                head = AcceptanceHead.from_state(adapter.head)
                rows = {name.removeprefix("head."): a for name, a in adapter.optimizer.items()}
                HeadTrainer(head, "joint", rows=rows).add(Lessons.none(head.hidden_size))
            with refusing():
                complete_adapter(adapter.lora, {"lora.0.o.A": 2, "lora.0.o.B": 3})
            with suppress(CacheDamagedError, CacheMismatchError):  # its users begin a new one
                adapter.ngram_cache(PAIR)


def show(data_folder: str) -> None:
    """What the commands print of it."""
    with unheard(OMNIDRAFT_DATA=data_folder):
        for as_json in (False, True):
            commands.list_(as_json)
            with refusing():
                commands.show("a", as_json)


def file_of(described: dict[str, Any]) -> bytes:
    header: dict[str, Any] = {}
    sums: dict[str, int] = {}
    tensors = described.get("tensors")
    end = 0
    for name, entry in tensors.items() if isinstance(tensors, dict) else ():
        dtype, shape = (*entry, None, None)[:2] if isinstance(entry, list) else (None, None)
        sizes = shape if isinstance(shape, list) else []
        count = math.prod(size for size in sizes if isinstance(size, int))
        width = np.dtype(DTYPES.get(str(dtype), "u1")).itemsize
        length = min(MOST_BYTES, max(0, count * WIDTHS.get(str(dtype), width)))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + length]}
        end += length
        known = np.dtype(DTYPES.get(str(dtype), "u1")).str
        start = f"{name} {known} {tuple(sizes)}".encode("utf-8", "replace")
        sums[name] = zlib.crc32(bytes(length), zlib.crc32(start))
    text = str(described.get("metadata_text") or json.dumps(described.get("metadata")))
    checksums = json.dumps(described.get("sums", sums))
    header["__metadata__"] = {
        "omnidraft_adapter": text,
        "crc32": checksums,
        "header_crc32": str(zlib.crc32((text + checksums).encode())),
    }
    start = json.dumps(header).encode()
    return len(start).to_bytes(8, "little") + start + bytes(end)
