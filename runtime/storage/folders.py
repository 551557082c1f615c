"""Folders that appear whole or not at all."""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from omnidraft.runtime.errors import OmniDraftError

# The last is what a limit on the size of files gives.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What compilers and exporters of others say of a full disk: the system's words, or Qualcomm's own.
_FULL_TEXTS = (*map(os.strerror, _FULL), "Failed to write context cache file")
# In every scratch folder, and locked while its process lives.
_LOCK = "omnidraft.lock"
# What was at the output, while something takes its place.
_OLD = "old"


@contextmanager
def whole_folder(output: Path) -> Iterator[Path]:
    """A temporary folder beside ``output`` that takes its place when the block ends well.

    It is removed on any failure, a KeyboardInterrupt included, and so are parent folders that were
    made for it; what was at ``output`` stays then. What a killed process left is removed the next
    time that ``output`` is written.

    Raises:
        OmniDraftError: the folder cannot be made or put in place, or the disk is full.
    """
    made: list[Path] = []
    try:
        made += [parent for parent in output.parents if not parent.exists()]
        with _naming(output.parent):
            output.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(output) as scratch:
            # The scratch folder is one that only its owner may read.
            new = scratch / "new"
            with _naming(output.parent):
                new.mkdir()
            yield new
            _replace(new, output, scratch / _OLD)
    except Exception as error:
        if is_disk_full(error):
            raise OmniDraftError(
                f"The disk of {output.parent} is full; nothing was kept. Free space and try again."
            ) from error
        raise
    finally:
        for parent in made:
            with suppress(OSError):
                parent.rmdir()  # only if nothing is in it


@contextmanager
def scratch_folder(output: Path) -> Iterator[Path]:
    """A temporary folder beside ``output``, whose folder exists; removed when the block ends.

    Those that killed processes left for the same ``output`` are removed first.

    Raises:
        OmniDraftError: it cannot be made.
    """
    _sweep(output)
    scratch = lock = None
    try:
        with _naming(output.parent):
            while lock is None:
                # Named before it is made: an interruption in between must find it.
                scratch = output.with_name(f".{output.name}-{secrets.token_hex(4)}")
                scratch.mkdir(mode=0o700)
                lock = _locked(scratch)
        assert scratch is not None
        yield scratch
    finally:
        if lock is not None:
            lock.release()
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Say where no folder can be made."""
    try:
        yield
    except OSError as error:
        raise OmniDraftError(
            f"No folder can be made in {folder}: {error.strerror}. Choose another."
        ) from error


def _locked(scratch: Path) -> FileLock | None:
    """The lock of a new scratch folder, or None if a sweep took the folder before it was held."""
    lock = FileLock(scratch / _LOCK)
    with suppress(Timeout):
        lock.acquire(timeout=0)
        if (scratch / _LOCK).exists():
            return lock
        lock.release()
    return None


def _sweep(output: Path) -> None:
    """Remove scratch folders whose process is dead: nobody holds their lock.

    What was at ``output`` is put back if its process was killed before the new took its place.
    """
    # Names end with eight characters: ``out-2`` must not be taken for ``out``.
    pattern = f".{glob.escape(output.name)}-{'?' * 8}/{_LOCK}"
    for path in output.parent.glob(pattern):
        # It stays where this user may not remove it, and where a process still holds the lock.
        with suppress(OSError), FileLock(path, timeout=0):
            if (old := path.with_name(_OLD)).exists() and not output.exists():
                old.rename(output)
            shutil.rmtree(path.parent, ignore_errors=True)


def is_disk_full(error: Exception) -> bool:
    """Whether an error says that there is no room, or no quota, left to write."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    # Compilers and exporters that write files themselves raise errors of their own.
    return any(text in str(error) for text in _FULL_TEXTS)


def _replace(new: Path, output: Path, old: Path) -> None:
    """Rename ``new`` to ``output``, moving what is there out of the way first."""
    try:
        if output.exists():
            output.rename(old)
        new.rename(output)
    except BaseException as error:
        if old.exists() and not output.exists():
            old.rename(output)
        if isinstance(error, OSError):
            raise OmniDraftError(
                f"{output} cannot be replaced: {error.strerror}. Nothing was kept; choose another."
            ) from error
        raise
