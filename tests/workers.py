"""Where several processes share out the tests, each keeps to cores of its own.

Threads of ONNX Runtime spin while they wait for each other: processes on the same cores would take
them from each other's passes, which then last many times as long. What a test starts keeps to these
cores too, and counts no others.
"""

from __future__ import annotations

import os


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


ALL_CORES = _affinity()


def keep_to(cores: set[int]) -> None:
    """Bind this thread, and all that it starts, to cores; without effect where none are known."""
    if cores:
        os.sched_setaffinity(0, cores)


# Here, as NumPy counts the cores when it is imported.
if name := os.environ.get("PYTEST_XDIST_WORKER"):
    share = slice(int(name.removeprefix("gw")), None, int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    keep_to(set(sorted(ALL_CORES)[share]) or ALL_CORES)

OWN_CORES = _affinity()
