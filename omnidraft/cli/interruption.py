"""Ctrl-C and SIGTERM: what is half done is cleared away, and what is done is told."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM. Not KeyboardInterrupt, of which Typer would make exit code 1."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def raise_on_signals() -> None:
    """Let both signals raise ``Interrupted`` from now on."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Let the first Ctrl-C set the event, and the second raise ``Interrupted``."""
    stopped = threading.Event()

    def stop(signum: int, frame: FrameType | None) -> None:
        if stopped.is_set():
            raise Interrupted(signum)
        stopped.set()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(signum)
