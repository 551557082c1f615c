"""Kill a process that saves adapters, over and over, and look at what it leaves.

    python tests/killed_saves.py 200 [SEED]

A child saves adapter after adapter, each made of one number, so that a mixture of two would show.
It is killed with SIGKILL at a random moment and the store opened. This is a process of its own,
because forking needs one without threads. Prints JSON: ``kills``, ``torn`` (how many hit a save
half-way), ``saves`` (how many had ended well).
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from omnidraft.runtime.learning.adapter import Adapter, Metadata, ModelKey
from omnidraft.runtime.learning.store import AdapterStore

NAMES = ("code", "math", "news")
KEY = ModelKey(name="model", sha256="0" * 64)
# Two adapters fit, so that every save of the three removes one.
MAX_BYTES = 1_200_000


def numbered(number: int) -> Adapter:
    """An adapter of half a megabyte, every part of which says ``number``."""
    return Adapter(
        Metadata(drafter=KEY, target=KEY, prompts=number),
        {
            f"lora.{layer}.o.{part}": np.full(shape, number, np.float32)
            for layer in range(3)
            for part, shape in (("A", (640, 16)), ("B", (16, 640)))
        },
        number.to_bytes(4, "little") * 4_000,
        {"weight": np.full(320, number, np.float32)},
        {"m": np.full((320, 200), number, np.float32), "step": np.array(number)},
    )


def number_of(adapter: Adapter) -> int:
    """The one number of an adapter.

    Raises:
        AssertionError: it is made of several.
    """
    number = adapter.metadata.prompts
    expected = numbered(number)
    assert adapter.ngrams == expected.ngrams
    for part in ("lora", "head", "optimizer"):
        found, wanted = getattr(adapter, part), getattr(expected, part)
        assert found.keys() == wanted.keys()
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    return number


def save_for_ever(folder: Path, number: int, report: int) -> None:
    """Save adapter after adapter, writing each number to ``report`` when its save has ended."""
    store = AdapterStore(folder, max_bytes=MAX_BYTES)
    while True:
        number += 1
        store.save(NAMES[number % 3], numbered(number))
        os.write(report, number.to_bytes(8, "little"))


def main(kills: int, seed: int) -> None:
    """Kill ``kills`` times.

    Raises:
        AssertionError: a store did not open, or held what was never saved whole.
    """
    rng = random.Random(seed)
    number = torn = saves = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "adapters"
        for _ in range(kills):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    save_for_ever(folder, number, writer)
                finally:
                    os._exit(1)
            os.close(writer)
            with os.fdopen(reader, "rb") as reports:
                time.sleep(rng.random() * 0.08)
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                assert os.WIFSIGNALED(status), "the child ended by itself"
                ended = len(reports.read()) // 8
            saves += ended
            number += ended

            torn += any(folder.glob(".*.tmp"))
            store = AdapterStore(folder, max_bytes=MAX_BYTES)
            assert not any(folder.glob(".*.tmp")), "leftovers stay"
            entries = store.list()
            assert not [entry.problem for entry in entries if entry.problem]
            found = {entry.name: number_of(store.read(entry.name)) for entry in entries}
            newest = max(found.values(), default=0)
            # The save that was under way is there whole or not at all; those before it are there.
            assert newest in (number, number + 1), (found, number)
            number = newest
            assert all(NAMES[value % 3] == key for key, value in found.items())
            last_two = set(range(max(1, number - 1), number + 1))
            assert last_two <= set(found.values()), (found, number)
    print(json.dumps({"kills": kills, "torn": torn, "saves": saves}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
