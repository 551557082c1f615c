"""A drafter's weights for files of other programs, and what these files are not told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.checkpoint.spec import LINEAR_PARTS, Checkpoint, split_name
from omnidraft.export.graphs.tensors import weight_shares
from omnidraft.export.recipes import Options
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.storage.bundle import Backend, WeightShare


def refuse_graph_options(options: Options, backend: Backend) -> None:
    """Refuse what only graphs have.

    Raises:
        OmniDraftError: it was asked for.
    """
    for given, name, why in (
        (options.soc, "--soc", "it is compiled for no chip"),
        (options.train_step, "--train-step", "it has no training step"),
        (options.share_weights, "--share-weights", "it has its weights once"),
        (options.lora_rank, "--lora-rank", "it has no LoRA inputs; --adapter merges an adapter"),
    ):
        if given:
            raise OmniDraftError(
                f"{name} is for graphs, and the {backend} backend writes a checkpoint: {why}. "
                f"Leave {name} out."
            )


def llama_rows(checkpoint: Checkpoint, name: str) -> NDArray[np.float32]:
    """A whole tensor, as a Llama has it: queries hold what scores are scaled by otherwise."""
    rows = checkpoint.rows(name)
    d = checkpoint.decoder
    factor = d.query_scale * d.head_size**0.5
    if split_name(name)[1] == "q" and abs(factor - 1) > 1e-6:
        rows = rows * np.float32(factor)
    return rows


def as_floats(rows: NDArray[np.float32], name: str, *, half: bool) -> NDArray[np.floating[Any]]:
    """A tensor in float32 or float16.

    Raises:
        OmniDraftError: float16 does not hold it; ``name`` is its name in a ``Checkpoint``.
    """
    if not half:
        return rows
    with np.errstate(over="ignore"):
        values = rows.astype(np.float16)
    if not np.isfinite(values).all():
        raise OmniDraftError(
            f"Weights of {name} are too large for float16. Choose --quantization none."
        )
    return values


def describe_matrices(matrices: Iterable[tuple[str, int, int]], *, tied: bool) -> list[WeightShare]:
    """How many bits the weights have.

    Args:
        matrices: of each its name in a ``Checkpoint``, bits and elements.
        tied: whether the embedding is multiplied as the head, too.
    """
    linears = {part for parts in LINEAR_PARTS.values() for part in parts} | {"head"}
    if tied:
        linears.add("embedding")
    return weight_shares(
        (bits, int(split_name(name)[1] in linears), elements) for name, bits, elements in matrices
    )
