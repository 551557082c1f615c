"""What the process takes of the machine's memory, and a cap on it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from omnidraft.runtime.errors import OmniDraftError


class MemoryCapError(OmniDraftError):
    """The process takes more memory than the simulated device has for it."""


def resident_bytes() -> int | None:
    """Resident memory of this process; None where the system does not say (not Linux)."""
    return _status("VmRSS")


def peak_bytes() -> int | None:
    """Largest resident memory since the start or since ``reset_peak``."""
    return _status("VmHWM")


def reset_peak() -> bool:
    """Begin a new peak; whether the system allowed it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
        return True
    return False


@dataclass(frozen=True)
class MemoryCap:
    """Refuses to go on when the process takes more than a device would allow.

    Resident memory is compared, peaks included. An address-space limit (RLIMIT_AS) would also count
    memory that is reserved and never touched, most of a KV cache, and ends in an allocation failure
    deep inside an engine instead of a message.

    Args:
        device: its name.
        limit: bytes.
        since_reset: whether the peak began after whatever had to be fetched and converted.

    Raises:
        OmniDraftError: this system does not tell how much memory a process takes.
    """

    device: str
    limit: int
    since_reset: bool

    def __post_init__(self) -> None:
        if resident_bytes() is None:
            raise OmniDraftError(
                f"The memory cap of {self.device} cannot be enforced: this system does not tell "
                "how much memory a process takes. Remove memory_cap from the profile, or use Linux."
            )

    def check(self, when: str, *, about_to_load: int = 0) -> None:
        """Compare the memory taken so far with the cap.

        Args:
            when: for the message, such as "after loading the target".
            about_to_load: bytes that will be taken for certain next.

        Raises:
            MemoryCapError: it is exceeded.
        """
        taken = (peak_bytes() if self.since_reset else None) or resident_bytes() or 0
        if taken + about_to_load <= self.limit:
            return
        more = f" and {_mb(about_to_load)} of weights are still to load" if about_to_load else ""
        raise MemoryCapError(
            f"{self.device} allows {_mb(self.limit)} of memory, but {when} this process has taken "
            f"{_mb(taken)}{more}. Choose smaller weights (--quantization), a smaller target, or "
            "raise memory_cap in the device profile."
        )


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _status(field: str) -> int | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text("utf-8").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None
