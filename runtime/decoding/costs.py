"""What a pass costs: seconds by tokens, measured on this machine, kept, and followed online.

    costs = load_costs(target, drafter)          # measures both at first use, a second or two
    costs.target(context).seconds(5)             # a pass of the target over five tokens
    costs.target(context).observe(5, 0.0132)     # what one took
    costs.save()

The draft length is chosen by these (method: choosing the draft length by cost). With t(n) the time
of a target's pass over n tokens and d that of a draft step, only the ratios t(n) / t(1) and
d / t(1) matter. Measured times are noisy, and hiccups make them longer, never shorter. So a low
quantile of several turns is taken. Observations move a curve by a bounded step each, which makes it
a running median rather than a mean.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Final

import numpy as np

from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.models.cache import cache_folder
from omnidraft.runtime.processor import processor_name, usable_cores

SCHEMA_VERSION: Final = 1
# The most telling first: a slow model has time for a few of them only.
SIZES = (1, 8, 2, 4, 16, 32, 3, 6, 12, 24)
BANDS = (256, 1024, 4096)
"""Upper ends of the context bands, in tokens; the last one has no end."""
MEASURED_CONTEXT = 128
BUDGET_SECONDS = 1.2
TURNS = 7
QUANTILE = 0.3
# An observed pass over n tokens is compared with the curve by the logarithm of their ratio, within
# ±CLIP. The whole curve moves by LEVEL_STEP of it, and the value at n by a further POINT_STEP.
LEVEL_STEP = 0.05
POINT_STEP = 0.02
CLIP = 0.4
# A saved curve is written again when it has moved by so much, in logarithms.
STALE = 0.05


class Curve:
    """Seconds of a pass over n tokens: monotone, linear between measured sizes and beyond.

    Args:
        seconds: of passes over some numbers of tokens, 1 among them.

    Raises:
        ValueError: size 1 is missing, or a time is not positive and finite.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        if 1 not in seconds or not all(0 < s < math.inf for s in seconds.values()):
            raise ValueError("a cost curve needs positive times, that of one token among them")
        sizes = sorted(seconds)
        times = np.maximum.accumulate([seconds[size] for size in sizes])
        self._largest = sizes[-1]
        # By tokens. A pass over none costs nothing.
        self._table: list[float] = [
            0.0,
            *np.interp(np.arange(1, self._largest + 1), sizes, times).tolist(),
        ]
        self._tail_from = sizes[-2] if len(sizes) > 1 else 0
        self._level = 1.0
        self._drift = 0.0
        self.has_moved = True
        """Whether it is worth writing down again."""

    def seconds(self, tokens: float) -> float:
        """Expected seconds of a pass over ``tokens``, which may be a fraction (an average)."""
        table = self._table
        if tokens < self._largest:
            whole = int(tokens)
            low = table[whole]
            return self._level * (low + (tokens - whole) * (table[whole + 1] - low))
        last = table[-1]
        slope = (last - table[self._tail_from]) / (self._largest - self._tail_from)
        return self._level * (last + (tokens - self._largest) * slope)

    def observe(self, tokens: int, seconds: float) -> None:
        """Follow a pass over so many tokens, which took ``seconds``."""
        ratio = math.log(max(seconds, 1e-9) / self.seconds(tokens))
        ratio = min(CLIP, max(-CLIP, ratio))
        self._level *= math.exp(LEVEL_STEP * ratio)
        self._drift += (LEVEL_STEP + POINT_STEP) * ratio
        if abs(self._drift) > STALE:
            self.has_moved = True
            self._drift = 0.0
        table = self._table
        if tokens > self._largest:
            return
        moved = table[tokens] * math.exp(POINT_STEP * ratio)
        table[tokens] = moved
        for i in range(tokens + 1, self._largest + 1):
            if table[i] >= moved:
                break
            table[i] = moved
        for i in range(tokens - 1, 0, -1):
            if table[i] <= moved:
                break
            table[i] = moved

    def copy(self) -> Curve:
        """A curve of its own with the same times."""
        return Curve(self.points())

    def points(self) -> dict[int, float]:
        """Seconds at ``SIZES``."""
        return {size: self.seconds(size) for size in sorted(SIZES)}


class Costs:
    """The curves of a target, by context band, and of a drafter.

    Args:
        target: by a band's upper end; at least one.
        path: where ``save`` writes; None: nowhere.
    """

    def __init__(
        self, target: Mapping[int, Curve], drafter: Curve, path: Path | None = None
    ) -> None:
        self._target = dict(target)
        self.drafter = drafter
        self._path = path

    def target(self, context: int) -> Curve:
        """The target's curve at a context length. That of a new band begins as the nearest one."""
        band = next((end for end in BANDS if context <= end), BANDS[-1])
        curve = self._target.get(band)
        if curve is None:
            nearest = min(self._target, key=lambda end: abs(math.log(end / band)))
            curve = self._target[band] = self._target[nearest].copy()
        return curve

    def save(self) -> None:
        """Keep the curves for the next session, when they are new or have moved.

        Raises:
            OmniDraftError: the folder cannot be written.
        """
        curves = [*self._target.values(), self.drafter]
        if self._path is None or not any(curve.has_moved for curve in curves):
            return
        content = {
            "schema_version": SCHEMA_VERSION,
            "machine": machine(),
            "target": {band: curve.points() for band, curve in sorted(self._target.items())},
            "drafter": self.drafter.points(),
        }
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(content, indent=1), "utf-8")
            temporary.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise OmniDraftError(
                f"the measured costs cannot be kept: {error.strerror or error}. Set "
                "OMNIDRAFT_CACHE to a folder that can be written, with free space; now they are in "
                f"{self._path.parent}"
            ) from error
        for curve in curves:
            curve.has_moved = False

    @classmethod
    def load(cls, path: Path) -> Costs | None:
        """What ``save`` wrote; None where there is nothing that can be used."""
        try:
            content = json.loads(path.read_text("utf-8"))
            if content["schema_version"] != SCHEMA_VERSION:
                return None
            bands = {int(band): _read_curve(points) for band, points in content["target"].items()}
            if not bands or not bands.keys() <= set(BANDS):
                return None
            return cls(bands, _read_curve(content["drafter"]), path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # it is measured again in a moment


def _read_curve(points: dict[str, float]) -> Curve:
    curve = Curve({int(size): float(seconds) for size, seconds in points.items()})
    curve.has_moved = False
    return curve


def measure(
    model: CausalModel,
    *,
    context: int = MEASURED_CONTEXT,
    sizes: Sequence[int] = SIZES,
    budget: float = BUDGET_SECONDS,
    rows: int | None = None,
) -> Curve:
    """Time passes of a model; its sequence is afterwards what it was.

    Args:
        context: tokens in the KV cache before a timed pass, if the model holds so many.
        sizes: numbers of tokens to try beside 1, the most important first.
        budget: seconds after which no further pass is begun, once the first two sizes were timed.
        rows: rows of logits that are asked for; default: all.

    Raises:
        ValueError: the model's context is full.
    """
    start = model.length
    room = model.max_length - start
    if room < 1:
        raise ValueError("no room in the model's context to time a pass")
    sizes = [size for size in dict.fromkeys((1, *sizes)) if size <= room]
    times: dict[int, list[float]] = {size: [] for size in sizes}
    token = [min(1, model.vocab_size - 1)]
    began = perf_counter()
    try:
        filler = min(context - start, room - max(sizes))
        if filler > 0:
            model.forward(token * filler, rows=1)
        base = model.length
        # In turns, so that a slow moment falls on all sizes alike.
        for turn in range(TURNS + 1):
            for order, size in enumerate(sizes):
                if perf_counter() - began > budget and (turn or order > 1):
                    break
                before = perf_counter()
                model.forward(token * size, rows=rows)
                times[size].append(perf_counter() - before)
                model.truncate(base)
    finally:
        model.truncate(start)
    # The first pass of a size makes its buffers.
    timed = {size: taken[1:] or taken for size, taken in times.items() if taken}
    return Curve({size: float(np.quantile(taken, QUANTILE)) for size, taken in timed.items()})


def load_costs(target: LoadedModel, drafter: LoadedModel) -> Costs:
    """The kept costs of two models on this machine; measured now if there are none.

    The file's name tells the models, their threads and the processor.
    """
    identity = [_identity(target), _identity(drafter), machine()]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    path = cache_folder() / "costs" / f"{key}.json"
    costs = Costs.load(path)
    if costs is None:
        curve = measure(target.model)
        costs = Costs({BANDS[0]: curve}, measure(drafter.model, rows=1, budget=0.4), path)
        with contextlib.suppress(OmniDraftError):  # they are measured again next time
            costs.save()
    return costs


def machine() -> str:
    """The processor's name and how many of its cores this process may use."""
    return f"{processor_name()}, {usable_cores()} cores"


def _identity(model: LoadedModel) -> list[str]:
    path = model.path.resolve()
    files = sorted(path.glob("*")) if path.is_dir() else [path]
    states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    # A profiler's: the times of a simulated device.
    simulated = map(str, getattr(model.model, "latencies", ()))
    return [str(path), repr(states), str(model.engine), str(model.threads), *simulated]
