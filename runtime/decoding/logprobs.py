"""How likely a target held what it emitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class TokenLogprobs(NamedTuple):
    """Natural logarithms of probabilities of the target, unshaped by temperature or penalties."""

    chosen: float
    """Of the token that was emitted."""
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens and theirs, the likeliest first."""


def token_logprobs(
    logits: NDArray[np.float32], tokens: Sequence[int], top: int
) -> list[TokenLogprobs]:
    """Log-probabilities of tokens, each by its row of logits.

    Args:
        logits: float32 [at least len(tokens), vocabulary].
        top: so many of the likeliest tokens are told of each row.
    """
    told = []
    for row, token in zip(logits, tokens, strict=False):
        values = row.astype(np.float64)
        values -= values.max()
        values -= np.log(np.exp(values).sum())
        likeliest = np.argpartition(-row, min(top, len(row) - 1))[:top] if top else ()
        ranked = sorted(
            ((int(i), float(values[i])) for i in likeliest), key=lambda x: (-x[1], x[0])
        )
        told.append(TokenLogprobs(float(values[token]), tuple(ranked)))
    return told
