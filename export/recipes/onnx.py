"""ONNX Runtime on the CPU: one graph for passes of any length, its cache updated in place."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnxruntime as ort
from numpy.typing import DTypeLike, NDArray
from onnx import (
    ModelProto,
    TensorProto,
    helper,
    save_model,
)

from omnidraft.export.checkpoint import Checkpoint
from omnidraft.export.graphs.drafter import (
    DrafterWriter,
    exact_four_bits,
    matrix_names,
    whole_drafter_pass,
    write_drafter_graph,
)
from omnidraft.export.graphs.genai import GenaiWriter, write_configs
from omnidraft.export.graphs.gptq import quantize_blocks4_gptq
from omnidraft.export.graphs.quantize import BLOCK, Rounded
from omnidraft.export.graphs.tensors import describe_graph, describe_weights
from omnidraft.export.graphs.training import write_training_graph
from omnidraft.export.graphs.writer import GRAPH_FILE, WEIGHTS_FILE
from omnidraft.export.meanings import (
    GENAI,
    GENAI_USAGE,
    ONNX,
    ONNX_USAGE,
    OWN,
    OWN_USAGE,
    TRAINING,
    TRAINING_USAGE,
)
from omnidraft.export.recipes import (
    LORA_RANK,
    NO_WORDS,
    Built,
    Options,
    Progress,
    Words,
    refuse_sharing,
)
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.learning.training_step import TRAINING_FILE
from omnidraft.runtime.storage.bundle import (
    Backend,
    Lora,
    Quantization,
    Thresholds,
)
from omnidraft.runtime.storage.manifest import Layout

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
    chip_quantization = None
    layouts: tuple[Layout, ...] = ("omnidraft", "genai")
    calibrated: tuple[Quantization, ...] = ("int4",)
    lora_rank = LORA_RANK
    context = 0
    thresholds: Mapping[Quantization, Thresholds] = {
        "int8": Thresholds(smallest_agreement=0.95, largest_logit_error=0.02),
        "int4": Thresholds(smallest_agreement=0.9, largest_logit_error=0.1),
        "none": Thresholds(smallest_agreement=0.99, largest_logit_error=0.0001),
    }
    parity_positions = 1024

    def check(self, options: Options) -> None:
        if options.soc is not None:
            raise OmniDraftError(
                "The onnx backend runs on the CPU and compiles for no chip (--soc)."
            )
        refuse_sharing(options, self.backend)
        if options.train_step and not options.lora_rank:
            raise OmniDraftError("A training step trains LoRA inputs: --lora-rank from 1.")
        if options.layout == "genai" and (options.train_step or options.own):
            raise OmniDraftError("--layout genai is for programs that take no --train-step.")

    def build(
        self,
        checkpoint: Checkpoint,
        folder: Path,
        options: Options,
        calibration: Sequence[Sequence[int]],
        progress: Progress,
        words: Words = NO_WORDS,
    ) -> Built:
        quantization = options.quantization or "none"
        four: dict[str, Rounded] = {}
        calibrated = False
        if quantization == "int4":
            four = exact_four_bits(checkpoint)
            if calibrated := not four.keys() >= set(matrix_names(checkpoint)):
                four = choose_four_bits(checkpoint, four, folder, calibration, progress)
        model = write_drafter_graph(
            checkpoint,
            folder,
            "float32" if quantization == "none" else "8bit",
            progress,
            lora=bool(options.lora_rank),
            four=four,
            own=options.own,
            writer_type=GenaiWriter if options.layout == "genai" else DrafterWriter,
        )
        meanings, usage = (OWN, OWN_USAGE) if options.own else (ONNX, ONNX_USAGE)
        if options.layout == "genai":
            meanings, usage = GENAI, GENAI_USAGE
            write_configs(folder, checkpoint.decoder, options.context, words.special)
        graphs = [describe_graph("decoder", GRAPH_FILE, model, meanings, usage)]
        if options.train_step:
            step = write_training_graph(
                checkpoint, folder, progress, "float32" if quantization == "none" else "int8"
            )
            graphs.append(describe_graph("training", TRAINING_FILE, step, TRAINING, TRAINING_USAGE))
        return Built(
            graphs=graphs,
            weights=describe_weights(model),
            lora=Lora(rank=options.lora_rank) if options.lora_rank else None,
            calibrated=calibrated,
            versions={name: version(name) for name in ("onnx", "onnxruntime")},
        )


recipe = OnnxRecipe()


def choose_four_bits(
    checkpoint: Checkpoint,
    exact: Mapping[str, Rounded],
    folder: Path,
    calibration: Sequence[Sequence[int]],
    progress: Progress,
) -> dict[str, Rounded]:
    """The matrices that are to have 4 bits, rounded.

    Those that lose nothing get them. Each of the others is tried alone, and those that save most
    bytes for their price get 4 bits until ``FOUR_BIT_BUDGET`` is spent.

    Args:
        exact: see ``exact_four_bits``.
        folder: trial graphs are written below it, and removed.
    """
    chosen = dict(exact)
    prices: list[tuple[float, float, str]] = []
    rounded: dict[str, Rounded] = {}
    probes = [text[:_PROBE_TOKENS] for text in calibration[::_PROBE_STEP]]
    with tempfile.TemporaryDirectory(prefix="trial-", dir=folder) as scratch:
        trial = Path(scratch)
        weights, moments = _observe(checkpoint, trial, calibration)
        weights = {name: rows for name, rows in weights.items() if name not in chosen}
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
        inputs = whole_drafter_pass(session, text)
        results: list[NDArray[np.float32]] = session.run(outputs, inputs)
        return results

    return run


def _silent(stage: str, done: int, total: int) -> None:
    """A progress that tells nobody."""


class _TrialWriter(DrafterWriter):
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


class _ObservingWriter(DrafterWriter):
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
