"""ExecuTorch: a ``.pte`` for XNNPACK on the CPU, or for a Qualcomm NPU where its SDK is at hand.

The program has one method, ``forward``, for passes of 1 to ``WIDTH`` tokens. Prefill and decode are
the same method, so they share the cache, which lives in the program's mutable buffers.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnidraft.export.checkpoint import Checkpoint
from omnidraft.export.meanings import (
    CHIP_USAGE,
    EXECUTORCH,
    EXECUTORCH_USAGE,
    TRAINING,
    TRAINING_USAGE,
    Meanings,
    meaning,
)
from omnidraft.export.recipes import NO_SPECIAL_TOKENS, Built, Options, Progress
from omnidraft.export.socs import find_soc
from omnidraft.runtime.errors import MissingDependencyError, OmniDraftError
from omnidraft.runtime.quiet import quiet
from omnidraft.runtime.storage.bundle import (
    Backend,
    Graph,
    Lora,
    Quantization,
    Soc,
    SpecialTokens,
    Tensor,
    Thresholds,
)
from omnidraft.runtime.storage.manifest import Layout

if TYPE_CHECKING:
    import torch

    from omnidraft.export.torch_llama.model import Llama

_MODULES = (
    *("torch", "torchao", "executorch.exir", "executorch.devtools.backend_debug"),
    "executorch.backends.xnnpack.partition.xnnpack_partitioner",
)
"""What an export imports."""
PROGRAM_FILE = "model.pte"
TRAINING_FILE = "training.pte"
WIDTH = 64
"""Tokens of the longest pass; logits of that many rows are reserved."""
CHIP_WIDTH = 8
"""Tokens of every pass on an NPU, which costs nearly the same for one."""
TRAINING_TOKENS, TRAINING_ROWS, TRAINING_DIRECT = 64, 16, 64
"""Sizes of a training step: tokens, positions with a loss, direct tokens of such a position."""


class ExecuTorchRecipe:
    """See ``Recipe``.

    ``int8``: linears with 8-bit weights, a scale per output channel; ``int4``: with 4-bit weights
    in groups of 32. Both quantize activations to 8 bits, a scale per token, while running; the
    embedding has 8 bits in groups of 32.
    """

    backend: Backend = "executorch"
    quantizations: tuple[Quantization, ...] = ("int8", "int4", "none")
    chip_quantization: Quantization | None = "none"
    layouts: tuple[Layout, ...] = ("omnidraft",)
    calibrated: tuple[Quantization, ...] = ()
    context = 1024
    thresholds: Mapping[Quantization, Thresholds] = {
        # Inputs have one 8-bit scale for each token, not one for each block.
        "int8": Thresholds(smallest_agreement=0.95, largest_logit_error=0.05),
        "int4": Thresholds(smallest_agreement=0.9, largest_logit_error=0.1),
        "none": Thresholds(smallest_agreement=0.99, largest_logit_error=0.0001),
    }
    parity_positions = 1024

    def check(self, options: Options) -> None:
        _check_installed()
        if options.soc is not None:
            soc = find_soc(options.soc)
            if options.quantization not in (None, "none"):
                raise OmniDraftError(
                    "Through ExecuTorch a chip computes in float16: leave --quantization out, or "
                    "choose --backend qnn, which quantizes."
                )
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
        special_tokens: SpecialTokens = NO_SPECIAL_TOKENS,
    ) -> Built:
        from omnidraft.export.torch_llama.model import Llama, lora_shapes
        from omnidraft.export.torch_llama.quantize import quantize, weight_bits

        shapes = lora_shapes(checkpoint.decoder, options.lora_rank) if options.lora_rank else {}
        soc = find_soc(options.soc) if options.soc else None
        train = options.train_step
        steps = 2 + train
        with _quiet():
            progress("lower the decoder", 0, steps)
            model = Llama(checkpoint, options.context)
            if soc:
                weights = weight_bits(model, chip=True)
                program = _lower_to_chip(model, shapes, options.context, soc)
            else:
                quantize(model, options.quantization or "none")
                weights = weight_bits(model)
                program = _lower_decoder(model, shapes, options)
            _write(program, folder / PROGRAM_FILE)
            if train:
                progress("lower the training step", 1, steps)
                model = Llama(checkpoint, TRAINING_TOKENS, cached=False)
                _write(_lower_training(model, shapes), folder / TRAINING_FILE)
        progress("lower", steps, steps)
        vocab_size = checkpoint.decoder.vocab_size
        graphs = [_decoder_graph(vocab_size, shapes, options.context if soc else None)]
        if train:
            graphs.append(_training_graph(vocab_size, shapes))
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


def _lower_decoder(
    model: torch.nn.Module, shapes: dict[str, tuple[int, int]], options: Options
) -> Any:
    """Export and lower to XNNPACK; an ``ExecutorchProgramManager``."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.utils.configs import get_xnnpack_edge_compile_config
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from torch.export import Dim, export

    tokens = Dim("tokens", min=1, max=WIDTH)
    length = Dim("length", min=1, max=options.context)
    # Each adapter pair may have its own; where only 1 is allowed it is not dynamic.
    ranks = {
        name: {}
        if options.lora_rank == 1
        else {int(name.endswith("A")): Dim(_rank_name(name), min=1, max=options.lora_rank)}
        for name in shapes
    }
    examples = _examples(shapes, 3, 5)
    dynamic = (
        {1: tokens},
        {0: tokens},
        {0: tokens, 1: length},
        list(ranks.values()),
    )
    program = export(model, examples, dynamic_shapes=dynamic, strict=False)
    edge = to_edge_transform_and_lower(
        program,
        partitioner=[XnnpackPartitioner()],
        compile_config=get_xnnpack_edge_compile_config(),
    )
    linears = sum(isinstance(module, torch.nn.Linear) for module in model.modules())
    _check_delegated(edge.exported_program().graph_module, linears)
    return edge.to_executorch(
        ExecutorchBackendConfig(
            do_quant_fusion_and_const_prop=True,  # a quantized embedding becomes one operator
            run_reinplace_pass=True,  # else every step copies the whole cache
        )
    )


def _lower_training(model: Llama, shapes: dict[str, tuple[int, int]]) -> Any:
    """Forward and backward as one method: loss, then the gradient of each LoRA input."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
    from torch.export import export
    from torch.export.experimental import _export_forward_backward

    from omnidraft.export.torch_llama.loss import hybrid_loss

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(
            self,
            tokens: torch.Tensor,
            positions: torch.Tensor,
            mask: torch.Tensor,
            rows: torch.Tensor,
            loss: list[torch.Tensor],
            lora: list[torch.Tensor],
        ) -> tuple[torch.Tensor]:
            weights = dict(zip(shapes, lora, strict=True))
            # Only rows with a loss go through the head, the largest matrix.
            hidden = self.model.hidden(tokens, positions[0], mask, weights)[rows]
            return (hybrid_loss(self.model.head(hidden), *loss),)

    if model.decoder.tied_embeddings:
        model.head.weight = model.embedding.weight
    # The joint graph asks for gradients of parameters, frozen ones too.
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, parameter.data)
    tensors = {
        tensor.name: torch.zeros([int(size) for size in tensor.shape], dtype=_dtype(tensor))
        for tensor in _training_graph(model.decoder.vocab_size, shapes).inputs
    }
    lora = [tensors.pop(name).requires_grad_() for name in shapes]
    tokens, positions, mask, rows, *loss = tensors.values()
    step = export(Step(), (tokens, positions, mask, rows, loss, lora), strict=False)
    edge = to_edge_transform_and_lower(
        _export_forward_backward(step),
        partitioner=[XnnpackPartitioner()],
        # Backward operators are outside the core set that is checked for.
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    return edge.to_executorch()


def _write(program: Any, path: Path) -> None:
    with path.open("wb") as file:
        program.write_to_file(file)


def _decoder_graph(
    vocab_size: int, shapes: dict[str, tuple[int, int]], fixed_length: int | None
) -> Graph:
    """What the decoder takes and gives, in order."""
    count: int | str = CHIP_WIDTH if fixed_length else "tokens"

    def lora(name: str) -> list[int | str]:
        rank = shapes[name][name.endswith("A")] if fixed_length else _rank_name(name)
        return [shapes[name][0], rank] if name.endswith("A") else [rank, shapes[name][1]]

    return Graph(
        role="decoder",
        file=PROGRAM_FILE,
        tokens=CHIP_WIDTH if fixed_length else None,
        most_tokens=None if fixed_length else WIDTH,
        inputs=[
            _tensor("tokens", "int64", [1, count]),
            _tensor("positions", "int64", [count]),
            _tensor("mask", "float32", [count, fixed_length or "length"]),
            *(_tensor(name, "float32", lora(name)) for name in shapes),
        ],
        outputs=[_tensor("logits", "float32", [1, count, vocab_size])],
        usage=CHIP_USAGE if fixed_length else EXECUTORCH_USAGE,
    )


def _tensor(
    name: str, dtype: str, shape: list[int | str], meanings: Meanings = EXECUTORCH
) -> Tensor:
    return Tensor(name=name, dtype=dtype, shape=shape, meaning=meaning(name, meanings))


def _training_graph(vocab_size: int, shapes: dict[str, tuple[int, int]]) -> Graph:
    """What a training step takes and gives, in order: see ``export.loss.hybrid_loss``."""
    t, r, m = TRAINING_TOKENS, TRAINING_ROWS, TRAINING_DIRECT
    inputs: dict[str, tuple[str, list[int | str]]] = {
        "tokens": ("int64", [1, t]),
        "positions": ("int64", [1, t]),
        "mask": ("float32", [t, t]),
        "rows": ("int64", [r]),
        "direct_ids": ("int64", [r, m]),
        "direct_log_p": ("float32", [r, m]),
        "direct_weight": ("float32", [r]),
        "direct_tokens": ("float32", [vocab_size]),
        "label": ("int64", [r]),
        "label_weight": ("float32", [r]),
        **{name: ("float32", list(shape)) for name, shape in shapes.items()},
    }
    return Graph(
        role="training",
        file=TRAINING_FILE,
        tokens=t,
        inputs=[_tensor(name, dtype, shape, TRAINING) for name, (dtype, shape) in inputs.items()],
        outputs=[
            _tensor("loss", "float32", [], TRAINING),
            *(
                _tensor(f"grad.{name}", "float32", list(shape), TRAINING)
                for name, shape in shapes.items()
            ),
        ],
        usage=TRAINING_USAGE,
    )


def _dtype(tensor: Tensor) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, tensor.dtype)
    return dtype


def _rank_name(name: str) -> str:
    """``lora.0.qkv.A`` → ``rank_0_qkv``: A and B have one rank."""
    _, layer, linear, _ = name.split(".")
    return f"rank_{layer}_{linear}"


def _examples(shapes: dict[str, tuple[int, int]], tokens: int, length: int) -> tuple[Any, ...]:
    """Inputs of ``Llama.forward`` to trace it with."""
    import torch

    return (
        torch.zeros(1, tokens, dtype=torch.int64),
        torch.arange(tokens),
        torch.zeros(tokens, length),
        [torch.zeros(shape) for shape in shapes.values()],
    )


def _lower_to_chip(
    model: torch.nn.Module, shapes: dict[str, tuple[int, int]], context: int, soc: Soc
) -> Any:
    """Export with fixed shapes and lower to Qualcomm's NPU in float16, every operation or none."""
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
    from executorch.backends.qualcomm.utils.utils import (
        generate_htp_compiler_spec,
        generate_qnn_executorch_compiler_spec,
        to_edge_transform_and_lower_to_qnn,
    )
    from executorch.devtools.backend_debug import get_delegation_info

    specs = generate_qnn_executorch_compiler_spec(
        soc_model=QcomChipset(soc.model_id),
        backend_options=generate_htp_compiler_spec(use_fp16=True),
    )
    try:
        edge = to_edge_transform_and_lower_to_qnn(
            model, _examples(shapes, CHIP_WIDTH, context), specs
        )
    except RuntimeError as error:
        raise OmniDraftError(
            f"Qualcomm's SDK cannot lower the drafter to {soc.name}: {error}"
        ) from error
    counts = get_delegation_info(edge.exported_program().graph_module).delegation_by_operator
    left = [name for name, count in counts.items() if count.non_delegated and name != "getitem"]
    if left:
        raise OmniDraftError(
            f"{soc.name} leaves operations to the CPU: {', '.join(sorted(left))}. Nothing was kept."
        )
    return edge.to_executorch()


def _check_delegated(graph: torch.fx.GraphModule, linears: int) -> None:
    """Fail unless every linear runs on the backend."""
    from executorch.devtools.backend_debug import get_delegation_info

    counts = get_delegation_info(graph).delegation_by_operator
    found = [count for name, count in counts.items() if name.startswith("aten_linear")]
    delegated = sum(count.delegated for count in found)
    if delegated != linears or any(count.non_delegated for count in found):
        raise OmniDraftError(
            f"Only {delegated} of {linears} linears were lowered to XNNPACK; the others would run "
            "on slow portable kernels. Nothing was kept. Try the versions of executorch and torch "
            "that the 'executorch' extra names."
        )


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
