"""Messages of users that the configuration gives to begin conversations with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from omnidraft.distill.config import Prompts
from omnidraft.distill.files import named_lines, not_utf8
from omnidraft.runtime.bench import prompt_of
from omnidraft.runtime.errors import DamagedFileError


def read_prompts(sources: Sequence[Prompts], folder: Path) -> list[str]:
    """All prompts of the files.

    Args:
        folder: that file names are relative to.

    Raises:
        ModelNotFoundError: there is no such file.
        DamagedFileError: a line has no prompt, or there is no line.
    """
    prompts: list[str] = []
    for source in sources:
        lines = named_lines(source.name, source.files, folder)
        own = [_prompt(path, number, line) for path, number, line in lines]
        if not own:
            raise DamagedFileError(f"{source.name}: {', '.join(source.files)} hold no prompts.")
        prompts += own
    return prompts


def digest_of(prompts: Sequence[str]) -> str:
    """Which prompts they are, in 64 digits."""
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()


def _prompt(path: Path, number: int, line: bytes) -> str:
    try:
        prompt = prompt_of(line.decode("utf-8-sig")).prompt
    except UnicodeError as error:
        raise DamagedFileError(not_utf8(path, number)) from error
    except (ValueError, RecursionError):
        prompt = ""
    if not isinstance(prompt, str) or not prompt.strip():
        raise DamagedFileError(f"{path}, line {number}: there is no prompt in it.")
    return prompt
