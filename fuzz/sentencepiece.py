"""A tokenizer.model and the files beside it: JSON by name, of the model its fields; or its bytes.

A message of protocol buffers is a list of fields, each a number and a value: a whole number, a
float, a text, or again a list of fields.
"""

from __future__ import annotations

import struct
from typing import Any

from fuzz.files import content, folder_of, parsed, refusing
from fuzz.tokenizer import use
from omnidraft.runtime.text.sentencepiece import MODEL_FILE
from omnidraft.runtime.text.tokenizer import Tokenizer

NAMES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "config.json",
)


def check(data: bytes) -> None:
    files = parsed(data)
    contents = {MODEL_FILE: data}
    if isinstance(files, dict):
        contents = {name: content(value) for name, value in files.items() if name in NAMES}
        contents[MODEL_FILE] = message(files.get(MODEL_FILE))
    with folder_of(contents) as folder, refusing():
        use(Tokenizer.load(folder))


def message(fields: Any) -> bytes:
    """The message that has these fields; what is no field is left out."""
    data = b""
    for field in fields if isinstance(fields, list) else ():
        if not (isinstance(field, list) and len(field) == 2 and isinstance(field[0], int)):
            continue
        number, value = field
        if isinstance(value, float):
            data += varint(number << 3 | 5) + struct.pack("<f", max(min(value, 1e38), -1e38))
        elif isinstance(value, int):
            data += varint(number << 3) + varint(value)
        else:
            inner = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b""
            inner = inner or message(value)
            data += varint(number << 3 | 2) + varint(len(inner)) + inner
    return data


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
