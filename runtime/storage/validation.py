"""What pydantic found wrong with a file, in words."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationError

Count = Annotated[int, Field(ge=0)]

_MOST = 3
"""Mistakes that are told of one file."""
_WORDS = {"missing": "is missing", "extra_forbidden": "is not known here"}
# "Input should be greater than 0" → "must be greater than 0".
_OPENINGS = {"Input should ": "must ", "Value error, ": "", "Assertion failed, ": ""}


def mistakes(error: ValidationError) -> str:
    """The first few mistakes, each with its place: ``layers must be greater than 0, not -1``."""
    found = error.errors()
    told = [_mistake(each["type"], each["loc"], each["msg"], each["input"]) for each in found]
    more = f"; and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return "; ".join(told[:_MOST]) + more


def _mistake(kind: str, place: tuple[int | str, ...], message: str, value: object) -> str:
    words = _WORDS.get(kind, message)
    for opening, ours in _OPENINGS.items():
        if words.startswith(opening):
            words = ours + words.removeprefix(opening)
    name = ".".join(map(str, place))
    # What is nested may be too deep to show.
    parts = list(value.values()) if isinstance(value, dict) else value
    nested = isinstance(parts, list) and any(isinstance(part, list | dict) for part in parts)
    if words.startswith("must ") and not nested and len(shown := repr(value)) <= 60:
        words += f", not {shown}"
    if not name:
        return words
    return f"{name} {words}" if words.startswith(("must ", "is ")) else f"{name}: {words}"
