"""How many threads suit this process: by the cores that it may use, and for how long."""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from omnidraft.runtime.processor import first_line

_MOST_THREADS = 16
"""By default. Kernels cut the small matrices of a small model into fewer parts."""
_BIG = (("cpu_capacity", 0.5), ("cpufreq/cpuinfo_max_freq", 0.8))
"""What tells the speed of a core, best first, and which share of the fastest one's makes it big.

Capacity is what the kernel schedules by. A highest clock says less: little cores have a simpler
pipeline beside a lower clock.
"""


@dataclass(frozen=True)
class Cores:
    """The cores of one process."""

    logical: int
    """Logical cores that it may run on."""
    big: int
    """Physical cores among them, without those that are much slower than the fastest."""
    quota: float | None = None
    """How many it may keep busy, by its control groups; None: all."""

    @property
    def usable(self) -> int:
        """More threads than these only wait for each other."""
        return self.logical if self.quota is None else min(self.logical, math.ceil(self.quota))

    @property
    def threads(self) -> int:
        """How many threads suit a pass.

        A part of a core counts for nothing: all threads of a pass wait for the one whose time is
        used up.
        """
        allowed = self.big if self.quota is None else min(self.big, int(self.quota))
        return max(1, min(allowed, _MOST_THREADS))


def default_threads() -> int:
    """How many threads suit a pass in this process, now."""
    return own_cores().threads


def own_cores() -> Cores:
    """The cores of this process, as far as the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return read_cores(Path("/"), os.sched_getaffinity(0))
    logical = os.cpu_count() or 1
    if sys.platform == "darwin":
        return apple_cores(logical, _sysctl)
    return Cores(logical, logical)


def read_cores(root: Path, allowed: Collection[int]) -> Cores:
    """The cores of the process that ``/proc/self`` describes, of a Linux system.

    Args:
        root: the folder that holds ``proc`` and ``sys``.
        allowed: the logical cores that the process may run on.
    """
    big = _big(root, set(allowed))
    return Cores(len(allowed), len({_physical(root, cpu) for cpu in big}), _quota(root))


def apple_cores(logical: int, sysctl: Callable[[str], int | None]) -> Cores:
    """The same on macOS, where processes are not bound to cores and have no quota.

    Args:
        sysctl: a number that the kernel tells by this name; None: it does not know it.
    """
    # Level 0 is that of the fastest cores; a processor with one kind of cores may have no levels.
    big = sysctl("hw.perflevel0.physicalcpu") or sysctl("hw.physicalcpu") or logical
    return Cores(logical, big)


def _sysctl(name: str) -> int | None:
    value = ctypes.c_int()
    size = ctypes.c_size_t(ctypes.sizeof(value))
    call = ctypes.CDLL(None).sysctlbyname
    failed = call(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return None if failed else value.value


def _cpu(root: Path, cpu: int, entry: str) -> str | None:
    return first_line(root / "sys/devices/system/cpu" / f"cpu{cpu}" / entry)


def _big(root: Path, allowed: set[int]) -> set[int]:
    # Intel's hybrid processors say which cores are which.
    if performance := allowed & _listed(first_line(root / "sys/devices/cpu_core/cpus")):
        return performance
    for entry, share in _BIG:
        speeds = {cpu: _number(_cpu(root, cpu, entry)) for cpu in allowed}
        if 0 not in speeds.values() and len(set(speeds.values())) > 1:
            return {cpu for cpu, speed in speeds.items() if speed >= share * max(speeds.values())}
    return allowed


def _physical(root: Path, cpu: int) -> int:
    """The first of the logical cores that are one physical core with this one."""
    for entry in ("core_cpus_list", "thread_siblings_list"):  # the same; kernels before 5.3: one
        siblings = _listed(_cpu(root, cpu, f"topology/{entry}"))
        if cpu in siblings:
            return min(siblings)
    return cpu


def _quota(root: Path) -> float | None:
    """The least of the quotas of the process's control groups and of those around them."""
    quotas = (_quota_of(folder) for folder in _control_groups(root))
    return min((quota for quota in quotas if quota is not None), default=None)


def _control_groups(root: Path) -> Iterator[Path]:
    groups: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers or "cpu" in controllers.split(","):
            groups["cgroup" if controllers else "cgroup2"] = path
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, system = line.partition(" - ")
        kind, *options = system.split() or [""]
        of_mount = mount.split()
        if kind not in groups or len(of_mount) < 5:
            continue
        if kind == "cgroup" and "cpu" not in (options or [""])[-1].split(","):
            continue
        top, place = map(_unescaped, of_mount[3:5])
        folder = root / place.lstrip("/")
        yield folder
        # A container may see a part of the tree, whose top is mounted.
        group = PurePosixPath(groups[kind])
        if group.is_relative_to(top) and ".." not in group.parts:
            for part in group.relative_to(top).parts:
                folder /= part
                yield folder


def _quota_of(folder: Path) -> float | None:
    """How many cores a control group may keep busy; None: there is no limit."""
    if limit := first_line(folder / "cpu.max"):
        quota, _, period = limit.partition(" ")
    else:
        quota = first_line(folder / "cpu.cfs_quota_us") or ""
        period = first_line(folder / "cpu.cfs_period_us") or ""
    # Without a limit it is "max", or -1.
    microseconds = _number(quota), _number(period)
    return microseconds[0] / microseconds[1] if all(microseconds) else None


def _listed(text: str | None) -> set[int]:
    """The numbers of a list such as 0-3,8."""
    numbers: set[int] = set()
    for part in (text or "").split(","):
        if found := re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), re.ASCII):
            numbers.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return numbers


def _number(text: str | None) -> int:
    """A whole number from 0 on; 0 of anything else."""
    return int(text) if text and re.fullmatch(r"\d{1,18}", text, re.ASCII) else 0


def _unescaped(text: str) -> str:
    """A path as ``mountinfo`` writes it: blanks and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
