"""A GGUF file: JSON of its metadata and tensors, or its bytes. All of it is read.

A tensor is its shape, the number of its type and its offset.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from fuzz.files import folder_of, parsed, refusing
from fuzz.safetensors import use as use_checkpoint
from fuzz.tokenizer import use as use_tokenizer
from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.runtime.text.tokenizer import Tokenizer

MOST_BYTES = 100_000
ALIGNMENT = 32
FORMS = {bool: (7, "?"), int: (11, "q"), float: (12, "d")}
STRING, ARRAY = 8, 9


def check(data: bytes) -> None:
    described = parsed(data)
    if isinstance(described, dict):
        data = file_of(described)
    with folder_of({"model.gguf": data}) as folder:
        path = folder / "model.gguf"
        with refusing():
            use_tokenizer(Tokenizer.load(path))
        with refusing():
            use_checkpoint(open_checkpoint(path))


def file_of(described: Mapping[str, Any]) -> bytes:
    metadata, tensors = (_object(described.get(name)) for name in ("metadata", "tensors"))
    fields = b"".join(_text(key) + _value(value) for key, value in metadata.items())
    entries = b"".join(_tensor(name, entry) for name, entry in tensors.items())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + fields + entries
    length = described.get("length")
    weights = min(MOST_BYTES, max(0, length)) if isinstance(length, int) else 0
    return head + bytes(-len(head) % ALIGNMENT + weights)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(text: str) -> bytes:
    content = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(content)) + content


def _tensor(name: str, entry: Any) -> bytes:
    shape, kind, offset = (*entry, None, None, None)[:3] if isinstance(entry, list) else [None] * 3
    sizes = [_whole(size) for size in shape] if isinstance(shape, list) else []
    numbers = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return _text(name) + numbers + struct.pack("<IQ", _whole(kind) % 2**32, _whole(offset))


def _whole(value: Any) -> int:
    return value % 2**64 if isinstance(value, int) else 0


def _value(value: Any) -> bytes:
    """The value with its type; of a list that of the first entry, and an empty one has no texts."""
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    if not isinstance(value, list):
        kind, form = FORMS.get(type(value), (0, "B"))
        return struct.pack("<I", kind) + _number(value, form)
    first = value[0] if value else 0
    if isinstance(first, str):
        texts = [each for each in value if isinstance(each, str)]
        return struct.pack("<IIQ", ARRAY, STRING, len(texts)) + b"".join(map(_text, texts))
    kind, form = FORMS.get(type(first), (0, "B"))
    numbers = b"".join(_number(each, form) for each in value)
    return struct.pack("<IIQ", ARRAY, kind, len(value)) + numbers


def _number(value: Any, form: str) -> bytes:
    if form == "?":
        return struct.pack("<?", bool(value))
    number = value if isinstance(value, int | float) else 0
    if form == "d":
        return struct.pack("<d", number if isinstance(number, float) else float(number % 2**64))
    whole = int(number) if -(2.0**63) < number < 2.0**63 else 2**63 - 1
    return struct.pack(f"<{form}", whole if form == "q" else abs(whole) % 256)
