"""What is shown of rounds to what learns from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


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

    context: Sequence[int]
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


class Emitted(NamedTuple):
    """Tokens of a round, one after the other."""

    tokens: Sequence[int]
    spellings: Sequence[Sequence[int]]
    """As draft tokens, of all but the last."""
    logits: Sequence[NDArray[np.float32]]
    """The row that each was taken from."""


def show(
    shown: Round,
    emitted: Emitted,
    observer: Callable[[Round], None],
    steps: StepObserver | None,
) -> None:
    """Show a round, and the tokens behind its ``last`` as rounds without a draft."""
    observer(shown)
    context = list(shown.context) if shown.accepted + 1 < len(emitted.tokens) else []
    for i, token in enumerate(emitted.tokens):
        if i > shown.accepted:
            if steps is not None:
                steps.begin_round()
            plain = Round(
                context, (), (), (), 0, token, emitted.logits[i : i + 1], shown.temperature
            )
            observer(plain._replace(followed=shown.followed))
        if context:
            context.extend(emitted.spellings[i] if i < len(emitted.spellings) else ())
