"""What weights of 4 bits lose against those of 8, on a text: by this ``auto`` chooses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from omnidraft.export.graphs.target import whole_pass
from omnidraft.export.graphs.writer import GRAPH_FILE
from omnidraft.runtime.engines.onnx import MAX_PASS
from omnidraft.runtime.engines.onnx_session import cpu_session

LARGEST_LOSS = 0.03
"""Up to this mean KL divergence, in nats, ``auto`` takes 4 bits."""


def divergence(reference: Path, other: Path, tokens: Sequence[int]) -> float:
    """The mean over a text's positions of KL(reference || other), in nats.

    Args:
        reference, other: folders with decoders' graphs.
        tokens: ids of a text that the context holds; those beyond 256 are left out.
    """
    expected, found = (_logits(folder / GRAPH_FILE, tokens) for folder in (reference, other))
    return float(np.mean([_kl(*rows) for rows in zip(expected, found, strict=True)]))


def _logits(graph: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Float32 [tokens, vocabulary]; the session's memory is given back."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = cpu_session(graph, options)
    (logits,) = session.run(["logits"], whole_pass(session, tokens[:MAX_PASS]))
    rows: NDArray[np.float32] = logits[0]
    return rows


def _kl(expected: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    p, q = (_log_softmax(row.astype(np.float64)) for row in (expected, found))
    return float(np.dot(np.exp(p), p - q))


def _log_softmax(row: NDArray[np.float64]) -> NDArray[np.float64]:
    row = row - row.max()
    normalized: NDArray[np.float64] = row - np.log(np.exp(row).sum())
    return normalized
