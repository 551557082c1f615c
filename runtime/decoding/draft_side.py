"""The drafter's half of a round: read what the target said, propose, learn what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from omnidraft._native import Judged, Lookup, NgramCache, Outcome, Verdict
from omnidraft.runtime.decoding.policy import DraftPolicy, Fixed
from omnidraft.runtime.decoding.reader import Reader
from omnidraft.runtime.decoding.translation import DraftContext, Speller
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.statistics import Statistics

MAX_LOOKUP = 16
"""Most tokens that a round takes from a lookup."""
_ROOM = 48
"""Slots of the drafter's context that a round may need, at most."""


@dataclass(frozen=True)
class Drafting:
    """What speculation needs beside the target.

    Args:
        model: the drafter.
        cache: n-gram cache of the pair; it learns during generation.
        speller: translates target tokens into draft tokens.
        begin: draft tokens that open every context (beginning of text).
        policy: decides what each round drafts; it learns during generation.
        tree: draft trees; the target must score them. Else chains are drafted.
        scorer: of chains, from the drafter's largest probability, how likely the token drawn last
            is to be accepted, as the policy is told; None: as likely as that probability.
        lookup: finds what followed in the text before; it is emptied when a generation begins.
        keep: begin with what the drafter's KV cache holds of the context. Its logits may then
            differ in the last bits from those of an empty one, and so what is drafted.
    """

    model: CausalModel
    cache: NgramCache
    speller: Speller
    begin: tuple[int, ...] = ()
    policy: DraftPolicy = field(default_factory=lambda: Fixed(4))
    tree: bool = False
    scorer: Callable[[float], float] | None = None
    lookup: Lookup | None = None
    keep: bool = False


class RoundSeconds(NamedTuple):
    """Where the time of a round went: drafting, the target's pass, and the rest."""

    draft: float
    target: float
    other: float


class DraftSide:
    """What the drafter's half of a round has in common for chains and trees.

    Args:
        stats: counts what is drafted.

    Attributes:
        failure: why the drafter cannot go on; "" while it can.
    """

    def __init__(self, drafting: Drafting, stats: Statistics) -> None:
        self.failure = ""
        self._drafting = drafting
        self._model = drafting.model
        self._policy = drafting.policy
        self._stats = stats
        self._context = DraftContext(drafting.speller, drafting.cache, drafting.begin)
        self._reader = Reader(drafting.model, self._context.tokens, drafting.keep)
        # Of the round under way.
        self._passes: list[tuple[int, float]] = []  # tokens and seconds of the drafter's passes
        self._found: list[int] = []  # target tokens that lookup would propose
        self._match = 0

    @property
    def context(self) -> Sequence[int]:
        """The draft tokens that stand for the target's sequence."""
        return self._context.tokens

    def read(self, prompt: Sequence[int]) -> None:
        """Take in the prompt, before the first round."""
        self._stats.ngram_inserted += self._context.extend(prompt)
        if (lookup := self._drafting.lookup) is not None:
            lookup.clear()
            lookup.add(prompt)

    def spelled(self, tokens: Sequence[int], drafted: Sequence[Sequence[int]]) -> list[list[int]]:
        """Target tokens as draft tokens, as they were drafted as far as they were."""
        padded = [*drafted, *[()] * (len(tokens) - len(drafted))]
        spell = self._drafting.speller.spell
        return [list(each or spell(token)) for token, each in zip(tokens, padded, strict=True)]

    def _begin(self, room: int, space: int, context: int) -> int:
        """Begin a round: look up, and ask the policy for the most nodes it may score."""
        self._passes = []
        # Before the policy is told what there is to read.
        self._reader.make_room(min(_ROOM, self._model.max_length // 4))
        self._found = []
        if (lookup := self._drafting.lookup) is not None:
            self._match = lookup.match_length
            self._found = lookup.propose(min(room, MAX_LOOKUP), 1)
        return self._policy.begin(room, space, context, self._reader.unread, len(self._found))

    def _forward(
        self, tokens: list[int], run: Callable[[list[int]], NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """A pass of the drafter, and what it took."""
        before = perf_counter()
        rows = run(tokens)
        seconds = perf_counter() - before
        self._passes.append((len(tokens), seconds))
        self._stats.draft_seconds += seconds
        return rows

    def _catch_up(self) -> NDArray[np.float32]:
        """The drafter's row after the text: its first pass reads what the target has said since."""
        feed = self._reader.catch_up()
        rows = self._forward(feed, lambda tokens: self._model.forward(tokens, rows=1))
        self._reader.fed += feed
        row: NDArray[np.float32] = rows[0]
        return row

    def _fail(self, error: Exception) -> None:
        """The drafter cannot go on. What was drafted so far is proposed."""
        self.failure = str(error) or type(error).__name__

    def _end(
        self,
        rows: int,
        verdict: Verdict,
        spellings: Sequence[Sequence[int]],
        judged: Sequence[Judged],
        seconds: RoundSeconds,
    ) -> None:
        """End a round: its tokens join the context, and the policy is told.

        Args:
            rows: of the target's pass.
            spellings: draft tokens of the accepted tokens; none for one that was looked up.
            judged: what the target said of the drafted tokens.
        """
        emitted = verdict.tokens
        self._stats.ngram_inserted += self._context.extend(emitted, spellings, said=True)
        self._policy.observe(
            Outcome(
                rows,
                verdict.accepted + 1,
                self._passes,
                judged,
                seconds.target,
                seconds.other,
                self._match if self._found else 0,
                *_judge_lookup(self._found, emitted),
            )
        )
        if (lookup := self._drafting.lookup) is not None:
            lookup.add(emitted)


def _judge_lookup(found: Sequence[int], emitted: Sequence[int]) -> tuple[int, int]:
    """``Outcome.found_judged`` and ``Outcome.found_right``."""
    right = 0
    for each, token in zip(found, emitted, strict=False):
        if each != token:
            return right + 1, right
        right += 1
    return right, right
