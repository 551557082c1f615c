"""Folders that appear whole or not at all."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omnidraft.runtime.errors import OmniDraftError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def whole_folder(output: Path) -> Iterator[Path]:
    """A temporary folder beside ``output`` that takes its place when the block ends well.

    It is removed on any failure, a KeyboardInterrupt included; what was at ``output`` stays then.

    Raises:
        OmniDraftError: the folder cannot be made, or the disk is full.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    except OSError as error:
        raise OmniDraftError(
            f"No folder can be made in {output.parent}: {error.strerror}. Choose another."
        ) from error
    try:
        yield temporary
        # mkdtemp makes folders that only their owner may read.
        temporary.chmod(0o755)
        _replace(temporary, output)
    except Exception as error:
        if is_disk_full(error):
            raise OmniDraftError(
                f"The disk of {output.parent} is full; nothing was kept. Free space and try again."
            ) from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_disk_full(error: Exception) -> bool:
    """Whether an error says that there is no room, or no quota, left to write."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    # Compilers and exporters that write files themselves raise errors of their own.
    return "No space left on device" in str(error)


def _replace(temporary: Path, output: Path) -> None:
    """Rename ``temporary`` to ``output``, moving what is there out of the way first."""
    if not output.exists():
        temporary.rename(output)
        return
    old = temporary.with_name(f"{temporary.name}-old")
    output.rename(old)
    try:
        temporary.rename(output)
    except BaseException:
        old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)
