"""Files of a run, in folders that are made for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
