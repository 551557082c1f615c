"""ExecuTorch: a ``.pte`` for XNNPACK on the CPU, or for a Qualcomm NPU where its SDK is at hand.

The program has one method, ``forward``, for passes of 1 to ``WIDTH`` tokens. Prefill and decode are
the same method, so they share the cache, which lives in the program's mutable buffers. With the
layout ``llm-runner`` that is the one ExecuTorch's LLM runners call, and ours is beside it; they
share their weights.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib import import_module
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

from omnidraft.export.checkpoint import Checkpoint
from omnidraft.export.checkpoint.spec import lora_shapes
from omnidraft.export.recipes import (
    LORA_RANK,
    NO_WORDS,
    Built,
    Options,
    Progress,
    Words,
    refuse_sharing,
)
from omnidraft.export.socs import find_soc
from omnidraft.export.torch_llama.interface import (
    LORA_METHOD,
    PROGRAM_FILE,
    RUNNER_METHOD,
    TRAINING_FILE,
    TRAINING_TOKENS,
    WIDTH,
    Shapes,
    constants,
    decoder_graph,
    runner_graph,
    training_graph,
)
from omnidraft.runtime.engines.executorch import load_runtime
from omnidraft.runtime.errors import MissingDependencyError, OmniDraftError
from omnidraft.runtime.quiet import quiet
from omnidraft.runtime.storage.bundle import (
    Backend,
    Lora,
    Quantization,
    Thresholds,
)
from omnidraft.runtime.storage.manifest import Layout

_MODULES = (
    *("torch", "torchao", "executorch.exir", "executorch.devtools.backend_debug"),
    "executorch.backends.xnnpack.partition.xnnpack_partitioner",
)
"""What an export imports."""
# How far the two forms of a decoder may be from each other: quantized inputs round differently.
LARGEST_ERROR = 0.02


class ExecuTorchRecipe:
    """See ``Recipe``.

    ``int8``: linears with 8-bit weights, a scale per output channel; ``int4``: with 4-bit weights
    in groups of 32. Both quantize activations to 8 bits, a scale per token, while running; the
    embedding has 8 bits in groups of 32.
    """

    backend: Backend = "executorch"
    quantizations: tuple[Quantization, ...] = ("int8", "int4", "none")
    chip_quantization: Quantization | None = "none"
    layouts: tuple[Layout, ...] = ("omnidraft", "llm-runner")
    calibrated: tuple[Quantization, ...] = ()
    lora_rank = LORA_RANK
    context = 1024
    thresholds: Mapping[Quantization, Thresholds] = {
        # Inputs have one 8-bit scale for each token, not one for each block.
        "int8": Thresholds(smallest_agreement=0.95, largest_logit_error=0.05),
        "int4": Thresholds(smallest_agreement=0.9, largest_logit_error=0.1),
        "none": Thresholds(smallest_agreement=0.99, largest_logit_error=0.0001),
    }
    parity_positions = 1024

    def check(self, options: Options) -> None:
        refuse_sharing(options, self.backend)
        _check_installed()
        if options.soc is not None:
            soc = find_soc(options.soc)
            if options.quantization not in (None, "none"):
                raise OmniDraftError(
                    "Through ExecuTorch a chip computes in float16: leave --quantization out, or "
                    "choose --backend qnn, which quantizes."
                )
            if options.layout == "llm-runner":
                raise OmniDraftError("--layout llm-runner is for the CPU: leave --soc out.")
            _check_qnn(soc.name)
        if options.train_step and not options.lora_rank:
            raise OmniDraftError("--train-step trains LoRA inputs: give a --lora-rank from 1.")

    def build(
        self,
        checkpoint: Checkpoint,
        folder: Path,
        options: Options,
        calibration: Sequence[Sequence[int]],
        progress: Progress,
        words: Words = NO_WORDS,
    ) -> Built:
        from omnidraft.export.torch_llama import lowering
        from omnidraft.export.torch_llama.model import Llama
        from omnidraft.export.torch_llama.quantize import quantize, weight_bits

        shapes = lora_shapes(checkpoint.decoder, options.lora_rank) if options.lora_rank else {}
        soc = find_soc(options.soc) if options.soc else None
        context, vocab_size = options.context, checkpoint.decoder.vocab_size
        runner, train = options.layout == "llm-runner", options.train_step
        graphs = [
            decoder_graph(
                vocab_size, shapes, context if soc else None, LORA_METHOD if runner else "forward"
            )
        ]
        if runner:
            graphs.append(runner_graph(vocab_size))
        steps = 2 + train
        with _quiet():
            progress("lower the decoder", 0, steps)
            model = Llama(checkpoint, context)
            if soc:
                weights = weight_bits(model, chip=True)
                program = lowering.lower_to_chip(model, shapes, context, soc)
            else:
                quantize(model, options.quantization or "none")
                weights = weight_bits(model)
                told = constants(graphs, vocab_size, context, words.special)
                program = lowering.lower_decoder(model, shapes, context, told, runner=runner)
            graphs = [lowering.with_needs(graph, program) for graph in graphs]
            _write(program, folder / PROGRAM_FILE)
            if runner:
                check_forms(folder / PROGRAM_FILE, shapes, min(WIDTH, context), options.threads)
            if train:
                progress("lower the training step", 1, steps)
                model = Llama(checkpoint, TRAINING_TOKENS, cached=False)
                step = lowering.lower_training(model, shapes)
                graphs.append(lowering.with_needs(training_graph(vocab_size, shapes), step))
                _write(step, folder / TRAINING_FILE)
        progress("lower", steps, steps)
        return Built(
            graphs=graphs,
            weights=weights,
            lora=Lora(rank=options.lora_rank) if options.lora_rank else None,
            soc=soc,
            versions={name: version(name) for name in ("executorch", "torch", "torchao")},
        )


recipe = ExecuTorchRecipe()


def _check_installed() -> None:
    """Import what the export will import, so that a package that these lack is missed now."""
    with _quiet():
        for module in _MODULES:
            try:
                import_module(module)
            except ImportError as error:
                raise MissingDependencyError(
                    f"The executorch backend needs {error.name or module}, which cannot be "
                    f"imported ({error}): pip install 'omnidraft[executorch]'."
                ) from error


def _check_qnn(soc: str) -> None:
    """A chip is asked for, so lowering to the CPU would not be what the user wants."""
    root = os.environ.get("QNN_SDK_ROOT", "")
    if not root or not (Path(root) / "lib").is_dir():
        found = f"there is none at QNN_SDK_ROOT ({root})" if root else "QNN_SDK_ROOT is not set"
        raise MissingDependencyError(
            f"Lowering to {soc} through ExecuTorch needs Qualcomm's AI Engine Direct SDK (QAIRT), "
            f"which is no package, and {found}. Get it from https://softwarecenter.qualcomm.com "
            "(Qualcomm AI Runtime), unpack it, and set QNN_SDK_ROOT to the folder that holds its "
            "bin and lib. Without it: --backend qnn compiles for Qualcomm's chips, and --backend "
            "executorch without --soc for the CPU."
        )


def check_forms(path: Path, shapes: Shapes, tokens: int, threads: int) -> None:
    """Compare the two forms of a program's decoder.

    Raises:
        OmniDraftError: they differ by more than rounding.
    """
    import torch

    from omnidraft.export.torch_llama.model import causal_mask

    with redirect_stderr(StringIO()):  # the bindings' own messages
        _, bindings = load_runtime(threads)
        program = bindings._load_program(str(path))
        forms = [program.load_method(name) for name in (LORA_METHOD, RUNNER_METHOD)]
    ids = torch.arange(tokens)[None]
    none = [
        torch.zeros((shape[0], 1) if name.endswith("A") else (1, shape[1]))
        for name, shape in shapes.items()
    ]
    positions = torch.arange(tokens)
    (expected,) = forms[0]([ids, positions, causal_mask(positions, tokens), *none])
    expected = expected.clone()
    found = []
    for start, stop in ((0, tokens // 2), (tokens // 2, tokens - 1), (tokens - 1, tokens)):
        (logits,) = forms[1]([ids[:, start:stop], torch.tensor([start])])
        found.append(logits.clone())
    error = float((torch.cat(found, 1) - expected).norm() / expected.norm())
    if not error <= LARGEST_ERROR:  # NaN is not
        raise OmniDraftError(
            f"The program's two forms differ by {error:.1%}, {LARGEST_ERROR:.0%} are allowed. "
            "Nothing was kept. Leave --layout out, or try the versions of executorch and torch "
            "that the 'executorch' extra names."
        )


def _write(program: Any, path: Path) -> None:
    with path.open("wb") as file:
        program.write_to_file(file)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch and executorch say of their own insides, natively or by Python's means."""
    previous = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)
