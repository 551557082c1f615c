"""Quantized weights, as integer kernels multiply them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.checkpoint.blocks import Blocks, Form

Floats = NDArray[np.float32]
BLOCK = 32
"""Weights that share a scale, where there is one for each block."""
SUPER = 8
"""Blocks that share units, in forms that have them."""
Rounded = tuple[NDArray[np.uint8], NDArray[np.float32]]
"""Codes and scales of a matrix that is quantized in blocks."""
# Share of the squares that float16 may round away, and rows that are worked on at once.
_LOST = 1e-6
_ROWS = 2048
# Of a block's span, how many steps it may have. Weights quantized before use at most 16 levels, but
# maybe not the outermost. SmolLM2-135M and Gemma 3 270M lose as much with twice as many candidates.
_LEVELS = (15, 14, 13, 12, 11, 10, 9, 8, 16, 17, 18, 19)
_LEAST_IMPORTANCE = 0.01
# Weights that are worked on at once: what belongs to them stays in the processor's caches.
_NEAR = 1 << 16


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


def quantize_blocks4(rows: Floats, importance: Floats | None = None) -> tuple[Blocks, Floats]:
    """Quantize a matrix to 4 bits, scale and offset for each block of 32.

    Of several scales a block gets the one that loses least, in squares weighted by how large the
    inputs are: for each, weights are rounded, and then scale and offset are fitted to the codes.
    Weights that had 4 bits before (GGUF's Q4_0, Q4_1, Q4_K) survive nearly unchanged.

    Args:
        rows: float32 [out, in]; ``in`` is a multiple of 32.
        importance: float32 [in], mean squares of the inputs, in any unit; None: all are alike.

    Returns:
        The matrix in the form ``SUPER4`` where its width allows it, else ``AFFINE4``, and what its
        rows are multiplied by, float32 [out]: powers of two.
    """
    if importance is None:
        importance = np.ones(rows.shape[1], np.float32)
    # Inputs that a text leaves silent count a little, too.
    importance = importance + np.float32(_LEAST_IMPORTANCE * importance.mean() or 1.0)
    weights = (importance / importance.mean()).reshape(-1, BLOCK)
    units = powers_of_two(np.abs(rows).max(axis=-1))
    blocks = _blocks(rows / units[:, None])
    scales, offsets = (np.empty(blocks.shape[:-1], np.float32) for _ in range(2))
    step = max(1, _NEAR // rows.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        scales[part], offsets[part] = _fitted(blocks[part], weights)
    form = four_bit_form(rows.shape[1])
    factors = np.stack([scales, offsets], axis=-1)
    if form == Form.SUPER4:
        integers, of_groups = _in_units(factors)
        held = integers * of_groups.astype(np.float32).repeat(SUPER, axis=1)
        return Blocks(form, _codes(blocks, held), integers.astype(np.int8), of_groups), units
    halves = factors.astype(np.float16)
    return Blocks(form, _codes(blocks, halves.astype(np.float32)), halves), units


def _codes(blocks: Floats, factors: Floats) -> NDArray[np.int8]:
    """The nearest codes, for the scales and offsets [rows, blocks, 2] that are held."""
    codes = (blocks - factors[..., 1:]) * inverse(factors[..., 0])[..., None]
    nearest: NDArray[np.int8] = np.clip(np.rint(codes), 0, 15).astype(np.int8)
    return nearest


def four_bit_form(width: int) -> Form:
    """In which form ``quantize_blocks4`` holds rows of a width."""
    return Form.AFFINE4 if width % (SUPER * BLOCK) else Form.SUPER4


def _fitted(blocks: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """The scale and the offset of each block, of [rows, blocks, 32], that lose least.

    Args:
        weights: [blocks, 32], of the squares.
    """
    low, high = blocks.min(axis=-1), blocks.max(axis=-1)
    middle, span = (low + high) / 2, high - low
    # From the middle, as float32 would lose small differences of large weights.
    blocks = blocks - middle[..., None]
    weighted = blocks * weights
    count, total = weights.sum(axis=-1), weighted.sum(axis=-1)
    squares = np.einsum("rbi,rbi->rb", weighted, blocks)
    least = np.full(low.shape, np.inf, np.float32)
    scales, offsets = np.zeros_like(low), low
    for levels in _LEVELS:
        scale = span / np.float32(levels)
        # Beyond 15 levels the outermost weights are cut off at both ends.
        codes = blocks * inverse(scale)[..., None]
        codes += np.float32(min(levels, 15) / 2)
        np.clip(np.rint(codes, out=codes), 0, 15, out=codes)
        mean = np.einsum("rbi,bi->rb", codes, weights) / count
        product = np.einsum("rbi,rbi->rb", codes, weighted) - mean * total
        codes *= codes
        spread = np.einsum("rbi,bi->rb", codes, weights) - mean * mean * count
        scale = np.divide(product, spread, out=scale, where=spread > 0)
        # That of a fit by least squares.
        loss = squares - total * total / count - scale * product
        better = loss < least
        least = np.where(better, loss, least)
        scales = np.where(better, scale, scales)
        offsets = np.where(better, middle + total / count - scale * mean, offsets)
    return scales, offsets


def _in_units(factors: Floats) -> tuple[Floats, NDArray[np.float16]]:
    """Scales and offsets [rows, blocks, 2] as integers up to 127, and their units for 8 blocks."""
    groups = factors.reshape(len(factors), -1, SUPER, 2)
    units = (np.abs(groups).max(axis=2) / np.float32(127)).astype(np.float16)
    levels = groups * inverse(units.astype(np.float32))[:, :, None]
    return np.clip(np.rint(levels), -127, 127).reshape(factors.shape), units


def powers_of_two(largest: Floats) -> Floats:
    """By what rows are divided so that halves hold what is left exactly enough.

    The largest of a row comes to lie from 2^13 on, where the smallest that matter are exact.
    """
    exponents = np.frexp(largest)[1]
    units: Floats = np.ldexp(np.float32(1), np.maximum(exponents - 14, -126)).astype(np.float32)
    return units


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
