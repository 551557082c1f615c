"""Quantized weights, as integer kernels multiply them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
"""Weights that share a scale, where there is one for each block."""
Rounded = tuple[NDArray[np.uint8], NDArray[np.float32]]
"""Codes and scales of a matrix that is quantized in blocks."""
# Share of the squares that float16 may round away, and rows that are worked on at once.
_LOST = 1e-6
_ROWS = 2048
AFFINE_LEVELS = (15, 14, 13, 12, 11, 10, 9, 8)


def quantize_rows(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantize a matrix to 8 bits with one scale a row.

    Returns:
        int8 [out, in] and float32 scales [out]; weight = integer * scale.
    """
    scales = np.abs(rows).max(axis=-1) / np.float32(127)
    return np.rint(rows * inverse(scales)[:, None]).astype(np.int8), scales


def quantize_blocks8(
    rows: NDArray[np.float32],
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Quantize a matrix to 8 bits in blocks of 32 along its rows, as GatherBlockQuantized reads it.

    Args:
        rows: float32 [out, in]; ``in`` is padded with zeros to a multiple of 32.

    Returns:
        uint8 [out, padded in] and float32 scales [out, blocks]; weight = (integer - 128) * scale.
    """
    blocks = _blocks(rows)
    # Largest magnitude to 127, as GGUF's Q8_0 does, so that such weights survive unchanged.
    scales = np.abs(blocks).max(axis=-1) / np.float32(127)
    levels = np.rint(blocks * inverse(scales)[..., None]) + 128
    return levels.astype(np.uint8).reshape(len(rows), -1), scales


@dataclass(frozen=True)
class Affine:
    """A matrix in 4 bits; weight = unit * (scale * code + offset)."""

    codes: NDArray[np.uint8]
    """[out, blocks, 32], from 0 to 15."""
    scales: NDArray[np.float16]
    offsets: NDArray[np.float16]
    """Both [out, blocks]."""
    units: NDArray[np.float32]
    """[out]: powers of two, so that halves that a file stored stay what they are."""


def quantize_blocks4(rows: NDArray[np.float32]) -> Affine:
    """Quantize a matrix to 4 bits, scale and offset for each block of 32.

    With offsets, weights that were quantized as scale * q + offset before (GGUF's Q4_0, Q4_1, Q4_K)
    survive nearly unchanged; requantized without, they lose as much again as they had lost already.

    Args:
        rows: float32 [out, in]; ``in`` is a multiple of 32.
    """
    blocks = _blocks(rows)
    low = blocks.min(axis=-1)
    span = blocks.max(axis=-1) - low
    # Weights quantized before use at most 16 equidistant levels, but maybe not the outermost.
    best = np.full(span.shape, np.inf, np.float32)
    scales = np.zeros_like(span)
    for levels in AFFINE_LEVELS:
        scale = span / np.float32(levels)
        steps = (blocks - low[..., None]) * inverse(scale)[..., None]
        error = np.square((steps - np.rint(steps)) * scale[..., None]).sum(axis=-1)
        better = error < best * np.float32(0.999)  # more levels unless fewer are truly better
        best = np.where(better, error, best)
        scales = np.where(better, scale, scales)
    # The largest of an output's halves lies from 2^13 on, where the smallest that matter are exact.
    exponents = np.frexp(np.maximum(np.abs(low), scales).max(axis=-1))[1]
    units = np.ldexp(np.float32(1), np.maximum(exponents - 14, -126)).astype(np.float32)
    half_scales, offsets = ((x / units[:, None]).astype(np.float16) for x in (scales, low))
    # Rounded against what the halves hold.
    scales, low = (x.astype(np.float32) * units[:, None] for x in (half_scales, offsets))
    codes = np.rint((blocks - low[..., None]) * inverse(scales)[..., None])
    return Affine(np.clip(codes, 0, 15).astype(np.uint8), half_scales, offsets, units)


def exact_blocks4(rows: NDArray[np.float32]) -> Rounded | None:
    """Quantize a matrix to 4 bits, a scale for each block of 32, where that loses nothing.

    Args:
        rows: float32 [out, in]; ``in`` is a multiple of 32.

    Returns:
        uint8 [out, in / 2], low nibble first, and float32 scales [out, in / 32]; weight =
        (q - 8) * scale. None if any part would be changed by more than float16 rounds.
    """
    codes = np.empty((len(rows), rows.shape[1] // 2), np.uint8)
    scales = np.empty((len(rows), rows.shape[1] // BLOCK), np.float32)
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        blocks = _blocks(rows[part])
        largest = np.abs(blocks).max(axis=-1)
        best = np.full(largest.shape, np.inf, np.float32)
        chosen = np.zeros(blocks.shape, np.float32)
        for peak in range(7, 0, -1):  # a block need not use all levels
            scale = largest / np.float32(peak)
            levels = np.rint(blocks * inverse(scale)[..., None])
            error = np.square(levels * scale[..., None] - blocks).sum(axis=-1)
            better = error < best * np.float32(0.999)
            best = np.where(better, error, best)
            scales[part] = np.where(better, scale, scales[part])
            chosen = np.where(better[..., None], levels, chosen)
        if best.sum() > _LOST * np.square(blocks).sum():
            return None
        values = (chosen + 8).astype(np.uint8).reshape(len(blocks), -1)
        codes[part] = values[:, 0::2] | (values[:, 1::2] << np.uint8(4))
    return codes, scales


def _blocks(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    padding = -rows.shape[1] % BLOCK
    if padding:
        rows = np.pad(rows, ((0, 0), (0, padding)))
    return rows.reshape(len(rows), -1, BLOCK)


def inverse(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / scale, and 0 where the scale is 0."""
    return np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
