"""Files of a run, in folders that are made for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from glob import glob
from pathlib import Path

from omnidraft.runtime.errors import ModelNotFoundError
from omnidraft.runtime.storage.files import whole_file


@contextmanager
def file_in_folder(path: Path) -> Iterator[Path]:
    """As ``whole_file``, whose folder is made if need be.

    Raises:
        OmniDraftError: see ``whole_file``.
    """
    with suppress(OSError):  # then it names the place
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        yield file


def named_files(name: str, patterns: Sequence[str], folder: Path) -> list[Path]:
    """The files that a configuration's source names.

    Args:
        name: of the source.
        patterns: paths that may hold ``*``, absolute or relative to ``folder``.

    Raises:
        ModelNotFoundError: there is none.
    """
    # Each once, also where patterns overlap.
    names = dict.fromkeys(n for each in patterns for n in sorted(glob(each, root_dir=folder)))
    found = [folder / name for name in names if (folder / name).is_file()]
    if not found:
        raise ModelNotFoundError(f"{name}: there is no file {', '.join(patterns)} in {folder}.")
    return found


def named_lines(
    name: str, patterns: Sequence[str], folder: Path
) -> Iterator[tuple[Path, int, bytes]]:
    """The lines of ``named_files`` that hold something, with their file and number."""
    for path in named_files(name, patterns, folder):
        # Not splitlines: JSON may hold line separators of Unicode as they are.
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if line.strip():
                yield path, number, line


def not_utf8(path: Path, number: int) -> str:
    """What is said of a line that cannot be read."""
    return (
        f"{path}, line {number}: this is not text in UTF-8. Convert the file, or leave the line "
        "out."
    )
