"""What the harnesses share: files made of bytes, and refusals."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from omnidraft.runtime.errors import OmniDraftError


@contextmanager
def refusing() -> Iterator[None]:
    """A refusal in words is as good as success."""
    try:
        yield
    except OmniDraftError as error:
        assert str(error).strip()


@contextmanager
def unheard(**variables: str) -> Iterator[None]:
    """Commands print to nobody, under these variables of the environment."""
    with (
        patch.dict(os.environ, variables),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        yield


@contextmanager
def folder_of(files: Mapping[str, bytes]) -> Iterator[Path]:
    """A temporary folder with these files."""
    with tempfile.TemporaryDirectory(prefix="omnidraft-fuzz-") as name:
        folder = Path(name)
        for file, content in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)
        yield folder


def parsed(data: bytes) -> Any:
    """The JSON value that the bytes hold, None where they hold none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def content(value: object) -> bytes:
    """A file's content: JSON, or a text as it is."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(value).encode()


def file_inside(folder: Path, name: str) -> bool:
    """Whether a file lies where it should."""
    return (folder / name).resolve().is_relative_to(folder.resolve())
