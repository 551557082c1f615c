"""How much an engine's rows depend on how many tokens share a pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from omnidraft.runtime.model import CausalModel


def batch_noise(
    model: CausalModel, *, sizes: Sequence[int] = (2, 4, 8), context: int = 64, seed: int = 0
) -> float:
    """Largest difference of a logit between a row of a pass and the same token alone.

    0.0 means that speculation cannot change a greedy answer by rounding. The model's sequence is
    lost: it is empty afterwards.

    Args:
        model: any engine's model.
        sizes: tokens in a pass, to try one after the other.
        context: tokens in the KV cache before the pass.
        seed: of the random tokens.
    """
    tokens = np.random.default_rng(seed).integers(0, model.vocab_size, context + max(sizes))
    ahead = tokens[context:]
    model.truncate(0)
    if context:
        model.forward(tokens[:context], rows=1)
    alone = np.concatenate([model.forward([token]).copy() for token in ahead])
    largest = 0.0
    for size in sizes:
        model.truncate(context)
        together = model.forward(ahead[:size])
        largest = max(largest, float(np.abs(together - alone[:size]).max()))
    model.truncate(0)
    return largest
