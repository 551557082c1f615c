"""A decoder's graph with weights in blocks of 32, each matrix in a form of its own.

Inputs of linears are quantized in blocks of 32, too. Tied embedding and head are one matrix in the
file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.checkpoint.blocks import Blocks, Form, taken_apart
from omnidraft.export.checkpoint.spec import LINEAR_PARTS, Checkpoint, Decoder
from omnidraft.export.graphs.linears import Packed
from omnidraft.export.graphs.quantize import BLOCK
from omnidraft.export.graphs.target import BLOCK_VALUES, DecoderWriter
from omnidraft.export.graphs.writer import OWN, Progress

Part = tuple[Blocks, NDArray[np.float32]]
"""Rows of a matrix in blocks, and what each row is multiplied by, float32 [rows]."""


class BlockSource(Protocol):
    """What gives the matrices of a decoder in blocks; names as in ``Checkpoint``."""

    def form(self, name: str) -> Form:
        """The form of a matrix."""

    def told(self, name: str) -> str:
        """For people: how a matrix is held in the graph, if it is in blocks."""

    def height(self, name: str) -> int:
        """How many rows it has."""

    def part(self, name: str, start: int, stop: int) -> Part:
        """Rows ``start:stop``.

        Raises:
            DamagedFileError: they cannot be read, or hold NaN or infinity.
        """


class BlockDecoderWriter(DecoderWriter):
    """See ``target.write_graph`` and ``BlockSource``.

    Attributes:
        written: how many matrices are held in which way.
    """

    def __init__(
        self, checkpoint: Checkpoint, source: BlockSource, file: BinaryIO, progress: Progress
    ) -> None:
        super().__init__(checkpoint, file, "8bit", progress, {}, None)
        self.source = source
        self.written: Counter[str] = Counter()
        self.stored_table: Packed | None = None

    def linear(
        self,
        x: str,
        name: str,
        shape: tuple[int, int],
        blocks: Iterator[NDArray[np.float32]],  # type: ignore[override]
        bias: NDArray[np.float32] | None = None,
    ) -> str:
        layer, _, kind = name.rpartition(".")
        names = [f"{layer}.{part}" for part in LINEAR_PARTS[kind]]
        if shape[1] % BLOCK:  # so no part is quantized in blocks
            self.written.update(self.unblocked(each) for each in names)
            return super().linear(x, name, shape, blocks, bias)
        outputs = [
            self.block_linear(x, self._store(list(same), shape[1]))
            for _, same in groupby(names, self.source.form)
        ]
        y = outputs[0] if len(outputs) == 1 else self.node("Concat", outputs, axis=-1)
        if bias is None:
            return str(y)
        stored = self.store(f"{name}.bias", bias.shape, np.float32, [bias])
        return str(self.node("Add", [y, stored]))

    def unblocked(self, name: str) -> str:
        """For people: how a matrix is held that is too narrow for blocks."""
        return "8bit"

    def embedding(self) -> str:
        d = self.decoder
        if d.hidden_size % BLOCK:
            self.written[self.unblocked("embedding")] += 1
            return super().embedding()
        table = self.stored_table = self._store(["embedding"], d.hidden_size)
        inputs = ["tokens", table.weight, table.units]
        rows: str = self.node("BlockRows", inputs, domain=OWN, form=int(table.form))
        if d.embedding_scale != 1:
            rows = self.node("Mul", [rows, self.real(d.embedding_scale)])
        return rows

    def quantized_head(
        self, x: str, shape: tuple[int, int], blocks: Iterator[NDArray[np.float32]]
    ) -> None:
        if shape[1] % BLOCK:
            super().quantized_head(x, shape, blocks)
        elif self.decoder.tied_embeddings and self.stored_table is not None:
            self.block_linear(x, self.stored_table)
        else:
            self.block_linear(x, self._store(["head"], shape[1]))

    def _store(self, names: Sequence[str], width: int) -> Packed:
        """Matrices of one form as one, one after the other."""
        heights = [self.source.height(name) for name in names]
        self.written.update(map(self.source.told, names))

        def parts() -> Iterator[Part]:
            step = max(1, BLOCK_VALUES // width)
            for name, height in zip(names, heights, strict=True):
                for start in range(0, height, step):
                    yield self.source.part(name, start, min(start + step, height))

        form = self.source.form(names[0])
        return self.store_packed("+".join(names), form, (sum(heights), width), parts())


def matrices(decoder: Decoder) -> list[str]:
    """The names of a decoder's matrices: see ``Checkpoint``."""
    parts = [part for linear in LINEAR_PARTS.values() for part in linear]
    names = [f"{layer}.{part}" for layer in range(decoder.layers) for part in parts]
    return ["embedding", *([] if decoder.tied_embeddings else ["head"]), *names]


def as_q8_0(rows: NDArray[np.float32]) -> Part:
    """Rows rounded to 8 bits in blocks of 32, as GGUF's Q8_0."""
    import gguf

    blocks = taken_apart("Q8_0", gguf.quantize(rows, gguf.GGMLQuantizationType.Q8_0))
    return blocks, np.ones(len(rows), np.float32)
