"""What this machine computes with."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

_FEATURES = (
    *("avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "amx_int8", "asimd", "asimddp", "i8mm", "sve"),
    *("avx512dq", "avx512_fp16", "amx_tile", "asimdhp", "bf16", "sve2", "sme"),
)


def processor_name() -> str:
    """What this machine calls its processor, or on boards that do not say, the board."""
    board = first_line(Path("/proc/device-tree/model"))
    return cpuinfo("model name") or board or platform.processor() or platform.machine()


def usable_cores() -> int | None:
    """Logical cores that this process may use; None: the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def cpu_features() -> list[str]:
    """The instruction sets that kernels choose by, where the system tells (Linux), else []."""
    present = (cpuinfo("flags") or cpuinfo("Features") or "").split()
    return [name for name in _FEATURES if name in present]


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
