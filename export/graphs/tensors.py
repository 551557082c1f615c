"""What a bundle's manifest says of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Literal

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from omnidraft.export.graphs.drafter import IDENTITY
from omnidraft.export.meanings import Meanings, meaning
from omnidraft.runtime.storage.bundle import Graph, Tensor, WeightShare

# Where an operator takes the weights.
_PRODUCTS = {"MatMul": 1, "FusedMatMul": 1, "MatMulNBits": 1, "MatMulIntegerToFloat": 1}
_LOOKUPS = {"Gather": 0, "GatherBlockQuantized": 0}


def describe_graph(
    role: Literal["decoder", "training"],
    file: str,
    model: ModelProto,
    meanings: Meanings,
    usage: str,
    tokens: int | None = None,
) -> Graph:
    """Describe the graph that ``file`` holds.

    Args:
        meanings: see ``export.meanings``.
        usage, tokens: see ``Graph``.
    """
    scales = _scales(model)

    def tensor(value: ValueInfoProto) -> Tensor:
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        scale, zero_point = scales.get(value.name, (None, None))
        return Tensor(
            name=value.name,
            dtype=dtype.name,
            shape=shape_of(value),
            meaning=meaning(value.name, meanings),
            scale=scale,
            zero_point=zero_point,
        )

    return Graph(
        role=role,
        file=file,
        tokens=tokens,
        inputs=[tensor(value) for value in model.graph.input],
        outputs=[tensor(value) for value in model.graph.output],
        usage=usage,
    )


def _scales(model: ModelProto) -> dict[str, tuple[float, int]]:
    """Scale and zero point of what enters and leaves a graph as integers, by name."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}
    return {
        node.input[0]: (
            float(numpy_helper.to_array(stored[node.input[1]])),
            int(numpy_helper.to_array(stored[node.input[2]])),
        )
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in ends
    }


def describe_weights(model: ModelProto) -> list[WeightShare]:
    """How many bits the weights of a decoder's graph have, as they are stored in it."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    lora = {value.name for value in model.graph.input}
    integers = {
        node.output[0]: node.input[0]
        for node in model.graph.node
        if node.op_type == "DequantizeLinear"
    }
    # Of tied weights, which are one tensor or have their bytes in one place, elements count once.
    found: dict[str, tuple[int, int, int]] = {}
    for node in model.graph.node:
        product = node.op_type in _PRODUCTS
        if not product and not (node.op_type in _LOOKUPS and "tokens" in node.input):
            continue
        name = node.input[_PRODUCTS[node.op_type] if product else _LOOKUPS[node.op_type]]
        name = integers.get(name, name)
        if name not in stored or name in lora or name == IDENTITY:
            continue
        place, bits, elements = _weights(node, stored[name])
        _, products, before = found.get(place, (bits, 0, 0))
        found[place] = bits, products + product, max(before, elements)
    return weight_shares(found.values())


def weight_shares(matrices: Iterable[tuple[int, int, int]]) -> list[WeightShare]:
    """Add up matrices, each given as bits, number of products, and elements, by their bits."""
    sums: dict[int, tuple[int, int]] = {}
    for bits, products, elements in matrices:
        before = sums.get(bits, (0, 0))
        sums[bits] = before[0] + products, before[1] + elements
    total = sum(elements for _, elements in sums.values())
    return [
        WeightShare(bits=bits, products=products, elements=elements, share=elements / total)
        for bits, (products, elements) in sorted(sums.items())
    ]


def _weights(node: NodeProto, tensor: TensorProto) -> tuple[str, int, int]:
    """Where a node's weights lie, the bits of one, and how many they are."""
    external = {entry.key: entry.value for entry in tensor.external_data}
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    held = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8
    bits = attributes.get("bits", held)
    elements = prod(tensor.dims) * held // bits
    return external.get("offset", tensor.name), bits, elements


def shape_of(value: ValueInfoProto) -> list[int | str]:
    """The dimensions of an input or output, an open one by its name."""
    return [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
