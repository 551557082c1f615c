"""The header of a GGUF, in one file or several: its metadata, and where its tensors lie.

The gguf library makes several numpy views for every token of a vocabulary, which takes it many
seconds for 262,144 tokens; here the same takes a fraction of a second. A file may come from
anywhere, so that counts and sizes are checked before memory is taken for them.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError

_MAGIC = b"GGUF"
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
# A name and a number of dimensions are followed by these, at least.
_LEAST_ENTRY = 13
_MOST_DIMENSIONS = 4
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)
_MOST_PARTS = 1000
# Of all arrays together. The largest vocabularies have 262,144 tokens and twice as many merges.
_MOST_ELEMENTS = 1 << 23
_LARGEST_ALIGNMENT = 1 << 20


@dataclass(frozen=True)
class GgufTensor:
    """A tensor's place: ``kind`` is the number of its type, ``shape`` is [out, in] or [n]."""

    name: str
    path: Path
    shape: tuple[int, ...]
    kind: int
    offset: int
    """Of its first byte in the file."""


@dataclass(frozen=True)
class GgufHeader:
    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]


def is_gguf(path: Path) -> bool:
    """Whether a path is a GGUF file, whatever its name, by its first bytes.

    Raises:
        OSError: the file cannot be read.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def gguf_parts(path: Path) -> list[Path]:
    """The files that ``NAME-00002-of-00003.gguf`` stands for by its name, whichever it is."""
    found = _PART.fullmatch(path.name)
    if found is None:
        return [path]
    name, number, count, suffix = found.groups()
    if not 0 < int(number) <= int(count) <= _MOST_PARTS:
        return [path]
    return [
        path.with_name(f"{name}-{i + 1:0{len(number)}}-of-{count}{suffix}")
        for i in range(int(count))
    ]


def read_gguf(path: Path, wanted: Callable[[str], bool] = lambda key: True) -> GgufHeader:
    """The header of a GGUF, in one file or in parts, as llama.cpp splits them.

    Args:
        path: the file, or any of the parts. The others lie beside it.
        wanted: whether a field of the metadata is to be read, by its key; others are skipped, but
            for those that say how a GGUF is split.

    Raises:
        ModelNotFoundError: a part is missing.
        DamagedFileError: not a GGUF file (version 2 or 3, little-endian), or cut off; or the parts
            are not of one model.
        OSError: a file cannot be read.
    """

    def read(part: Path) -> GgufHeader:
        return _read_file(part, lambda key: wanted(key) or key.startswith("split."))

    header = read(path)
    count = header.metadata.get("split.count", 1)
    if count in (0, 1):
        return header
    number, parts = header.metadata.get("split.no"), gguf_parts(path)
    if type(count) is not int or type(number) is not int or not 0 <= number < count:
        raise DamagedFileError(f"{path}: split.no = {number!r:.60} of split.count = {count!r:.60}.")
    if len(parts) != count or parts[number] != path:
        raise DamagedFileError(
            f"{path} is part {number + 1} of {count} of a GGUF, and by this name the others cannot "
            f"be found. Name it as it was published: …-{number + 1:05}-of-{count:05}.gguf."
        )
    if missing := [i for i, part in enumerate(parts, 1) if not part.is_file()]:
        raise ModelNotFoundError(
            f"{parts[missing[0] - 1]} is not there, part {missing[0]} of {count} of this GGUF. "
            "Fetch it too, into the same folder."
        )
    return _joined([header if part == path else read(part) for part in parts], parts)


def _joined(headers: list[GgufHeader], parts: list[Path]) -> GgufHeader:
    """All tensors, and the first part's metadata."""
    first = headers[0].metadata
    total = first.get("split.tensors.count")
    for i, (header, part) in enumerate(zip(headers, parts, strict=True)):
        said = [header.metadata.get(f"split.{key}") for key in ("no", "count", "tensors.count")]
        if said != [i, len(parts), total]:
            raise DamagedFileError(
                f"{part} is not part {i + 1} of {len(parts)} of the same GGUF as {parts[0].name}. "
                "Fetch the parts again."
            )
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    if len({tensor.name for tensor in tensors}) != total:
        raise DamagedFileError(
            f"{parts[0]} and its other parts hold {len(tensors):,} tensors, but say that there are "
            f"{total!r:.60}. Fetch the parts again."
        )
    return GgufHeader(first, tensors)


def _read_file(path: Path, wanted: Callable[[str], bool]) -> GgufHeader:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).header(path, wanted)
    except (ValueError, struct.error) as error:
        # The reader's own reasons are sentences; struct tells of its buffer.
        reason = "it is cut off" if isinstance(error, struct.error) else error
        reason = reason if path.stat().st_size else "it is empty"
        raise DamagedFileError(
            f"{path} is not a readable GGUF file ({reason}). Fetch or copy it again."
        ) from error


def read_gguf_metadata(path: Path, prefix: str = "") -> dict[str, Any]:
    """The metadata of a GGUF file whose keys start with ``prefix``, the prefix left in place.

    Raises:
        See ``read_gguf``.
    """
    metadata = read_gguf(path, lambda key: key.startswith(prefix)).metadata
    return {key: value for key, value in metadata.items() if key.startswith(prefix)}


class _Reader:
    """Reads on from a position; ``ValueError`` and ``struct.error`` say that it cannot."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._position = 0
        self._elements = 0

    def header(self, path: Path, wanted: Callable[[str], bool]) -> GgufHeader:
        if self._take(len(_MAGIC)) != _MAGIC:
            raise ValueError("its first bytes are not 'GGUF'")
        (version,) = self._numbers("I")
        if version not in (2, 3):
            if version & 0xFFFF == 0:
                raise ValueError("it is big-endian, little-endian ones can be read")
            raise ValueError(f"version {version}; 2 and 3 can be read")
        tensors, fields = self._numbers("QQ")
        for count in (tensors, fields):
            self._check_room(count * _LEAST_ENTRY)
        metadata: dict[str, Any] = {}
        alignment = 32
        for key, value in self._fields(fields, wanted):
            if key in metadata:
                raise ValueError(f"{key} is there twice")
            if key == "general.alignment":
                alignment = value
            if wanted(key):
                metadata[key] = value
        if (
            type(alignment) is not int
            or not 0 < alignment <= _LARGEST_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise ValueError(f"general.alignment = {alignment!r:.60} is no power of two")
        entries = [self._tensor() for _ in range(tensors)]
        if len({name for name, *_ in entries}) < tensors:
            raise ValueError("two of its tensors have the same name")
        start = -(-self._position // alignment) * alignment
        return GgufHeader(
            metadata,
            tuple(
                GgufTensor(name, path, shape, kind, start + offset)
                for name, shape, kind, offset in entries
            ),
        )

    def _fields(self, count: int, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
        for _ in range(count):
            key = self._string()
            (kind,) = self._numbers("I")
            yield key, self._value(kind, wanted(key) or key == "general.alignment")

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        (dimensions,) = self._numbers("I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"{name:.60} has {dimensions} dimensions")
        # The format names the innermost first.
        shape = self._numbers(f"{dimensions}Q")[::-1]
        kind, offset = self._numbers("IQ")
        return name, shape, kind, offset

    def _value(self, kind: int, wanted: bool) -> Any:
        if kind == _STRING:
            return self._string() if wanted else self._skip_string()
        if kind != _ARRAY:
            return self._numbers(_form(kind))[0]
        kind, count = self._numbers("IQ")
        self._elements += count
        if self._elements > _MOST_ELEMENTS:
            raise ValueError(f"its lists have more than {_MOST_ELEMENTS:,} entries")
        if kind == _STRING:
            self._check_room(8 * count)
            read = self._string if wanted else self._skip_string
            return [read() for _ in range(count)]
        if kind == _ARRAY:
            raise ValueError("a list of lists")
        return list(self._numbers(f"{count}{_form(kind)}"))

    def _string(self) -> str:
        (length,) = self._numbers("Q")
        return self._take(length).decode("utf-8", "replace")

    def _skip_string(self) -> None:
        (length,) = self._numbers("Q")
        self._check_room(length)
        self._position += length

    def _numbers(self, form: str) -> tuple[Any, ...]:
        form = f"<{form}"
        values = struct.unpack_from(form, self._data, self._position)
        self._position += struct.calcsize(form)
        return values

    def _take(self, length: int) -> bytes:
        self._check_room(length)
        start = self._position
        self._position += length
        return self._data[start : self._position]

    def _check_room(self, length: int) -> None:
        if length > len(self._data) - self._position:
            raise ValueError("it is cut off")


def _form(kind: int) -> str:
    if kind not in _NUMBERS:
        raise ValueError(f"a value of type {kind}, which the format does not have")
    return _NUMBERS[kind]
