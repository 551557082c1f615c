"""What machine a profile was made on."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from omnidraft.runtime.processor import cpuinfo, first_line, processor_name, usable_cores

_CPU = Path("/sys/devices/system/cpu/cpu0/cpufreq")


class Machine(BaseModel):
    """The machine and the versions of what runs on it; None: the system does not say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    processor: str
    architecture: str
    cores: int | None
    """Logical cores."""
    usable_cores: int | None
    """Logical cores that this process may use."""
    mhz: float | None
    """Clock of the first core when the profile was begun."""
    max_mhz: float | None
    governor: str | None
    """How the kernel chooses the clock."""
    memory_bytes: int | None
    os: str
    python: str
    versions: dict[str, str]


def describe_machine() -> Machine:
    """Look at this machine."""
    kilohertz = first_line(_CPU / "scaling_cur_freq")
    maximum = first_line(_CPU / "cpuinfo_max_freq")
    mhz = int(kilohertz) / 1e3 if kilohertz else _number(cpuinfo("cpu MHz"))
    return Machine(
        processor=processor_name(),
        architecture=platform.machine(),
        cores=os.cpu_count(),
        usable_cores=usable_cores(),
        mhz=mhz,
        max_mhz=int(maximum) / 1e3 if maximum else None,
        governor=first_line(_CPU / "scaling_governor"),
        memory_bytes=_memory(),
        os=_os(),
        python=platform.python_version(),
        versions={
            name: importlib.metadata.version(name) for name in ("omnidraft", "onnxruntime", "numpy")
        },
    )


def _memory() -> int | None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _os() -> str:
    with contextlib.suppress(OSError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {platform.release()}"
    return platform.platform()


def _number(text: str | None) -> float | None:
    return float(text) if text else None
