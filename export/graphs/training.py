"""Write one training step of a Llama drafter's LoRA as plain ONNX: losses, figures, gradients.

The losses are OmniDraft's (arXiv 2507.02659) and ALM's (arXiv 2503.20083). A row r is a position
whose next-token distribution q_r carries loss, and the sum of these is differentiated:

- direct: weight_r · D(q'_r ‖ p_r), a reverse KL over the row's ``direct_ids``, its merged tokens
  and everything else as one outcome. q' is q renormalised over ``direct_tokens``. A merged token,
  a chunk whose first row r is (``merged``), gets the product of its rows' probabilities, and
  ``label[r]``, its first sub-token, loses that much (OmniDraft's Eq. 2).
- label: −weight_r · log q_r(label_r), for the sub-tokens of n-grams.
- chunk: weight_c · [f(p, s) + f(1 − p, 1 − s)] with f(x, y) = x log(x / y), where p and s are the
  chunk's likelihoods under target and drafter to the power 1/τ; log s before that is the sum of
  log q_r(label_r) over the chunk's rows (ALM).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, save_model

from omnidraft.export.checkpoint.spec import Checkpoint, check_drafts, joined_bias, joined_weight
from omnidraft.export.graphs.gradients import TINY, Tape
from omnidraft.export.graphs.quantize import BLOCK, quantize_blocks8
from omnidraft.export.graphs.writer import Progress
from omnidraft.runtime.learning.training_step import TRAINING_FILE

WEIGHTS_FILE = f"{TRAINING_FILE}.data"
Storage = Literal["int8", "float32"]

# What is left of a sum of float32 probabilities to 1 is not known better than this.
SMALLEST_REST = 1e-6
# The least −log of a chunk's likelihood: at 0 its complement's logarithm would be infinite.
SMALLEST_SURPRISE = 1e-7

# Inputs beside the LoRA factors. T positions, R rows, M tokens a row, C chunks, V = vocabulary.
INPUTS: dict[str, tuple[int, list[str | int]]] = {
    "tokens": (TensorProto.INT64, [1, "T"]),
    "positions": (TensorProto.INT64, [1, "T"]),
    "mask": (TensorProto.FLOAT, ["T", "T"]),
    "rows": (TensorProto.INT64, ["R"]),
    "direct_ids": (TensorProto.INT64, ["R", "M"]),
    "direct_log_p": (TensorProto.FLOAT, ["R", "M"]),
    "direct_weight": (TensorProto.FLOAT, ["R"]),
    "direct_tokens": (TensorProto.FLOAT, ["V"]),
    "label": (TensorProto.INT64, ["R"]),
    "label_weight": (TensorProto.FLOAT, ["R"]),
    "chunks": (TensorProto.FLOAT, ["C", "R"]),
    "chunk_log_p": (TensorProto.FLOAT, ["C"]),
    "chunk_weight": (TensorProto.FLOAT, ["C"]),
    "merged": (TensorProto.FLOAT, ["C", "R"]),
    "temperature": (TensorProto.FLOAT, []),
}


def write_training_graph(
    checkpoint: Checkpoint,
    folder: Path,
    progress: Progress,
    storage: Storage = "int8",
) -> ModelProto:
    """Write ``training.onnx`` and ``training.onnx.data`` into ``folder``.

    Inputs: see ``learning.training_step.TrainingBatch``, and the LoRA factors as
    ``storage.bundle.Lora`` describes them, of any rank. Outputs: ``loss`` and its parts
    ``direct_loss``, ``label_loss``, ``chunk_loss``, float32 scalars; ``kl`` and ``log_label``
    float32 [R], ``chunk_divergence`` float32 [C], all without weights; ``hidden`` float32
    [R, hidden_size], what the head reads; ``best`` int64 [R], each row's likeliest token;
    ``grad.NAME`` for each LoRA factor, of its shape.

    Args:
        storage: how the frozen matrices lie in the file: ``int8`` in blocks of 32 with one scale
            each (a matrix whose rows are no multiple of 32 stays float32), or ``float32``.
            Arithmetic is float32.

    Returns:
        The graph, its weights in the file.

    Raises:
        OmniDraftError: see ``check_drafts``.
        DamagedFileError: see ``Checkpoint.rows``.
    """
    check_drafts(checkpoint.decoder, "The checkpoint")
    model = _Writer(checkpoint, progress, storage).build()
    # onnx appends to a file of weights that is there; one that it makes only its owner may read.
    (folder / WEIGHTS_FILE).unlink(missing_ok=True)
    (folder / WEIGHTS_FILE).touch()
    save_model(model, folder / TRAINING_FILE, save_as_external_data=True, location=WEIGHTS_FILE)
    return model


class _Writer:
    def __init__(self, checkpoint: Checkpoint, progress: Progress, storage: Storage) -> None:
        self.checkpoint = checkpoint
        self.decoder = checkpoint.decoder
        self.progress = progress
        self.storage = storage
        self.tape = Tape()
        # Sizes of the LoRA factors, by name.
        self.lora: dict[str, list[str | int]] = {}

    def build(self) -> ModelProto:
        t = self.tape
        hidden, logits = self.forward()
        outputs = self.losses(logits)
        gradients = t.gradients(outputs["loss"], self.lora)
        outputs |= {"hidden": hidden} | {f"grad.{name}": g for name, g in gradients.items()}
        outputs["best"] = t.node("ArgMax", [logits], axis=1, keepdims=0)
        shapes: dict[str, list[str | int]] = {
            "hidden": ["R", self.decoder.hidden_size],
            "best": ["R"],
            "kl": ["R"],
            "log_label": ["R"],
            "chunk_divergence": ["C"],
            **{f"grad.{name}": shape for name, shape in self.lora.items()},
        }
        for name, value in outputs.items():
            t.nodes.append(helper.make_node("Identity", [value], [name]))

        def info(
            name: str, shape: list[str | int], kind: int = TensorProto.FLOAT
        ) -> ValueInfoProto:
            sizes = [self.decoder.vocab_size if size == "V" else size for size in shape]
            return helper.make_tensor_value_info(name, kind, sizes)

        inputs = [info(name, shape, kind) for name, (kind, shape) in INPUTS.items()]
        inputs += [info(name, shape) for name, shape in self.lora.items()]
        graph = helper.make_graph(
            t.nodes,
            "training",
            inputs,
            [
                info(
                    name,
                    shapes.get(name, []),
                    TensorProto.INT64 if name == "best" else TensorProto.FLOAT,
                )
                for name in outputs
            ],
            initializer=t.initializers,
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", 21)],
            ir_version=10,
            producer_name="omnidraft",
        )

    # --- the decoder ---------------------------------------------------------------------------

    def forward(self) -> tuple[str, str]:
        """Return the rows' hidden states [R, hidden_size] and logits [R, V]."""
        d, t = self.decoder, self.tape
        embedding = self.weight("embedding", self.checkpoint.rows("embedding"))
        tokens = t.node("Reshape", ["tokens", t.integers(-1)])
        x = t.node("Gather", [embedding, tokens])
        frequencies = np.array(d.ropes[0].inverse_frequencies, np.float32)
        positions = t.node("Reshape", ["positions", t.integers(-1, 1, 1)])
        positions = t.node("Cast", [positions], to=TensorProto.FLOAT)
        angles = t.node("Mul", [positions, t.initializer("frequencies", frequencies)])
        rotation = t.node("Cos", [angles]), t.node("Sin", [angles])
        for i in range(d.layers):
            self.progress("layers", i, d.layers)
            x = t.add(x, self.attention(i, self.norm(f"{i}.input_norm", x), rotation))
            x = t.add(x, self.feed_forward(i, self.norm(f"{i}.mlp_norm", x)))
        self.progress("layers", d.layers, d.layers)
        # The head is by far the largest product, so only rows that carry loss go through it.
        hidden = self.norm("norm", t.rows(x, "rows"))
        if d.tied_embeddings:
            return hidden, t.linear(hidden, embedding)
        return hidden, t.linear(hidden, self.weight("head", self.checkpoint.rows("head")))

    def attention(self, i: int, x: str, rotation: tuple[str, str]) -> str:
        d, t = self.decoder, self.tape
        size, kv = d.head_size, d.kv_heads
        turned = (d.heads + kv) * size
        rotated, values = t.split(self.linear(i, "qkv", x), t.integers(turned, kv * size), 1)
        rotated = t.rotate(t.reshape(rotated, (0, -1, size), (0, turned)), *rotation)
        queries, keys = t.split(rotated, t.integers(d.heads, kv), 1)
        # The query heads that share a key head are further rows of one product.
        queries = t.reshape(queries, (0, kv, -1, size), (0, d.heads, size))
        queries = t.transpose(queries, 1, 2, 0, 3)
        queries = t.reshape(queries, (kv, -1, size), (kv, d.heads // kv, -1, size))
        queries = t.multiply(queries, t.real(d.query_scale))
        keys = t.transpose(keys, 1, 0, 2)
        values = t.transpose(t.reshape(values, (0, kv, size), (0, kv * size)), 1, 0, 2)
        scores = t.batch_matmul(queries, keys, transpose_b=True)
        scores = t.reshape(scores, (d.heads, -1, 0), (kv, -1, 0))
        weights = t.softmax(t.add(scores, "mask"))
        weights = t.reshape(weights, (kv, -1, 0), (d.heads, -1, 0))
        mixed = t.batch_matmul(weights, values)
        mixed = t.transpose(t.reshape(mixed, (d.heads, -1, size), (kv, -1, size)), 1, 0, 2)
        return self.linear(i, "o", t.reshape(mixed, (0, d.heads * size), (0, d.heads, size)))

    def feed_forward(self, i: int, x: str) -> str:
        d, t = self.decoder, self.tape
        sizes = t.integers(d.feed_forward_size, d.feed_forward_size)
        gate, up = t.split(self.linear(i, "gate_up", x), sizes, 1)
        return self.linear(i, "down", t.multiply(t.silu(gate), up))

    def norm(self, name: str, x: str) -> str:
        weight = self.tape.initializer(name, self.checkpoint.rows(name))
        return self.tape.norm(x, weight, self.decoder.norm_epsilon)

    def linear(self, i: int, linear: str, x: str) -> str:
        """A frozen linear, its bias if it has one, and its LoRA."""
        t = self.tape
        matrix = joined_weight(self.checkpoint, i, linear)
        y = t.linear(x, self.weight(f"{i}.{linear}", matrix))
        if (bias := joined_bias(self.checkpoint, i, linear)) is not None:
            y = t.add(y, t.initializer(f"{i}.{linear}.bias", bias))
        a, b = (t.watch(f"lora.{i}.{linear}.{factor}") for factor in "AB")
        self.lora |= {a: [matrix.shape[1], "rank"], b: ["rank", matrix.shape[0]]}
        return t.add(y, t.matmul(t.matmul(x, a), b))

    def weight(self, name: str, matrix: NDArray[np.float32]) -> str:
        """A frozen matrix [out, in]."""
        t = self.tape
        if self.storage == "float32" or matrix.shape[1] % BLOCK:
            return t.initializer(name, matrix)
        levels, scales = quantize_blocks8(matrix)
        # Signed, so that the zero point is 0 and need not be stored.
        codes = (levels ^ np.uint8(128)).view(np.int8)
        stored = [t.initializer(name, codes), t.initializer(f"{name}.scales", scales)]
        return t.node("DequantizeLinear", stored, axis=1, block_size=BLOCK)

    # --- the losses ----------------------------------------------------------------------------

    def losses(self, logits: str) -> dict[str, str]:
        """Return ``loss``, its parts and what they are made of, by the outputs' names."""
        t = self.tape
        column = t.integers(-1, 1)
        label = t.node("Reshape", ["label", column])
        chunk_log_p = t.node("Reshape", ["chunk_log_p", column])
        # Ids that only fill a row up are negative.
        some_ids = t.node("Max", ["direct_ids", t.integers(0)])
        ids = t.node("Concat", [label, some_ids], axis=1)
        included = t.node("Reshape", ["direct_tokens", t.integers(1, -1)])
        log_q, log_mass = t.log_probabilities(logits, ids, included)
        count = t.node("Shape", ["direct_ids"], start=1)
        sizes = t.node("Concat", [t.integers(1), count], axis=0)
        log_label, log_direct = t.split(log_q, sizes, 1)

        kl = self.direct_divergence(log_label, log_direct, log_mass, label, chunk_log_p)
        divergence = self.chunk_divergence(log_label, chunk_log_p)

        def weighted(values: str, weights: str) -> str:
            return t.weighted_sum(values, t.node("Reshape", [weights, column]))

        label_weight = t.node("Neg", ["label_weight"])
        parts = {
            "direct_loss": weighted(kl, "direct_weight"),
            "label_loss": weighted(log_label, label_weight),
            "chunk_loss": weighted(divergence, "chunk_weight"),
        }
        loss = t.add(t.add(parts["direct_loss"], parts["label_loss"]), parts["chunk_loss"])
        figures = {"kl": kl, "log_label": log_label, "chunk_divergence": divergence}
        flat = {name: t.node("Reshape", [x, t.integers(-1)]) for name, x in figures.items()}
        return {"loss": loss} | parts | flat

    def direct_divergence(
        self, log_label: str, log_direct: str, log_mass: str, label: str, chunk_log_p: str
    ) -> str:
        """D(q' ‖ p) for each row, float32 [R, 1]."""
        t = self.tape

        def cast(truth: str) -> str:
            return t.node("Cast", [truth], to=TensorProto.FLOAT)

        def of_rows(chunk_values: str) -> str:
            return t.matmul(merged_transposed, chunk_values)

        def terms(q: str, log_p: str) -> str:
            q = t.at_least(q, TINY)
            return t.multiply(q, t.subtract(t.log(q), log_p))

        merged_transposed = t.node("Transpose", ["merged"], perm=[1, 0])
        listed = cast(t.node("GreaterOrEqual", ["direct_ids", t.integers(0)]))
        first = cast(t.node("Equal", ["direct_ids", label]))

        q = t.exp(t.subtract(log_direct, t.spread(log_mass, log_direct)))
        log_s = t.subtract(t.matmul("chunks", log_label), t.matmul("merged", log_mass))
        s = t.exp(log_s)
        taken = of_rows(s)
        q = t.multiply(t.subtract(q, t.multiply(t.spread(taken, q), first)), listed)
        rest = t.subtract(t.real(1.0), t.add(t.sum_rows(q), taken))

        p = t.node("Mul", [t.node("Exp", ["direct_log_p"]), listed])
        p_sum = t.node("ReduceSum", [p, t.integers(1)])
        p_merged = t.node("MatMul", [merged_transposed, t.node("Exp", [chunk_log_p])])
        p_rest = t.node("Sub", [t.real(1.0), t.node("Add", [p_sum, p_merged])])
        log_p_rest = t.node("Log", [t.node("Max", [p_rest, t.real(SMALLEST_REST)])])

        of_ids = t.sum_rows(t.multiply(terms(q, "direct_log_p"), listed))
        of_merged = of_rows(terms(s, chunk_log_p))
        of_rest = terms(t.at_least(rest, SMALLEST_REST), log_p_rest)
        return t.add(t.add(of_ids, of_merged), of_rest)

    def chunk_divergence(self, log_label: str, chunk_log_p: str) -> str:
        """ALM's binarised divergence for each chunk, float32 [C, 1]."""
        t = self.tape
        scale = t.node("Div", [t.real(1.0), "temperature"])

        def term(p: str, log_p: str, log_s: str) -> str:
            return t.multiply(p, t.subtract(log_p, log_s))

        surprise = t.subtract(t.real(0.0), t.matmul("chunks", log_label))
        surprise = t.at_least(surprise, SMALLEST_SURPRISE)
        log_s = t.multiply(surprise, t.node("Neg", [scale]))
        log_p = t.node("Min", [chunk_log_p, t.real(-SMALLEST_SURPRISE)])
        log_p = t.node("Mul", [log_p, scale])
        other_p, other_s = t.complement(log_p), t.complement(log_s)
        return t.add(
            term(t.exp(log_p), log_p, log_s), term(other_p, t.log(other_p), t.log(other_s))
        )
