"""Many timings in a few figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

PassKind = Literal["chain", "tree"]
"""Tokens in a row, or nodes that have other nodes beside them."""


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
    """Of the passes of one kind over one number of tokens."""

    kind: PassKind
    tokens: int
    """In a row, or nodes of a tree."""


def summarize(seconds: Sequence[float]) -> Summary | None:
    """The figures of at least one duration in seconds; None of none."""
    return Summary(**_figures(seconds)) if seconds else None


def summarize_passes(passes: Iterable[tuple[PassKind, int, float]]) -> list[PassSummary]:
    """The figures of passes, given as (kind, tokens, seconds): chains first, shorter ones first."""
    groups: dict[tuple[PassKind, int], list[float]] = {}
    for kind, tokens, seconds in passes:
        groups.setdefault((kind, tokens), []).append(seconds)
    return [
        PassSummary(kind=kind, tokens=tokens, **_figures(groups[kind, tokens]))
        for kind, tokens in sorted(groups)
    ]


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
