"""The prompt of one answer: an argument, an option, a file or stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from omnidraft.cli.output import errors
from omnidraft.runtime.errors import OptionError

_WAYS = 'as an argument ("Why is the sky blue?"), with --prompt-file FILE, or through a pipe'


def read_prompt(argument: str | None, option: str | None, file: Path | None) -> str:
    """The prompt, however it was given. ``-`` stands for stdin, and so does nothing in a pipe.

    Raises:
        OptionError: it was given twice, not at all, or is not valid UTF-8.
    """
    given = [each for each in (argument, option, file) if each is not None]
    if len(given) > 1:
        raise OptionError(
            "the prompt was given more than once: as an argument, with --prompt or with "
            "--prompt-file. Leave one of them"
        )
    if not given:
        if sys.stdin is None or sys.stdin.isatty():
            raise OptionError(f"there is no prompt. Give it {_WAYS}")
        if not (text := _stdin()):
            raise OptionError(f"there is no prompt, and nothing came from stdin. Give it {_WAYS}")
        return text
    if str(given[0]) == "-":
        if sys.stdin is None:
            raise OptionError(f"there is no stdin to read the prompt from. Give it {_WAYS}")
        if sys.stdin.isatty():
            errors.print("Type the prompt; Ctrl-D on a line of its own ends it.", style="dim")
        return _stdin()
    if file is None:
        return str(given[0])
    try:
        return _decoded(file.read_bytes(), str(file))
    except OSError as error:
        raise OptionError(f"the prompt cannot be read from {file}: {error.strerror}") from error


def _stdin() -> str:
    return _decoded(sys.stdin.buffer.read(), "stdin")


def _decoded(data: bytes, source: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{source} is not valid UTF-8: byte {error.start} is 0x{data[error.start]:02x}. "
            "Convert it first, for example with iconv -t UTF-8"
        ) from error
