"""ONNX Runtime on the CPU: one graph for passes of any length, its cache updated in place."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import DTypeLike, NDArray
from onnx import (
    ModelProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
    save_model,
)

from omnidraft.export.gptq import quantize_blocks4_gptq
from omnidraft.export.graphs import describe_graph
from omnidraft.export.recipes import Built, Options, Progress
from omnidraft.runtime.bundle import Backend, Lora, Quantization
from omnidraft.runtime.convert.checkpoint import Checkpoint
from omnidraft.runtime.convert.graph import (
    CONTRIB,
    GRAPH_FILE,
    HALF,
    WEIGHTS_FILE,
    GraphWriter,
    Stored,
    query_order,
    whole_pass,
)
from omnidraft.runtime.convert.quantize import BLOCK, Rounded, quantize_blocks8
from omnidraft.runtime.convert.training import write_training_graph
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.training_step import TRAINING_FILE

# What 4 bits may cost in all, in nats of KL divergence from float32 on the calibration text. A
# matrix that is too dear keeps 8 bits: the smaller a drafter, the more of them.
FOUR_BIT_BUDGET = 0.004
# Tokens of a text, and every so many-th text, that the price of 4 bits is measured on.
_PROBE_TOKENS, _PROBE_STEP = 64, 4


class OnnxRecipe:
    """See ``Recipe``.

    ``int8``: 8-bit weights in blocks of 32, embedding and head included, inputs as two 8-bit terms.
    ``int4``: the same, with 4 bits where that is cheap: see ``choose_four_bits``.
    """

    backend: Backend = "onnx"
    quantizations: tuple[Quantization, ...] = ("int8", "int4", "none")
    context = 0
    smallest_agreement = 0.9
    parity_positions = 1024

    def check(self, options: Options) -> None:
        if options.soc is not None:
            raise OmniDraftError(
                "The onnx backend runs on the CPU and compiles for no chip (--soc)."
            )
        if options.train_step and not options.lora_rank:
            raise OmniDraftError("A training step trains LoRA inputs: --lora-rank from 1.")

    def build(
        self,
        checkpoint: Checkpoint,
        folder: Path,
        options: Options,
        calibration: Sequence[Sequence[int]],
        progress: Progress,
    ) -> Built:
        quantization = options.quantization or "none"
        four = {}
        if quantization == "int4":
            four = choose_four_bits(checkpoint, folder, calibration, progress)
        model = _write(
            checkpoint,
            folder,
            "float32" if quantization == "none" else "8bit",
            progress,
            lora=options.lora_rank > 0,
            four=four,
        )
        graphs = [describe_graph("decoder", GRAPH_FILE, model)]
        if options.lora_rank and options.train_step is not False:
            step = write_training_graph(
                checkpoint, folder, progress, "float32" if quantization == "none" else "int8"
            )
            graphs.append(describe_graph("training", TRAINING_FILE, step))
        return Built(
            graphs=graphs,
            lora=Lora(rank=options.lora_rank) if options.lora_rank else None,
            versions={name: version(name) for name in ("onnx", "onnxruntime")},
        )


recipe = OnnxRecipe()


def choose_four_bits(
    checkpoint: Checkpoint, folder: Path, calibration: Sequence[Sequence[int]], progress: Progress
) -> dict[str, Rounded]:
    """The matrices that are to have 4 bits, rounded.

    Each is tried alone; those that save most bytes for their price get 4 bits until
    ``FOUR_BIT_BUDGET`` is spent.

    Args:
        folder: trial graphs are written below it, and removed.
    """
    prices: list[tuple[float, float, str]] = []
    rounded: dict[str, Rounded] = {}
    probes = [text[:_PROBE_TOKENS] for text in calibration[::_PROBE_STEP]]
    with tempfile.TemporaryDirectory(prefix="trial-", dir=folder) as scratch:
        trial = Path(scratch)
        weights, moments = _observe(checkpoint, trial, calibration)
        expected = [(np.exp(p), p) for p in _log_probabilities(trial, probes)]
        (trial / WEIGHTS_FILE).unlink()
        with (trial / WEIGHTS_FILE).open("wb") as file:
            kept: dict[str, TensorProto] = {}
            for step, (name, rows) in enumerate(weights.items()):
                progress("4-bit rounding", step, len(weights))
                rounded[name] = quantize_blocks4_gptq(rows, moments.get(name))
                writer = _TrialWriter(checkpoint, file, name, rounded[name], kept)
                save_model(writer.build(), trial / GRAPH_FILE)
                file.flush()
                found = _log_probabilities(trial, probes)
                losses = [
                    (weight * (p - q)).sum(axis=1)
                    for (weight, p), q in zip(expected, found, strict=True)
                ]
                price = float(np.concatenate(losses).mean())
                prices.append((price / rows.size, price, name))
    spent = 0.0
    chosen = {}
    for _, price, name in sorted(prices):
        if spent + price <= FOUR_BIT_BUDGET:
            spent += price
            chosen[name] = rounded[name]
    return chosen


def _observe(
    checkpoint: Checkpoint, folder: Path, calibration: Sequence[Sequence[int]]
) -> tuple[dict[str, NDArray[np.float32]], dict[str, NDArray[np.float32]]]:
    """Every matrix in the graph's order, and xᵀx summed over its inputs x, where it has some."""
    with (folder / WEIGHTS_FILE).open("wb") as file:
        writer = _ObservingWriter(checkpoint, file, "float32", _silent)
        save_model(writer.build(), folder / GRAPH_FILE)
    run = _runner(folder)
    sums: dict[str, NDArray[np.float32]] = {}
    names = list(dict.fromkeys(writer.observed_inputs.values()))
    for text in calibration:
        for name, x in zip(names, run(text, names), strict=True):
            rows = x.reshape(-1, x.shape[-1])
            # A copy: numpy mirrors a product with the same array's transpose, which takes longer.
            sums[name] = sums.get(name, np.float32(0)) + rows.T @ rows.copy()
    return writer.weights, {name: sums[x] for name, x in writer.observed_inputs.items()}


def _write(
    checkpoint: Checkpoint,
    folder: Path,
    quantization: Literal["float32", "8bit"],
    progress: Progress,
    *,
    lora: bool = False,
    four: Mapping[str, Rounded] | None = None,
) -> ModelProto:
    # A new file: the old one may still be mapped into memory.
    (folder / WEIGHTS_FILE).unlink(missing_ok=True)
    with (folder / WEIGHTS_FILE).open("wb") as file:
        writer = _DrafterWriter(checkpoint, file, quantization, progress, lora=lora, four=four)
        model = writer.build()
    save_model(model, folder / GRAPH_FILE)
    return model


def _log_probabilities(
    folder: Path, texts: Sequence[Sequence[int]]
) -> Iterator[NDArray[np.float32]]:
    run = _runner(folder)
    for text in texts:
        logits = run(text, ["logits"])[0][0]
        logits = logits - logits.max(axis=1, keepdims=True)
        yield logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def _runner(folder: Path) -> Callable[[Sequence[int], list[str]], list[NDArray[np.float32]]]:
    """A function that runs a graph over a whole text and returns the outputs of that name."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    # Further fusions would remove what is observed.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = ort.InferenceSession(
        str(folder / GRAPH_FILE), options, providers=["CPUExecutionProvider"]
    )

    def run(text: Sequence[int], outputs: list[str]) -> list[NDArray[np.float32]]:
        results: list[NDArray[np.float32]] = session.run(outputs, whole_pass(session, text))
        return results

    return run


def _silent(stage: str, done: int, total: int) -> None:
    """A progress that tells nobody."""


class _DrafterWriter(GraphWriter):
    """The targets' graph with LoRA inputs, and with 4 bits also for embedding and head.

    A drafter's rows may depend on the size of a pass, its proposals are verified anyway. Hidden
    states are an output, for the acceptance head.
    """

    hidden = True

    def __init__(
        self,
        checkpoint: Checkpoint,
        file: BinaryIO,
        quantization: Literal["float32", "8bit"],
        progress: Progress,
        *,
        lora: bool = False,
        four: Mapping[str, Rounded] | None = None,
    ) -> None:
        super().__init__(checkpoint, file, quantization, progress, factors={}, observe=False)
        self.lora = lora
        self.four = four or {}
        self.lora_inputs: list[ValueInfoProto] = []
        # Inputs of 8-bit linears, split into two terms once.
        self.terms: dict[str, str] = {}

    def build(self) -> ModelProto:
        model = super().build()
        model.graph.input.extend(self.lora_inputs)
        return model

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
        linear = name.partition(".")[2]
        scale = 1.0
        if linear == "qkv" and (columns := self.query_columns()) is not None:
            # The query heads in the graph's order, then keys and values.
            rest = np.arange(len(columns), shape[0])
            b = self.node("Gather", [b, self.integers(*columns, *rest)], axis=1)
        elif linear == "o":
            scale = 1 / HALF  # its input comes halved: see graph.py
            if (columns := self.query_columns()) is not None:
                a = self.node("Gather", [a, self.integers(*columns)], axis=0)
        down = self.node("FusedMatMul", [x, a], domain=CONTRIB, alpha=scale)
        output: str = self.node("Add", [y, self.node("MatMul", [down, b])])
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

    def query_columns(self) -> list[int] | None:
        """Columns of the queries in the graph's order; None where it is the checkpoint's."""
        d = self.decoder
        if d.heads == d.kv_heads:
            return None
        columns = query_order(d)[:, None] * d.head_size + np.arange(d.head_size)
        return [int(column) for column in columns.reshape(-1)]

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

    def two_terms(self, x: str, width: int) -> str:
        """``x`` [1, n, width] as [2, n, width]: what MatMulNBits makes of it, and what is left."""
        if x not in self.terms:
            # A product with the identity in 8 bits shows what rounding leaves.
            identity = np.full((BLOCK, 1, BLOCK), 128, np.uint8)
            identity[np.arange(BLOCK), 0, np.arange(BLOCK)] = 255
            scales = np.full((BLOCK, 1), 1 / 127, np.float32)
            stored = Stored(
                self.constant("identity", identity), self.constant("identity.scales", scales), 8
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
        # The same bytes under another shape.
        tensor = next(t for t in self.initializers if t.name == stored.weight)
        place = {entry.key: entry.value for entry in tensor.external_data}
        rows = self.external(
            "embedding.rows",
            (d.vocab_size, d.hidden_size * stored.bits // 8),
            np.uint8,
            int(place["offset"]),
            int(place["length"]),
        )
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
        self.block_product(x, stored, shape)
        self.nodes[-1].output[0] = "logits"


class _TrialWriter(_DrafterWriter):
    """The 8-bit graph with one matrix of 4 bits.

    Args:
        kept: tensors that trials before this one left in ``file``. They are used again, and those
            that this one adds are put beside them.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        file: BinaryIO,
        name: str,
        rounded: Rounded,
        kept: dict[str, TensorProto],
    ) -> None:
        super().__init__(checkpoint, file, "8bit", _silent, four={name: rounded})
        self.kept = kept

    def store(
        self, name: str, shape: tuple[int, ...], dtype: DTypeLike, blocks: Iterable[NDArray[Any]]
    ) -> str:
        if name in self.kept and name.removesuffix(".scales") not in self.four:
            self.initializers.append(self.kept[name])
            return name
        super().store(name, shape, dtype, blocks)
        if name.removesuffix(".scales") not in self.four:
            self.kept[name] = self.initializers[-1]
        return name


class _ObservingWriter(_DrafterWriter):
    """The float32 graph with the inputs of its matrices as outputs."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.weights: dict[str, NDArray[np.float32]] = {}
        self.observed_inputs: dict[str, str] = {}

    def build(self) -> ModelProto:
        model = super().build()
        for name in dict.fromkeys(self.observed_inputs.values()):
            model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        return model

    def linear(
        self,
        x: str,
        name: str,
        shape: tuple[int, int],
        blocks: Iterable[NDArray[np.float32]],
        bias: NDArray[np.float32] | None = None,
    ) -> str:
        rows = np.concatenate(list(blocks))
        self.observe_matrix(x, name, rows)
        return super().linear(x, name, shape, [rows], bias)

    def embedding(self) -> str:
        self.observe_matrix(None, "embedding", self.checkpoint.rows("embedding"))
        return super().embedding()

    def head(self, x: str) -> None:
        if not self.decoder.tied_embeddings:
            self.observe_matrix(x, "head", self.checkpoint.rows("head"))
        super().head(x)

    def observe_matrix(self, x: str | None, name: str, rows: NDArray[np.float32]) -> None:
        if rows.shape[1] % BLOCK:
            return
        self.weights[name] = rows
        if x is not None:
            self.observed_inputs[name] = x
