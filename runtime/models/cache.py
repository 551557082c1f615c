"""The cache folder: where converted models lie."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models.catalogue import PACKAGED_MODELS
from omnidraft.runtime.models.progress import Progress
from omnidraft.runtime.storage.files import expanded
from omnidraft.runtime.storage.manifest import Manifest

_LOCK_TIMEOUT = 3600


def cache_folder() -> Path:
    """Where converted models are kept: ``$OMNIDRAFT_CACHE`` or the user's cache folder."""
    chosen = os.environ.get("OMNIDRAFT_CACHE")
    return expanded(chosen) if chosen else platformdirs.user_cache_path("omnidraft")


def cache_subfolder(name: str) -> Path:
    folder = cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OmniDraftError(
            f"The cache folder {folder} cannot be created ({error}). "
            "Set OMNIDRAFT_CACHE to a folder that can be written."
        ) from error
    return folder


@contextmanager
def lock(path: Path, progress: Progress) -> Iterator[None]:
    """Keep other processes from working on ``path`` meanwhile.

    Raises:
        OmniDraftError: another process works on it for an hour, or no lock can be had there.
    """
    file = path.with_name(f"{path.name}.lock")
    lock = FileLock(file)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress("waiting for another process that prepares this model", None)
            lock.acquire(timeout=_LOCK_TIMEOUT)
    except Timeout as error:
        raise OmniDraftError(
            f"Another process has been preparing {path.name} for an hour. "
            f"If there is none, remove {file}."
        ) from error
    except (OSError, NotImplementedError) as error:  # the latter: a file system without locks
        raise OmniDraftError(
            f"Nothing can be prepared in {path.parent} "
            f"({getattr(error, 'strerror', None) or error}). "
            "Set OMNIDRAFT_CACHE to a folder that can be written."
        ) from error
    try:
        yield
    finally:
        if not path.exists():
            # A name that does not exist leaves nothing behind.
            with suppress(OSError):
                file.unlink()
        lock.release()


@dataclass(frozen=True)
class ListedModel:
    """A model that is known by name or lies in the cache."""

    name: str
    quantization: str | None
    """None for a known model that is not here yet."""
    path: Path | None
    size: int
    """Bytes on disk."""
    description: str
    licence: str


def list_models() -> list[ListedModel]:
    """The models known by name, and every converted model in the cache."""
    listed = []
    models = cache_folder() / "models"
    for folder in sorted(models.glob("*/")) if models.is_dir() else []:
        try:
            manifest = Manifest.load(folder)
        except OmniDraftError:
            continue  # half-removed or of another version: `pull` mends it
        extra = manifest.extra
        listed.append(
            ListedModel(
                name=str(extra.get("name", folder.name)),
                quantization=manifest.quantization,
                path=folder,
                size=sum(int(entry["size"]) for entry in manifest.files.values()),
                description=str(extra.get("description", manifest.architecture)),
                licence=str(extra.get("licence", "")),
            )
        )
    here = {model.name for model in listed}
    for model in PACKAGED_MODELS.values():
        if model.name not in here:
            listed.append(ListedModel(model.name, None, None, 0, model.description, model.licence))
    return listed
