"""Linear layers of a graph, their weights in 8 bits, in blocks of 4 or 8 bits, or float32.

A row's products do not depend on the other rows of a pass: sums of integers are exact in whatever
order a kernel takes them, and blocks of 4-bit weights are added in one order. See ``quantize.py``
for how weights are rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, ValueInfoProto, helper

from omnidraft.export.checkpoint.blocks import Blocks, Form
from omnidraft.export.graphs.blocks import GROUP, PANEL, pack, packed_shape
from omnidraft.export.graphs.quantize import (
    BLOCK,
    Rounded,
    quantize_rows,
)
from omnidraft.export.graphs.writer import CONTRIB, OWN, GraphWriter
from omnidraft.runtime.errors import DamagedFileError

Quantization = Literal["8bit", "float32"]
Observed = Literal["levels", "values"]
# Outputs of a graph that is written to be observed begin with this.
OBSERVED = "observed."


@dataclass(frozen=True)
class Stored:
    """Names of a matrix's codes and scales, and the bits of a weight."""

    weight: str
    scales: str
    bits: int


@dataclass(frozen=True)
class Packed:
    """Names of a matrix in blocks for our own operators, and of what its rows are multiplied by."""

    weight: str
    units: str
    form: Form


class LinearWriter(GraphWriter):
    """A graph with linear layers.

    Attributes:
        packed: whether 8-bit linears are ours where their sizes allow it; ONNX Runtime's give the
            same bits.

    Args:
        factors, observe: see ``target.write_graph``.
    """

    packed = True

    def __init__(
        self,
        file: BinaryIO,
        quantization: Quantization,
        factors: Mapping[str, NDArray[np.float32]],
        observe: Observed | None,
    ) -> None:
        super().__init__(file)
        self.quantization = quantization
        self.factors = factors
        self.observe = observe
        self.observed: list[ValueInfoProto] = []
        # Inputs of 8-bit linears, quantized once.
        self.quantized: dict[str, tuple[str, str]] = {}

    def factor(self, linear: str, size: int) -> NDArray[np.float32]:
        """What the input of ``linear`` is multiplied by, float32 [size]; 1 if nothing is said."""
        return self.factors.get(linear, np.ones(size, np.float32))

    def linear(
        self,
        x: str,
        name: str,
        shape: tuple[int, int],
        blocks: Iterable[NDArray[np.float32]],
        bias: NDArray[np.float32] | None = None,
    ) -> str:
        """``x`` times the transpose of a weight of ``shape`` [out, in], which ``blocks`` yields."""
        factor = self.factor(name, shape[1])
        blocks = (block / factor for block in blocks)
        if self.quantization == "float32":
            y = self.product(x, self.store(name, shape, np.float32, blocks))
        else:
            y = self.linear8(x, name, shape, blocks)
        if bias is None:
            return y
        output: str = self.node(
            "Add", [y, self.store(f"{name}.bias", bias.shape, np.float32, [bias])]
        )
        return output

    def store_packed(
        self,
        name: str,
        form: Form,
        shape: tuple[int, int],
        parts: Iterable[tuple[Blocks, NDArray[np.float32]]],
    ) -> Packed:
        """Append a matrix of ``shape`` [out, in] in blocks, part by part.

        Args:
            parts: rows, and what each row's weights are multiplied by, float32 [rows].
        """
        rows, width = shape
        weight, stored = self.reserve(name, packed_shape(form, rows, width), np.uint8)
        units = np.empty(rows, np.float32)
        start = 0
        for blocks, unit in parts:
            end = start + len(unit)
            pack(stored, blocks, start)
            units[start:end] = unit
            start = end
        if start != rows:
            raise DamagedFileError(f"Tensor {name} of the checkpoint is not of shape {shape}.")
        stored.flush()
        return Packed(weight, self.store(f"{name}.units", (rows,), np.float32, [units]), form)

    def block_linear(self, x: str, matrix: Packed) -> str:
        """``x`` times the transpose of a matrix in blocks."""
        inputs = [x, matrix.weight, matrix.units]
        output: str = self.node("BlockLinear", inputs, domain=OWN, form=int(matrix.form))
        return output

    def linear8(
        self, x: str, name: str, shape: tuple[int, int], blocks: Iterable[NDArray[np.float32]]
    ) -> str:
        """8-bit weights, one scale for each output, and 8-bit inputs, one scale for each token.

        The products are sums of integers, exact in whatever order a kernel takes them.
        """
        rows, width = shape
        packed = self.packed and width % GROUP == 0 and rows % PANEL == 0
        weight, stored = (
            self.reserve(name, (rows // PANEL, width // GROUP, PANEL, GROUP), np.int8)
            if packed
            # Around 128, too: of signed weights ONNX Runtime saturates sums where it has no VNNI.
            else self.reserve(name, (width, rows), np.uint8)
        )
        scales = np.empty(rows, np.float32)
        sums = np.empty(rows, np.int32)
        start = 0
        for block in blocks:
            end = start + len(block)
            values, scales[start:end] = quantize_rows(block)
            if packed:
                sums[start:end] = values.sum(axis=1, dtype=np.int32)
                panel, place = np.divmod(np.arange(start, end), PANEL)
                stored[panel, :, place] = values.reshape(-1, width // GROUP, GROUP)
            else:
                stored[:, start:end] = (values.astype(np.int16) + 128).T
            start = end
        if start != rows:
            raise DamagedFileError(f"Tensor {name} of the checkpoint is not of shape {shape}.")
        stored.flush()
        scale = self.store(f"{name}.scales", (rows,), np.float32, [scales])
        if x not in self.quantized:
            levels, step = self.row_levels(x)
            self.quantized[x] = (levels, step)
            if self.observe:
                # Of levels, every token counts alike, as each has its own scale.
                seen = x if self.observe == "values" else self.node("Div", [x, step])
                squares = [self.node("Mul", [seen, seen]), self.integers(0, 1)]
                mean = self.node("ReduceMean", squares, [OBSERVED + name], keepdims=0)
                self.observed.append(
                    helper.make_tensor_value_info(mean, TensorProto.FLOAT, [width])
                )
        levels, step = self.quantized[x]
        if packed:
            total = self.store(f"{name}.sums", (rows,), np.int32, [sums])
            inputs = [levels, step, weight, scale, total]
            output: str = self.node("IntegerLinear", inputs, domain=OWN)
            return output
        inputs = [levels, weight, self.real(1.0), scale, self.middle(), self.middle()]
        y = self.node("MatMulIntegerToFloat", inputs, domain=CONTRIB)
        output = self.node("Mul", [y, step])
        return output

    def row_levels(self, x: str) -> tuple[str, str]:
        """Names of the levels of 8-bit inputs, uint8 around 128, and of each row's step."""
        levels, step = self.node("QuantizeRows", [x], 2, domain=OWN)
        return levels, step

    def middle(self) -> str:
        return self.constant("middle", np.array(128, dtype=np.uint8))

    def store_blocks(
        self,
        name: str,
        codes_shape: tuple[int, ...],
        scales_shape: tuple[int, ...],
        rounded: Iterable[Rounded],
        bits: int,
    ) -> Stored:
        """Append a matrix that was quantized in blocks, part by part."""
        scales: list[NDArray[np.float32]] = []

        def codes() -> Iterator[NDArray[np.uint8]]:
            for values, scale in rounded:
                scales.append(scale)
                yield values

        weight = self.store(name, codes_shape, np.uint8, codes())
        return Stored(weight, self.store(f"{name}.scales", scales_shape, np.float32, scales), bits)

    def block_product(self, x: str, stored: Stored, shape: tuple[int, int]) -> str:
        """``x`` times the transpose of a matrix of ``shape`` [out, in], quantized in blocks."""
        output: str = self.node(
            "MatMulNBits",
            [x, stored.weight, stored.scales],
            domain=CONTRIB,
            N=shape[0],
            K=shape[1],
            bits=stored.bits,
            block_size=BLOCK,
            accuracy_level=4,
        )
        return output

    def block_rows(self, stored: Stored) -> str:
        """The tokens' rows of a matrix that is quantized in blocks."""
        output: str = self.node(
            "GatherBlockQuantized",
            [stored.weight, "tokens", stored.scales],
            domain=CONTRIB,
            bits=stored.bits,
            block_size=BLOCK,
            gather_axis=0,
            quantize_axis=1,
        )
        return output

    def product(self, x: str, weight: str) -> str:
        """Float32 ``x`` times the transpose of ``weight`` [out, in]."""
        y: str = self.node("FusedMatMul", [x, weight], domain=CONTRIB, transB=1)
        return y
