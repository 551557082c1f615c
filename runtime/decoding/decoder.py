"""The decoding loop: draft, score, verify, translate back."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from omnidraft._native import (
    Draft,
    Generator,
    History,
    Lookup,
    NgramCache,
    Origin,
    Proposal,
    SamplingParameters,
    Verdict,
    Verification,
    Verifier,
    Vocabulary,
    VocabularyPair,
    end_round,
)
from omnidraft.runtime.decoding.lease import Lease
from omnidraft.runtime.decoding.policy import DraftLengthPolicy, Fixed, Outcome
from omnidraft.runtime.decoding.translation import DraftContext, Speller
from omnidraft.runtime.engines.model import CausalModel, HiddenStates
from omnidraft.runtime.errors import ContextOverflowError, OmniDraftError
from omnidraft.runtime.statistics import Statistics

MAX_LOOKUP = 16
"""Most tokens that a round takes from a lookup."""
_USUAL_DRAFT = 32
"""Draft tokens that a round has room for in the drafter's context, before any are drawn."""
PROMPT_CHUNK = 256
"""Prompt tokens per target pass: bounds the memory of attention scores."""


class AcceptanceHead(Protocol):
    """Predicts whether a draft token will be accepted: see ``learning.head``."""

    hidden_size: int

    def score(self, hidden: NDArray[np.float32], confidence: float) -> float:
        """The probability, from the drafter's hidden state, float32 [hidden_size], and its own."""


class Emitted(NamedTuple):
    """A token of the answer and how it came about."""

    token: int
    origin: Origin


class Round(NamedTuple):
    """What one round showed; all of it holds only until the observer returns.

    ``logits`` float32 [m + 1, target vocabulary] are the target's, unshaped by sampling: row i
    follows the i-th of the m tokens that ``proposal`` had scored.
    """

    context: Sequence[int]
    """Draft tokens that stood before the draft."""
    proposal: Proposal
    logits: NDArray[np.float32]
    verdict: Verdict
    draft_logits: Sequence[NDArray[np.float32]]
    """The drafter's, float32 [draft vocabulary], before each draft token; none for a proposal that
    was looked up."""
    confidences: Sequence[float]
    """The drafter's largest probability before each draft token."""
    hidden: Sequence[NDArray[np.float32]]
    """The drafter's hidden states there, float32 [hidden size]; none where its engine gives none.
    """
    temperature: float
    """Of the distributions that were drawn from; 0: greedy."""


@dataclass(frozen=True)
class Drafting:
    """What speculation needs beside the target.

    Args:
        model: the drafter.
        cache: n-gram cache of the pair; it learns during generation.
        speller: translates target tokens into draft tokens.
        begin: draft tokens that open every context (beginning of text).
        policy: decides how many tokens each round drafts; it learns during generation.
        head: predicts acceptance in place of the drafter's own probabilities, where the drafter's
            engine gives hidden states (``HiddenStates``).
        lookup: finds what followed in the text before; it is emptied when a generation begins.
    """

    model: CausalModel
    cache: NgramCache
    speller: Speller
    begin: tuple[int, ...] = ()
    policy: DraftLengthPolicy = field(default_factory=lambda: Fixed(4))
    head: AcceptanceHead | None = None
    lookup: Lookup | None = None


class SpeculativeDecoder:
    """Generates tokens of a target, with a drafter or (``drafting=None``) plainly.

    One pass of the target scores the last token and everything proposed after it. Without a
    drafter nothing is proposed, and the same code is plain decoding.

    Args:
        target: its KV cache is emptied at the start of a generation.
        drafting: the drafter's side; None: plain decoding.
        sampling: shapes the target's distribution; temperature 0 is greedy.
        verification: EXACT or PAPER; greedy sampling always verifies greedily.
        seed: makes a run repeatable; None takes a random one.
        observer: shown every round of a drafter after its verification.
        lease: of both models, where who asks holds it already. None: each generation takes
            one, and gives it back when it ends or its generator is closed.
    """

    def __init__(
        self,
        target: CausalModel,
        drafting: Drafting | None = None,
        *,
        sampling: SamplingParameters | None = None,
        verification: Verification = Verification.EXACT,
        seed: int | None = None,
        observer: Callable[[Round], None] | None = None,
        lease: Lease | None = None,
    ) -> None:
        self._target = target
        self._drafting = drafting
        self._sampling = sampling or SamplingParameters()
        self._verification = Verification.GREEDY if self._sampling.greedy else verification
        self._seed = seed
        self._observer = observer
        self._lease = lease
        self.statistics = Statistics()
        """Of the last generation."""
        self.finish_reason = ""
        """Why it ended: "stop" (end-of-text token), "length" or "cancelled"."""

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        stop: Sequence[int] = (),
        cancelled: Event | None = None,
    ) -> Iterator[Emitted]:
        """Yield the tokens of the answer, an end-of-text token included.

        Args:
            prompt: at least one target token.
            max_new_tokens: at most so many tokens.
            stop: end-of-text tokens.
            cancelled: ends the answer once it is set, before the next pass of the target.

        Raises:
            ContextOverflowError: the prompt does not fit the target's context.
            ModelInUseError: see ``Lease``.
            OmniDraftError: the prompt is empty, or the target returned logits that are not numbers.
        """
        models = [self._target, *([self._drafting.model] if self._drafting else [])]
        with self._lease or Lease(models) as lease:
            for emitted in self._generate(
                prompt, max_new_tokens, frozenset(stop), cancelled or Event()
            ):
                yield emitted
                lease.go_on_here()

    def _generate(
        self, prompt: Sequence[int], max_new_tokens: int, stop: frozenset[int], cancelled: Event
    ) -> Iterator[Emitted]:
        target = self._target
        if not prompt:
            raise OmniDraftError(
                "the prompt holds no tokens and the model has no beginning-of-text token; "
                "give it some text"
            )
        if len(prompt) >= target.max_length:
            raise ContextOverflowError(
                f"the prompt has {len(prompt)} tokens, but the model's context holds "
                f"{target.max_length}; shorten the prompt by {len(prompt) - target.max_length + 1}"
                " tokens or more"
            )
        stats = self.statistics = Statistics(prompt_tokens=len(prompt))
        self.finish_reason = "length"
        chance = Generator(secrets.randbits(64) if self._seed is None else self._seed)
        history = History(target.vocab_size)
        history.add(prompt)
        temperature = self._sampling.temperature or 1.0
        watched = self._observer is not None
        drafter = None
        # Without a drafter: the same verification, of nothing.
        cache = self._drafting.cache if self._drafting else _nothing_to_draft(target.vocab_size)
        draft, verifier = Draft(cache, self._verification, temperature), Verifier(cache)
        if self._drafting:
            drafter = _DraftSide(self._drafting, draft, chance, stats, watched)

        started = perf_counter()
        target.truncate(0)
        body = np.asarray(prompt[:-1], dtype=np.int64)
        for begin in range(0, len(body), PROMPT_CHUNK):
            if cancelled.is_set():
                break
            target.forward(body[begin : begin + PROMPT_CHUNK], rows=1)
        if drafter:
            drafter.read(prompt)
        stats.prompt_seconds = perf_counter() - started

        started = perf_counter()
        pending = prompt[-1]
        while stats.target_tokens < max_new_tokens:
            room = min(max_new_tokens - stats.target_tokens, target.max_length - target.length) - 1
            if room < 0:
                break
            if cancelled.is_set():
                self.finish_reason = "cancelled"
                break
            try:
                begun = perf_counter()
                proposal = drafter.propose(room, target.length) if drafter else draft.finish()
                scored = proposal.tokens
                before = perf_counter()
                logits = target.forward([pending, *scored])
                after = perf_counter()
                verdict = verifier.verify(proposal, logits, self._sampling, history, chance)
            except ValueError as error:
                raise OmniDraftError(f"{error}; its files may be damaged") from error
            verified = perf_counter()
            stats.target_seconds += after - before
            stats.native_seconds += verified - after
            emitted = verdict.tokens
            end = next((i for i, token in enumerate(emitted) if token in stop), None)
            if end is not None and end < verdict.accepted:
                # What stands behind the end is no part of the answer, and nothing is told of it.
                end_round(proposal, verdict, end)
                emitted, logits = verdict.tokens, logits[: end + 1]
            target.truncate(target.length - len(scored) + verdict.accepted)
            stats.rounds += 1
            stats.proposed += verdict.proposed
            stats.accepted += verdict.accepted
            stats.ngram_hits += verdict.merged
            stats.ngram_accepted += verdict.merged_accepted
            stats.draft_tokens += len(proposal.drafts)
            if drafter:
                if self._observer:
                    drawn = len(proposal.drafts)
                    self._observer(
                        Round(
                            drafter.context,
                            proposal,
                            logits,
                            verdict,
                            drafter.logits[: drawn + 1],
                            drafter.confidences[:drawn],
                            drafter.hidden[:drawn],
                            self._sampling.temperature,
                        )
                    )
                drafter.accept(proposal, emitted, verdict.accepted)
                drafter.observe(
                    proposal,
                    verdict,
                    len(scored) + 1,
                    before - begun,
                    after - before,
                    verified - after,
                )
                if drafter.failure:
                    warnings.warn(
                        f"the drafter failed ({drafter.failure}); the rest of this answer is "
                        "decoded without it",
                        stacklevel=2,
                    )
                    drafter = None
            pending = emitted[-1]
            if end is not None:
                self.finish_reason = "stop"
            for token, origin in zip(emitted, verdict.origins, strict=True):
                stats.target_tokens += 1
                stats.seconds = perf_counter() - started
                yield Emitted(token, origin)
            if end is not None:
                return


class _DraftSide:
    """The drafter's half of the rounds of one generation."""

    def __init__(
        self,
        drafting: Drafting,
        draft: Draft,
        chance: Generator,
        stats: Statistics,
        watched: bool,
    ) -> None:
        self._drafting = drafting
        self._draft = draft
        self._chance = chance
        self._stats = stats
        self._watched = watched
        # Of this round, where somebody watches.
        self.logits: list[NDArray[np.float32]] = []
        self.confidences: list[float] = []
        self.hidden: list[NDArray[np.float32]] = []
        self._context = DraftContext(drafting.speller, drafting.cache, drafting.begin)
        self._fed: list[int] = []  # draft tokens in the drafter's KV cache
        self._agreed = 0  # of them, how many are known to be the context's
        self._target_length = 0
        self._steps = 0  # of this round, those in vain included
        self.failure = ""
        """Why the drafter cannot go on; "" while it can."""
        self._found: list[int] = []  # target tokens that lookup would propose this round
        self._match = 0
        self._states: HiddenStates | None = None
        self._head: AcceptanceHead | None = None
        model, head = drafting.model, drafting.head
        if isinstance(model, HiddenStates) and model.hidden_size:
            self._states = model
            self._head = head if head and head.hidden_size == model.hidden_size else None
        drafting.model.truncate(0)

    @property
    def context(self) -> Sequence[int]:
        """The draft tokens that stand for the target's sequence."""
        return self._context.tokens

    def read(self, prompt: Sequence[int]) -> None:
        self._stats.ngram_inserted += self._context.extend(prompt)
        if (lookup := self._drafting.lookup) is not None:
            lookup.clear()
            lookup.add(prompt)

    def propose(self, room: int, context: int) -> Proposal:
        """Draft at most ``room`` tokens, so that the round cannot emit more than are wanted.

        Args:
            context: target tokens in the target's KV cache.
        """
        policy, model, tokens = self._drafting.policy, self._drafting.model, self._context.tokens
        self._target_length = context
        self._steps = 0
        self.logits.clear()
        self.confidences.clear()
        self.hidden.clear()
        # Before the policy is told what there is to read.
        self._fit(min(room, _USUAL_DRAFT, model.max_length // 4))
        unread = len(tokens) - self._common()
        if (lookup := self._drafting.lookup) is not None:
            self._match = lookup.match_length
            self._found = lookup.propose(min(room, MAX_LOOKUP), 1)
            if self._found:
                count = policy.look_up(len(self._found), self._match, context, unread)
                if count:
                    self._draft.propose(self._found[:count])
                    return self._draft.finish()
        limit = policy.begin(room if tokens else 0, context, unread)
        # The first step catches up with what the target has said since.
        feed = self._unread(limit) if limit else []
        for _ in range(limit):
            before = perf_counter()
            self._steps += 1
            try:
                logits = model.forward(feed, rows=1)
                self._fed += feed
                after = perf_counter()
                token = self._draft.step(logits[0], self._chance)
            except Exception as error:
                # Engines' errors share no narrower class. What was drafted so far is verified as
                # where a budget ends.
                self.failure = str(error) or type(error).__name__
                break
            self._stats.draft_seconds += after - before
            self._stats.native_seconds += perf_counter() - after
            if self._watched:
                self.logits.append(logits[0].copy())
            if token < 0:
                break
            if self._watched:
                self.confidences.append(self._draft.confidence)
                if self._states is not None:
                    self.hidden.append(self._states.last_hidden().copy())
            if not policy.go_on(self._score()):
                break
            feed = [token]
        return self._draft.finish()

    def _score(self) -> float:
        """How likely the token drawn last is to be accepted, by the head or the drafter."""
        confidence = self._draft.confidence
        if self._states is None or self._head is None:
            return confidence
        return self._head.score(self._states.last_hidden(), confidence)

    def accept(self, proposal: Proposal, emitted: Sequence[int], accepted: int) -> None:
        """Take the round's tokens into the context, n-grams into the cache."""
        spellings = []
        begin = 0
        counts, drafts = proposal.draft_counts, proposal.drafts
        for count in counts[:accepted]:
            spellings.append(drafts[begin : begin + count])
            begin += count
        if accepted < len(counts) and counts[accepted] > 1:
            self._context.refuse(drafts[begin : begin + counts[accepted]], emitted[-1])
        self._stats.ngram_inserted += self._context.extend(emitted, spellings, said=True)

    def observe(
        self,
        proposal: Proposal,
        verdict: Verdict,
        rows: int,
        draft_seconds: float,
        target_seconds: float,
        other_seconds: float,
    ) -> None:
        """Tell the policy what came of the round."""
        outcome = Outcome(
            self._target_length,
            rows,
            self._steps,
            len(proposal.drafts),
            verdict.accepted_drafts,
            verdict.proposed,
            verdict.accepted,
            draft_seconds,
            target_seconds,
            other_seconds,
            self._match,
            *self._judge(verdict.tokens),
        )
        self._drafting.policy.observe(outcome)
        if (lookup := self._drafting.lookup) is not None:
            lookup.add(verdict.tokens)

    def _judge(self, emitted: Sequence[int]) -> tuple[int, int]:
        """Of the tokens that were found, how many are known to be right or wrong, and are right."""
        right = 0
        for found, token in zip(self._found, emitted, strict=False):
            if found != token:
                return right + 1, right
            right += 1
        return right, right

    def _common(self) -> int:
        """How many tokens of the context the drafter's KV cache holds; at least one is left."""
        tokens, fed = self._context.tokens, self._fed
        limit = min(len(fed), len(tokens) - 1)
        # What agreed before still does: the context only grows.
        while self._agreed < limit and fed[self._agreed] == tokens[self._agreed]:
            self._agreed += 1
        return self._agreed

    def _fit(self, steps: int) -> None:
        """Where the drafter's context is too short for so many steps, keep its recent half."""
        length, tokens = self._drafting.model.max_length, self._context.tokens
        if len(tokens) + steps > length:
            del tokens[: len(tokens) - length // 2]
            self._fed = []
            self._agreed = 0

    def _unread(self, steps: int) -> list[int]:
        """Cut the drafter's KV cache back to what still holds and return what it has to read."""
        model, tokens = self._drafting.model, self._context.tokens
        self._fit(steps)
        common = self._common()
        model.truncate(common)
        del self._fed[common:]
        return tokens[common:]


def _nothing_to_draft(vocab_size: int) -> NgramCache:
    """A pair without common tokens, so that plain decoding runs through the same verification."""
    target = Vocabulary([None] * vocab_size)
    return NgramCache(VocabularyPair(Vocabulary([None]), target))
