"""Many timings in a few figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict


class Summary(BaseModel):
    """Durations in milliseconds. Percentiles between two samples are interpolated linearly."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int
    mean_ms: float
    min_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


class PassSummary(Summary):
    """Of the passes over one number of tokens."""

    tokens: int


def summarize(seconds: Sequence[float]) -> Summary | None:
    """The figures of at least one duration in seconds; None of none."""
    return Summary(**_figures(seconds)) if seconds else None


def summarize_passes(passes: Iterable[tuple[int, float]]) -> list[PassSummary]:
    """The figures of passes, given as (tokens, seconds), for each number of tokens, ascending."""
    groups: dict[int, list[float]] = {}
    for tokens, seconds in passes:
        groups.setdefault(tokens, []).append(seconds)
    return [PassSummary(tokens=n, **_figures(groups[n])) for n in sorted(groups)]


def _figures(seconds: Sequence[float]) -> dict[str, Any]:
    values = np.asarray(seconds, np.float64) * 1e3
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return {
        "count": len(values),
        "mean_ms": float(values.mean()),
        "min_ms": float(values.min()),
        "p50_ms": float(p50),
        "p95_ms": float(p95),
        "p99_ms": float(p99),
        "max_ms": float(values.max()),
    }
