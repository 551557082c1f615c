"""A worker: a process with one engine, asked through its standard input, JSON lines both ways.

Each engine has a process of its own, because the thread pools of several engines in one process
disturb each other; while another engine runs, this one waits for a line. A worker imports nothing
of OmniDraft unless it measures OmniDraft, so that it may run in another virtual environment.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Protocol, TypedDict


class Request(TypedDict):
    """One answer that is wanted."""

    prompt: str
    tokens: list[int]
    """The same prompt as target tokens, through the chat template."""
    method: str
    setting: dict[str, Any]
    """What the method's plan says about this way to run it, such as its draft length."""
    max_new_tokens: int
    temperature: float
    """0 is greedy. No other filter is applied."""
    stop: list[int]
    """End-of-text tokens."""
    seed: int


class Trace:
    """The tokens of an answer and when they came; the clock starts when it is made."""

    def __init__(self) -> None:
        self._started = perf_counter()
        self._rounds: list[tuple[float, int]] = []
        self.tokens: list[int] = []

    def add(self, tokens: Sequence[int]) -> None:
        """The tokens of one pass of the target, just now."""
        self.tokens += tokens
        self._rounds.append((perf_counter() - self._started, len(tokens)))

    def extend(self, token: int) -> None:
        """A further token of the last pass."""
        self.tokens.append(token)
        seconds, count = self._rounds[-1]
        self._rounds[-1] = (seconds, count + 1)

    def as_dict(self, rounds: int | None = None) -> dict[str, Any]:
        """The answer, as it is sent.

        Decoding is what follows the first round, which has to read the prompt, the drafter's
        share of it included.

        Args:
            rounds: passes of the target, where an engine shows tokens one by one.
        """
        if not self._rounds:
            raise RuntimeError("the engine gave no token")
        (first, given), (last, _) = self._rounds[0], self._rounds[-1]
        return {
            "tokens": self.tokens,
            "decoded": len(self.tokens) - given,
            "decode_seconds": last - first,
            "total_seconds": last,
            "rounds": len(self._rounds) if rounds is None else rounds,
        }


class Engine(Protocol):
    """What a worker's module offers."""

    version: str

    def fresh(self) -> None:
        """Forget what was learned from earlier prompts."""

    def generate(self, request: Request) -> dict[str, Any]:
        """Answer a prompt; see ``Trace.as_dict``."""


def serve(open_engine: Callable[[Mapping[str, Any]], Engine]) -> None:
    """Open the engine with the settings in ``argv[1]`` and answer until the input ends."""
    # Libraries print what they like; only answers may reach the parent.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        engine = open_engine(json.loads(sys.argv[1]))
    except ImportError as error:
        send({"missing": str(error)})
        return
    except Exception as error:  # the parent lists whatever it was
        send({"failed": describe(error)})
        return
    send({"version": engine.version})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request.get("fresh"):
                engine.fresh()
                send({})
            else:
                send(engine.generate(request))
        except Exception as error:
            send({"failed": describe(error)})


def describe(error: BaseException) -> str:
    """The kind of an error and the last line of what it says."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"
