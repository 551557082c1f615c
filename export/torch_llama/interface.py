"""What the methods of an ExecuTorch program take and give, in order; no torch is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from omnidraft.export.meanings import (
    CHIP_USAGE,
    EXECUTORCH,
    EXECUTORCH_USAGE,
    RUNNER,
    RUNNER_USAGE,
    TRAINING,
    TRAINING_USAGE,
    Meanings,
    meaning,
)
from omnidraft.runtime.storage.bundle import Graph, SpecialTokens, Tensor

PROGRAM_FILE = "model.pte"
TRAINING_FILE = "training.pte"
LORA_METHOD, RUNNER_METHOD = "omnidraft", "forward"
"""Where a program has both: the method with LoRA inputs, and the one that LLM runners call."""
WIDTH = 64
"""Tokens of the longest pass; logits of that many rows are reserved."""
CHIP_WIDTH = 8
"""Tokens of every pass on an NPU, which costs nearly the same for one."""
TRAINING_TOKENS, TRAINING_ROWS, TRAINING_DIRECT = 64, 16, 64
"""Sizes of a training step: tokens, positions with a loss, direct tokens of such a position."""

Shapes = Mapping[str, tuple[int, int]]
"""Of LoRA inputs: see ``torch_llama.model.lora_shapes``."""


def decoder_graph(
    vocab_size: int, shapes: Shapes, fixed_length: int | None, method: str = "forward"
) -> Graph:
    """What the decoder takes and gives, in order."""
    count: int | str = CHIP_WIDTH if fixed_length else "tokens"

    def lora(name: str) -> list[int | str]:
        rank = shapes[name][name.endswith("A")] if fixed_length else rank_name(name)
        return [shapes[name][0], rank] if name.endswith("A") else [rank, shapes[name][1]]

    return Graph(
        role="decoder",
        file=PROGRAM_FILE,
        method=method,
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


def runner_graph(vocab_size: int) -> Graph:
    """What the method that LLM runners call takes and gives."""
    return Graph(
        role="decoder",
        file=PROGRAM_FILE,
        method=RUNNER_METHOD,
        most_tokens=WIDTH,
        inputs=[
            _tensor("tokens", "int64", [1, "tokens"], RUNNER),
            _tensor("input_pos", "int64", [1], RUNNER),
        ],
        outputs=[_tensor("logits", "float32", [1, "tokens", vocab_size], RUNNER)],
        usage=RUNNER_USAGE,
    )


def constants(
    graphs: Sequence[Graph], vocab_size: int, context: int, special_tokens: SpecialTokens
) -> dict[str, int | list[int] | str]:
    """Methods that return what a program's callers need to know, by the names of LLM runners.

    ``get_description`` is ours: JSON with the graphs, as the manifest has them.
    """
    values: dict[str, int | list[int] | str] = {
        "get_vocab_size": vocab_size,
        "get_max_seq_len": min(WIDTH, context),
        "get_max_context_len": context,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": False,
        "enable_dynamic_shape": True,
    }
    if special_tokens.beginning is not None:
        values["get_bos_id"] = special_tokens.beginning
    if special_tokens.ends:
        values["get_eos_ids"] = special_tokens.ends
    about = {
        "special_tokens": special_tokens.model_dump(),
        "graphs": [graph.model_dump(exclude_defaults=True) for graph in graphs],
    }
    return values | {"get_description": json.dumps(about, ensure_ascii=False)}


def _tensor(
    name: str, dtype: str, shape: list[int | str], meanings: Meanings = EXECUTORCH
) -> Tensor:
    return Tensor(name=name, dtype=dtype, shape=shape, meaning=meaning(name, meanings))


def training_graph(vocab_size: int, shapes: Shapes) -> Graph:
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


def rank_name(name: str) -> str:
    """``lora.0.qkv.A`` → ``rank_0_qkv``: A and B have one rank."""
    _, layer, linear, _ = name.split(".")
    return f"rank_{layer}_{linear}"
