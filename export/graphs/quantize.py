"""Quantized weights, as ONNX Runtime's integer kernels store them."""

from __future__ import annotations

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


def quantize_blocks4(
    rows: NDArray[np.float32],
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Quantize a matrix to 4 bits, scale and offset for each block of 32, for MatMulNBits.

    MatMulNBits knows weights (q - 8) * scale. An offset is what the block's sum of inputs is
    multiplied by, so the offsets become further columns, one for each block (``extended_width``),
    and the input is extended by its sums. With offsets, weights that were quantized as
    scale * q + offset before (GGUF's Q4_0, Q4_1, Q4_K) survive nearly unchanged; requantized
    without, they lose as much again as they had lost already.

    Args:
        rows: float32 [out, in]; ``in`` is a multiple of 32.

    Returns:
        uint8 [out, blocks, 16], low nibble first, and float32 scales [out, blocks], where
        blocks = extended_width(in) / 32.
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
    codes = np.rint((blocks - low[..., None]) * inverse(scales)[..., None])
    offsets = low + 8 * scales
    offset_codes, offset_scales = _symmetric4(_blocks(offsets))
    codes = np.concatenate([codes, offset_codes], axis=1).astype(np.uint8)
    return (
        codes[..., 0::2] | (codes[..., 1::2] << 4),
        np.concatenate([scales, offset_scales], axis=1),
    )


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


def extended_width(width: int) -> int:
    """Columns of a matrix of ``width`` columns with its blocks' offsets behind, in whole blocks."""
    return width + -(-(width // BLOCK) // BLOCK) * BLOCK


def _symmetric4(
    blocks: NDArray[np.float32],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    # The extreme value to -8 exactly, whichever its sign, as GGUF's Q4_0 does.
    extreme = np.abs(blocks).argmax(axis=-1)[..., None]
    scales = np.take_along_axis(blocks, extreme, axis=-1)[..., 0] / np.float32(-8)
    codes = np.rint(blocks * inverse(scales)[..., None]) + 8
    return np.clip(codes, 0, 15), scales


def _blocks(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    padding = -rows.shape[1] % BLOCK
    if padding:
        rows = np.pad(rows, ((0, 0), (0, padding)))
    return rows.reshape(len(rows), -1, BLOCK)


def inverse(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / scale, and 0 where the scale is 0."""
    return np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
