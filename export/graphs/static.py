"""A drafter's decoder as a plain float32 ONNX graph of fixed context, for accelerators.

Accelerators want static shapes and plain operators, so the KV cache is the host's: a pass takes the
old keys and values whole and returns those of its own tokens, and the host says by ``mask`` which
columns a row may see. The number of tokens of a pass is the graph's only open dimension; ``fix``
closes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from omnidraft.export.checkpoint.spec import Checkpoint, joined_bias, joined_weight
from omnidraft.runtime.errors import OmniDraftError

# RMSNormalization came with 23; IR version 11 belongs to it.
_OPSET, _IR_VERSION = 23, 11
# Protobuf takes 2 GiB, and the nodes need some of them.
_LARGEST = 2_000_000_000
_TOKENS, _COLUMNS = "tokens", "columns"


@dataclass(frozen=True)
class StaticGraph:
    """A float32 decoder and what a quantizer has to know of it.

    Args:
        model: inputs ``tokens``, ``positions`` int32 [1, T]; ``mask`` float32 [1, 1, T,
            context + T], added to the scores (columns: the cache's, then the pass's own); per layer
            ``past.i.key`` float32 [1, kv_heads, head_size, context] and ``past.i.value`` float32
            [1, kv_heads, context, head_size]; and LoRA inputs (see ``bundle.Lora``). Outputs:
            ``logits`` float32 [1, T, vocab], ``hidden`` float32 [1, T, hidden], what the head
            reads, and ``present.i.key``, ``present.i.value``, as the past but of T tokens.
        linears: weights float32 [in, out] by their names, and the tensor that each multiplies.
        lora_nodes: names of the nodes that compute LoRA: an adapter's values are not known when the
            graph is quantized, so they have no range.
    """

    model: ModelProto
    linears: dict[str, str]
    lora_nodes: frozenset[str]


def write_static_graph(checkpoint: Checkpoint, context: int, lora_rank: int) -> StaticGraph:
    """Write a Llama's graph, its weights inside.

    Args:
        context: slots of the KV cache.
        lora_rank: 0: no LoRA inputs.

    Raises:
        OmniDraftError: the model is too large for one ONNX file.
    """
    return _Writer(checkpoint, context, lora_rank).build()


def fix(model: ModelProto, tokens: int, context: int) -> ModelProto:
    """The graph for passes of exactly ``tokens`` tokens."""
    fixed = ModelProto()
    fixed.CopyFrom(model)
    sizes = {_TOKENS: tokens, _COLUMNS: context + tokens}
    for value in (*fixed.graph.input, *fixed.graph.output):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param:
                dimension.dim_value = sizes[dimension.dim_param]
    return fixed


class _Writer:
    def __init__(self, checkpoint: Checkpoint, context: int, lora_rank: int) -> None:
        self.checkpoint = checkpoint
        self.decoder = checkpoint.decoder
        self.context = context
        self.rank = lora_rank
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []
        self.linears: dict[str, str] = {}
        self.lora_nodes: set[str] = set()

    def build(self) -> StaticGraph:
        d = self.decoder
        tokens = self.input("tokens", [1, _TOKENS], TensorProto.INT32)
        positions = self.input("positions", [1, _TOKENS], TensorProto.INT32)
        self.input("mask", [1, 1, _TOKENS, _COLUMNS])
        self.rotation = []
        for name, table in zip(("cosine", "sine"), d.ropes[0].table(self.context), strict=True):
            rows = self.node("Gather", [self.constant(name, table), positions], axis=0)
            self.rotation.append(self.reshape(rows, 1, 1, -1, d.head_size // 2))
        embedding = self.constant("embedding", self.checkpoint.rows("embedding"))
        x = self.node("Gather", [embedding, tokens], axis=0)
        for i in range(d.layers):
            x = self.node("Add", [x, self.attention(i, self.norm(x, f"{i}.input_norm"))])
            x = self.node("Add", [x, self.feed_forward(i, self.norm(x, f"{i}.mlp_norm"))])
        head = "embedding" if d.tied_embeddings else "head"
        weight = self.checkpoint.rows(head)
        hidden = self.norm(x, "norm", output="hidden")
        self.product(hidden, "head", weight, output="logits")
        self.output("logits", [1, _TOKENS, d.vocab_size])
        self.output("hidden", [1, _TOKENS, d.hidden_size])
        if (size := sum(len(tensor.raw_data) for tensor in self.constants.values())) > _LARGEST:
            raise OmniDraftError(
                f"The drafter has {size / 1e9:.1f} GB in float32, a static graph at most "
                f"{_LARGEST / 1e9:.0f}. Choose a smaller drafter, or another --backend."
            )
        graph = helper.make_graph(
            self.nodes, "drafter", self.inputs, self.outputs, list(self.constants.values())
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
        )
        return StaticGraph(model, self.linears, frozenset(self.lora_nodes))

    def attention(self, i: int, x: str) -> str:
        d = self.decoder
        heads, kv_heads, size = d.heads, d.kv_heads, d.head_size
        qkv = self.linear(x, i, "qkv")
        split = self.reshape(qkv, 1, -1, heads + 2 * kv_heads, size)
        by_head = self.node("Transpose", [split], perm=[0, 2, 1, 3])
        value = f"present.{i}.value"
        queries, keys, _ = self.split(by_head, 1, heads, kv_heads, kv_heads, last=value)
        scale = self.constant("query_scale", np.array(d.query_scale, np.float32))
        queries = self.node("Mul", [self.rotate(queries), scale])
        key = f"present.{i}.key"
        self.node("Transpose", [self.rotate(keys)], perm=[0, 1, 3, 2], output=key)
        past_key = self.input(f"past.{i}.key", [1, kv_heads, size, self.context])
        past_value = self.input(f"past.{i}.value", [1, kv_heads, self.context, size])
        self.output(key, [1, kv_heads, size, _TOKENS])
        self.output(value, [1, kv_heads, _TOKENS, size])
        all_keys = self.node("Concat", [past_key, key], axis=3)
        all_values = self.node("Concat", [past_value, value], axis=2)
        # Query heads that share a key head are further rows of one product. A 0 keeps the columns.
        group = heads // kv_heads
        if group > 1:
            queries = self.reshape(queries, 1, kv_heads, -1, size)
        scores = self.node("MatMul", [queries, all_keys])
        if group > 1:
            scores = self.reshape(scores, kv_heads, group, -1, 0)
        weights = self.node("Softmax", [self.node("Add", [scores, "mask"])], axis=-1)
        if group > 1:
            weights = self.reshape(weights, 1, kv_heads, -1, 0)
        mixed = self.node("MatMul", [weights, all_values])
        if group > 1:
            mixed = self.reshape(mixed, 1, heads, -1, size)
        mixed = self.node("Transpose", [mixed], perm=[0, 2, 1, 3])
        mixed = self.reshape(mixed, 1, -1, heads * size)
        return self.linear(mixed, i, "o")

    def feed_forward(self, i: int, x: str) -> str:
        size = self.decoder.feed_forward_size
        joined = self.linear(x, i, "gate_up")
        gate, up = self.split(joined, -1, size, size)
        gate = self.node("Mul", [gate, self.node("Sigmoid", [gate])])
        return self.linear(self.node("Mul", [gate, up]), i, "down")

    def linear(self, x: str, i: int, linear: str) -> str:
        name = f"{i}.{linear}"
        weight = joined_weight(self.checkpoint, i, linear)
        y = self.product(x, name, weight)
        if (bias := joined_bias(self.checkpoint, i, linear)) is not None:
            y = self.node("Add", [y, self.constant(f"{name}.bias", bias)])
        if not self.rank:
            return y
        height, width = weight.shape
        a = self.input(f"lora.{name}.A", [width, self.rank])
        b = self.input(f"lora.{name}.B", [self.rank, height])
        first = len(self.nodes)
        y = self.node("Add", [y, self.node("MatMul", [self.node("MatMul", [x, a]), b])])
        self.lora_nodes |= {node.name for node in self.nodes[first:]}
        return y

    def product(
        self, x: str, name: str, weight: NDArray[np.float32], output: str | None = None
    ) -> str:
        """``x`` times the transpose of ``weight`` [out, in]."""
        stored = self.constant(f"{name}.weight", weight.T)
        self.linears[stored] = x
        return self.node("MatMul", [x, stored], output=output)

    def norm(self, x: str, name: str, output: str | None = None) -> str:
        # Not taken apart: the squares' 16-bit range would leave small tokens no digits, and with
        # rsqrt the compiled graph is wrong.
        weight = self.constant(name, self.checkpoint.rows(name))
        epsilon = self.decoder.norm_epsilon
        return self.node("RMSNormalization", [x, weight], output=output, axis=-1, epsilon=epsilon)

    def rotate(self, x: str) -> str:
        """RoFormer's rotation (arXiv 2104.09864), halves rotated as in Hugging Face's Llama."""
        cosine, sine = self.rotation
        half = self.decoder.head_size // 2
        first, second = self.split(x, -1, half, half)

        def mixed(operator: str, a: str, b: str) -> str:
            terms = [self.node("Mul", [a, cosine]), self.node("Mul", [b, sine])]
            return self.node(operator, terms)

        return self.node(
            "Concat", [mixed("Sub", first, second), mixed("Add", second, first)], axis=-1
        )

    # --- nodes -------------------------------------------------------------------------------

    def node(
        self, operator: str, inputs: list[str], output: str | None = None, **attributes: Any
    ) -> str:
        name = f"{operator}_{len(self.nodes)}"
        output = output or name
        self.nodes.append(helper.make_node(operator, inputs, [output], name=name, **attributes))
        return output

    def split(self, x: str, axis: int, *sizes: int, last: str | None = None) -> list[str]:
        name = f"Split_{len(self.nodes)}"
        outputs = [f"{name}.{part}" for part in range(len(sizes))]
        outputs[-1] = last or outputs[-1]
        inputs = [x, self.integers(*sizes)]
        self.nodes.append(helper.make_node("Split", inputs, outputs, name=name, axis=axis))
        return outputs

    def reshape(self, x: str, *shape: int) -> str:
        return self.node("Reshape", [x, self.integers(*shape)])

    def integers(self, *values: int) -> str:
        name = "integers_" + "_".join(str(value) for value in values).replace("-", "m")
        return self.constant(name, np.array(values, np.int64))

    def constant(self, name: str, values: NDArray[Any]) -> str:
        if name not in self.constants:
            contiguous = np.ascontiguousarray(values).reshape(values.shape)
            self.constants[name] = numpy_helper.from_array(contiguous, name)
        return name

    def input(self, name: str, shape: list[int | str], dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, shape: list[int | str]) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
