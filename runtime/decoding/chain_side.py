"""The drafter's half of a round that proposes a chain."""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from omnidraft._native import Draft, Generator, Judged, Proposal, Verdict, calibrated
from omnidraft.runtime.decoding.draft_side import Drafting, DraftSide, RoundSeconds
from omnidraft.runtime.decoding.observed import StepObserver
from omnidraft.runtime.statistics import Statistics


class ChainSide(DraftSide):
    """The drafter's half of the rounds of one generation that draft chains.

        side = ChainSide(drafting, draft, chance, statistics, observer)
        side.read(prompt)
        while ...:
            proposal = side.propose(room, context)
            ...                                   # the target's pass and its verdict
            side.end_round(proposal, verdict, seconds)

    To the policy a chain is a tree with one open node: the token drawn last. What is looked up is
    proposed where nothing is drafted. While drafting pays, the drafter drafts every round: text
    that repeats itself is easy for the drafter as well, and lookup in place of its rounds made
    answers slower.

    Args:
        draft: walks the trie; the proposals are its.
        chance: of what is drawn.
        observer: shown every step.
    """

    def __init__(
        self,
        drafting: Drafting,
        draft: Draft,
        chance: Generator,
        stats: Statistics,
        observer: StepObserver | None = None,
    ) -> None:
        super().__init__(drafting, stats)
        self._draft = draft
        self._chance = chance
        self._observer = observer
        # Of the round under way.
        self._rows = 0
        self._scores: list[float] = []

    def propose(self, room: int, context: int) -> Proposal:
        """Begin a round: propose at most ``room`` tokens.

        Args:
            room: target tokens that are still wanted, less the one that every round adds.
            context: target tokens in the target's KV cache.
        """
        self._scores = []
        if self._observer is not None:
            self._observer.begin_round()
        policy = self._policy
        if limit := self._begin(room, room, context):
            if self._context.tokens and policy.layer([1.0], [], limit):
                self._draw(limit)
            elif self._found:
                likely = (policy.found(self._match + i) for i in range(len(self._found)))
                count = policy.count(list(accumulate(likely, mul)), limit)
                self._draft.propose(self._found[:count])
        proposal = self._draft.finish()
        self._rows = len(proposal.tokens) + 1
        return proposal

    def end_round(self, proposal: Proposal, verdict: Verdict, seconds: RoundSeconds) -> None:
        """Learn what came of the round that ``propose`` began.

        Its tokens go into the context, its n-grams into the cache, and its outcome to the policy.
        """
        accepted = verdict.accepted
        counts, drafts = proposal.draft_counts, proposal.drafts
        spellings = []
        begin = 0
        for count in counts[:accepted]:
            spellings.append(drafts[begin : begin + count])
            begin += count
        if accepted < len(counts) and counts[accepted] > 1:
            self._context.refuse(drafts[begin : begin + counts[accepted]], verdict.tokens[-1])
        # The target did not judge what follows a rejected token, nor draft tokens at the end that
        # made no target token.
        right = verdict.accepted_drafts
        judged = min(len(drafts), right + (accepted < verdict.proposed))
        told = [Judged(0, self._scores[i], i < right) for i in range(judged)]
        self._end(self._rows, verdict, spellings, told, seconds)

    def _draw(self, limit: int) -> None:
        """Draw draft tokens, at most ``limit``, while the policy goes on."""
        policy, model, scorer = self._policy, self._model, self._drafting.scorer
        calibration = policy.calibration[:1]
        gains: list[float] = []
        probability = 1.0  # that all drawn so far are accepted
        feed: list[int] = []
        while True:
            try:
                logits = self._step(feed)
                before = perf_counter()
                token = self._draft.step(logits, self._chance)
            except Exception as error:
                # Engines' errors share no narrower class.
                self._fail(error)
                return
            self._stats.native_seconds += perf_counter() - before
            score = self._draft.confidence
            if self._observer is not None:
                self._observer.step(logits, score)
            if token < 0:
                return
            if scorer is not None:
                score = scorer(score)
            self._scores.append(score)
            probability *= calibrated(score, *calibration[0]) if calibration else score
            gains.append(probability)
            if len(gains) == limit or model.length == model.max_length:
                return
            if not policy.layer([probability], gains, limit):
                return
            feed = [token]

    def _step(self, feed: list[int]) -> NDArray[np.float32]:
        """The drafter's row after ``feed``, or, with nothing to feed, after the text."""
        if not feed:
            return self._catch_up()
        rows = self._forward(feed, self._model.forward)
        self._reader.fed += feed
        row: NDArray[np.float32] = rows[0]
        return row
