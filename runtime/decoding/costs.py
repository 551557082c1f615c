"""What a pass costs: seconds by tokens, measured on this machine, kept, and followed online.

    costs = load_costs(target, drafter)          # measures both at first use, a second or two
    costs.target(context).seconds(5)             # a pass of the target over five tokens
    costs.target(context).observe(5, 0.0132)     # what one took
    costs.save()

The draft length is chosen by these (method: choosing the draft length by cost). With t(n) the time
of a target's pass over n tokens and d that of a draft step, only the ratios t(n) / t(1) and
d / t(1) matter. Measured times are noisy, and hiccups make them longer, never shorter. So a low
quantile of several turns is taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

import numpy as np

from omnidraft import _native
from omnidraft._native import CostCurve
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.models.cache import cache_folder
from omnidraft.runtime.processor import processor_name, usable_cores

SCHEMA_VERSION: Final = 1
# The most telling first: a slow model has time for a few of them only.
SIZES = (1, 8, 2, 4, 16, 32, 3, 6, 12, 24)
MEASURED_CONTEXT = 128
BUDGET_SECONDS = 1.2
TURNS = 7
QUANTILE = 0.3
LEAST_SHARE = 0.75
"""Of the cores' time that measuring must get; 0.9 is usual on a quiet machine."""


class Costs(_native.Costs):
    """The curves of a target, by context band, and of a drafter, kept on disk.

    Args:
        target: by a band's upper end; at least one.
        path: where ``save`` writes; None: nowhere.
    """

    def __init__(
        self, target: Mapping[int, CostCurve], drafter: CostCurve, path: Path | None = None
    ) -> None:
        super().__init__(target, drafter)
        self._path = path

    def save(self) -> None:
        """Keep the curves for the next session, when they are new or have moved.

        Raises:
            OmniDraftError: the folder cannot be written.
        """
        curves = [*self.bands.values(), self.drafter]
        if self._path is None or not any(curve.has_moved for curve in curves):
            return
        content = {
            "schema_version": SCHEMA_VERSION,
            "machine": machine(),
            "target": {band: _points(curve) for band, curve in self.bands.items()},
            "drafter": _points(self.drafter),
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
            curve.written()

    @classmethod
    def load(cls, path: Path) -> Costs | None:
        """What ``save`` wrote; None where there is nothing that can be used."""
        try:
            content = json.loads(path.read_text("utf-8"))
            if content["schema_version"] != SCHEMA_VERSION:
                return None
            bands = {int(band): _read_curve(points) for band, points in content["target"].items()}
            return cls(bands, _read_curve(content["drafter"]), path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # it is measured again in a moment


def _points(curve: CostCurve) -> dict[int, float]:
    return {size: curve.seconds(size) for size in sorted(SIZES)}


def _read_curve(points: dict[str, float]) -> CostCurve:
    curve = CostCurve({int(size): float(seconds) for size, seconds in points.items()})
    curve.written()
    return curve


def measure(
    model: CausalModel,
    *,
    context: int = MEASURED_CONTEXT,
    sizes: Sequence[int] = SIZES,
    budget: float = BUDGET_SECONDS,
    rows: int | None = None,
) -> CostCurve:
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
    return CostCurve({size: float(np.quantile(taken, QUANTILE)) for size, taken in timed.items()})


def load_costs(target: LoadedModel, drafter: LoadedModel) -> Costs:
    """The kept costs of two models on this machine; measured now if there are none.

    The file's name tells the models, their threads and the processor. Costs that were measured on a
    busy machine serve one session, and are measured again in the next.
    """
    identity = [_identity(target), _identity(drafter), machine()]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    path = cache_folder() / "costs" / f"{key}.json"
    costs = Costs.load(path)
    if costs is None:
        began, used = perf_counter(), process_time()
        curve = measure(target.model)
        draft_curve = measure(drafter.model, rows=1, budget=0.4)
        share = (process_time() - used) / ((perf_counter() - began) * target.threads)
        # Where other processes took the cores, a pass over many tokens may seem dearer than it is
        # by far; such a size would not be proposed, and so not be corrected. Threads
        # of our own graphs spin within a pass; those of other engines may not.
        disturbed = target.engine == "onnx" and share < LEAST_SHARE
        costs = Costs({Costs.BANDS[0]: curve}, draft_curve, None if disturbed else path)
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
