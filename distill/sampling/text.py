"""Text that is there: JSON lines with ``text`` or ``messages``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random

import numpy as np

from omnidraft.distill.config import TextTeacher
from omnidraft.distill.files import named_files, named_lines, not_utf8
from omnidraft.distill.shards import ANSWER, TOP, USER, Document
from omnidraft.runtime.errors import DamagedFileError


class TextSampler:
    """A ``Sampler`` of files, in a shuffled order. A message is one piece, of the drafter's
    spelling.

    Args:
        folder: that file names are relative to.

    Raises:
        ModelNotFoundError: there is no such file.
        DamagedFileError: a line has no text, or there is no line.
    """

    def __init__(self, teacher: TextTeacher, folder: Path) -> None:
        # All are read before any is given: a file that is mended later has other lines.
        lines = named_lines(teacher.name, teacher.files, folder)
        self._records = [_pieces(path, number, line) for path, number, line in lines]
        if not self._records:
            raise DamagedFileError(
                f"{teacher.name}: {', '.join(teacher.files)} hold no text. They need lines with "
                "`text` or `messages`."
            )
        self._surfaces: list[bytes | None] = []

    @property
    def surfaces(self) -> list[bytes | None]:
        """See ``Sampler``; it grows with the documents."""
        return self._surfaces

    def documents(self, seed: int) -> Iterator[Document]:
        """See ``Sampler``: each line once."""
        records = self._records.copy()
        Random(seed).shuffle(records)
        for pieces in records:
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
        messages = [
            (ANSWER if each["role"] == "assistant" else USER, _words(each["content"]) + b"\n")
            for each in record["messages"]
        ]
        if not messages:
            raise ValueError
        return messages
    except UnicodeError as error:
        raise DamagedFileError(not_utf8(path, number)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFileError(
            f"{path}, line {number}: neither text nor messages with role and content."
        ) from error


def digest_of(teacher: TextTeacher, folder: Path) -> str:
    """Which text it is, in 64 digits."""
    digest = sha256()
    for path in named_files(teacher.name, teacher.files, folder):
        digest.update(sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _words(said: object) -> bytes:
    if not isinstance(said, str):
        raise TypeError
    return said.encode()
