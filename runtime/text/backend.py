"""The tokenizers library, of whose failures a file is the reason.

Its errors share no class, and it panics on some files that it has opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import tokenizers

from omnidraft.runtime.errors import DamagedFileError

Made = TypeVar("Made")


def open_backend(content: str | bytes) -> tokenizers.Tokenizer:
    """What a ``tokenizer.json`` describes; texts are neither cut nor padded.

    Raises:
        DamagedFileError: the library cannot read it.
    """
    data = content.encode() if isinstance(content, str) else content
    backend = _made_by_library("read", lambda: tokenizers.Tokenizer.from_buffer(data))
    backend.no_truncation()
    backend.no_padding()
    return backend


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
