"""Presence and frequency penalties, and a bias for single tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.decoding.constraint import Constraint, DraftMask


@dataclass(frozen=True)
class Penalties:
    """What is taken from the target's logits, before temperature and repetition penalty.

    Args:
        presence: from each token that the answer holds.
        frequency: the same, as often as it holds it.
        bias: what is added to a token's logit, by token.
    """

    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)

    def of(self, count: int) -> np.float32:
        """What is taken from a token that the answer holds so often, at least once."""
        return np.float32(self.presence + self.frequency * count)


class PenalisedAnswer:
    """See ``Constraint``: penalties in one answer.

    They depend on what stands before a token, which is known of each proposed one. So a drafted
    answer is that of plain decoding with the same penalties.

    Args:
        penalties: at least one is not 0.
        inner: what else holds the answer.
    """

    def __init__(self, penalties: Penalties, inner: Constraint | None = None) -> None:
        self._penalties = penalties
        self._inner = inner
        self._counts: Counter[int] = Counter()
        self._biased = np.array(list(penalties.bias), np.intp)
        self._bias = np.array(list(penalties.bias.values()), np.float32)

    def masked(
        self, logits: NDArray[np.float32], tokens: Sequence[int], parents: Sequence[int]
    ) -> NDArray[np.float32]:
        """See ``Constraint.masked``."""
        rows = logits.copy() if self._inner is None else self._inner.masked(logits, tokens, parents)
        rows[:, self._biased] += self._bias
        if not self._penalties.presence and not self._penalties.frequency:
            return rows
        paths: list[Counter[int]] = [Counter()]
        for token, parent in zip(tokens, parents, strict=True):
            paths.append(paths[parent] + Counter([token]))
        # Each from the logit itself: two subtractions may round otherwise than one.
        special = [
            (row, token, rows[row, token] - self._penalties.of(self._counts[token] + count))
            for row, path in enumerate(paths)
            for token, count in path.items()
        ]
        seen = np.array(list(self._counts), np.intp)
        rows[:, seen] -= np.array([self._penalties.of(c) for c in self._counts.values()], "f4")
        for row, token, value in special:
            rows[row, token] = value
        return rows

    @property
    def drafts(self) -> DraftMask | None:
        """See ``Constraint.drafts``."""
        return None if self._inner is None else self._inner.drafts

    def advance(self, tokens: Sequence[int]) -> None:
        """See ``Constraint.advance``."""
        self._counts.update(tokens)
        if self._inner is not None:
            self._inner.advance(tokens)
