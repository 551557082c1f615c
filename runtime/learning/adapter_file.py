"""An adapter as one file: its format on disk.

It is a safetensors file. Its header holds the metadata and a CRC-32 of every tensor. A stronger
hash would cost most of the time that a switch may take, on CPUs without SHA instructions, and it is
damage that is to be found, not forgery. A reader that wants to generate need not read the
optimizer's state. The store's files are the same as those that are exported and imported; they hold
no paths.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.learning.adapter import SCHEMA_VERSION, Adapter, Metadata
from omnidraft.runtime.storage.reading import reading
from omnidraft.runtime.storage.validation import mistakes

MEND: Final = (
    ". Delete it, or put a whole copy in its place (`omnidraft adapters import COPY --replace`)."
)

_LORA_NAME = re.compile(r"lora\.\d+\.\w+\.[AB]")
# Keys of the safetensors header.
_METADATA, _CHECKSUMS, _HEADER_CHECKSUM = "omnidraft_adapter", "crc32", "header_crc32"
_EXPORTED_AS = "name"
"""In exported files only: a stored file has its name."""


def to_bytes(adapter: Adapter, metadata: Metadata, exported_as: str | None = None) -> bytes:
    """The file of an adapter.

    Args:
        exported_as: its name, for ``exported_name``.

    Raises:
        OmniDraftError: the adapter does not hold together.
    """
    if mistake := _mistake(adapter):
        raise OmniDraftError(f"The adapter does not hold together: {mistake}.")
    tensors = {
        **adapter.lora,
        **{f"head.{name}": values for name, values in adapter.head.items()},
        **{f"optimizer.{name}": values for name, values in adapter.optimizer.items()},
    }
    if adapter.ngrams:
        tensors["ngrams"] = np.frombuffer(adapter.ngrams, np.uint8)
    tensors = {name: np.asarray(values, order="C") for name, values in tensors.items()}
    text = metadata.model_copy(update={"rank": adapter.rank}).model_dump_json()
    checksums = json.dumps({name: _checksum(name, values) for name, values in tensors.items()})
    header = {
        _METADATA: text,
        _CHECKSUMS: checksums,
        _HEADER_CHECKSUM: str(zlib.crc32((text + checksums).encode())),
    }
    if exported_as is not None:
        header[_EXPORTED_AS] = exported_as
    try:
        return bytes(to_safetensors(tensors, header))
    except (SafetensorError, KeyError, ValueError) as error:
        raise OmniDraftError(f"The adapter cannot be written: {error}.") from error


def exported_name(path: Path) -> str:
    """The name that the adapter in an exported file had; else the file's."""
    with suppress(OSError, SafetensorError), safe_open(path, framework="numpy") as tensors:
        return str((tensors.metadata() or {}).get(_EXPORTED_AS, path.stem))
    return path.stem


def _mistake(adapter: Adapter) -> str:
    """Why an adapter's LoRA does not hold together; empty where it does."""
    for name, values in adapter.lora.items():
        if not _LORA_NAME.fullmatch(name):
            return f"{name!r} names no LoRA input: lora.LAYER.LINEAR.A or .B does"
        stem, part = name[:-1], name[-1]
        if f"{stem}{'B' if part == 'A' else 'A'}" not in adapter.lora:
            return f"it has {name} without its other half"
        if values.dtype != np.float32 or values.ndim != 2:
            return f"{name} is {values.dtype} {list(values.shape)}, a float32 matrix is expected"
        if (rank := values.shape[1 if part == "A" else 0]) != adapter.rank:
            return f"{name} has rank {rank}, other inputs have {adapter.rank}"
        if not np.isfinite(values).all():
            return f"{name} holds values that are not finite: learning diverged"
    return ""


def read_adapter(path: Path, *, optimizer: bool = True) -> Adapter:
    """Read a file that ``to_bytes`` made, and compare every tensor with its checksum."""
    parts: dict[str, dict[str, NDArray[Any]]] = {"lora": {}, "head": {}, "optimizer": {}}
    ngrams = b""
    with _opened(path) as (tensors, metadata, checksums):
        for name, expected in checksums.items():
            part, _, rest = name.partition(".")
            if part == "optimizer" and not optimizer:
                continue
            values = tensors.get_tensor(name)
            if _checksum(name, values) != expected:
                raise _damaged(path, f"{name} fails its checksum")
            if name == "ngrams":
                ngrams = values.tobytes()
            elif part == "lora":
                parts[part][name] = values
            elif part in parts:
                parts[part][rest] = values
            else:
                raise _damaged(path, f"it holds a tensor {name!r}")
        adapter = Adapter(metadata, parts["lora"], ngrams, parts["head"], parts["optimizer"])
        if mistake := _mistake(adapter):
            raise _damaged(path, mistake)
    return adapter


def read_metadata(path: Path) -> Metadata:
    """Read whose an adapter is, and leave its tensors."""
    with _opened(path) as (_, metadata, _):
        return metadata


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Metadata, dict[str, int]]]:
    """An adapter's file: its tensors (read one by one), metadata and tensors' checksums.

    What is raised while it is open is told of the file: only a reader may use it.
    """
    if not path.is_file():
        raise missing(path)
    with reading(path):
        try:
            with safe_open(path, framework="numpy") as tensors:
                metadata, checksums = _parse_header(path, tensors.metadata() or {})
                if set(tensors.keys()) != set(checksums):
                    raise _damaged(path, "its list of tensors is not the one that was written")
                yield tensors, metadata, checksums
        except FileNotFoundError as error:
            raise missing(path) from error
        except SafetensorError as error:
            raise _damaged(path, str(error)) from error


def _parse_header(path: Path, header: Mapping[str, str]) -> tuple[Metadata, dict[str, int]]:
    text, sums = header.get(_METADATA), header.get(_CHECKSUMS)
    if text is None or sums is None:
        raise DamagedFileError(f"{path} is no adapter of omnidraft.")
    if header.get(_HEADER_CHECKSUM) != str(zlib.crc32((text + sums).encode())):
        raise _damaged(path, "its metadata fail their checksum")
    try:
        version = json.loads(text)["schema_version"]
        if version > SCHEMA_VERSION:
            raise OmniDraftError(
                f"{path} was written by a newer omnidraft (schema version {version}, this one "
                f"reads {SCHEMA_VERSION}). Update omnidraft."
            )
        return Metadata.model_validate_json(text), dict(json.loads(sums))
    except ValidationError as error:
        raise _damaged(path, mistakes(error)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, repr(error)) from error


def _checksum(name: str, values: NDArray[Any]) -> int:
    """CRC-32 of a tensor with its name, dtype and shape, which a header might get wrong."""
    start = zlib.crc32(f"{name} {values.dtype.str} {values.shape}".encode())
    return zlib.crc32(values.reshape(-1).view(np.uint8).data, start)


def missing(path: Path) -> ModelNotFoundError:
    """The error of a file that is not there."""
    return ModelNotFoundError(
        f"There is no adapter {path}. `omnidraft adapters list` shows which there are."
    )


def _damaged(path: Path, reason: str) -> DamagedFileError:
    return DamagedFileError(f"{path} is damaged: {reason}{MEND}")
