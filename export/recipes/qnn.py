"""Qualcomm NPUs: a QDQ graph for passes of one and of eight tokens, compiled ahead for one chip."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, load_model, save_model

from omnidraft.export.checkpoint import Checkpoint
from omnidraft.export.graphs.qdq import observe, quantize
from omnidraft.export.graphs.static import fix, write_static_graph
from omnidraft.export.graphs.tensors import describe_graph, describe_weights
from omnidraft.export.meanings import STATIC, STATIC_USAGE
from omnidraft.export.recipes import LORA_RANK, NO_WORDS, Built, Options, Progress, Words
from omnidraft.export.socs import find_soc
from omnidraft.runtime.engines.qnn import (
    PROVIDER,
    StaticDecoder,
    is_emulator,
    npu_options,
    npu_session,
    share_contexts,
)
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.storage.bundle import (
    Backend,
    Emulation,
    Lora,
    Quantization,
    Soc,
    Thresholds,
)
from omnidraft.runtime.storage.manifest import Layout

# Of compiled graphs: ONNX Runtime 1.18 and later know it.
_IR_VERSION = 10
# Tokens of a pass: reading a prompt, and drafting.
PASSES = (8, 1)
# The compiled graphs must say what the same graphs say on the CPU. Measured: up to 0.005; a norm
# that was compiled wrongly gave 0.75.
LARGEST_ERROR = 0.03
# Tokens that are compared for that: two passes of eight and a single one.
_COMPARED = 17


class QnnRecipe:
    """See ``Recipe``."""

    backend: Backend = "qnn"
    quantizations: tuple[Quantization, ...] = ("a16w8",)
    chip_quantization = None
    layouts: tuple[Layout, ...] = ("omnidraft",)
    calibrated = quantizations
    lora_rank = LORA_RANK
    context = 1024
    thresholds: Mapping[Quantization, Thresholds] = {
        "a16w8": Thresholds(smallest_agreement=0.95, largest_logit_error=0.02)
    }
    # An emulated pass of eight takes seconds.
    parity_positions = 512

    def check(self, options: Options) -> None:
        if options.train_step:
            raise OmniDraftError("The qnn backend has no training step (--train-step).")
        npu_options(find_soc(options.soc))

    def build(
        self,
        checkpoint: Checkpoint,
        folder: Path,
        options: Options,
        calibration: Sequence[Sequence[int]],
        progress: Progress,
        words: Words = NO_WORDS,
    ) -> Built:
        soc = find_soc(options.soc)
        context, rank = options.context, options.lora_rank or 0
        texts = [text for text in calibration if text]
        if not texts:
            raise OmniDraftError("There is no text to calibrate with (--calibration).")
        graph = write_static_graph(checkpoint, context, rank)
        quantized = quantize(graph, observe(graph, texts, progress), progress)
        graphs = [
            describe_graph(
                "decoder",
                _file(tokens),
                fix(quantized, tokens, context),
                STATIC,
                STATIC_USAGE,
                tokens,
            )
            for tokens in PASSES
        ]
        with _sources(quantized, context, folder) as sources:
            compiled = {tokens: folder / _file(tokens) for tokens in PASSES}
            for number, tokens in enumerate(PASSES):
                progress("compiling", number, len(PASSES))
                compile_graph(sources[tokens], compiled[tokens], soc)
            if is_emulator():
                progress("emulation", 0, 1)
                emulation = compare(sources, compiled, texts, soc)
                soc = soc.model_copy(update={"emulation": emulation})

        def share() -> Soc:
            for context_binary in folder.glob("decoder_*.bin"):
                context_binary.unlink()
            with _sources(quantized, context, folder) as sources:
                compile_shared(sources, compiled, soc)
            return soc.model_copy(update={"shared_weights": True})

        return Built(
            graphs=graphs,
            weights=describe_weights(quantized),
            lora=Lora(rank=rank) if rank else None,
            soc=soc,
            versions={name: version(name) for name in ("onnx", "onnxruntime", "onnxruntime-qnn")},
            finish=share if options.share_weights else None,
        )


recipe = QnnRecipe()


def _file(tokens: int) -> str:
    return f"decoder_{tokens}.onnx"


@contextmanager
def _sources(model: ModelProto, context: int, folder: Path) -> Iterator[dict[int, Path]]:
    """The quantized graph for each size of a pass, in files that go again."""
    with tempfile.TemporaryDirectory(prefix="qdq-", dir=folder) as scratch:
        paths = {tokens: Path(scratch) / _file(tokens) for tokens in PASSES}
        for tokens, path in paths.items():
            save_model(fix(model, tokens, context), path)
        yield paths


def compile_graph(source: Path, output: Path, soc: Soc) -> None:
    """Compile a QDQ graph to ``output`` and the context binary beside it.

    Raises:
        OmniDraftError: a part of it would run on the CPU, or it does not compile.
    """
    _compile(source, output, soc, npu_options(soc))
    _lower_ir_version(output)


def compile_shared(sources: Mapping[int, Path], outputs: Mapping[int, Path], soc: Soc) -> None:
    """Compile QDQ graphs of the same weights to one context binary, which has these once.

    Raises:
        OmniDraftError: see ``compile_graph``.
    """
    sessions = []  # kept, as the last one writes what all have compiled
    for number, (tokens, source) in enumerate(sources.items()):
        options = npu_options(soc)
        share_contexts(options, last=number == len(sources) - 1)
        sessions.append(_compile(source, outputs[tokens], soc, options))
    for output in outputs.values():
        _lower_ir_version(output)


def _lower_ir_version(compiled: Path) -> None:
    """Let older versions of ONNX Runtime load a compiled graph, which has nothing new in it."""
    model = load_model(compiled)
    model.ir_version = _IR_VERSION
    save_model(model, compiled)


def _compile(
    source: Path, output: Path, soc: Soc, options: ort.SessionOptions
) -> ort.InferenceSession:
    for key, value in {
        "ep.context_enable": "1",
        "ep.context_file_path": str(output),
        "ep.context_embed_mode": "0",
        "session.record_ep_graph_assignment_info": "1",
    }.items():
        options.add_session_config_entry(key, value)
    output.unlink(missing_ok=True)
    try:
        session = npu_session(source, options)
    except Exception as error:  # ONNX Runtime's errors share no narrower base class.
        raise OmniDraftError(f"The drafter does not compile for {soc.name}: {error}") from error
    providers = {part.ep_name for part in session.get_provider_graph_assignment_info()}
    if providers != {PROVIDER}:
        raise OmniDraftError(
            f"The drafter was not compiled for {soc.name} as a whole, but for {providers}."
        )
    return session


def compare(
    sources: Mapping[int, Path],
    compiled: Mapping[int, Path],
    texts: Sequence[Sequence[int]],
    soc: Soc,
) -> Emulation:
    """Run the compiled graphs in emulation beside their sources on the CPU, with an adapter.

    Raises:
        OmniDraftError: they differ by more than rounding.
    """
    plain = ort.SessionOptions()
    plain.log_severity_level = 3
    # Optimizations would fuse quantized nodes into others that compute something else.
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = StaticDecoder(
        {tokens: ort.InferenceSession(str(path), plain) for tokens, path in sources.items()}
    )
    found = StaticDecoder(
        {tokens: npu_session(path, npu_options(soc)) for tokens, path in compiled.items()}
    )
    ids = max(texts, key=len)[: min(_COMPARED, expected.max_length)]
    pairs = []
    for adapter in [None, _adapter(expected.lora_shapes)] if expected.lora_shapes else [None]:
        for decoder in (expected, found):
            decoder.set_adapter(adapter)
        pairs.append((expected.forward(ids), found.forward(ids)))
    a, b = (np.concatenate(rows) for rows in zip(*pairs, strict=True))
    emulation = Emulation(
        positions=len(a),
        top1_agreement=float((a.argmax(axis=1) == b.argmax(axis=1)).mean()),
        relative_error=float(np.linalg.norm(b - a) / np.linalg.norm(a)),
    )
    if not emulation.relative_error <= LARGEST_ERROR:  # NaN is not
        raise OmniDraftError(
            f"The compiled drafter's logits are off by {emulation.relative_error:.1%} in the "
            f"chip's emulation, {LARGEST_ERROR:.0%} are allowed. Nothing was kept. Try another "
            "--soc, or another version of onnxruntime-qnn."
        )
    return emulation


def _adapter(shapes: Mapping[str, tuple[int, int]]) -> dict[str, NDArray[np.float32]]:
    """A random adapter that changes what a linear of normed inputs says by about a tenth."""
    generator = np.random.default_rng(0)
    return {
        name: (
            generator.standard_normal(shape) * (shape[0] ** -0.5 if name.endswith(".A") else 0.02)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }
