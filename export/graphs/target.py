"""Write a decoder as a batch-invariant ONNX graph with a KV cache that is updated in place.

Row i of a pass over n tokens must equal, bit for bit, a pass over that token alone. What that
takes:

- Quantized linears: integer sums are exact in whatever order they are taken. 4-bit ones have a
  scale per row and block of 32 inputs, so they are an operator of our own, which adds the blocks in
  one order.
- Attention is an operator of our own (kernels_native/), as ONNX Runtime's sums in an order that
  depends on how many rows it gets. It also rotates, and writes new keys and values into the cache,
  which copies nothing when its input and its output are the same memory.
- Position comes first in the cache's buffers, so a shorter buffer is a prefix of a longer one and
  the host binds as much as it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, save_model

from omnidraft.export.checkpoint.rope import Rope
from omnidraft.export.checkpoint.spec import Checkpoint, Decoder, row_blocks
from omnidraft.export.graphs.linears import LinearWriter, Observed, Quantization
from omnidraft.export.graphs.quantize import BLOCK, quantize_blocks8
from omnidraft.export.graphs.writer import CONTRIB, GRAPH_FILE, OWN, WEIGHTS_FILE, Progress
from omnidraft.runtime.engines.onnx import LENGTH_STEP

# A row block read from a checkpoint holds at most this many float32 values (16 MiB).
BLOCK_VALUES = 1 << 22
# ONNX Runtime cuts a float32 product along its summed dimension by how many columns a thread gets,
# unless these are more.
COLUMNS_OF_A_THREAD = 128


def write_graph(
    checkpoint: Checkpoint,
    folder: Path,
    quantization: Quantization,
    progress: Progress,
    factors: Mapping[str, NDArray[np.float32]] | None = None,
    *,
    observe: Observed | None = None,
) -> None:
    """Write ``model.onnx`` and ``model.onnx.data`` into ``folder``.

    Inputs: ``tokens`` int64 [1, n], ``positions`` int64 [1, n], ``paths`` int64 [n, depth] (of
    nodes of a tree the slots of the cache that they see beyond the text, in order, their own last,
    then -1; depth 0: there is no tree), ``first_row`` int64 [1] (logits are computed from this row
    on), and per layer ``past.i.key``, ``past.i.value`` [length, kv_heads, head_size], float16, or
    float32 where the weights are. Outputs: ``logits`` float32
    [1, n - first_row, vocab] and ``present.i.key``, ``present.i.value``, to be bound to the memory
    of the ``past`` inputs.

    Args:
        factors: what the input of a linear is multiplied by, float32 [in] in the graph's order, by
            the linear's name (``i.qkv``, ``i.o``, ``i.gate_up``, ``i.down``, ``head``). Whatever
            makes the input (a norm, the rows of v, those of up) takes them up, and the weight's
            columns are divided by them, so the decoder computes the same: see ``calibrate.py``.
        observe: for each linear with 8-bit inputs add an output ``observed.NAME``, float32 [in]:
            the mean over the tokens of the squares of its input, of ``levels`` in units of the
            token's scale.

    Memory does not grow with the model: some temporaries of one row block (16 MiB each), the scales
    of one tensor (an eighth of a byte per weight) and the rotary tables. Pages of the checkpoint,
    which is mapped into memory, are the system's to drop.
    """
    with (folder / WEIGHTS_FILE).open("wb") as file:
        writer = DecoderWriter(checkpoint, file, quantization, progress, factors or {}, observe)
        writer.save(folder)


def whole_pass(session: ort.InferenceSession, tokens: Sequence[int]) -> dict[str, NDArray[Any]]:
    """Inputs for one pass over a whole text, with an empty cache and all rows of logits.

    Args:
        session: over a graph that ``write_graph`` wrote.
    """
    length = -(-len(tokens) // LENGTH_STEP) * LENGTH_STEP
    inputs: dict[str, NDArray[Any]] = {
        "tokens": np.array([tokens], np.int64),
        "positions": np.arange(len(tokens), dtype=np.int64)[None],
        "paths": np.empty((len(tokens), 0), np.int64),
        "first_row": np.zeros(1, np.int64),
    }
    for value in session.get_inputs():
        if value.name.startswith("past."):
            number = np.float16 if value.type == "tensor(float16)" else np.float32
            inputs[value.name] = np.zeros((length, *value.shape[1:]), number)
    return inputs


def max_threads(d: Decoder, quantization: str) -> int | None:
    """With how many threads a decoder's graph is batch-invariant; None: with any number."""
    if quantization != "float32":
        return None
    return max(1, d.hidden_size // COLUMNS_OF_A_THREAD)


class DecoderWriter(LinearWriter):
    """See ``write_graph``."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        file: BinaryIO,
        quantization: Quantization,
        progress: Progress,
        factors: Mapping[str, NDArray[np.float32]],
        observe: Observed | None,
    ) -> None:
        super().__init__(file, quantization, factors, observe)
        self.checkpoint = checkpoint
        self.decoder: Decoder = checkpoint.decoder
        self.progress = progress

    def vector(self, name: str, size: int | None = None, feeds: str = "") -> str:
        """A norm's weight, of the hidden size unless told otherwise.

        Args:
            feeds: the linear whose input the norm makes, and nothing else.
        """
        shape = (self.decoder.hidden_size if size is None else size,)
        weight = self.checkpoint.rows(name) * self.factor(feeds, shape[0])
        return self.store(name, shape, np.float32, [weight])

    def blocks(
        self, name: str, rows: int, columns: int, factor: NDArray[np.float32] | None = None
    ) -> Iterator[NDArray[np.float32]]:
        """A matrix in blocks of rows, each row multiplied by its ``factor`` if there is one."""
        start = 0
        for block in row_blocks(self.checkpoint, name, rows, max(1, BLOCK_VALUES // columns)):
            yield block if factor is None else block * factor[start : start + len(block), None]
            start += len(block)

    def build(self) -> ModelProto:
        d = self.decoder
        inputs, outputs = self.interface()
        residual = self.embedding()
        self.prepare()
        x = residual
        if d.pre_norms:
            x = self.norm(residual, self.vector("0.input_norm", feeds="0.qkv"))
        for i in range(d.layers):
            self.progress("layers", i, d.layers)
            y = self.attention(i, x)
            if d.post_norms:
                y = self.norm(y, self.vector(f"{i}.post_attention_norm"))
            if d.pre_norms:
                weight = self.vector(f"{i}.mlp_norm", feeds=f"{i}.gate_up")
                x, residual = self.add_norm(y, residual, weight)
            else:
                x = residual = self.node("Add", [y, residual])
            y = self.feed_forward(i, x)
            if d.post_norms:
                y = self.norm(y, self.vector(f"{i}.post_mlp_norm"))
            if i == d.layers - 1:
                x, _ = self.add_norm(y, residual, self.vector("norm", feeds="head"))
            elif d.pre_norms:
                weight = self.vector(f"{i + 1}.input_norm", feeds=f"{i + 1}.qkv")
                x, residual = self.add_norm(y, residual, weight)
            else:
                x = residual = self.node("Add", [y, residual])
        self.progress("layers", d.layers, d.layers)
        self.head(self.last_rows(x))
        graph = helper.make_graph(
            self.nodes, "decoder", inputs, outputs + self.observed, initializer=self.initializers
        )
        return helper.make_model(
            graph,
            opset_imports=[
                helper.make_opsetid(domain, 1 if domain else 21)
                for domain in sorted({node.domain for node in self.nodes})
            ],
            ir_version=10,
            producer_name="omnidraft",
        )

    def save(self, folder: Path) -> None:
        """Write the graph beside its weights."""
        save_model(self.build(), folder / GRAPH_FILE)

    def interface(self) -> tuple[list[ValueInfoProto], list[ValueInfoProto]]:
        """Inputs and outputs: see ``write_graph``."""
        d = self.decoder
        value = helper.make_tensor_value_info
        inputs = [
            value("tokens", TensorProto.INT64, [1, "n"]),
            value("positions", TensorProto.INT64, [1, "n"]),
            value("paths", TensorProto.INT64, ["n", "depth"]),
            value("first_row", TensorProto.INT64, [1]),
        ]
        outputs = [value("logits", TensorProto.FLOAT, [1, "rows", d.vocab_size])]
        shape: list[str | int | None] = ["length", d.kv_heads, d.head_size]
        # Beside weights and inputs of 8 bits the rounding to 16 is nothing: see benchmarks/.
        exact = self.quantization == "float32"
        number = TensorProto.FLOAT if exact else TensorProto.FLOAT16
        for i in range(d.layers):
            for part in ("key", "value"):
                inputs.append(value(f"past.{i}.{part}", number, shape))
                outputs.append(value(f"present.{i}.{part}", number, shape))
        return inputs, outputs

    def prepare(self) -> None:
        """What all layers share."""
        self.ropes = self.rope_tables()

    def last_rows(self, x: str) -> str:
        """The rows that logits are wanted of."""
        rows: str = self.node("Slice", [x, "first_row", self.integers(2**62), self.integers(1)])
        return rows

    def embedding(self) -> str:
        d = self.decoder
        scale = np.float32(d.embedding_scale)
        blocks = (scale * b for b in self.blocks("embedding", d.vocab_size, d.hidden_size))
        shape = (d.vocab_size, d.hidden_size)
        if self.quantization == "float32":
            output: str = self.node(
                "Gather", [self.store("embedding", shape, np.float32, blocks), "tokens"]
            )
            return output
        # One row per token is read, so 8 bits cost no time here.
        count = -(-d.hidden_size // BLOCK)
        padded = count * BLOCK
        rounded = map(quantize_blocks8, blocks)
        rows = d.vocab_size
        output = self.block_rows(
            self.store_blocks("embedding", (rows, padded), (rows, count), rounded, 8)
        )
        if padded != d.hidden_size:
            end, start, axis = (self.integers(v) for v in (d.hidden_size, 0, 2))
            output = self.node("Slice", [output, start, end, axis])
        return output

    def head(self, x: str) -> None:
        d = self.decoder
        shape = (d.vocab_size, d.hidden_size)
        if (
            d.tied_embeddings
            and self.quantization == "float32"
            and d.embedding_scale == 1.0
            and "head" not in self.factors
        ):
            self.product(x, "embedding")
        else:
            name = "embedding" if d.tied_embeddings else "head"
            factor = self.factor("head", d.hidden_size)
            blocks = (block / factor for block in self.blocks(name, *shape))
            if self.quantization == "float32":
                self.product(x, self.store("head", shape, np.float32, blocks))
            else:
                self.quantized_head(x, shape, blocks)
        if cap := d.logit_cap:
            uncapped = self.node("Mul", [self.nodes[-1].output[0], self.real(1 / cap)])
            self.node("Mul", [self.node("Tanh", [uncapped]), self.real(cap)])
        self.nodes[-1].output[0] = "logits"

    def quantized_head(
        self, x: str, shape: tuple[int, int], blocks: Iterator[NDArray[np.float32]]
    ) -> None:
        """Never in 4 bits that we round to: every logit would pay for it."""
        self.linear8(x, "head", shape, blocks)

    def rope_tables(self) -> list[tuple[str, str]]:
        """Names of each layer's cosine and sine tables [context, head_size/2]."""
        d = self.decoder
        stored: dict[Rope, tuple[str, str]] = {}
        for rope in dict.fromkeys(d.ropes):
            cos, sin = stored[rope] = f"rope.{len(stored)}.cos", f"rope.{len(stored)}.sin"
            for name, table in zip((cos, sin), rope.table(d.context_length), strict=True):
                self.store(name, table.shape, np.float32, [table])
        return [stored[rope] for rope in d.ropes]

    def norm(self, x: str, weight: str) -> str:
        output: str = self.node(
            "SimplifiedLayerNormalization",
            [x, weight],
            axis=-1,
            epsilon=self.decoder.norm_epsilon,
            stash_type=1,
        )
        return output

    def add_norm(self, x: str, residual: str, weight: str) -> tuple[str, str]:
        """Return norm(x + residual) and x + residual."""
        name = f"add_norm_{len(self.nodes)}"
        self.node(
            "SkipSimplifiedLayerNormalization",
            [x, residual, weight],
            [name, "", "", f"{name}.sum"],
            domain=CONTRIB,
            epsilon=self.decoder.norm_epsilon,
        )
        return name, f"{name}.sum"

    def attention(self, i: int, x: str) -> str:
        d = self.decoder
        size = d.head_size
        # The heads of a group mix the same values, so they have the same factors.
        factor = self.factor(f"{i}.o", d.heads * size).reshape(d.kv_heads, -1, size)
        value_factor = factor[:, 0].reshape(-1)

        def qkv() -> Iterator[NDArray[np.float32]]:
            yield from self.blocks(f"{i}.q", d.heads * size, d.hidden_size)
            yield from self.blocks(f"{i}.k", d.kv_heads * size, d.hidden_size)
            yield from self.blocks(f"{i}.v", d.kv_heads * size, d.hidden_size, value_factor)

        bias = None
        if d.qkv_bias:
            biases = [self.checkpoint.rows(f"{i}.{part}.bias") for part in ("q", "k", "v")]
            biases[2] = biases[2] * value_factor
            bias = np.concatenate(biases)
        rows = (d.heads + 2 * d.kv_heads) * size
        joined = self.linear(x, f"{i}.qkv", (rows, d.hidden_size), qkv(), bias)
        norms = ["", ""]
        if d.qk_norm == "head":
            norms = [self.vector(f"{i}.{part}_norm", size) for part in "qk"]
        elif d.qk_norm == "row":
            joined = self.normed_rows(i, joined)
        cap = {"cap": float(d.attention_cap)} if d.attention_cap else {}
        mixed = f"attention_{i}"
        self.node(
            "Attention",
            [
                *(joined, "positions", *self.ropes[i]),
                *(f"past.{i}.key", f"past.{i}.value", *norms, "paths"),
            ],
            [mixed, f"present.{i}.key", f"present.{i}.value"],
            domain=OWN,
            heads=d.heads,
            kv_heads=d.kv_heads,
            window=d.windows[i] or 0,
            scale=float(d.query_scale),
            norm_epsilon=float(d.norm_epsilon),
            **cap,
        )
        shape = (d.hidden_size, d.heads * size)
        bias = self.checkpoint.rows(f"{i}.o.bias") if d.output_bias else None
        return self.linear(mixed, f"{i}.o", shape, self.blocks(f"{i}.o", *shape), bias)

    def normed_rows(self, i: int, joined: str) -> str:
        """Queries, keys and values, of which the first two are normed over all heads."""
        d = self.decoder
        queries, keys = d.heads * d.head_size, d.kv_heads * d.head_size
        q, k, v = self.node("Split", [joined, self.integers(queries, keys, keys)], 3, axis=-1)
        q = self.norm(q, self.vector(f"{i}.q_norm", queries))
        k = self.norm(k, self.vector(f"{i}.k_norm", keys))
        output: str = self.node("Concat", [q, k, v], axis=-1)
        return output

    def gate(self, joined: str) -> str:
        """The activations of the first half times the second."""
        activation = 0 if self.decoder.activation == "silu" else 1
        output: str = self.node("Gate", [joined], domain=OWN, activation=activation)
        return output

    def feed_forward(self, i: int, x: str) -> str:
        d = self.decoder

        def gate_up() -> Iterator[NDArray[np.float32]]:
            up_factor = self.factor(f"{i}.down", d.feed_forward_size)
            yield from self.blocks(f"{i}.gate", d.feed_forward_size, d.hidden_size)
            yield from self.blocks(f"{i}.up", d.feed_forward_size, d.hidden_size, up_factor)

        shape = (2 * d.feed_forward_size, d.hidden_size)
        bias = down_bias = None
        if d.mlp_bias:
            up_bias = self.checkpoint.rows(f"{i}.up.bias")
            up_bias = up_bias * self.factor(f"{i}.down", d.feed_forward_size)
            bias = np.concatenate([self.checkpoint.rows(f"{i}.gate.bias"), up_bias])
            down_bias = self.checkpoint.rows(f"{i}.down.bias")
        joined = self.linear(x, f"{i}.gate_up", shape, gate_up(), bias)
        product = self.gate(joined)
        shape = (d.hidden_size, d.feed_forward_size)
        blocks = self.blocks(f"{i}.down", *shape)
        return self.linear(product, f"{i}.down", shape, blocks, down_bias)
