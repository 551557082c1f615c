"""The prompt of one answer: an argument, an option, a file or stdin; or a conversation; or many."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from omnidraft.cli.output import errors
from omnidraft.runtime import bench
from omnidraft.runtime.bench import Prompt as Entry
from omnidraft.runtime.errors import OptionError
from omnidraft.runtime.session import Prompt
from omnidraft.runtime.text.chat import Message, checked_messages

_WAYS = 'as an argument ("Why is the sky blue?"), with --prompt-file FILE, or through a pipe'


def read_conversation(prompt: Callable[[], str], system: str | None, file: Path | None) -> Prompt:
    """A prompt, or the conversation that it is the last message of.

    Args:
        prompt: reads the prompt, which there is none of beside a file.
        system: what stands before it.
        file: a conversation as JSON.

    Raises:
        OptionError: see ``prompt`` and ``checked_messages``; ``system`` beside a file.
    """
    if file is None:
        asked = {"role": "user", "content": prompt()}
        return [{"role": "system", "content": system}, asked] if system else asked["content"]
    if system is not None:
        raise OptionError(
            "--system goes with a prompt. In a file of --messages the first message may be "
            '{"role": "system", "content": "Be brief."}'
        )
    return read_messages(file)


def read_messages(file: Path) -> list[Message]:
    """The messages of a file; ``-`` stands for stdin.

    Raises:
        OptionError: it cannot be read, or see ``checked_messages``.
    """
    text = _stdin("Type the messages") if str(file) == "-" else _of_file(file, "the messages")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = f"is no JSON: {error}"
        if text.lstrip().startswith("[") and str(error).startswith("Extra data"):
            reason = "holds more than one conversation, and one is answered. Leave one of them"
        raise OptionError(f"{file} {reason}") from error
    try:
        return checked_messages(value)
    except OptionError as error:
        raise OptionError(f"{file}: {error}") from error


def read_prompts(file: Path, limit: int | None = None) -> list[Entry]:
    """The prompts of a file, a line each; ``-`` stands for stdin.

    Raises:
        OmniDraftError: see ``bench.read_prompts``.
    """
    if str(file) != "-":
        return bench.read_prompts(file, limit)
    return bench.parse_prompts(_stdin("Type the prompts, a line of JSON each"), "stdin", limit)


def read_prompt(argument: str | None, option: str | None, file: Path | None) -> str:
    """The prompt, however it was given. ``-`` stands for stdin, and so does nothing in a pipe.

    Raises:
        OptionError: it was given twice, not at all, is empty, or is not valid UTF-8.
    """
    text = _read(argument, option, file)
    if not text:
        raise OptionError(f"there is no prompt: what was given is empty. Give it {_WAYS}")
    return text


def _read(argument: str | None, option: str | None, file: Path | None) -> str:
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
        return _stdin("Type the prompt")
    if file is None:
        return _characters(str(given[0]))
    return _of_file(file, "the prompt")


def _of_file(file: Path, what: str) -> str:
    try:
        return _decoded(file.read_bytes(), str(file))
    except OSError as error:
        raise OptionError(f"{what} cannot be read from {file}: {error.strerror}") from error


def _characters(argument: str) -> str:
    try:
        argument.encode()
    except UnicodeEncodeError as error:
        raise OptionError(
            f"the prompt cannot be read as text at character {error.start}. Give it in a file "
            "(--prompt-file) or through a pipe, or set a UTF-8 locale (LC_ALL=C.UTF-8)"
        ) from error
    return argument


def _stdin(asks: str = "") -> str:
    """What stdin holds. In a terminal whoever is to type it is told by ``asks``."""
    if sys.stdin is None:
        raise OptionError("stdin is closed: there is nothing to read from it")
    if asks and sys.stdin.isatty():
        errors.print(f"{asks}; Ctrl-D on a line of its own ends it.", style="dim")
    return _decoded(sys.stdin.buffer.read(), "stdin")


def _decoded(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{source} is not valid UTF-8: byte {error.start} is 0x{data[error.start]:02x}. "
            "Convert it first, for example with iconv -t UTF-8"
        ) from error
