"""The cache folder: where converted models lie."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models.progress import Progress
from omnidraft.runtime.storage.files import expanded

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
def lock(path: Path, progress: Progress, purpose: str = "prepared") -> Iterator[None]:
    """Keep other processes from working on ``path`` meanwhile.

    Args:
        path: a folder, which need not exist.
        progress: told when it has to wait.
        purpose: what is to be done, for a refusal.

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
            f"Nothing can be {purpose} in {path.parent} "
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
