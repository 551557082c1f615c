"""What a bundle's manifest says of an ONNX graph."""

from __future__ import annotations

from typing import Literal

from onnx import ModelProto, ValueInfoProto, helper

from omnidraft.runtime.bundle import Graph, Tensor


def describe_graph(
    role: Literal["decoder", "training"], file: str, model: ModelProto, tokens: int | None = None
) -> Graph:
    """Describe the graph that ``file`` holds.

    Args:
        tokens: see ``Graph.tokens``.
    """
    return Graph(
        role=role,
        file=file,
        tokens=tokens,
        inputs=[_tensor(value) for value in model.graph.input],
        outputs=[_tensor(value) for value in model.graph.output],
    )


def shape_of(value: ValueInfoProto) -> list[int | str]:
    """The dimensions of an input or output, an open one by its name."""
    return [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]


def _tensor(value: ValueInfoProto) -> Tensor:
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return Tensor(name=value.name, dtype=dtype.name, shape=shape_of(value))
