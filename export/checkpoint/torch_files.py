"""Weights that PyTorch saved (``pytorch_model.bin``), read without PyTorch and without unpickling.

Such a file is a zip archive: ``data.pkl`` says how tensors are made of storages, each of which is
an uncompressed file of numbers. A pickle may call any function of any module, so Python's unpickler
is not let near it. What is here knows the few operations of which weights are made, calls nothing
that the file names, and refuses the rest by name.
"""

from __future__ import annotations

import math
import pickletools
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.errors import DamagedFileError, OmniDraftError
from omnidraft.runtime.storage.reading import reading

# Kinds of storages: safetensors' name, and numpy's.
_TYPES: dict[str, tuple[str, Any]] = {
    "DoubleStorage": ("F64", np.float64),
    "FloatStorage": ("F32", np.float32),
    "HalfStorage": ("F16", np.float16),
    "BFloat16Storage": ("BF16", ml_dtypes.bfloat16),
    "LongStorage": ("I64", np.int64),
    "IntStorage": ("I32", np.int32),
    "ShortStorage": ("I16", np.int16),
    "CharStorage": ("I8", np.int8),
    "ByteStorage": ("U8", np.uint8),
    "BoolStorage": ("BOOL", np.bool_),
}
# A tensor takes some 150 bytes of the pickle.
_LARGEST_PICKLE = 1 << 25
_MOST_DIMENSIONS = 8
_LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."


@dataclass(frozen=True)
class _Storage:
    kind: str
    key: str
    count: int


@dataclass(frozen=True)
class _Tensor:
    """Elements ``offset + sum(index * stride)`` of a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _Global:
    """A name that a pickle may use. It stands for itself: nothing is imported."""

    name: str


class TorchFile:
    """The tensors of a file, with the part of ``safetensors.safe_open``'s interface used here.

    Raises:
        DamagedFileError: it is not such a file, or a part of it does not fit the others.
        OmniDraftError: it asks for more than weights need, or was saved by an old PyTorch.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with reading(path):
            self._read()

    def _read(self) -> None:
        path = self._path
        try:
            with zipfile.ZipFile(path) as archive:
                self._entries = {entry.filename: entry for entry in archive.infolist()}
                pickles = [name for name in self._entries if name.endswith("/data.pkl")]
                if len(pickles) != 1:
                    raise ValueError("it holds no data.pkl, or several")
                self._root = pickles[0].removesuffix("data.pkl")
                order = self._small(archive, "byteorder", 16) or b"little"
                if order != b"little":
                    raise ValueError(f"its byte order is {order!r}")
                pickled = self._small(archive, "data.pkl", _LARGEST_PICKLE) or b""
            self._data = np.memmap(path, np.uint8, "r")
            self._tensors = _tensors_of(_unpickled(pickled))
        except _RefusedError as error:
            raise OmniDraftError(f"{path} {error}") from error
        except zipfile.BadZipFile as error:
            self._refuse_legacy(error)

    def metadata(self) -> Mapping[str, str]:
        return {}

    def keys(self) -> Iterable[str]:
        return self._tensors.keys()

    def get_slice(self, name: str) -> TorchSlice:
        tensor = self._tensors[name]
        kind, dtype = _TYPES[tensor.storage.kind]
        storage = self._storage(tensor.storage, np.dtype(dtype))
        if len(tensor.shape) > _MOST_DIMENSIONS or len(tensor.shape) != len(tensor.strides):
            raise self._damaged(f"{name} has {len(tensor.shape)} dimensions")
        # A tensor that repeats its storage would be larger than its file says.
        last = tensor.offset + sum(
            (size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True)
        )
        if math.prod(tensor.shape) > len(storage) or not last < len(storage):
            raise self._damaged(f"{name} is larger than its storage")
        view = np.lib.stride_tricks.as_strided(
            storage[tensor.offset :],
            tensor.shape,
            [stride * storage.itemsize for stride in tensor.strides],
            writeable=False,
        )
        return TorchSlice(kind, view)

    def _storage(self, storage: _Storage, dtype: np.dtype[Any]) -> NDArray[Any]:
        """A storage's numbers, mapped into memory."""
        name = f"{self._root}data/{storage.key}"
        entry = self._entries.get(name)
        size = storage.count * dtype.itemsize
        if entry is None or entry.compress_type != zipfile.ZIP_STORED or entry.file_size < size:
            raise self._damaged(f"it holds no {name} of {size:,} bytes")
        header = self._data[entry.header_offset : entry.header_offset + 30].tobytes()
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            raise self._damaged(f"{name} is not where it is said to be")
        start = entry.header_offset + 30 + sum(struct.unpack_from("<HH", header, 26))
        if start + size > len(self._data):
            raise self._damaged("it is cut off")
        return np.frombuffer(self._data, dtype, storage.count, start)

    def _small(self, archive: zipfile.ZipFile, name: str, most: int) -> bytes | None:
        entry = self._entries.get(self._root + name)
        if entry is None:
            return None
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > most:
            raise ValueError(f"{name} is compressed or has {entry.file_size:,} bytes")
        return archive.read(entry)

    def _refuse_legacy(self, error: Exception) -> NoReturn:
        with self._path.open("rb") as file:
            if file.read(len(_LEGACY)) == _LEGACY:
                raise OmniDraftError(
                    f"{self._path} was saved in the form that PyTorch had before 1.6, which is not "
                    "read here. Load it there and save the model with save_pretrained()."
                ) from error
        raise self._damaged(error) from error

    def _damaged(self, what: object) -> DamagedFileError:
        return DamagedFileError(
            f"{self._path} cannot be read as weights that PyTorch saved: {what}. "
            "Fetch the model again, or take its safetensors."
        )


class TorchSlice:
    """A tensor, as ``safetensors`` gives slices of one."""

    def __init__(self, kind: str, values: NDArray[Any]) -> None:
        self._kind = kind
        self._values = values

    def get_shape(self) -> list[int]:
        return list(self._values.shape)

    def get_dtype(self) -> str:
        return self._kind

    def __getitem__(self, index: slice) -> NDArray[Any]:
        return self._values[index]


# --- the pickle --------------------------------------------------------------------------------


class _RefusedError(Exception):
    """A pickle asks for more than weights need."""


_MARK = object()
_ORDERED_DICT = "collections.OrderedDict"
_TENSOR, _PARAMETER = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"
_GLOBALS = {_ORDERED_DICT, _TENSOR, _PARAMETER, *(f"torch.{name}" for name in _TYPES)}
_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINSTRING", "SHORT_BINSTRING"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _unpickled(data: bytes) -> Any:
    """What a pickle describes, made of dicts, lists, tuples, numbers, texts and ``_Tensor``s.

    Every operation takes a byte of the pickle at least and makes one object at most.

    Raises:
        _RefusedError: it uses an operation or a name that weights do not need.
        ValueError, TypeError, LookupError: it is no pickle.
    """
    stack: list[Any] = []
    memo: dict[Any, Any] = {}

    def since_mark() -> list[Any]:
        place = next(i for i in reversed(range(len(stack))) if stack[i] is _MARK)
        items = stack[place + 1 :]
        del stack[place:]
        return items

    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name in ("PROTO", "FRAME"):
            continue
        if name == "STOP":
            return stack.pop()
        if name == "MARK":
            stack.append(_MARK)
        elif name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "TUPLE":
            stack.append(tuple(since_mark()))
        elif name in _TUPLES:
            items = [stack.pop() for _ in range(_TUPLES[name])]
            stack.append(tuple(reversed(items)))
        elif name in ("APPEND", "APPENDS"):
            added = [stack.pop()] if name == "APPEND" else since_mark()
            _expect(stack[-1], list).extend(added)
        elif name in ("SETITEM", "SETITEMS"):
            items = since_mark() if name == "SETITEMS" else [stack.pop(), stack.pop()][::-1]
            keys = map(_key, items[::2])
            _expect(stack[-1], dict).update(zip(keys, items[1::2], strict=True))
        elif name == "GLOBAL":
            stack.append(_named(str(argument).replace(" ", ".", 1)))
        elif name == "STACK_GLOBAL":
            attribute, module = _expect(stack.pop(), str), _expect(stack.pop(), str)
            stack.append(_named(f"{module}.{attribute}"))
        elif name == "BINPERSID":
            stack.append(_storage_of(stack.pop()))
        elif name == "REDUCE":
            arguments = _expect(stack.pop(), tuple)
            stack.append(_made(_expect(stack.pop(), _Global), arguments))
        elif name == "BUILD":
            # What PyTorch notes of modules' versions.
            _expect(stack.pop(), dict)
            _expect(stack[-1], dict)
        else:
            raise _RefusedError(_message(f"pickle's {name}"))
    raise ValueError("its pickle has no end")


def _expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"its pickle has a {type(value).__name__} in place of a {kind.__name__}")
    return value


def _key(value: Any) -> Any:
    # Tuples that hold each other twice over would take ages to hash, and to show.
    if type(value) not in (str, int, float, bool):
        raise TypeError(f"its pickle has a {type(value).__name__} as a key")
    return value


def _named(name: str) -> _Global:
    if name not in _GLOBALS:
        raise _RefusedError(_message(f"{name:.100}"))
    return _Global(name)


def _message(what: str) -> str:
    return (
        f"asks for {what}, of which weights have no need. Nothing of it was run. Take the model's "
        "safetensors, and do not trust this file."
    )


def _storage_of(value: Any) -> _Storage:
    label, kind, key, _, count = _expect(value, tuple)
    name = _expect(kind, _Global).name.removeprefix("torch.")
    if label != "storage" or name not in _TYPES or not _counts(count):
        raise ValueError("its pickle names no storage")
    return _Storage(name, _expect(key, str), count)


def _made(callee: _Global, arguments: tuple[Any, ...]) -> Any:
    if callee.name == _TENSOR:
        storage, offset, shape, strides, *_ = arguments
        shape, strides = _expect(shape, tuple), _expect(strides, tuple)
        if not _counts(offset, *shape, *strides):
            raise ValueError("its pickle has a tensor of no shape")
        return _Tensor(_expect(storage, _Storage), offset, shape, strides)
    if callee.name == _PARAMETER:
        return _expect(arguments[0], _Tensor)
    if callee.name == _ORDERED_DICT and not arguments:
        return {}
    raise _RefusedError(_message(f"a call of {callee.name}"))


def _counts(*values: Any) -> bool:
    return all(type(value) is int and 0 <= value < 1 << 48 for value in values)


def _tensors_of(state: Any) -> dict[str, _Tensor]:
    def tensors() -> Iterator[tuple[str, _Tensor]]:
        for name, value in _expect(state, dict).items():
            if type(name) is not str or type(value) is not _Tensor:
                raise _RefusedError(
                    f"holds more than a model's weights: {name!r:.60} is a "
                    f"{type(value).__name__}. Save the model with save_pretrained()."
                )
            yield name, value

    return dict(tensors())
