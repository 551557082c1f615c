"""The files of a checkpoint as it was published: a GGUF file, or a folder with safetensors."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError
from omnidraft.runtime.storage.gguf import gguf_parts, is_gguf
from omnidraft.runtime.storage.manifest import file_sha256


def is_checkpoint(path: Path) -> bool:
    """Whether a path is a GGUF file, or a folder with config.json and safetensors."""
    if path.is_file():
        return is_gguf(path) or path.suffix.lower() == ".gguf"  # the latter: a damaged one
    return (path / "config.json").is_file() and any(path.glob("*.safetensors"))


def source_files(source: Path) -> list[Path]:
    """Files that a checkpoint's content depends on, in a fixed order."""
    if source.is_file():
        return [part for part in gguf_parts(source) if part.is_file()]
    return [source / "config.json", *weight_files(source)]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in a fixed order.

    Raises:
        ModelNotFoundError: there is none.
        DamagedFileError: the index of shards cannot be read.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = load_json(index).get("weight_map")
        if not (
            isinstance(shards, dict) and shards and all(isinstance(s, str) for s in shards.values())
        ):
            raise DamagedFileError(
                f"{index} has no weight_map that names each tensor's file. Fetch the model again."
            )
        return [folder / shard for shard in sorted(set(shards.values()))]
    if (single := folder / "model.safetensors").is_file():
        return [single]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelNotFoundError(f"{folder} has a config.json but no *.safetensors.")
    return files


def load_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        DamagedFileError: it holds none.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
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
