"""How our block-wise linears hold a matrix: see kernels_native/src/block_linear.h."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.checkpoint.blocks import Blocks, Form
from omnidraft.export.graphs.quantize import BLOCK

PANEL = 16
"""Outputs whose weights of a block lie together."""
GROUP = 4
"""Inputs whose weights of an output lie together."""
_NIBBLES = (Form.AFFINE4, Form.SCALED4, Form.SUPER4)
_IN_UNITS = (Form.SUPER4, Form.SUPER8, Form.SIXTEEN8)
_ONE_FACTOR = (Form.SCALED4, Form.SCALED8)


def blocks_in_group(form: Form) -> int:
    """How many blocks share units."""
    return 8 if form in _IN_UNITS else 1


@cache
def layout(form: Form) -> np.dtype[np.void]:
    """A group of blocks of a panel's outputs: ``units``, and ``blocks`` of codes and factors."""
    chunks = BLOCK // GROUP // (2 if form in _NIBBLES else 1)
    factors = 1 if form in _ONE_FACTOR else 2
    integers = form in _IN_UNITS
    block = np.dtype(
        [
            ("codes", np.uint8, (chunks, PANEL, GROUP)),
            ("factors", np.int8 if integers else "<f2", (factors, PANEL)),
        ]
    )
    units = (1 if form == Form.SIXTEEN8 else 2) if integers else 0
    return np.dtype([("units", "<f2", (units, PANEL)), ("blocks", block, (blocks_in_group(form),))])


def packed_shape(form: Form, rows: int, width: int) -> tuple[int, int, int]:
    """[panels, groups, bytes of a group] of a matrix [rows, width]."""
    groups = width // BLOCK // blocks_in_group(form)
    return -(-rows // PANEL), groups, layout(form).itemsize


def pack(stored: NDArray[np.uint8], blocks: Blocks, start: int) -> None:
    """Write rows of a matrix, of which the first is row ``start``, into its packed form."""
    form, rows = blocks.form, len(blocks.codes)
    parts = stored.view(layout(form))[..., 0]
    panel, place = np.divmod(np.arange(start, start + rows), PANEL)
    codes = blocks.codes.view(np.uint8)
    if form in _NIBBLES:
        first, second = np.split(codes, 2, axis=-1)
        codes = first | (second << np.uint8(4))
    grouped = (rows, parts.shape[1], blocks_in_group(form))
    parts["blocks"]["codes"][panel, :, :, :, place] = codes.reshape(*grouped, -1, GROUP)
    parts["blocks"]["factors"][panel, :, :, :, place] = blocks.factors.reshape(*grouped, -1)
    if blocks.units is not None:
        parts["units"][panel, :, :, place] = blocks.units
