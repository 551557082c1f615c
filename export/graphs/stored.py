"""Write a decoder's graph with the weights of a quantized file as the file has them.

Each matrix of a type of ``TAKEN`` keeps its codes, scales and offsets: no weight changes. The
other matrices of such a file get 8 bits in blocks of 32, as GGUF's Q8_0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from omnidraft.export.checkpoint.blocks import TAKEN, Form, HoldsBlocks
from omnidraft.export.checkpoint.spec import Checkpoint, split_name
from omnidraft.export.graphs.block_decoder import (
    BlockDecoderWriter,
    Part,
    as_q8_0,
    matrices,
)
from omnidraft.export.graphs.writer import WEIGHTS_FILE, Progress


def holds_weights_to_take(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint's file is quantized in a type that a graph can take over."""
    return isinstance(checkpoint, HoldsBlocks) and any(
        checkpoint.kind(name) in TAKEN for name in matrices(checkpoint.decoder)
    )


def write_stored_graph(checkpoint: Checkpoint, folder: Path, progress: Progress) -> dict[str, int]:
    """Like ``target.write_graph`` with the weights of a file of which some can be taken over.

    Returns:
        How many matrices there are of each type: as ``Q4_K`` where they are taken over, otherwise
        as ``F16 → Q8_0``.
    """
    assert isinstance(checkpoint, HoldsBlocks)
    with (folder / WEIGHTS_FILE).open("wb") as file:
        writer = _Writer(checkpoint, _File(checkpoint, checkpoint), file, progress)
        writer.save(folder)
    return dict(sorted(writer.written.items()))


class _File:
    """The matrices of a file; ``holder`` is the checkpoint by its other face."""

    def __init__(self, checkpoint: Checkpoint, holder: HoldsBlocks) -> None:
        self.checkpoint = checkpoint
        self.holder = holder
        self.height = holder.height

    def form(self, name: str) -> Form:
        return TAKEN[self._becomes(name)][0]

    def told(self, name: str, becomes: str = "") -> str:
        kind, becomes = self.holder.kind(name), becomes or self._becomes(name)
        return kind if kind == becomes else f"{kind} → {becomes}"

    def part(self, name: str, start: int, stop: int) -> Part:
        if self.holder.kind(name) not in TAKEN:
            return as_q8_0(self.checkpoint.rows(name, start, stop))
        _, part, _ = split_name(name)
        unit = self.checkpoint.decoder.folded.get(part, 1.0)
        units = np.full(stop - start, unit, np.float32)
        return self.holder.blocks(name, start, stop), units

    def _becomes(self, name: str) -> str:
        """The type in which a matrix is held in the graph."""
        kind = self.holder.kind(name)
        return kind if kind in TAKEN else "Q8_0"


class _Writer(BlockDecoderWriter):
    source: _File

    def unblocked(self, name: str) -> str:
        return self.source.told(name, "8bit")
