"""Text that is there: JSON lines with ``text`` or ``messages``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np

from omnidraft.distill.config import TextTeacher
from omnidraft.distill.files import named_files
from omnidraft.distill.shards import ANSWER, TOP, USER, Document
from omnidraft.runtime.errors import DamagedFileError


class TextSampler:
    """A ``Sampler`` of files, in a shuffled order. A message is one piece, of the drafter's
    spelling.

    Args:
        folder: that file names are relative to.

    Raises:
        ModelNotFoundError: there is no such file.
    """

    def __init__(self, teacher: TextTeacher, folder: Path) -> None:
        self._paths = named_files(teacher.name, teacher.files, folder)
        self._surfaces: list[bytes | None] = []

    @property
    def surfaces(self) -> list[bytes | None]:
        """See ``Sampler``; it grows with the documents."""
        return self._surfaces

    def documents(self, seed: int) -> Iterator[Document]:
        """See ``Sampler``: each line once."""
        # Not splitlines: JSON may hold line separators of Unicode as they are.
        lines = [
            (path, number, line)
            for path in self._paths
            for number, line in enumerate(path.read_bytes().split(b"\n"), 1)
            if line.strip()
        ]
        Random(seed).shuffle(lines)
        for path, number, line in lines:
            pieces = _pieces(path, number, line)
            tokens = np.arange(len(pieces), dtype=np.int32) + len(self._surfaces)
            self._surfaces += [words for _, words in pieces]
            count = len(pieces)
            yield Document(
                tokens,
                np.array([kind for kind, _ in pieces], np.int8),
                np.zeros((count, TOP), np.int32),
                np.zeros((count, TOP), np.float16),
                np.full(count, np.nan, np.float32),
            )


def _pieces(path: Path, number: int, line: bytes) -> list[tuple[int, bytes]]:
    """Kinds and words; ``utf-8-sig``, as a file may begin with a byte order mark."""
    try:
        record = json.loads(line.decode("utf-8-sig"))
        if "text" in record:
            return [(ANSWER, _words(record["text"]))]
        return [
            (ANSWER if each["role"] == "assistant" else USER, _words(each["content"]) + b"\n")
            for each in record["messages"]
        ]
    except UnicodeError as error:
        raise DamagedFileError(
            f"{path}, line {number}: this is not text in UTF-8. Convert the file, or leave the "
            "line out."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(
            f"{path}, line {number}: neither text nor messages with role and content."
        ) from error


def _words(said: object) -> bytes:
    if not isinstance(said, str):
        raise TypeError
    return said.encode()
