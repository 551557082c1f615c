"""What the harnesses share: files made of bytes, and refusals."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omnidraft.runtime.errors import OmniDraftError


@contextmanager
def refusing() -> Iterator[None]:
    """A refusal in words is as good as success."""
    try:
        yield
    except OmniDraftError as error:
        assert str(error).strip()


@contextmanager
def folder_of(files: Mapping[str, bytes]) -> Iterator[Path]:
    """A temporary folder with these files."""
    with tempfile.TemporaryDirectory(prefix="omnidraft-fuzz-") as name:
        folder = Path(name)
        for file, content in files.items():
            (folder / file).parent.mkdir(exist_ok=True)
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
