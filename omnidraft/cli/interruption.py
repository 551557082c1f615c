"""Ctrl-C and SIGTERM: what is half done is cleared away, and what is done is told."""

from __future__ import annotations

import signal
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


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(signum)
