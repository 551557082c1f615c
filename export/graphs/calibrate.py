"""Even out the input channels of 8-bit linears, so that one scale for a token loses less.

Some channels of a decoder's activations are many times larger than the others, for every token. An
8-bit input has one scale for a token, which they set, and the others are left with few levels. So
channel c is multiplied by f_c and column c of the weight is divided by it, as in SmoothQuant
(arXiv 2211.10438):

    f_c = (rms_c / rms) ** -EXPONENT,

where rms_c is channel c's root mean square over the tokens of a text, each token scaled to the same
largest magnitude, and rms that of all channels. Whatever makes the input takes f up in its own
weights, so the graph has no node more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from omnidraft.export.checkpoint import Checkpoint, Decoder
from omnidraft.export.graphs.linears import OBSERVED, Observed
from omnidraft.export.graphs.target import whole_pass, write_graph
from omnidraft.export.graphs.writer import GRAPH_FILE, Progress
from omnidraft.runtime.engines.onnx import MAX_PASS
from omnidraft.runtime.engines.onnx_session import cpu_session

# 1 would make all channels alike and leave the outliers to the weights, which have one scale for a
# row. SmolLM2-135M, KL against float32: 0.0316 at 0; 0.0096, 0.0091, 0.0103, 0.0174 at 0.35, 0.4,
# 0.5, 0.7.
EXPONENT = 0.4
# A channel that the text leaves silent must not be blown up.
SMALLEST = 1e-3
CALIBRATION_TEXT = '''The library opens at nine. Maria borrowed 3 books on Monday and 4 more on \
Friday; she returned 2, so she has 3 + 4 - 2 = 5 books now.

def mean(values):
    """Return the arithmetic mean of a list of numbers."""
    if not values:
        raise ValueError("no values")
    return sum(values) / len(values)

In 1969, two astronauts walked on the Moon, while a third stayed in orbit. "That's one small step,\
" said Armstrong. Here are some tips:
1. Drink enough water.
2. Sleep at least seven hours, and get up at the same time every day.
The minister said on Tuesday that the government would publish its plan next week, although \
critics doubt that it will change much.'''
"""Prose, sums, code and a list: which channels are large depends little on the text."""


def channel_factors(
    checkpoint: Checkpoint, folder: Path, tokens: Sequence[int], progress: Progress
) -> dict[str, NDArray[np.float32]]:
    """What to multiply the inputs of an 8-bit decoder's linears by: see ``write_graph``.

    Args:
        folder: where an 8-bit decoder may lie for a while, which is what runs over the tokens.
        tokens: ids of a text; those beyond the context, or 256, are left out.
    """
    d = checkpoint.decoder
    return {
        name: _factors(name, squares, d)
        for name, squares in mean_squares(checkpoint, folder, tokens, "levels", progress).items()
        # Without norms before them nothing makes the inputs of these but the residual stream.
        if d.pre_norms or not name.endswith((".qkv", ".gate_up"))
    }


def mean_squares(
    checkpoint: Checkpoint,
    folder: Path,
    tokens: Sequence[int],
    of: Observed,
    progress: Progress,
) -> Mapping[str, NDArray[np.float32]]:
    """How large the inputs of a decoder's linears are over a text: the means of their squares.

    Args:
        folder, tokens: as ``channel_factors`` takes them.
        of: ``values``, or ``levels``, each token in units of its scale in 8 bits.

    Returns:
        By a linear's name float32 [in].
    """
    tokens = tokens[: min(MAX_PASS, checkpoint.decoder.context_length)]
    with tempfile.TemporaryDirectory(prefix="calibration-", dir=folder) as scratch:
        write_graph(checkpoint, Path(scratch), "8bit", progress, observe=of)
        return _run(Path(scratch) / GRAPH_FILE, tokens)


def _run(graph: Path, tokens: Sequence[int]) -> Mapping[str, NDArray[np.float32]]:
    """Mean squares of the inputs of each linear, float32 [in], over one pass."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = cpu_session(graph, options)
    names = [value.name for value in session.get_outputs() if value.name.startswith(OBSERVED)]
    values = session.run(names, whole_pass(session, tokens))
    return {name.removeprefix(OBSERVED): v for name, v in zip(names, values, strict=True)}


def _factors(name: str, squares: NDArray[np.float32], d: Decoder) -> NDArray[np.float32]:
    if name.endswith(".o"):  # heads that share values share factors
        group = d.heads // d.kv_heads
        shared = squares.reshape(d.kv_heads, group, -1).mean(axis=1, keepdims=True)
        squares = shared.repeat(group, axis=1).reshape(-1)
    relative = np.sqrt(squares / max(float(squares.mean()), 1e-30))
    factors: NDArray[np.float32] = np.maximum(relative, np.float32(SMALLEST)) ** -EXPONENT
    return factors.astype(np.float32)
