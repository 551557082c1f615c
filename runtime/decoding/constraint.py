"""What holds an answer to a form, say JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from omnidraft._native import Pass


class Constraint(Protocol):
    """Says which tokens may come next in one answer.

    The target's distribution is masked before anything is verified. So the answer is that of plain
    decoding under the same masks, whatever is drafted.
    """

    def masked(
        self, logits: NDArray[np.float32], tokens: Sequence[int], parents: Sequence[int]
    ) -> NDArray[np.float32]:
        """Logits in which no token is likely that may not come.

        Args:
            logits: float32 [1 + len(tokens), vocabulary]: behind the answer so far, and behind
                each proposed token.
            tokens: what is proposed.
            parents: of each of them the row of what it follows.

        Returns:
            float32, of the same shape, a copy. Rows behind what may not come are of no matter.
        """

    def advance(self, tokens: Sequence[int]) -> None:
        """The answer goes on with these tokens."""


def mask_pass(
    constraint: Constraint, logits: NDArray[np.float32], wanted: Pass, length: int
) -> NDArray[np.float32]:
    """The logits of a pass of the target, masked.

    Args:
        length: tokens in the KV cache before it.
    """
    count = len(logits)
    # The first row is that of the answer's last token; those before have none.
    proposed = wanted.tokens[-count:][1:]
    if parents := wanted.parents:
        rows = [parent - length for parent in parents[1:]]
    else:
        rows = list(range(count - 1))
    return constraint.masked(logits, proposed, rows)
