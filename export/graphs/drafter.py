"""Write a drafter's decoder: few nodes, since of a small model their number is what a step costs.

A drafter's proposals are verified, so its rows may depend on the size of a pass, as a target's may
not: 4-bit weights are multiplied where the checkpoint has such. For any program attention is one
operator of ONNX Runtime's; for this one it is a target's, which knows trees of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper, save_model

from omnidraft.export.checkpoint.spec import (
    LINEAR_PARTS,
    Checkpoint,
    check_drafts,
    joined_bias,
    joined_weight,
)
from omnidraft.export.graphs.linears import Stored
from omnidraft.export.graphs.quantize import BLOCK, Rounded, exact_blocks4, quantize_blocks8
from omnidraft.export.graphs.target import DecoderWriter
from omnidraft.export.graphs.writer import CONTRIB, GRAPH_FILE, OWN, WEIGHTS_FILE, Progress

IDENTITY = "identity"
"""Name of the matrix that shows what rounding an input leaves; it is no weight."""
# The logit of a token that is never drafted.
MASKED = -1e30


def write_drafter_graph(
    checkpoint: Checkpoint,
    folder: Path,
    quantization: Literal["float32", "8bit"],
    progress: Progress,
    *,
    lora: bool = False,
    four: Mapping[str, Rounded] | None = None,
    own: bool = False,
    writer_type: type[DrafterWriter] | None = None,
) -> ModelProto:
    """Write ``model.onnx`` and ``model.onnx.data`` into ``folder``, for a decoder like Llama's.

    Inputs: ``tokens`` int64 [1, n], ``last_position`` int32 [1] and ``total_length`` int32 [] (the
    place of the last token, and 1 more), ``first_row`` int64 [1] (logits are computed from this row
    on), and per layer ``past.i.key``, ``past.i.value`` float32 [1, kv_heads, capacity, head_size].
    Outputs: ``logits`` float32 [1, n - first_row, vocab], ``hidden`` float32 [1, n - first_row,
    hidden], which is what the head reads, and ``present.i.key``, ``present.i.value``, to be bound
    to the memory of the ``past`` inputs. With ``own`` the inputs are those of a target: see
    ``target.write_graph``.

    Args:
        lora, four, own: see ``DrafterWriter``.
        writer_type: another one, for a graph of other inputs and outputs.

    Raises:
        OmniDraftError: see ``check_drafts``.
        DamagedFileError: see ``Checkpoint.rows``.
    """
    check_drafts(checkpoint.decoder, "The checkpoint")
    # A new file: the old one may still be mapped into memory.
    (folder / WEIGHTS_FILE).unlink(missing_ok=True)
    with (folder / WEIGHTS_FILE).open("wb") as file:
        writer = (writer_type or DrafterWriter)(
            checkpoint, file, quantization, progress, lora=lora, four=four, own=own
        )
        model = writer.build()
    save_model(model, folder / GRAPH_FILE)
    return model


def exact_four_bits(checkpoint: Checkpoint) -> dict[str, Rounded]:
    """Those matrices that 4 bits in blocks of 32 hold without loss, by the linear's name.

    As a drafter has them whose training put its weights on such a grid.
    """
    found = {}
    for name in matrix_names(checkpoint):
        layer, _, linear = name.partition(".")
        rows = joined_weight(checkpoint, int(layer), linear) if linear else checkpoint.rows(name)
        if rows.shape[1] % BLOCK == 0 and (rounded := exact_blocks4(rows)) is not None:
            found[name] = rounded
    return found


def matrix_names(checkpoint: Checkpoint) -> list[str]:
    """Names of all matrices: embedding, linears, and the head where it is another one."""
    d = checkpoint.decoder
    linears = [f"{i}.{linear}" for i in range(d.layers) for linear in LINEAR_PARTS]
    return ["embedding", *linears, *([] if d.tied_embeddings else ["head"])]


def whole_drafter_pass(
    session: ort.InferenceSession, tokens: Sequence[int]
) -> dict[str, NDArray[Any]]:
    """Inputs for one pass over a whole text, with an empty cache and all rows of logits.

    Args:
        session: over a graph that ``write_drafter_graph`` wrote.
    """
    inputs: dict[str, NDArray[Any]] = {
        "tokens": np.array([tokens], np.int64),
        "last_position": np.array([len(tokens) - 1], np.int32),
        "total_length": np.array(len(tokens), np.int32),
        "first_row": np.zeros(1, np.int64),
    }
    for value in session.get_inputs():
        if value.name.startswith("past."):
            _, heads, _, size = value.shape
            inputs[value.name] = np.zeros((1, heads, 0, size), np.float32)
    return inputs


class DrafterWriter(DecoderWriter):
    """See ``write_drafter_graph``.

    Args:
        lora: whether linears have LoRA inputs, ``lora.NAME.A`` and ``.B``, of rank 0 by default.
        four: matrices that have 4 bits, by name; the others have ``quantization``.
        own: for this program alone. The inputs are a target's, attention is its operator, and what
            a LoRA adds is another one of kernels_native/. The head computes the ``drafted_tokens``
            of the checkpoint only, where that names some and the head is quantized in blocks; the
            logits of others are as good as −infinity.
    """

    positions: tuple[str, ...] = ()
    """The input that says where tokens are, if attention is not to count them itself."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        file: BinaryIO,
        quantization: Literal["float32", "8bit"],
        progress: Progress,
        *,
        lora: bool = False,
        four: Mapping[str, Rounded] | None = None,
        own: bool = False,
    ) -> None:
        super().__init__(checkpoint, file, quantization, progress, factors={}, observe=None)
        self.packed = False  # a bundle is for any program
        self.lora = lora
        self.four = four or {}
        self.own = own
        self.lora_inputs: list[ValueInfoProto] = []
        # Inputs of 8-bit linears, split into two terms once.
        self.terms: dict[str, str] = {}

    def build(self) -> ModelProto:
        model = super().build()
        model.graph.input.extend(self.lora_inputs)
        return model

    def interface(self) -> tuple[list[ValueInfoProto], list[ValueInfoProto]]:
        d = self.decoder
        value = helper.make_tensor_value_info
        hidden = value("hidden", TensorProto.FLOAT, [1, "rows", d.hidden_size])
        if self.own:
            inputs, outputs = super().interface()
            return inputs, [*outputs, hidden]
        inputs = [
            value("tokens", TensorProto.INT64, [1, "n"]),
            value("last_position", TensorProto.INT32, [1]),
            value("total_length", TensorProto.INT32, []),
            value("first_row", TensorProto.INT64, [1]),
        ]
        outputs = [
            value("logits", TensorProto.FLOAT, [1, "rows", d.vocab_size]),
            hidden,
        ]
        shape: list[str | int] = [1, d.kv_heads, "capacity", d.head_size]
        for i in range(d.layers):
            past, present = self.cache_names("past", i), self.cache_names("present", i)
            inputs += [value(name, TensorProto.FLOAT, shape) for name in past]
            outputs += [value(name, TensorProto.FLOAT, shape) for name in present]
        return inputs, outputs

    def last_rows(self, x: str) -> str:
        super().last_rows(x)
        self.nodes[-1].output[0] = "hidden"
        return "hidden"

    def attention(self, i: int, x: str) -> str:
        if self.own:
            return super().attention(i, x)
        d = self.decoder
        joined = joined_weight(self.checkpoint, i, "qkv")
        bias = joined_bias(self.checkpoint, i, "qkv")
        qkv = self.linear(x, f"{i}.qkv", joined.shape, [joined], bias)
        cos, sin = self.ropes[i]
        mixed = f"attention_{i}"
        past, present = self.cache_names("past", i), self.cache_names("present", i)
        lengths = ("last_position", "total_length")
        self.node(
            "GroupQueryAttention",
            [qkv, "", "", *past, *lengths, cos, sin, *self.positions],
            [mixed, *present],
            domain=CONTRIB,
            num_heads=d.heads,
            kv_num_heads=d.kv_heads,
            scale=d.query_scale,
            do_rotary=1,
        )
        shape = (d.hidden_size, d.heads * d.head_size)
        return self.linear(
            mixed,
            f"{i}.o",
            shape,
            self.blocks(f"{i}.o", *shape),
            joined_bias(self.checkpoint, i, "o"),
        )

    def linear(
        self,
        x: str,
        name: str,
        shape: tuple[int, int],
        blocks: Iterable[NDArray[np.float32]],
        bias: NDArray[np.float32] | None = None,
    ) -> str:
        y = super().linear(x, name, shape, blocks, bias)
        if not self.lora:
            return y
        a = self.lora_input(f"lora.{name}.A", (shape[1], None))
        b = self.lora_input(f"lora.{name}.B", (None, shape[0]))
        if self.own:
            fused: str = self.node("AddLowRank", [y, x, a, b], domain=OWN)
            return fused
        down = self.node("MatMul", [x, a])
        output: str = self.node("Add", [y, self.node("MatMul", [down, b])])
        return output

    def cache_names(self, when: Literal["past", "present"], i: int) -> tuple[str, str]:
        """A layer's keys and values, before the pass and after it."""
        return f"{when}.{i}.key", f"{when}.{i}.value"

    def gate(self, joined: str) -> str:
        if self.own:
            return super().gate(joined)
        gate, up = self.node("Split", [joined], 2, axis=-1, num_outputs=2)
        output: str = self.node(
            "Mul", [self.node("QuickGelu", [gate], domain=CONTRIB, alpha=1.0), up]
        )
        return output

    def lora_input(self, name: str, shape: tuple[int | None, int | None]) -> str:
        """A LoRA factor; its default has rank 0, which adds nothing."""
        default = np.empty([size or 0 for size in shape], np.float32)
        self.initializers.append(numpy_helper.from_array(default, name))
        # A name of its own for each linear: an adapter may leave linears out, and ONNX Runtime
        # plans memory by equal names.
        rank = f"rank.{name[len('lora.') : -len('.A')]}"
        dims = [size or rank for size in shape]
        self.lora_inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
        return name

    def linear8(
        self, x: str, name: str, shape: tuple[int, int], blocks: Iterable[NDArray[np.float32]]
    ) -> str:
        """8-bit weights in blocks, times the input as a sum of two 8-bit terms.

        MatMulNBits rounds its input to 8 bits in blocks, which costs more agreement than rounding
        the weights does. What it rounds away is therefore a second row of the same pass: the
        weights, whose reading takes the time, are read once.
        """
        if shape[1] % BLOCK:
            return super().linear8(x, name, shape, blocks)
        stored = self.store_matrix(name, shape, blocks)
        if name in self.four:
            return self.block_product(x, stored, shape)
        y = self.block_product(self.two_terms(x, shape[1]), stored, shape)
        output: str = self.node("ReduceSum", [y, self.integers(0)], keepdims=1)
        return output

    def row_levels(self, x: str) -> tuple[str, str]:
        """With ONNX Runtime's own operators."""
        largest = self.node("ReduceMax", [self.node("Abs", [x]), self.integers(-1)], keepdims=1)
        step = self.node("Mul", [largest, self.real(1 / 127)])
        step = self.node("Max", [step, self.real(1e-20)])  # a row of zeros stays one
        scaled = self.node("Div", [x, step])
        return self.node("QuantizeLinear", [scaled, self.real(1.0), self.middle()]), step

    def two_terms(self, x: str, width: int) -> str:
        """``x`` [1, n, width] as [2, n, width]: what MatMulNBits makes of it, and what is left."""
        if x not in self.terms:
            # A product with the identity in 8 bits shows what rounding leaves.
            identity = np.full((BLOCK, 1, BLOCK), 128, np.uint8)
            identity[np.arange(BLOCK), 0, np.arange(BLOCK)] = 255
            scales = np.full((BLOCK, 1), 1 / 127, np.float32)
            stored = Stored(
                self.constant(IDENTITY, identity), self.constant(f"{IDENTITY}.scales", scales), 8
            )
            rows = self.node("Reshape", [x, self.integers(-1, BLOCK)])
            rounded = self.block_product(rows, stored, (BLOCK, BLOCK))
            both = self.node("Concat", [rows, self.node("Sub", [rows, rounded])], axis=0)
            self.terms[x] = self.node("Reshape", [both, self.integers(2, -1, width)])
        return self.terms[x]

    def store_matrix(
        self, name: str, shape: tuple[int, int], blocks: Iterable[NDArray[np.float32]]
    ) -> Stored:
        """Store weights [out, in] in blocks of 32, as MatMulNBits reads them."""
        bits = 4 if name in self.four else 8
        rounded = [self.four[name]] if name in self.four else map(quantize_blocks8, blocks)
        rows, count = shape[0], shape[1] // BLOCK
        codes_shape = (rows, count, BLOCK * bits // 8)
        return self.store_blocks(name, codes_shape, (rows, count), rounded, bits)

    def embedding(self) -> str:
        """Quantized as the head; if they are tied they are the same bytes of the file."""
        d = self.decoder
        shape = (d.vocab_size, d.hidden_size)
        if self.quantization == "float32" or d.hidden_size % BLOCK:
            return super().embedding()
        stored = self.store_matrix("embedding", shape, self.blocks("embedding", *shape))
        self.stored_embedding = stored
        width = d.hidden_size * stored.bits // 8
        rows = self.alias(stored.weight, "embedding.rows", (d.vocab_size, width))
        return self.block_rows(replace(stored, weight=rows))

    def head(self, x: str) -> None:
        d = self.decoder
        shape = (d.vocab_size, d.hidden_size)
        if self.quantization == "float32" or d.hidden_size % BLOCK:
            super().head(x)
            return
        if d.tied_embeddings:
            stored = self.stored_embedding
        else:
            stored = self.store_matrix("head", shape, self.blocks("head", *shape))
        drafted = d.drafted_tokens if self.own else None
        if drafted is None or drafted == d.vocab_size:
            self.block_product(x, stored, shape)
        else:
            weight, scales = (self.prefix(name, drafted) for name in (stored.weight, stored.scales))
            first = self.block_product(
                x, replace(stored, weight=weight, scales=scales), (drafted, d.hidden_size)
            )
            missing = [first, self.integers(0, d.vocab_size - drafted), self.real(MASKED)]
            self.node("Pad", [*missing, self.integers(2)])
        self.nodes[-1].output[0] = "logits"

    def prefix(self, stored: str, rows: int) -> str:
        """The first rows of a stored tensor."""
        whole = self.initializer(stored)
        return self.alias(stored, f"{stored}.drafted", (rows, *whole.dims[1:]))

    def alias(self, stored: str, name: str, shape: tuple[int, ...]) -> str:
        """A tensor of a stored one's bytes, from its first on, under another shape."""
        whole = self.initializer(stored)
        dtype = helper.tensor_dtype_to_np_dtype(whole.data_type)
        offset = next(entry.value for entry in whole.external_data if entry.key == "offset")
        return self.external(name, shape, dtype, int(offset), int(np.prod(shape)) * dtype.itemsize)

    def initializer(self, name: str) -> TensorProto:
        return next(tensor for tensor in self.initializers if tensor.name == name)
