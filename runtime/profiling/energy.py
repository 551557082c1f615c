"""Energy from the counters that Linux shows, where a machine has them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Source = Literal["powercap", "battery"]
_JOULES_PER_MICROWATTHOUR = 3600e-6


@dataclass
class EnergyMeter:
    """Joules since it was opened, of all that the counters cover: other programs' work too.

    Of ``powercap`` (RAPL) these are the processor packages; of ``battery`` the whole device, in
    steps of seconds to minutes, so only long runs mean something.
    """

    source: Source | None
    reason: str
    """What is counted, or why nothing can be."""
    _counters: Sequence[_Counter] = field(default_factory=list)

    def joules(self) -> float:
        """Energy since the meter was opened."""
        return sum(counter.joules() for counter in self._counters)


class _Counter:
    def __init__(self, path: Path, scale: float, wraps_at: int = 0) -> None:
        """Counts in units of ``scale`` joules; after ``wraps_at`` it starts again at 0."""
        self._path = path
        self._scale = scale
        self._wraps_at = wraps_at
        self._last = self._read()
        self._total = 0

    def joules(self) -> float:
        value = self._read()
        step = value - self._last
        if step < 0 and self._wraps_at:
            step += self._wraps_at
        self._total += step
        self._last = value
        return self._total * self._scale

    def _read(self) -> int:
        return int(self._path.read_text("ascii"))


def open_meter(sys: Path = Path("/sys")) -> EnergyMeter:
    """The best meter of this machine; one without a source where there is none.

    Args:
        sys: where the kernel's files are.
    """
    zones = sorted(sys.glob("class/powercap/*/energy_uj"))
    # "intel-rapl:0" is a package, "intel-rapl:0:1" a part of it that would be counted twice.
    zones = [zone for zone in zones if zone.parent.name.count(":") == 1]
    readable = [zone for zone in zones if os.access(zone, os.R_OK)]
    if readable:
        counters = [_Counter(zone, 1e-6, _wrap(zone.parent)) for zone in readable]
        names = ", ".join(zone.parent.name for zone in readable)
        return EnergyMeter("powercap", f"{names}: all that runs on the processor", counters)
    for battery in sorted(sys.glob("class/power_supply/*")):
        if _text(battery / "type") != "Battery" or _text(battery / "status") != "Discharging":
            continue
        if (battery / "energy_now").is_file():
            scale = -_JOULES_PER_MICROWATTHOUR
            counter = _Counter(battery / "energy_now", scale)
        elif (battery / "charge_now").is_file() and (volts := _text(battery / "voltage_now")):
            scale = -_JOULES_PER_MICROWATTHOUR * int(volts) / 1e6
            counter = _Counter(battery / "charge_now", scale)
        else:
            continue
        return EnergyMeter("battery", f"{battery.name}: the whole device", [counter])
    if zones:
        return EnergyMeter(
            None,
            f"{zones[0]} may be read by root only; sudo chmod a+r on it shows energy",
        )
    return EnergyMeter(
        None, "this machine shows no energy counters (no powercap, no battery in discharge)"
    )


def _wrap(zone: Path) -> int:
    return int(_text(zone / "max_energy_range_uj") or 0)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""
