"""Lower a torch decoder to an ExecuTorch program: for XNNPACK on the CPU, or for a chip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.utils.configs import get_xnnpack_edge_compile_config
from executorch.devtools.backend_debug import get_delegation_info
from executorch.exir import (
    EdgeCompileConfig,
    ExecutorchBackendConfig,
    to_edge_transform_and_lower,
)
from torch.export import Dim, export
from torch.export.experimental import _export_forward_backward

from omnidraft.export.torch_llama.interface import (
    CHIP_WIDTH,
    LORA_METHOD,
    RUNNER_METHOD,
    WIDTH,
    Shapes,
    rank_name,
    training_graph,
)
from omnidraft.export.torch_llama.loss import hybrid_loss
from omnidraft.export.torch_llama.model import Llama, causal_mask
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.storage.bundle import Graph, Soc


class RunnerForm(torch.nn.Module):
    """A ``Llama`` as ExecuTorch's LLM runners call it, over the whole cache at every pass."""

    def __init__(self, model: Llama, context: int) -> None:
        super().__init__()
        self.model = model
        self.context = context

    def forward(self, tokens: torch.Tensor, input_pos: torch.Tensor) -> torch.Tensor:
        """Logits float32 [1, T, vocab_size].

        Args:
            tokens: int64 [1, T].
            input_pos: int64 [1], the place of the first.
        """
        positions = torch.arange(tokens.shape[1]) + input_pos
        logits: torch.Tensor = self.model(tokens, positions, causal_mask(positions, self.context))
        return logits


def lower_decoder(
    model: Llama,
    shapes: Shapes,
    context: int,
    constants: Mapping[str, int | list[int] | str],
    *,
    runner: bool,
) -> Any:
    """Export and lower to XNNPACK; an ``ExecutorchProgramManager``.

    Args:
        shapes: of LoRA inputs at their largest rank.
        constants: methods that return a value.
        runner: add the method that LLM runners call.
    """
    tokens = Dim("tokens", min=1, max=WIDTH)
    length = Dim("length", min=1, max=context)
    # Each adapter pair may have its own rank; where only 1 is allowed it is not dynamic.
    ranks = {
        name: {} if min(shape) == 1 else {axis: Dim(rank_name(name), min=1, max=shape[axis])}
        for name, shape in shapes.items()
        for axis in [int(name.endswith("A"))]
    }
    dynamic = ({1: tokens}, {0: tokens}, {0: tokens, 1: length}, list(ranks.values()))
    methods = {
        LORA_METHOD if runner else "forward": export(
            model, _examples(shapes, 3, 5), dynamic_shapes=dynamic, strict=False
        )
    }
    if runner:
        example = (torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
        form = RunnerForm(model, context)
        methods[RUNNER_METHOD] = export(
            form, example, dynamic_shapes=({1: tokens}, {}), strict=False
        )
    edge = to_edge_transform_and_lower(
        methods,
        partitioner={method: [XnnpackPartitioner()] for method in methods},
        compile_config=get_xnnpack_edge_compile_config(),
        constant_methods=dict(constants),
    )
    linears = sum(isinstance(module, torch.nn.Linear) for module in model.modules())
    for method in methods:
        check_delegated(edge.exported_program(method).graph_module, linears)
    return edge.to_executorch(
        ExecutorchBackendConfig(
            do_quant_fusion_and_const_prop=True,  # a quantized embedding becomes one operator
            run_reinplace_pass=True,  # else every step copies the whole cache
        )
    )


def with_needs(graph: Graph, program: Any) -> Graph:
    """A graph with the delegates and operators that its method asks a runtime for.

    Args:
        program: an ``ExecutorchProgramManager``.
    """
    plans = program.executorch_program.execution_plan
    plan = next(plan for plan in plans if plan.name == graph.method)
    return graph.model_copy(
        update={
            "delegates": sorted({delegate.id for delegate in plan.delegates}),
            "operators": sorted({f"{op.name}.{op.overload}".strip(".") for op in plan.operators}),
        }
    )


def lower_training(model: Llama, shapes: Shapes) -> Any:
    """Forward and backward as one method: loss, then the gradient of each LoRA input."""

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
        tensor.name: torch.zeros(
            [int(size) for size in tensor.shape], dtype=getattr(torch, tensor.dtype)
        )
        for tensor in training_graph(model.decoder.vocab_size, shapes).inputs
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


def _examples(shapes: Shapes, tokens: int, length: int) -> tuple[Any, ...]:
    """Inputs of ``Llama.forward`` to trace it with."""
    return (
        torch.zeros(1, tokens, dtype=torch.int64),
        torch.arange(tokens),
        torch.zeros(tokens, length),
        [torch.zeros(shape) for shape in shapes.values()],
    )


def lower_to_chip(model: torch.nn.Module, shapes: Shapes, context: int, soc: Soc) -> Any:
    """Export with fixed shapes and lower to Qualcomm's NPU in float16, every operation or none."""
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
    from executorch.backends.qualcomm.utils.utils import (
        generate_htp_compiler_spec,
        generate_qnn_executorch_compiler_spec,
        to_edge_transform_and_lower_to_qnn,
    )

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


def check_delegated(graph: torch.fx.GraphModule, linears: int) -> None:
    """Fail unless every linear runs on the backend."""
    counts = get_delegation_info(graph).delegation_by_operator
    found = [count for name, count in counts.items() if name.startswith("aten_linear")]
    delegated = sum(count.delegated for count in found)
    if delegated != linears or any(count.non_delegated for count in found):
        raise OmniDraftError(
            f"Only {delegated} of {linears} linears were lowered to XNNPACK; the others would run "
            "on slow portable kernels. Nothing was kept. Try the versions of executorch and torch "
            "that the 'executorch' extra names."
        )
