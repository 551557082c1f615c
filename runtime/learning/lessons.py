"""What rounds teach the acceptance head: draft tokens and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.decoding.observed import Round
from omnidraft.runtime.learning.trace import DraftTrace

Floats = NDArray[np.float32]
EPSILON: Final = 1e-8
# Rows that are less likely than this to be judged teach nothing that matters.
_LEAST_WEIGHT: Final = 1e-3


@dataclass(frozen=True)
class Lessons:
    """Draft tokens and what came of them.

    Attributes:
        hidden: float16 or float32 [n, hidden_size] the hidden state that each was drawn from.
        confidence: float32 [n] the drafter's largest probability there.
        label: float32 [n] in [0, 1], see ``position_labels``.
        weight: float32 [n] how likely the tokens before it were to stand, which is when it counts.
    """

    hidden: NDArray[np.floating[Any]]
    confidence: Floats
    label: Floats
    weight: Floats

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, rows: slice | NDArray[Any]) -> Self:
        return type(self)(*(values[rows] for values in self.arrays().values()))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The attributes by name."""
        return dict(vars(self))

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in self.arrays().values())

    @classmethod
    def none(cls, hidden_size: int) -> Self:
        """No lessons."""
        empty = np.zeros(0, np.float32)
        return cls(np.zeros((0, hidden_size), np.float16), empty, empty, empty)

    @classmethod
    def join(cls, parts: Sequence[Lessons]) -> Self:
        """One after the other; at least one."""
        columns = zip(*(part.arrays().values() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    @classmethod
    def of_round(
        cls, hidden: Floats, confidence: Floats, p: Floats, q: Floats, draft_counts: Sequence[int]
    ) -> Self:
        """What a round teaches, in little memory; what was sure not to be judged is left out.

        Args:
            hidden, confidence: of each draft token of a proposed target token.
            p, q, draft_counts: see ``position_labels``.
        """
        label = position_labels(p, q, draft_counts)
        weight = np.cumprod(np.append(np.float32(1), label))[:-1].astype(np.float32)
        kept = weight >= _LEAST_WEIGHT
        small = normalized(hidden[kept]).astype(np.float16)
        return cls(small, confidence[kept], label[kept], weight[kept])


def lessons_of(shown: Round, trace: DraftTrace) -> Lessons | None:
    """What a round teaches the acceptance head, where the drafter gives hidden states."""
    temperature = shown.temperature
    count = sum(shown.counts)
    if not count or len(trace.hidden) < count:
        return None
    proposed = len(shown.tokens)
    p, q = np.ones(proposed, np.float32), np.ones(proposed, np.float32)
    if temperature == 0:
        p[shown.accepted :] = 0
    else:
        for i, token in enumerate(shown.tokens):
            p[i] = _probability(shown.logits[i], token, temperature)
    if not shown.followed:
        begins = np.cumsum((0, *shown.counts))
        each = [
            _probability(logits, draft, temperature)
            for logits, draft in zip(trace.logits, shown.drafts, strict=False)
        ]
        q[:] = [np.prod(each[a:b]) for a, b in pairwise(begins)]
    return Lessons.of_round(
        np.stack(trace.hidden[:count]),
        np.array(trace.confidences[:count], np.float32),
        p,
        q,
        shown.counts,
    )


def _probability(logits: NDArray[np.float32], token: int, temperature: float) -> float:
    shifted = (logits - logits.max()) / np.float32(temperature)
    return float(np.exp(shifted[token]) / np.exp(shifted).sum())


def position_labels(p: Floats, q: Floats, draft_counts: Sequence[int]) -> Floats:
    """What the head should say of each draft token: min(1, p / q) of its target token.

    The sub-tokens of a merged token share its label, each the n-th root of it, so that the product
    along the path is the probability that the whole path is accepted.

    Args:
        p: float32 [m] the target's probability of each proposed token; greedy: 1 for its argmax,
            else 0.
        q: float32 [m] the drafter's, the product of the sub-tokens' for a merged token. It is 1
            where a token stands if plain decoding takes it: greedily, or by a seed.
        draft_counts: m counts, see ``Proposal.draft_counts``.

    Returns:
        float32 [sum of the counts].
    """
    accepted = np.minimum(1, p / np.maximum(q, np.finfo(np.float32).tiny))
    counts = np.asarray(draft_counts, np.int64)
    shared: Floats = (accepted ** (1 / counts)).astype(np.float32)
    return np.repeat(shared, counts)


def normalized(hidden: NDArray[np.floating[Any]]) -> Floats:
    """Hidden states [n, hidden_size] divided by their root mean square."""
    hidden = hidden.astype(np.float32)
    square = np.square(hidden).mean(-1, keepdims=True)
    result: Floats = hidden / np.sqrt(square + EPSILON)
    return result
