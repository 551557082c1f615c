"""What this machine computes with."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path


def processor_name() -> str:
    """What this machine calls its processor, or on boards that do not say, the board."""
    board = first_line(Path("/proc/device-tree/model"))
    return cpuinfo("model name") or board or platform.processor() or platform.machine()


def usable_cores() -> int | None:
    """Logical cores that this process may use; None: the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def cpuinfo(key: str) -> str | None:
    """The first core's entry in the kernel's description, where there is one."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith(key):
                return line.partition(":")[2].strip()
    return None


def first_line(path: Path) -> str | None:
    """Of a file of the kernel; None where it is missing or empty."""
    with contextlib.suppress(OSError):
        return path.read_text("utf-8").partition("\n")[0].strip("\0 ") or None
    return None
