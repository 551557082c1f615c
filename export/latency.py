"""How fast an exported drafter is, in a process that does nothing else.

In the process that built the bundle, threads of other sessions may still spin and the processor's
caches are full of other things. Only numpy and the runtime are needed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from omnidraft.runtime.engines import open_engine
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.processor import processor_name
from omnidraft.runtime.storage.bundle import Latency

LATENCY_CONTEXT = 256
# Short turns with a rest before each: what disturbs one leaves the others alone.
_TURNS, _STEPS, _WARM_UP, _REST = 6, 20, 3, 0.1
# An emulated chip takes seconds for a pass: its time says nothing of the chip, a few show it runs.
_EMULATED_CONTEXT, _EMULATED_STEPS = 8, 3


def measure_latency(folder: Path, threads: int) -> Latency:
    """Time steps of one token of a bundle, in a process of its own: see ``Latency``.

    Raises:
        OmniDraftError: the process failed; its last words are in the message.
    """
    # -P: modules of the current folder are not the program's.
    command = [sys.executable, "-P", "-m", __name__, str(folder), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    try:
        # What libraries print to the standard output is before it.
        return Latency.model_validate_json(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise OmniDraftError(f"The latency of {folder} cannot be measured: {said[-1]}") from error


def time_steps(model: CausalModel, threads: int) -> Latency:
    """Time steps of one token, here and now: see ``Latency``. The model's sequence is lost."""
    context, turns, steps, warm_up = LATENCY_CONTEXT, _TURNS, _STEPS, _WARM_UP
    emulated = is_emulated(model)
    if emulated:
        context, turns, steps, warm_up = _EMULATED_CONTEXT, 1, _EMULATED_STEPS, 1
    context = min(context, model.max_length - 1)
    model.truncate(0)
    model.forward(np.zeros(context, np.int64), rows=1)
    times = []
    for _ in range(turns):
        time.sleep(_REST)
        for step in range(warm_up + steps):
            model.truncate(context)
            begin = time.perf_counter()
            model.forward([0])
            if step >= warm_up:
                times.append((time.perf_counter() - begin) * 1000)
    model.truncate(0)
    median, p95 = np.percentile(times, [50, 95])
    return Latency(
        context=context,
        threads=threads,
        milliseconds=median,
        p95_milliseconds=p95,
        steps=len(times),
        processor=processor_name(),
        emulated=emulated,
    )


def is_emulated(model: CausalModel) -> bool:
    """Whether the model's chip is emulated: its engine says so."""
    return bool(getattr(model, "emulated", False))


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("threads", type=int)
    arguments = parser.parse_args()
    try:
        model = open_engine(arguments.folder, threads=arguments.threads)
        latency = time_steps(model, arguments.threads)
    except OmniDraftError as error:
        sys.exit(str(error))
    print(latency.model_dump_json())


if __name__ == "__main__":
    _main()
