"""Symmetric block quantization as ONNX Runtime's MatMulNBits and GatherBlockQuantized store it."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
Bits = Literal[4, 8]


def quantize_rows(
    rows: NDArray[np.float32], bits: Bits
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Quantize a matrix in blocks of 32 along its rows.

    Args:
        rows: float32 [out, in]; ``in`` is padded with zeros to a multiple of 32.
        bits: 4 or 8.

    Returns:
        uint8 [out, blocks, 32 * bits / 8], low nibble first, and float32 scales [out, blocks];
        weight = (integer - 2 ** (bits - 1)) * scale.
    """
    padding = -rows.shape[1] % BLOCK
    if padding:
        rows = np.pad(rows, ((0, 0), (0, padding)))
    blocks = rows.reshape(rows.shape[0], -1, BLOCK)
    if bits == 8:
        # Largest magnitude to 127, as GGUF's Q8_0 does, so that such weights survive unchanged.
        scales = np.abs(blocks).max(axis=-1) / np.float32(127)
        lowest = -127
    else:
        # The extreme value to -8 exactly, whichever its sign, as GGUF's Q4_0 does.
        extreme = np.abs(blocks).argmax(axis=-1)[..., None]
        scales = np.take_along_axis(blocks, extreme, axis=-1)[..., 0] / np.float32(-8)
        lowest = -8
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
    levels = np.rint(blocks * inverse[..., None])
    np.clip(levels, lowest, 2 ** (bits - 1) - 1, out=levels)
    levels += 2 ** (bits - 1)
    integers = levels.astype(np.uint8)
    if bits == 4:
        integers = integers[..., 0::2] | (integers[..., 1::2] << 4)
    return integers, scales
