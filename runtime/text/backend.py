"""The tokenizers library, of whose failures a file is the reason.

Its errors share no class, and it panics on some files that it has opened.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import tokenizers

from omnidraft.runtime.errors import DamagedFileError

Made = TypeVar("Made")

# Where a file may hold a table of SentencePiece's normalization; letters may be escaped.
_CHARSMAP = re.compile(rb"charsmap|\\u00[4-6]|\\u007[0-9aA]")


def open_backend(content: str | bytes) -> tokenizers.Tokenizer:
    """What a ``tokenizer.json`` describes; texts are neither cut nor padded.

    Raises:
        DamagedFileError: the library cannot read it.
    """
    data = content.encode() if isinstance(content, str) else content
    _check_charsmaps(data)
    backend = _made_by_library("read", lambda: tokenizers.Tokenizer.from_buffer(data))
    backend.no_truncation()
    backend.no_padding()
    return backend


def _check_charsmaps(data: bytes) -> None:
    """Refuse a table that says it is longer than it is.

    The library takes memory for what it says, up to 8 GB, and ends the process where it gets none.
    """
    if not _CHARSMAP.search(data):
        return
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        return  # the library says what is wrong
    pending: list[Any] = [state.get("normalizer") if isinstance(state, dict) else None]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            pending += part.values()
            if isinstance(table := part.get("precompiled_charsmap"), str):
                _check_charsmap(table)


def _check_charsmap(table: str) -> None:
    try:
        content = base64.b64decode(table)
    except ValueError:
        return
    if int.from_bytes(content[:4], "little") > len(content) - 4:
        raise DamagedFileError(
            "tokenizer.json has a precompiled_charsmap that is cut off. Fetch the model again."
        )


def ids_of(
    backend: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool = False
) -> list[int]:
    """Token ids of a text.

    Raises:
        DamagedFileError: the tokenizer cannot be used.
    """

    def encode() -> list[int]:
        return list(backend.encode(text, add_special_tokens=add_special_tokens).ids)

    return _made_by_library("used", encode)


def _made_by_library(doing: str, make: Callable[[], Made]) -> Made:
    try:
        return make()
    except BaseException as error:
        # A panic is no Exception, and its class has no place that it could be imported from.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DamagedFileError(
            f"tokenizer.json cannot be {doing}: {error!s:.300}. Fetch the model again."
        ) from error
