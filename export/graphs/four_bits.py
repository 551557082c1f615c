"""Write a decoder's graph with weights that are rounded to 4 bits, those that lose most to 8."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.checkpoint.blocks import Form
from omnidraft.export.checkpoint.spec import LINEAR_PARTS, Checkpoint, split_name
from omnidraft.export.graphs.block_decoder import BlockDecoderWriter, Part, as_q8_0
from omnidraft.export.graphs.quantize import four_bit_form, quantize_blocks4
from omnidraft.export.graphs.writer import WEIGHTS_FILE, Progress

FOUR_BITS = ("q", "gate", "up", "down")
"""The matrices that get 4 bits.

Keys, values and what mixes them are few weights, and rounding them costs a third of what rounding
all would cost. The head would cost a third more again.
"""
_LINEAR_OF = {part: linear for linear, parts in LINEAR_PARTS.items() for part in parts}


def write_four_bit_graph(
    checkpoint: Checkpoint,
    folder: Path,
    progress: Progress,
    importance: Mapping[str, NDArray[np.float32]],
) -> dict[str, int]:
    """Like ``target.write_graph`` with weights of 4 bits.

    Args:
        importance: by a linear's name the mean squares of its input, float32 [in]: see
            ``quantize_blocks4`` and ``calibrate.mean_squares``. Where it says nothing, all inputs
            are alike.

    Returns:
        How many matrices have 4 and 8 bits.
    """
    with (folder / WEIGHTS_FILE).open("wb") as file:
        source = _Rounded(checkpoint, importance)
        writer = BlockDecoderWriter(checkpoint, source, file, progress)
        writer.save(folder)
    return dict(sorted(writer.written.items()))


class _Rounded:
    """The matrices of a checkpoint, rounded here."""

    def __init__(
        self, checkpoint: Checkpoint, importance: Mapping[str, NDArray[np.float32]]
    ) -> None:
        self.checkpoint = checkpoint
        self.importance = importance
        d = checkpoint.decoder
        self.heights = {
            "q": d.heads * d.head_size,
            **dict.fromkeys(("k", "v"), d.kv_heads * d.head_size),
            **dict.fromkeys(("o", "down"), d.hidden_size),
            **dict.fromkeys(("gate", "up"), d.feed_forward_size),
            **dict.fromkeys(("embedding", "head"), d.vocab_size),
        }

    def form(self, name: str) -> Form:
        _, part, _ = split_name(name)
        if part not in FOUR_BITS:
            return Form.SCALED8
        d = self.checkpoint.decoder
        return four_bit_form(d.feed_forward_size if part == "down" else d.hidden_size)

    def told(self, name: str) -> str:
        return "8bit" if self.form(name) == Form.SCALED8 else "4bit"

    def height(self, name: str) -> int:
        return self.heights[split_name(name)[1]]

    def part(self, name: str, start: int, stop: int) -> Part:
        layer, part, _ = split_name(name)
        rows = self.checkpoint.rows(name, start, stop)
        if part not in FOUR_BITS:
            return as_q8_0(rows)
        return quantize_blocks4(rows, self.importance.get(f"{layer}.{_LINEAR_OF[part]}"))
