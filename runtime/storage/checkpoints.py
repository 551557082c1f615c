"""The files of a checkpoint: a GGUF, or a folder with safetensors or PyTorch's files."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError
from omnidraft.runtime.storage.gguf import gguf_parts, is_gguf
from omnidraft.runtime.storage.manifest import file_sha256
from omnidraft.runtime.storage.reading import LARGEST_JSON, read_bounded, reading

# Weights as files are called, and the name of one that holds all.
_FORMS = {"*.safetensors": "model.safetensors", "pytorch_model*.bin": "pytorch_model.bin"}
_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)(\.\w+)")
_MOST_SHARDS = 10_000
# A LoRA, and Mistral's own form of weights that are there in Hugging Face's too.
_NOT_WHOLE = {"adapter_model.safetensors", "consolidated.safetensors"}


def is_checkpoint(path: Path) -> bool:
    """Whether a path is a GGUF, or a folder with config.json that has or should have weights."""
    if path.is_file():
        return is_gguf(path) or path.suffix.lower() == ".gguf"  # the latter: a damaged one
    return (path / "config.json").is_file() and any(
        any(path.glob(f"{pattern}*")) for pattern in _FORMS
    )


def source_files(source: Path) -> list[Path]:
    """Files that a checkpoint's content depends on, in a fixed order."""
    if source.is_file():
        return [part for part in gguf_parts(source) if part.is_file()]
    return [source / "config.json", *weight_files(source)]


def weight_files(folder: Path) -> list[Path]:
    """The files with a folder's weights, in a fixed order.

    As transformers does, safetensors are preferred to PyTorch's files, and one whole file to
    shards, whose index may be left over.

    Raises:
        ModelNotFoundError: there is none, or a shard is missing.
        DamagedFileError: the index of shards cannot be read.
    """
    with reading(folder):
        return _weight_files(folder)


def _weight_files(folder: Path) -> list[Path]:
    files: list[Path] = []
    for pattern, whole in _FORMS.items():
        if (single := folder / whole).is_file():
            return [single]
        index = folder / f"{whole}.index.json"
        found = _shards(index) if index.is_file() else _loose_files(folder, pattern)
        files = files or found
        if any(path.is_file() for path in found):
            files = found
            break
    if not files:
        raise ModelNotFoundError(
            f"{folder} has no weights (*.safetensors or pytorch_model.bin) beside config.json."
        )
    if missing := [path.name for path in files if not path.is_file()]:
        raise ModelNotFoundError(
            f"{folder} lacks {', '.join(missing[:3])}{' …' * (len(missing) > 3)}: "
            f"{len(files) - len(missing)} of {len(files)} files with weights are there. "
            "Fetch the others too."
        )
    return files


def _shards(index: Path) -> list[Path]:
    """The files that an index of shards names, which lie beside it."""
    shards = load_json(index).get("weight_map")
    if not (
        isinstance(shards, dict)
        and shards
        and all(isinstance(s, str) and s and Path(s).name == s for s in shards.values())
    ):
        raise DamagedFileError(
            f"{index} has no weight_map that names each tensor's file. Fetch the model again."
        )
    return [index.with_name(shard) for shard in sorted(set(shards.values()))]


def _loose_files(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder without an index, those that their numbers say are missing included."""
    files = {path for path in folder.glob(pattern) if path.name not in _NOT_WHOLE}
    for path in list(files):
        if found := _SHARD.fullmatch(path.name):
            name, number, count, suffix = found.groups()
            for i in range(1, min(int(count), _MOST_SHARDS) + 1):
                files.add(folder / f"{name}-{i:0{len(number)}}-of-{count}{suffix}")
    return sorted(files)


def load_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        DamagedFileError: it holds none.
    """
    try:
        value = json.loads(read_bounded(path, LARGEST_JSON))
    except (ValueError, RecursionError, OSError) as error:
        raise DamagedFileError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise DamagedFileError(f"{path} does not hold a JSON object.")
    return value


def source_sha256(source: Path) -> str:
    """A file's sha256; for a folder, the sha256 of its files' sha256 in order."""
    digests = [file_sha256(path) for path in source_files(source)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()
