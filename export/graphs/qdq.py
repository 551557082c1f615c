"""Quantize a ``StaticGraph`` to 16-bit activations and 8-bit weights (A16W8), as QDQ.

Every tensor gets a QuantizeLinear and a DequantizeLinear, from which a compiler takes its range.

- Ranges are what text showed, and a margin: 16 bits have digits to spare, a clipped value is lost.
- Weights have one scale for each output and are rounded as in GPTQ (arXiv 2210.17323): what
  rounding one input's weights does to the output, the weights of later inputs make up for.
- Keys and values, the second factor in a product of two activations, are signed and symmetric: a
  second factor of uint16 would be cut to 8 bits by the compiler, unasked. Their integers leave and
  enter the graph as they are, so the host only stores them.
- LoRA stays in floating point, half precision on the chip: see ``StaticGraph.lora_nodes``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from omnidraft.export.graphs.gptq import error_carry
from omnidraft.export.graphs.static import StaticGraph
from omnidraft.export.graphs.tensors import shape_of
from omnidraft.export.recipes import Progress
from omnidraft.runtime.engines.qnn import MASKED, StaticDecoder

Float = NDArray[np.float32]

# How much further than observed a 16-bit range goes: held text exceeded a short text's by a tenth.
_MARGIN = 1.25
# Tokens of a calibrating pass.
_PASS = 64
# Outputs that are rounded at a time: their block of weights stays in the processor's cache.
_ROUNDED_OUTPUTS = 1024
# These do not change values, so what goes in and what comes out have one range.
_SAME_RANGE = ("Reshape", "Transpose", "Split", "Concat", "Gather")
_ZERO_TO_ONE = ("Softmax", "Sigmoid")


@dataclass(frozen=True)
class Observed:
    """What calibration saw.

    Args:
        ranges: smallest and largest value of every float tensor.
        squares: Σ xᵀx, float64 [in, in], of the inputs of linears, by tensor.
    """

    ranges: dict[str, tuple[float, float]]
    squares: dict[str, NDArray[np.float64]]


def observe(graph: StaticGraph, texts: Sequence[Sequence[int]], progress: Progress) -> Observed:
    """What every tensor of the float32 graph holds over texts.

    Args:
        texts: at least one token; each begins with an empty KV cache.
    """
    model = ModelProto()
    model.CopyFrom(graph.model)
    known = {value.name for value in model.graph.output}
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for node in model.graph.node
        for name in node.output
        if name not in known
    )
    ranges: dict[str, tuple[float, float]] = {}
    squares: dict[str, NDArray[np.float64]] = {}
    inputs = set(graph.linears.values())
    for outputs in _run(model, texts, "calibration", progress):
        for name, values in outputs.items():
            low, high = ranges.get(name, (0.0, 0.0))
            ranges[name] = min(low, float(values.min())), max(high, float(values.max()))
            if name in inputs:
                rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
                squares[name] = squares.get(name, 0) + rows.T @ rows
    return Observed(ranges, squares)


def _run(
    model: ModelProto, texts: Sequence[Sequence[int]], stage: str, progress: Progress
) -> Iterator[dict[str, Float]]:
    """All outputs of a float32 graph over texts, by passes."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    decoder = StaticDecoder(dict.fromkeys(range(1, _PASS + 1), session))
    for number, text in enumerate(texts):
        progress(stage, number, len(texts))
        decoder.truncate(0)
        ids = np.array(text[: decoder.max_length], np.int64)
        for start in range(0, len(ids), _PASS):
            part = ids[start : start + _PASS]
            yield decoder.run(part, len(part))


def quantize(graph: StaticGraph, observed: Observed, progress: Progress) -> ModelProto:
    """The QDQ graph.

    Inputs and outputs are those of the float32 graph but ``mask``, which is uint8 (0 where a row
    must not see a column, 255 where it may), and keys and values, which are int16.
    """
    return _Quantizer(graph, observed, progress).build()


def round_weights(weight: Float, squares: NDArray[np.float64]) -> tuple[NDArray[np.int8], Float]:
    """GPTQ with one symmetric scale for each output.

    Args:
        weight: [in, out].
        squares: Σ xᵀx of the inputs, [in, in].

    Returns:
        int8 [in, out] and float32 [out] scales: weight ≈ integer x scale.
    """
    carry = error_carry(squares)
    scales = np.maximum(np.abs(weight).max(axis=0) / 127, np.float32(1e-12))
    levels = np.empty(weight.shape, np.int8)
    for start in range(0, weight.shape[1], _ROUNDED_OUTPUTS):
        columns = slice(start, start + _ROUNDED_OUTPUTS)
        rest, scale = np.array(weight[:, columns]), scales[columns]
        for j in range(len(rest)):
            rounded = np.clip(np.rint(rest[j] / scale), -127, 127)
            levels[j, columns] = rounded
            error = (rest[j] - rounded * scale) / carry[j, j]
            rest[j + 1 :] -= np.outer(carry[j, j + 1 :], error)
    return levels, scales


def _extends_cache(node: NodeProto) -> bool:
    return node.op_type == "Concat" and node.input[0].startswith("past.")


class _Quantizer:
    """Copies a graph node by node, each tensor through a QuantizeLinear and a DequantizeLinear.

    Of a tensor x, ``x.stored`` are the integers and ``x.value`` what its readers get.
    """

    def __init__(self, graph: StaticGraph, observed: Observed, progress: Progress) -> None:
        self.graph = graph.model.graph
        self.opset, self.ir_version = graph.model.opset_import, graph.model.ir_version
        self.linears = graph.linears
        self.squares = observed.squares
        self.progress = progress
        self.constants = {tensor.name: tensor for tensor in self.graph.initializer}
        self.ranges = _joint_ranges(self.graph, observed.ranges)
        # One range for what is in the KV cache and what extends it.
        self.cached = {
            name: self.ranges[node.output[0]]
            for node in self.graph.node
            if _extends_cache(node)
            for name in (*node.input, *node.output)
        }
        readers: dict[str, list[str]] = {}
        for node in self.graph.node:
            for name in node.input:
                readers.setdefault(name, []).append(node.name)
        self.floats = {
            name
            for node in self.graph.node
            if node.name in graph.lora_nodes
            for name in node.output
            if graph.lora_nodes.issuperset(readers[name])
        }
        self.nodes: list[NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}
        self.values: dict[str, str] = {}

    def build(self) -> ModelProto:
        inputs = [self.input(value) for value in self.graph.input]
        for number, node in enumerate(self.graph.node):
            self.progress("quantization", number, len(self.graph.node))
            self.add(node)
        # What readers get must not leave the graph as well: to a compiler it would be no unit then.
        parameters = [f"hidden.{part}" for part in ("stored", "scale", "zero")]
        self.nodes.append(helper.make_node("DequantizeLinear", parameters, ["hidden"]))
        outputs = [
            helper.make_tensor_value_info(value.name, _dtype(value.name, value), shape_of(value))
            for value in self.graph.output
        ]
        graph = helper.make_graph(
            self.nodes, "drafter", inputs, outputs, list(self.initializers.values())
        )
        return helper.make_model(graph, opset_imports=self.opset, ir_version=self.ir_version)

    def input(self, value: ValueInfoProto) -> ValueInfoProto:
        name = value.name
        dtype = _dtype(name, value)
        if dtype == TensorProto.INT16:
            self.dequantize(name, name, *_parameters(*self.cached[name], np.int16))
        elif dtype == TensorProto.UINT8:
            # It is only there or not. What it is added to is of 16 bits, so it becomes that first.
            self.dequantize(f"{name}.narrow", name, *_parameters(MASKED, 0.0, np.uint8))
            narrow = self.values[f"{name}.narrow"]
            self.pass_through(narrow, name, (MASKED, 0.0), np.uint16)
        else:
            self.values[name] = name
        return helper.make_tensor_value_info(name, dtype, shape_of(value))

    def add(self, node: NodeProto) -> None:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [self.value(name) for name in node.input]
        copy.output[:] = [name if name in self.floats else f"{name}.raw" for name in node.output]
        self.nodes.append(copy)
        for name in node.output:
            if name in self.floats:
                self.values[name] = name
            elif _extends_cache(node):
                self.pass_through(f"{name}.raw", name, self.cached[name], np.int16)
            elif name in self.cached:
                self.pass_through(f"{name}.raw", f"{name}.wide", self.ranges[name], np.uint16)
                wide = self.values[f"{name}.wide"]
                self.pass_through(wide, name, self.cached[name], np.int16, stored=name)
            elif node.op_type in _ZERO_TO_ONE:
                self.pass_through(f"{name}.raw", name, (0.0, 65535 / 65536), np.uint16)
            else:
                self.pass_through(f"{name}.raw", name, self.ranges[name], np.uint16)

    def value(self, name: str) -> str:
        """The name of what readers of a tensor get; constants are quantized when first read."""
        if name not in self.values:
            constant = numpy_helper.to_array(self.constants[name])
            if constant.dtype != np.float32:
                self.values[name] = self.constant(name, constant)
            elif name in self.linears:
                levels, scales = round_weights(constant, self.squares[self.linears[name]])
                stored = self.constant(f"{name}.stored", levels)
                self.dequantize(name, stored, scales, np.zeros(len(scales), np.int8), axis=1)
            else:
                scale, zero = _parameters(*self.ranges[name], np.uint16)
                levels = np.clip(np.rint(constant / scale) + zero, 0, 65535).astype(np.uint16)
                self.dequantize(name, self.constant(f"{name}.stored", levels), scale, zero)
        return self.values[name]

    def pass_through(
        self,
        x: str,
        name: str,
        limits: tuple[float, float],
        dtype: type[np.int16 | np.uint16],
        stored: str | None = None,
    ) -> None:
        """Quantize and dequantize ``x``; from now on that is the value of ``name``."""
        scale, zero = _parameters(*limits, dtype)
        stored = stored or f"{name}.stored"
        self.dequantize(name, stored, scale, zero)
        parameters = self.nodes[-1].input[1:]
        self.nodes.insert(-1, helper.make_node("QuantizeLinear", [x, *parameters], [stored]))

    def dequantize(
        self,
        name: str,
        stored: str,
        scale: NDArray[np.float32],
        zero: NDArray[np.generic],
        axis: int | None = None,
    ) -> None:
        parameters = [self.constant(f"{name}.scale", scale), self.constant(f"{name}.zero", zero)]
        # The one output that leaves the graph as float32.
        self.values[name] = name if name == "logits" else f"{name}.value"
        self.nodes.append(
            helper.make_node(
                "DequantizeLinear", [stored, *parameters], [self.values[name]], axis=axis
            )
        )

    def constant(self, name: str, values: NDArray[np.generic]) -> str:
        self.initializers[name] = numpy_helper.from_array(values, name)
        return name


def _parameters(
    low: float, high: float, dtype: type[np.int16 | np.uint16 | np.uint8]
) -> tuple[NDArray[np.float32], NDArray[np.generic]]:
    """Scale and zero point, scalars: value = (stored - zero) x scale; int16 has its zero at 0."""
    if dtype is np.int16:
        return np.array(np.float32(max(-low, high, 1e-6) / 32767)), np.array(0, np.int16)
    # 0 has to be among the values: padding and an adapter of zeros are made of it.
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / np.iinfo(dtype).max or 1.0)
    return np.array(scale), np.array(round(-low / float(scale)), dtype)


def _joint_ranges(
    graph: GraphProto, observed: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Ranges for 16 bits; tensors that only hand values on have one with what they come from."""
    leaders: dict[str, str] = {}

    def leader(name: str) -> str:
        while name in leaders:
            name = leaders[name]
        return name

    for node in graph.node:
        if node.op_type in _SAME_RANGE and not _extends_cache(node):
            sources = node.input if node.op_type == "Concat" else node.input[:1]
            for name in (*sources[1:], *node.output):
                if (other := leader(name)) != leader(sources[0]):
                    leaders[other] = leader(sources[0])
    ranges = {name: (low * _MARGIN, high * _MARGIN) for name, (low, high) in observed.items()}
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor)
            ranges[tensor.name] = float(values.min()), float(values.max())
    joint: dict[str, tuple[float, float]] = {}
    for name, (low, high) in ranges.items():
        lowest, highest = joint.get(leader(name), (0.0, 0.0))
        joint[leader(name)] = min(lowest, low), max(highest, high)
    return {name: joint[leader(name)] for name in ranges}


def _dtype(name: str, value: ValueInfoProto) -> int:
    """What an input or output is in the quantized graph."""
    if name.startswith(("past.", "present.")):
        return TensorProto.INT16
    return TensorProto.UINT8 if name == "mask" else value.type.tensor_type.elem_type
