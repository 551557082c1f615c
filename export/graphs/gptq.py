"""4-bit rounding that lets the weights still to be rounded make up for those that were.

GPTQ (arXiv 2210.17323), in blocks of 32 with a scale each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.graphs.quantize import BLOCK, inverse

Floats = NDArray[np.float32]

# A block's scale: its largest weight at -8, times what loses least of these. The last ones find
# weights that use fewer levels already, as those of a drafter that was trained for 4 bits.
_SHRINKAGES = np.array([*np.linspace(0.75, 1.1, 15), 8 / 7, 8 / 6, 8 / 5], np.float32)
# Share of the mean moment added to all, so that rare inputs do not decide.
_DAMPING = 0.01
# Rows that are rounded together: what is worked on stays in the processor's caches.
_ROWS = 1024


def quantize_blocks4_gptq(rows: Floats, moments: Floats | None) -> tuple[NDArray[np.uint8], Floats]:
    """Quantize a matrix to 4 bits in blocks: weight = (q - 8) * scale.

    Args:
        rows: float32 [out, in]; ``in`` is a multiple of 32.
        moments: float32 [in, in], the sum of xᵀx over inputs x of a calibration text. Rounding
            minimizes the error of the outputs for these. None: each weight is rounded by itself.

    Returns:
        uint8 [out, in / 2], low nibble first, and float32 scales [out, in / 32].
    """
    width = rows.shape[1]
    carry = None if moments is None else error_carry(moments)
    codes = np.empty((len(rows), width // 2), np.uint8)
    scales = np.empty((len(rows), width // BLOCK), np.float32)
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        codes[part], scales[part] = _quantize_rows(rows[part], carry)
    return codes, scales


def _quantize_rows(rows: Floats, carry: Floats | None) -> tuple[NDArray[np.uint8], Floats]:
    rows = rows.copy()
    codes = np.empty(rows.shape, np.uint8)
    scales = np.empty((len(rows), rows.shape[1] // BLOCK), np.float32)
    for start in range(0, rows.shape[1], BLOCK):
        end = start + BLOCK
        scale = scales[:, start // BLOCK] = _best_scales(rows[:, start:end])
        per_scale = inverse(scale)
        # Column by column, so a column's weights lie side by side.
        columns = np.ascontiguousarray(rows[:, start:end].T)
        errors = np.zeros_like(columns)
        for i, column in enumerate(columns):
            levels = np.clip(np.rint(column * per_scale), -8, 7)
            codes[:, start + i] = levels + 8
            if carry is not None:
                factors = carry[start + i, start + i : end]
                errors[i] = (column - levels * scale) / factors[0]
                columns[i + 1 :] -= errors[i] * factors[1:, None]
        if carry is not None:
            rows[:, end:] -= np.ascontiguousarray(errors.T) @ carry[start:end, end:]
    return codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4)), scales


def error_carry(moments: NDArray[np.floating]) -> Floats:
    """How the error of rounding one input's weights moves to those of later inputs, by GPTQ.

    Args:
        moments: [in, in], the sum of xᵀx over inputs x.

    Returns:
        float32 [in, in], the upper Cholesky factor of the inverse of the damped moments.
    """
    damped = moments.astype(np.float64)
    mean = float(np.trace(damped)) / len(damped)
    damped[np.diag_indices_from(damped)] += _DAMPING * mean or 1.0
    factor: Floats = np.linalg.cholesky(np.linalg.inv(damped)).T.astype(np.float32)
    return factor


def _best_scales(block: Floats) -> Floats:
    """The scale of each row of [rows, 32] that loses least in squares."""
    extreme = np.take_along_axis(block, np.abs(block).argmax(axis=1)[:, None], axis=1)[:, 0]
    best = np.full(len(block), np.inf, np.float32)
    scales = np.zeros_like(extreme)
    for shrinkage in _SHRINKAGES:
        scale = extreme * shrinkage / np.float32(-8)
        levels = np.clip(np.rint(block * inverse(scale)[:, None]), -8, 7)
        error = np.square(levels * scale[:, None] - block).sum(axis=1)
        better = error < best
        best = np.where(better, error, best)
        scales = np.where(better, scale, scales)
    return scales
