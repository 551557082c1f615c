"""Read a GGUF file's metadata quickly.

The gguf library makes several numpy views for every token of a vocabulary, which takes it many
seconds for 262,144 tokens; here the same takes a fraction of a second.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omnidraft.runtime.errors import DamagedFileError

# The format's value types: numbers by their struct format.
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9


def read_gguf_metadata(path: Path, prefix: str = "") -> dict[str, Any]:
    """The metadata of a GGUF file whose keys start with ``prefix``, the prefix left in place.

    Raises:
        DamagedFileError: not a GGUF file (version 2 or 3, little-endian), or cut off.
        OSError: the file cannot be read.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:4] != b"GGUF":
                raise ValueError("its first bytes are not 'GGUF'")
            return {key: value for key, value in _entries(data) if key.startswith(prefix)}
    except (ValueError, struct.error, KeyError, RecursionError) as error:
        raise DamagedFileError(
            f"{path} is not a readable GGUF file ({error}). Fetch or copy it again."
        ) from error


def _entries(data: mmap.mmap) -> Iterator[tuple[str, Any]]:
    version, _, count = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise ValueError(f"version {version}; 2 and 3 can be read")
    position = 24
    for _ in range(count):
        key, position = _string(data, position)
        (kind,) = struct.unpack_from("<I", data, position)
        value, position = _value(data, position + 4, kind)
        yield key, value


def _string(data: mmap.mmap, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, position)
    end = position + 8 + length
    if end > len(data):
        raise ValueError("it is cut off")
    return data[position + 8 : end].decode("utf-8", "replace"), end


def _value(data: mmap.mmap, position: int, kind: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _string(data, position)
    if kind != _ARRAY:
        form = "<" + _NUMBERS[kind]
        return struct.unpack_from(form, data, position)[0], position + struct.calcsize(form)
    element, count = struct.unpack_from("<IQ", data, position)
    position += 12
    if count > len(data):
        raise ValueError("it is cut off")
    if element in _NUMBERS:
        form = f"<{count}{_NUMBERS[element]}"
        return list(struct.unpack_from(form, data, position)), position + struct.calcsize(form)
    values = []
    for _ in range(count):
        value, position = _value(data, position, element)
        values.append(value)
    return values, position
