"""Keeping what libraries say of their own insides from the terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def quiet() -> Iterator[None]:
    """Send to nowhere what native code writes to the process's standard output and error.

    It writes to file descriptors 1 and 2 and asks nobody. What Python writes to ``sys.stdout`` and
    ``sys.stderr`` meanwhile, as a progress bar does, arrives.
    """
    with ExitStack() as stack:
        for number, name in ((1, "stdout"), (2, "stderr")):
            # Closed where there is no terminal and nothing else was given.
            with contextlib.suppress(OSError):
                stack.enter_context(_unheard(number, name))
        yield


@contextmanager
def _unheard(number: int, name: str) -> Iterator[None]:
    stream = getattr(sys, name)
    saved = os.dup(number)
    try:
        if stream is not None:
            stream.flush()
        kept = _over(stream, number, saved)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)
        setattr(sys, name, kept)
        try:
            yield
        finally:
            if kept is not stream:
                kept.close()
            setattr(sys, name, stream)
            os.dup2(saved, number)
    finally:
        os.close(saved)


def _over(stream: Any, number: int, saved: int) -> Any:
    """A stream as ``stream``, which writes where ``number`` led; itself if it writes elsewhere."""
    try:
        if stream.fileno() != number:
            return stream
    except (AttributeError, OSError, ValueError):
        return stream
    return open(saved, "w", 1, stream.encoding, stream.errors, closefd=False)
