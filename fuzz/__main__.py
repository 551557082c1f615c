"""Fuzz a format with atheris: ``python -m fuzz NAME [libFuzzer's options] [folders]``."""

from __future__ import annotations

import gc
import importlib
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType

import atheris

from fuzz.mutation import mutated

CORPUS = Path(__file__).with_name("corpus")
MOST_SECONDS, MOST_MEGABYTES = 10, 3000
MOST_BYTES = 16384
SEEN = ("omnidraft.", "jinja2.")


def mutator_of(harness: ModuleType) -> Callable[[bytes, int, int], bytes]:
    """Changes an input in its parts, as a JSON value or as the module does it, or in its bytes."""
    of_parts = getattr(harness, "mutated", mutated)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        if seed % 4 and (changed := of_parts(data, seed, most)) is not None:
            return bytes(changed)
        return bytes(atheris.Mutate(data, most))

    return mutate


def check_of(harness: ModuleType) -> Callable[[bytes], None]:
    """A module's check; where it finds something the clock is stopped.

    Python takes a while to end, in which atheris's alarm would end it, and lose the input.
    """

    def check(data: bytes) -> None:
        try:
            harness.check(data)
        except BaseException:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise

    return check


def instrument() -> None:
    """Let atheris see which of our code runs.

    Its own hook of imports knows nothing of packages that are installed to be edited.
    """
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and (each.__module__ or "").startswith(SEEN):
            atheris.instrument_func(each)


def main() -> None:
    name, *options = sys.argv[1:]
    harness = importlib.import_module(f"fuzz.{name}")
    corpus = CORPUS / name
    for path in corpus.iterdir():
        harness.check(path.read_bytes())  # imports what is only imported when it is needed
    instrument()
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEGABYTES << 20,) * 2)
    limits = [
        f"-max_len={MOST_BYTES}",
        f"-timeout={MOST_SECONDS}",
        f"-rss_limit_mb={MOST_MEGABYTES}",
    ]
    atheris.Setup(
        [sys.argv[0], *limits, *options, str(corpus)],
        check_of(harness),
        custom_mutator=mutator_of(harness),
    )
    atheris.Fuzz()


main()
