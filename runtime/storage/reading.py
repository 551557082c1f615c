"""The boundary behind which files that came from anywhere are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath

from omnidraft.runtime.errors import DamagedFileError, OmniDraftError

# Of a configuration or an index of shards, and of a tokenizer. The largest in use are a tenth.
LARGEST_JSON = 1 << 26
LARGEST_TOKENIZER = 1 << 28


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Make of whatever a reader trips over a sentence that says what to do.

    Readers check what they know of. A hostile file finds what they do not know of, in themselves
    and in the libraries they use, and a person can do nothing with a traceback.

    Raises:
        DamagedFileError: ``what`` could not be read.
        OmniDraftError: the reader has said why, or memory or the system refuses.
    """
    try:
        yield
    except OmniDraftError:
        raise
    except OSError as error:
        place = error.filename or what
        raise OmniDraftError(f"{place} cannot be read: {error.strerror or error}.") from error
    except MemoryError as error:
        raise OmniDraftError(
            f"{what} needs more memory than there is. If it is not that large it is damaged: fetch "
            "it again."
        ) from error
    except BaseException as error:
        # Libraries written in Rust panic with an exception that is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        said = str(error) or "nothing more is known"
        raise DamagedFileError(
            f"{what} is damaged, or not what it seems to be ({type(error).__name__}: {said:.200}). "
            "Fetch it again."
        ) from error


def read_bounded(path: Path, most: int) -> bytes:
    """The content of a file that is to be read whole.

    Raises:
        DamagedFileError: it has more than ``most`` bytes.
        OSError: it cannot be read.
    """
    if (size := path.stat().st_size) > most:
        raise DamagedFileError(
            f"{path} has {size:,} bytes, and no such file needs more than {most:,}. Fetch it again."
        )
    return path.read_bytes()


def inside(folder: Path, name: str) -> Path:
    """The file of a folder that has a name which its manifest tells.

    Raises:
        DamagedFileError: the name leads out of the folder, on any system, or can be no file's.
    """
    way = PurePosixPath(name)
    drive = PureWindowsPath(name)
    if way.is_absolute() or drive.anchor or ".." in drive.parts or not name or "\0" in name:
        raise DamagedFileError(
            f"{folder} is not what it seems to be: its manifest names a file {name[:60]!r}, which "
            "does not lie in it. Fetch it again."
        )
    return folder / way
