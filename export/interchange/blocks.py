"""Matrices in GGUF's blocks of 32 with a scale each: the nearest, and exact where one is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.errors import OmniDraftError

BLOCK = 32
# Rows that are worked on at once.
_ROWS = 1024
# Blocks of a matrix that tell whether it lies on a grid.
_PROBES = 256


def q8_0(rows: NDArray[np.float32]) -> NDArray[np.uint8]:
    """A matrix as Q8_0: scale x integer, the integer from -127 to 127.

    The largest weight of a block gets 127, as llama.cpp does it. A matrix on a grid that has an
    integer under a float16 scale for every weight gets those, and loses nothing.

    Args:
        rows: float32 [out, in]; ``in`` is a multiple of 32.

    Returns:
        uint8 [out, in / 32 x 34].

    Raises:
        OmniDraftError: a scale is beyond float16.
    """
    blocks = rows.reshape(-1, BLOCK)
    probes = blocks[:: max(1, len(blocks) // _PROBES)]
    exact = _nearest(probes, range(1, 128), -127, 127)[2] == 0
    counts = (127, *range(1, 127)) if exact.mean() > 0.5 else (127,)
    parts = []
    for some in _some(rows):
        codes, scales, _ = _nearest(some, counts, -127, 127)
        parts.append(np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], axis=1))
    return np.concatenate(parts).reshape(len(rows), -1)


def q4_0(rows: NDArray[np.float32]) -> NDArray[np.uint8]:
    """A matrix as Q4_0: scale x integer, the integer from -8 to 7.

    Of the scales that put a block's largest weight on an integer it gets the one that loses least.

    Args, Raises: see ``q8_0``.

    Returns:
        uint8 [out, in / 32 x 18].
    """
    parts = []
    for some in _some(rows):
        codes, scales, _ = _nearest(some, (7, 6, 5, 4, 3, 2, 1, -8, -7, -6, -5), -8, 7)
        nibbles = (codes + np.int8(8)).view(np.uint8)
        low, high = np.split(nibbles, 2, axis=1)
        parts.append(np.concatenate([scales.view(np.uint8), low | high << 4], axis=1))
    return np.concatenate(parts).reshape(len(rows), -1)


def _some(rows: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return [rows[start : start + _ROWS].reshape(-1, BLOCK) for start in range(0, len(rows), _ROWS)]


def _nearest(
    blocks: NDArray[np.float32], counts: Sequence[int], least: int, most: int
) -> tuple[NDArray[np.int8], NDArray[np.float16], NDArray[np.float32]]:
    """Blocks as integers under a scale of float16, of several the one that loses least.

    Args:
        blocks: float32 [n, 32].
        counts: the integers that a block's largest weight may become, tried until nothing is lost.
        least, most: the smallest and the largest integer.

    Returns:
        Integers [n, 32], scales [n, 1] and what was lost [n], in squares.
    """
    peaks = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    codes = np.zeros(blocks.shape, np.int8)
    scales = np.zeros((len(blocks), 1), np.float16)
    lost = np.full(len(blocks), np.inf, np.float32)
    pending = np.arange(len(blocks))
    for count in counts:
        values = blocks[pending]
        with np.errstate(over="ignore", invalid="ignore"):
            scale = (peaks[pending] / np.float32(count)).astype(np.float16)
            wide = scale.astype(np.float32)
            inverse = np.divide(1, wide, out=np.zeros_like(wide), where=wide != 0)
            code = np.clip(np.rint(values * inverse), least, most)
            off = np.square(values - code * wide).sum(axis=1)
        better = off < lost[pending]
        chosen = pending[better]
        codes[chosen], scales[chosen], lost[chosen] = code[better], scale[better], off[better]
        pending = pending[lost[pending] > 0]
        if not len(pending):
            break
    if not np.isfinite(lost).all():
        raise OmniDraftError(
            "A weight is so large that no scale of float16 holds it. Choose --quantization none."
        )
    return codes, scales, lost
