"""Folders that appear whole or not at all."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from omnidraft.runtime.errors import OmniDraftError

# The last is what a limit on the size of files gives.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def whole_folder(output: Path) -> Iterator[Path]:
    """A temporary folder beside ``output`` that takes its place when the block ends well.

    It is removed on any failure, a KeyboardInterrupt included, and so are parent folders that were
    made for it; what was at ``output`` stays then.

    Raises:
        OmniDraftError: the folder cannot be made or put in place, or the disk is full.
    """
    made: list[Path] = []
    scratch = None
    try:
        try:
            made += [parent for parent in output.parents if not parent.exists()]
            output.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
            # mkdtemp makes folders that only their owner may read.
            new = scratch / "new"
            new.mkdir()
        except OSError as error:
            raise OmniDraftError(
                f"No folder can be made in {output.parent}: {error.strerror}. Choose another."
            ) from error
        yield new
        _replace(new, output, scratch / "old")
    except Exception as error:
        if is_disk_full(error):
            raise OmniDraftError(
                f"The disk of {output.parent} is full; nothing was kept. Free space and try again."
            ) from error
        raise
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        for parent in made:
            with suppress(OSError):
                parent.rmdir()  # only if nothing is in it


def is_disk_full(error: Exception) -> bool:
    """Whether an error says that there is no room, or no quota, left to write."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    # Compilers and exporters that write files themselves raise errors of their own.
    return "No space left on device" in str(error)


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
