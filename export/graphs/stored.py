"""Write a decoder's graph with the weights of a quantized file as the file has them.

Each matrix of a type of ``TAKEN`` keeps its codes, scales and offsets: no weight changes. The
other matrices of such a file get 8 bits in blocks of 32, as GGUF's Q8_0. Inputs of linears are
quantized in blocks of 32, too. Tied embedding and head are one matrix in the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.checkpoint.blocks import TAKEN, Blocks, Form, HoldsBlocks, taken_apart
from omnidraft.export.checkpoint.spec import LINEAR_PARTS, Checkpoint, Decoder, split_name
from omnidraft.export.graphs.linears import Packed
from omnidraft.export.graphs.quantize import BLOCK
from omnidraft.export.graphs.target import BLOCK_VALUES, DecoderWriter
from omnidraft.export.graphs.writer import OWN, WEIGHTS_FILE, Progress


def matrices(decoder: Decoder) -> list[str]:
    """The names of a decoder's matrices: see ``Checkpoint``."""
    parts = [part for linear in LINEAR_PARTS.values() for part in linear]
    names = [f"{layer}.{part}" for layer in range(decoder.layers) for part in parts]
    return ["embedding", *([] if decoder.tied_embeddings else ["head"]), *names]


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
        writer = _Writer(checkpoint, checkpoint, file, progress)
        writer.save(folder)
    return dict(sorted(writer.written.items()))


class _Writer(DecoderWriter):
    """A graph over stored blocks; ``holder`` is the checkpoint by its other face."""

    def __init__(
        self, checkpoint: Checkpoint, holder: HoldsBlocks, file: BinaryIO, progress: Progress
    ) -> None:
        super().__init__(checkpoint, file, "8bit", progress, {}, False)
        self.holder = holder
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
            self._count(names, "8bit")
            return super().linear(x, name, shape, blocks, bias)
        outputs = [
            self.block_linear(x, self._store(list(same), shape[1]))
            for _, same in groupby(names, self._form)
        ]
        y = outputs[0] if len(outputs) == 1 else self.node("Concat", outputs, axis=-1)
        if bias is None:
            return str(y)
        stored = self.store(f"{name}.bias", bias.shape, np.float32, [bias])
        return str(self.node("Add", [y, stored]))

    def embedding(self) -> str:
        d = self.decoder
        if d.hidden_size % BLOCK:
            self._count(["embedding"], "8bit")
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

    def _form(self, name: str) -> Form:
        return TAKEN[self._kind(name)][0]

    def _kind(self, name: str) -> str:
        """The type in which a matrix is stored in the graph."""
        kind = self.holder.kind(name)
        return kind if kind in TAKEN else "Q8_0"

    def _count(self, names: Sequence[str], becomes: str) -> None:
        for name in names:
            kind = self.holder.kind(name)
            self.written[kind if kind == becomes else f"{kind} → {becomes}"] += 1

    def _store(self, names: Sequence[str], width: int) -> Packed:
        """Matrices of one form as one, one after the other."""
        heights = [self.holder.height(name) for name in names]
        for name in names:
            self._count([name], self._kind(name))

        def parts() -> Iterator[tuple[Blocks, NDArray[np.float32]]]:
            step = max(1, BLOCK_VALUES // width)
            for name, height in zip(names, heights, strict=True):
                _, part, _ = split_name(name)
                factor = self.decoder.folded.get(part, 1.0)
                for start in range(0, height, step):
                    stop = min(start + step, height)
                    if self.holder.kind(name) in TAKEN:
                        blocks, unit = self.holder.blocks(name, start, stop), factor
                    else:
                        blocks, unit = _as_q8_0(self.checkpoint.rows(name, start, stop)), 1.0
                    yield blocks, np.full(stop - start, unit, np.float32)

        return self.store_packed(
            "+".join(names), self._form(names[0]), (sum(heights), width), parts()
        )


def _as_q8_0(rows: NDArray[np.float32]) -> Blocks:
    import gguf

    return taken_apart("Q8_0", gguf.quantize(rows, gguf.GGMLQuantizationType.Q8_0))
