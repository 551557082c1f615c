"""What is shown of rounds to what learns from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from omnidraft._native import Shown


class StepObserver(Protocol):
    """Follows the drafter within a round, for what learns from it."""

    def begin_round(self) -> None:
        """Nothing has been drafted yet."""

    def step(self, logits: NDArray[np.float32], confidence: float) -> None:
        """The drafter has made a step, from which a token was drawn if there was one to draw.

        Of a tree the steps on the path of a ``Round`` are told, after it was walked.

        Args:
            logits: float32 [draft vocabulary], which the next step may overwrite.
            confidence: the largest probability among the tokens that could be drawn.
        """


class Round(NamedTuple):
    """What one round showed; all of it holds only until the observer returns.

    Of a tree it shows one path: the one that the target walked, as far as it was drafted, and on by
    the drafter's most probable nodes where the target left the draft. A token that the target took
    further on, behind one that was looked up, is a round of its own without a draft.
    """

    context: NDArray[np.int32]
    """Draft tokens that stood before the draft."""
    tokens: Sequence[int]
    """The m drafted target tokens."""
    drafts: Sequence[int]
    """The draft tokens that spell them; behind them perhaps those of an unfinished one."""
    counts: Sequence[int]
    """How many draft tokens spell each."""
    accepted: int
    """Of the m tokens, those that stood: the first ones."""
    last: int
    """The token that the target took after those."""
    logits: Sequence[NDArray[np.float32]]
    """m + 1 rows of the target, unshaped by sampling: row i follows the i-th of the m tokens."""
    temperature: float
    """Of the distributions that were drawn from; 0: greedy."""
    followed: bool = True
    """Whether drafted tokens stood by being plain decoding's; else by rejection sampling."""


def round_of(
    path: Shown,
    context: NDArray[np.int32],
    logits: NDArray[np.float32],
    temperature: float,
    followed: bool,
) -> Round:
    """A path of a round, as a generation shows it.

    Args:
        context: the draft tokens that stand for the text.
        logits: the target's, of the round's pass.
        temperature, followed: see ``Round``.
    """
    return Round(
        context[: path.context],
        path.tokens,
        path.drafts,
        path.counts,
        path.accepted,
        path.last,
        [logits[row] for row in path.rows],
        temperature,
        followed,
    )


def show_steps(path: Shown, rows: Mapping[int, NDArray[np.float32]], steps: StepObserver) -> None:
    """Tell the steps on the path of a tree, or that there were none.

    Args:
        rows: the drafter's, by draft node.
    """
    steps.begin_round()
    for node in path.draft_nodes:
        row = rows[node]
        steps.step(row, float(1 / np.exp(row - row.max()).sum()))
