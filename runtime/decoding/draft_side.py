"""The drafter's half of a round: read what the target said, propose, learn what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from omnidraft._native import Draft, Generator, Lookup, NgramCache, Proposal, Verdict
from omnidraft.runtime.decoding.policy import DraftLengthPolicy, Fixed, Outcome
from omnidraft.runtime.decoding.reader import Reader
from omnidraft.runtime.decoding.translation import DraftContext, Speller
from omnidraft.runtime.decoding.tree_policy import TreePolicy
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.statistics import Statistics

MAX_LOOKUP = 16
"""Most tokens that a round takes from a lookup."""
_USUAL_DRAFT = 32
"""Draft tokens that a round has room for in the drafter's context, before any are drawn."""


@dataclass(frozen=True)
class Drafting:
    """What speculation needs beside the target.

    Args:
        model: the drafter.
        cache: n-gram cache of the pair; it learns during generation.
        speller: translates target tokens into draft tokens.
        begin: draft tokens that open every context (beginning of text).
        policy: decides how many tokens each round drafts; it learns during generation.
        scorer: from the drafter's largest probability, how likely the token drawn last is to be
            accepted, as the policy is told; None: as likely as that probability.
        lookup: finds what followed in the text before; it is emptied when a generation begins.
        tree: decides how the tree of each round grows; None: a chain is drafted by ``policy``.
        keep: begin with what the drafter's KV cache holds of the context. Its logits may then
            differ in the last bits from those of an empty one, and so what is drafted.
    """

    model: CausalModel
    cache: NgramCache
    speller: Speller
    begin: tuple[int, ...] = ()
    policy: DraftLengthPolicy = field(default_factory=lambda: Fixed(4))
    scorer: Callable[[float], float] | None = None
    lookup: Lookup | None = None
    tree: TreePolicy | None = None
    keep: bool = False


class StepObserver(Protocol):
    """Follows the drafter within a round, for what learns from it."""

    def begin_round(self) -> None:
        """Nothing has been drafted yet."""

    def step(self, logits: NDArray[np.float32], confidence: float) -> None:
        """The drafter has made a step, from which a token was drawn if there was one to draw.

        Args:
            logits: float32 [draft vocabulary], which the next step may overwrite.
            confidence: the largest probability among the tokens that could be drawn.
        """


class RoundSeconds(NamedTuple):
    """Where the time of a round went: drafting, the target's pass, and the rest."""

    draft: float
    target: float
    other: float


class DraftSide:
    """The drafter's half of the rounds of one generation.

        side = DraftSide(drafting, draft, chance, statistics, observer)
        side.read(prompt)
        while ...:
            proposal = side.propose(room, context)
            ...                                   # the target's pass and its verdict
            side.end_round(proposal, verdict, seconds)

    Args:
        draft: walks the trie; the proposals are its.
        chance: of what is drawn.
        stats: counts what is drafted.
        observer: shown every step.

    Attributes:
        failure: why the drafter cannot go on; "" while it can.
    """

    def __init__(
        self,
        drafting: Drafting,
        draft: Draft,
        chance: Generator,
        stats: Statistics,
        observer: StepObserver | None = None,
    ) -> None:
        self.failure = ""
        self._drafting = drafting
        self._draft = draft
        self._chance = chance
        self._stats = stats
        self._observer = observer
        self._context = DraftContext(drafting.speller, drafting.cache, drafting.begin)
        self._reader = Reader(drafting.model, self._context.tokens, drafting.keep)
        # Of the round under way.
        self._target_length = 0
        self._rows = 0
        self._steps = 0  # those in vain included
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

    def propose(self, room: int, context: int) -> Proposal:
        """Begin a round: propose at most ``room`` tokens.

        Args:
            room: target tokens that are still wanted, less the one that every round adds.
            context: target tokens in the target's KV cache.
        """
        self._target_length = context
        self._steps = 0
        if self._observer is not None:
            self._observer.begin_round()
        model = self._drafting.model
        # Before the policy is told what there is to read.
        self._reader.make_room(min(room, _USUAL_DRAFT, model.max_length // 4))
        unread = self._reader.unread
        if not self._look_up(room, context, unread):
            tokens = self._context.tokens
            self._draw(self._drafting.policy.begin(room if tokens else 0, context, unread))
        proposal = self._draft.finish()
        self._rows = len(proposal.tokens) + 1
        return proposal

    def end_round(self, proposal: Proposal, verdict: Verdict, seconds: RoundSeconds) -> None:
        """Learn what came of the round that ``propose`` began.

        Its tokens go into the context, its n-grams into the cache, and its outcome to the policy.
        """
        self._take(proposal, verdict)
        self._drafting.policy.observe(
            Outcome(
                self._target_length,
                self._rows,
                self._steps,
                len(proposal.drafts),
                verdict.accepted_drafts,
                verdict.proposed,
                verdict.accepted,
                *seconds,
                self._match,
                *judge_lookup(self._found, verdict.tokens),
            )
        )
        if (lookup := self._drafting.lookup) is not None:
            lookup.add(verdict.tokens)

    def _look_up(self, room: int, context: int, unread: int) -> bool:
        """Propose what lookup finds, if there is something and the policy wants it."""
        if (lookup := self._drafting.lookup) is None:
            return False
        self._match = lookup.match_length
        self._found = lookup.propose(min(room, MAX_LOOKUP), 1)
        if not self._found:
            return False
        policy = self._drafting.policy
        count = policy.look_up(len(self._found), self._match, context, unread)
        if count:
            self._draft.propose(self._found[:count])
        return count > 0

    def _draw(self, limit: int) -> None:
        """Draw draft tokens, at most ``limit``, while the policy goes on."""
        policy, model = self._drafting.policy, self._drafting.model
        scorer = self._drafting.scorer
        # The first step catches up with what the target has said since.
        feed = self._reader.catch_up(limit) if limit else []
        for _ in range(limit):
            before = perf_counter()
            self._steps += 1
            try:
                logits = model.forward(feed, rows=1)
                self._reader.fed += feed
                after = perf_counter()
                token = self._draft.step(logits[0], self._chance)
            except Exception as error:
                # Engines' errors share no narrower class. What was drafted so far is verified as
                # where a budget ends.
                self.failure = str(error) or type(error).__name__
                break
            self._stats.draft_seconds += after - before
            self._stats.native_seconds += perf_counter() - after
            confidence = self._draft.confidence
            if self._observer is not None:
                self._observer.step(logits[0], confidence)
            if token < 0:
                break
            if not policy.go_on(confidence if scorer is None else scorer(confidence)):
                break
            feed = [token]

    def _take(self, proposal: Proposal, verdict: Verdict) -> None:
        """Take the round's tokens into the context, n-grams into the cache."""
        emitted, accepted = verdict.tokens, verdict.accepted
        counts, drafts = proposal.draft_counts, proposal.drafts
        spellings = []
        begin = 0
        for count in counts[:accepted]:
            spellings.append(drafts[begin : begin + count])
            begin += count
        if accepted < len(counts) and counts[accepted] > 1:
            self._context.refuse(drafts[begin : begin + counts[accepted]], emitted[-1])
        self._stats.ngram_inserted += self._context.extend(emitted, spellings, said=True)


def judge_lookup(found: Sequence[int], emitted: Sequence[int]) -> tuple[int, int]:
    """``Outcome.found_judged`` and ``Outcome.found_right``."""
    right = 0
    for each, token in zip(found, emitted, strict=False):
        if each != token:
            return right + 1, right
        right += 1
    return right, right
