"""Files that a user names to be written: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkstemp

from omnidraft.runtime.errors import OmniDraftError


def expanded(name: str) -> Path:
    """A path with ``~`` for the user's home folder.

    Raises:
        OmniDraftError: there is no such user.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise OmniDraftError(f"{name}: there is no such user's home folder.") from error


def check_place(path: Path) -> None:
    """Say at once, not after minutes of work, that no file can be written there.

    Raises:
        OmniDraftError: it is a folder, a device or the like, or there is no folder that can be
            written.
    """
    try:
        usable = path.is_file() if path.exists() else not path.is_symlink()
        folder = path.resolve().parent
        usable = usable and folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    # A name that is too long or holds a null character, links in a circle.
    except (OSError, RuntimeError, ValueError):
        usable = False
    if not usable:
        raise OmniDraftError(
            f"No file can be written to {path}. Name a file in a folder that can be written."
        )


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place when the block ends well.

    Of a link that is the file it leads to. The temporary file is removed on any failure.

    Raises:
        OmniDraftError: see ``check_place``; or the file cannot be written.
    """
    check_place(path)
    output = path.resolve()
    temporary = None
    try:
        try:
            descriptor, name = mkstemp(prefix=f".{output.name[:64]}-", dir=output.parent)
            os.close(descriptor)
            temporary = Path(name)
            yield temporary
            temporary.chmod(0o644)
            temporary.replace(output)
        except OSError as error:
            raise OmniDraftError(
                f"{path} cannot be written: {error.strerror or error}. Choose another place."
            ) from error
    except BaseException:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
        raise
