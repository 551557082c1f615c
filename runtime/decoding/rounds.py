"""The two ways to make a round: a chain that is verified, and a tree that is walked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from omnidraft._native import (
    Draft,
    Generator,
    History,
    SamplingParameters,
    TreeProposal,
    Verdict,
    Verification,
    Verifier,
    Walker,
    end_round,
)
from omnidraft.runtime.decoding.chain_side import ChainSide
from omnidraft.runtime.decoding.draft_side import Drafting, RoundSeconds
from omnidraft.runtime.decoding.observed import Emitted, Round, StepObserver, show
from omnidraft.runtime.decoding.tree_side import TreeSide
from omnidraft.runtime.engines.model import CausalModel, tree_scorer
from omnidraft.runtime.statistics import Statistics


class Rounds(Protocol):
    """A generation's rounds, one after the other:

        rounds.read(prompt)
        while ...:
            rounds.propose(room)
            rounds.score(pending)
            verdict = rounds.verify()
            rounds.end_at(end)         # where the answer ends before its last token
            rounds.settle(seconds)

    Attributes:
        failure: why the drafter cannot go on; "" while it can, or where there is none.
    """

    failure: str

    def read(self, prompt: Sequence[int]) -> None:
        """Show the drafter the prompt."""

    def propose(self, room: int) -> None:
        """Draft; at most ``room`` of the tokens that are proposed can be of use."""

    def score(self, pending: int) -> None:
        """Run the target over the last token of the text and what is proposed after it."""

    def verify(self) -> Verdict:
        """Find the tokens of this round."""

    def end_at(self, end: int) -> None:
        """Cut what stands behind token ``end`` of the verdict, an accepted one."""

    def settle(self, seconds: RoundSeconds) -> None:
        """Leave what stands in the KV caches, and learn from the round."""

    def rows(self) -> NDArray[np.float32]:
        """float32 [tokens, vocabulary]: the rows that the verdict's tokens were taken from."""


class ChainRounds:
    """One path is drafted, and verified token by token.

    Args:
        verification: EXACT and PAPER sample what is drafted, and reject some of it. GREEDY drafts
            what is most likely, and it stands while it is what plain decoding takes: the argmax,
            or by the random numbers that belong to the seed and to each token's place.
        stats: counts.
        observer, steps: see ``SpeculativeDecoder``.
    """

    def __init__(
        self,
        target: CausalModel,
        drafting: Drafting,
        sampling: SamplingParameters,
        verification: Verification,
        seed: int,
        history: History,
        stats: Statistics,
        observer: Callable[[Round], None] | None,
        steps: StepObserver | None,
    ) -> None:
        self.failure = ""
        self._target = target
        self._sampling = sampling
        self._verification = verification
        self._seed = seed
        self._history = history
        self._stats = stats
        self._observer = observer
        self._steps = steps
        self._chance = Generator(seed)
        self._draft = Draft(drafting.cache, verification, sampling.temperature or 1.0)
        self._verifier = Verifier(drafting.cache)
        self._side: ChainSide | None = ChainSide(drafting, self._draft, self._chance, stats, steps)
        # Of the round under way.
        self._scored: list[int] = []

    def read(self, prompt: Sequence[int]) -> None:
        """See ``Rounds``."""
        if self._side:
            self._side.read(prompt)

    def propose(self, room: int) -> None:
        """See ``Rounds``."""
        side, length = self._side, self._target.length
        self._proposal = side.propose(room, length) if side else self._draft.finish()
        self._scored = self._proposal.tokens

    def score(self, pending: int) -> None:
        """See ``Rounds``."""
        self._logits = self._target.forward([pending, *self._scored])

    def verify(self) -> Verdict:
        """See ``Rounds``."""
        given = (self._proposal, self._logits, self._sampling, self._history)
        if self._verification is Verification.GREEDY:
            place = self._stats.target_tokens
            self._verdict = self._verifier.follow(*given, self._seed, place)
        else:
            self._verdict = self._verifier.verify(*given, self._chance)
        return self._verdict

    def end_at(self, end: int) -> None:
        """See ``Rounds``."""
        end_round(self._proposal, self._verdict, end)
        self._logits = self._logits[: end + 1]

    def settle(self, seconds: RoundSeconds) -> None:
        """See ``Rounds``."""
        verdict, target, side = self._verdict, self._target, self._side
        target.truncate(target.length - len(self._scored) + verdict.accepted)
        self._stats.draft_tokens += len(self._proposal.drafts)
        if side:
            if self._observer:
                self._show(side, self._observer)
            side.end_round(self._proposal, verdict, seconds)
            if side.failure:
                self._side = None
                self.failure = side.failure

    def _show(self, side: ChainSide, observer: Callable[[Round], None]) -> None:
        proposal, verdict, rows = self._proposal, self._verdict, list(self._logits)
        counts, accepted = proposal.draft_counts, verdict.accepted
        shown = Round(
            side.context,
            proposal.tokens,
            proposal.drafts,
            counts,
            accepted,
            verdict.tokens[-1],
            rows,
            self._sampling.temperature,
            self._verification is Verification.GREEDY,
        )
        if not all(counts):  # looked up
            shown = shown._replace(tokens=(), counts=(), accepted=0, last=verdict.tokens[0])
            shown = shown._replace(logits=rows[:1])
        emitted = Emitted(verdict.tokens, side.spelled(verdict.tokens[:-1], ()), rows)
        show(shown, emitted, observer, self._steps)

    def rows(self) -> NDArray[np.float32]:
        """See ``Rounds``."""
        return self._logits


class TreeRounds:
    """A tree is drafted, and the target's own tokens walk it.

    The tokens are those of plain decoding, by the argmax or by the random numbers that belong to
    the seed and to each token's place.

    Args:
        target: scores trees, unless there is no drafter.
        seed: of the random numbers.
        stats: counts.
        observer, steps: see ``SpeculativeDecoder``.
    """

    def __init__(
        self,
        target: CausalModel,
        drafting: Drafting | None,
        sampling: SamplingParameters,
        seed: int,
        history: History,
        stats: Statistics,
        observer: Callable[[Round], None] | None,
        steps: StepObserver | None,
    ) -> None:
        self.failure = ""
        self._target = target
        self._trees = tree_scorer(target)
        self._sampling = sampling
        self._seed = seed
        self._history = history
        self._stats = stats
        self._observer = observer
        self._steps = steps
        self._walker = Walker()
        self._side = TreeSide(drafting, stats, steps) if drafting else None
        # Of the round under way.
        self._proposal = TreeProposal()
        self._tokens: list[int] = []

    def read(self, prompt: Sequence[int]) -> None:
        """See ``Rounds``."""
        if self._side:
            self._side.read(prompt)

    def propose(self, room: int) -> None:
        """See ``Rounds``."""
        self._proposal = TreeProposal()
        if self._side:
            length = self._target.length
            # A tree may be wider than what is left of the answer, but not than the KV cache.
            space = self._target.max_length - length - 1
            self._proposal = self._side.propose(room, space, length)
        self._tokens = self._proposal.tokens

    def score(self, pending: int) -> None:
        """See ``Rounds``."""
        self._base = length = self._target.length
        parents = self._proposal.parents
        self._scorer = None if parents == list(range(-1, len(parents) - 1)) else self._trees
        if self._scorer is None:
            self._logits = self._target.forward([pending, *self._tokens])
        else:
            slots = [length - 1, *(length + 1 + parent for parent in parents)]
            self._logits = self._scorer.forward_tree([pending, *self._tokens], slots)

    def verify(self) -> Verdict:
        """See ``Rounds``."""
        self._verdict = self._walker.walk(
            self._proposal,
            self._logits,
            self._sampling,
            self._history,
            self._seed,
            self._stats.target_tokens,
        )
        return self._verdict

    def end_at(self, end: int) -> None:
        """See ``Rounds``."""
        end_round(self._proposal, self._verdict, end)

    def settle(self, seconds: RoundSeconds) -> None:
        """See ``Rounds``."""
        path = self._verdict.path
        self._stats.draft_tokens += sum(map(len, self._proposal.drafts))
        if self._scorer is None:
            self._target.truncate(self._base + 1 + len(path))
        else:
            self._scorer.keep([self._base, *(self._base + 1 + node for node in path)])
        if self._side:
            if self._observer:
                self._show(self._side, self._observer)
            self._side.end_round(self._proposal, self._verdict, seconds)
            if self._side.failure:
                self.failure = self._side.failure
                self._side = None

    def _show(self, side: TreeSide, observer: Callable[[Round], None]) -> None:
        proposal, verdict, logits = self._proposal, self._verdict, self._logits
        nodes, accepted = side.drafted_path(proposal, verdict)
        spellings, tokens = proposal.drafts, proposal.tokens
        shown = Round(
            side.context,
            [tokens[node] for node in nodes],
            [draft for node in nodes for draft in spellings[node]],
            [len(spellings[node]) for node in nodes],
            accepted,
            verdict.tokens[accepted],
            [logits[node + 1] for node in (-1, *nodes)],
            self._sampling.temperature,
        )
        spelled = side.spelled(verdict.tokens[:-1], [spellings[node] for node in verdict.path])
        rows = [logits[node + 1] for node in (-1, *verdict.path)]
        show(shown, Emitted(verdict.tokens, spelled, rows), observer, self._steps)

    def rows(self) -> NDArray[np.float32]:
        """See ``Rounds``."""
        rows: NDArray[np.float32] = self._logits[[0, *(node + 1 for node in self._verdict.path)]]
        return rows
