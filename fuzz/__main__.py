"""Fuzz a format with atheris: ``python -m fuzz NAME [libFuzzer's options] [folders]``."""

from __future__ import annotations

import importlib
import resource
import sys
import warnings
from pathlib import Path

import atheris

from fuzz.mutation import mutated

CORPUS = Path(__file__).with_name("corpus")
MOST_SECONDS, MOST_MEGABYTES = 10, 3000


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """A JSON value changed in its parts, anything else in its bytes."""
    if seed % 4 and (changed := mutated(data, seed)) is not None and len(changed) <= most:
        return changed
    return bytes(atheris.Mutate(data, most))


def main() -> None:
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["omnidraft"]):
        harness = importlib.import_module(f"fuzz.{name}")
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEGABYTES << 20,) * 2)
    corpus = CORPUS / name
    folders = [str(corpus)] if corpus.is_dir() else []
    limits = ["-max_len=65536", f"-timeout={MOST_SECONDS}", f"-rss_limit_mb={MOST_MEGABYTES}"]
    atheris.Setup(
        [sys.argv[0], *limits, *options, *folders],
        harness.check,
        custom_mutator=mutate,
    )
    atheris.Fuzz()


main()
