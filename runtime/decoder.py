"""The decoding loop: draft, score, verify, translate back."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np

from omnidraft._native import (
    Draft,
    Generator,
    History,
    NgramCache,
    Origin,
    Proposal,
    SamplingParameters,
    Verification,
    Verifier,
    Vocabulary,
    VocabularyPair,
)
from omnidraft.runtime.errors import ContextOverflowError, OmniDraftError
from omnidraft.runtime.model import CausalModel
from omnidraft.runtime.statistics import Statistics
from omnidraft.runtime.translation import DraftContext, Speller

PROMPT_CHUNK = 256
"""Prompt tokens per target pass: bounds the memory of attention scores."""


class Emitted(NamedTuple):
    """A token of the answer and how it came about."""

    token: int
    origin: Origin


@dataclass(frozen=True)
class Drafting:
    """What speculation needs beside the target.

    Args:
        model: the drafter.
        cache: n-gram cache of the pair; it learns during generation.
        speller: translates target tokens into draft tokens.
        begin: draft tokens that open every context (beginning of text).
        length: draft tokens per round, the draft length.
        confidence: a draft ends early when the product of the drafter's largest probabilities, one
            for each step, falls below this; 0 always drafts the full length. It depends on the
            path drawn only, so verification stays exact.
    """

    model: CausalModel
    cache: NgramCache
    speller: Speller
    begin: tuple[int, ...] = ()
    length: int = 4
    confidence: float = 0.0


class SpeculativeDecoder:
    """Generates tokens of a target, with a drafter or (``drafting=None``) plainly.

    One pass of the target scores the last token and everything proposed after it. Without a
    drafter nothing is proposed, and the same code is plain decoding.

    Args:
        target: its KV cache is emptied at the start of a generation.
        sampling: shapes the target's distribution; temperature 0 is greedy.
        verification: EXACT or PAPER; greedy sampling always verifies greedily.
        seed: makes a run repeatable; None takes a random one.
    """

    def __init__(
        self,
        target: CausalModel,
        drafting: Drafting | None = None,
        *,
        sampling: SamplingParameters | None = None,
        verification: Verification = Verification.EXACT,
        seed: int | None = None,
    ) -> None:
        self._target = target
        self._drafting = drafting
        self._sampling = sampling or SamplingParameters()
        self._verification = Verification.GREEDY if self._sampling.greedy else verification
        self._seed = seed
        self.statistics = Statistics()
        """Of the last generation."""
        self.finish_reason = ""
        """Why it ended: "stop" (end-of-text token) or "length"."""

    def generate(
        self, prompt: Sequence[int], max_new_tokens: int, stop: Sequence[int] = ()
    ) -> Iterator[Emitted]:
        """Yield the tokens of the answer, an end-of-text token included.

        Args:
            prompt: at least one target token.
            max_new_tokens: at most so many tokens.
            stop: end-of-text tokens.

        Raises:
            ContextOverflowError: the prompt does not fit the target's context.
            OmniDraftError: the prompt is empty, or a model returned logits that are not numbers.
        """
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
        cache = self._drafting.cache if self._drafting else _nothing_to_draft(target.vocab_size)
        draft = Draft(cache, self._verification, self._sampling.temperature or 1.0)
        verifier = Verifier(cache)
        drafter = _DraftSide(self._drafting, draft, chance, stats) if self._drafting else None

        started = perf_counter()
        target.truncate(0)
        body = np.asarray(prompt[:-1], dtype=np.int64)
        for begin in range(0, len(body), PROMPT_CHUNK):
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
            try:
                proposal = drafter.propose(room) if drafter else draft.finish()
                scored = proposal.tokens
                before = perf_counter()
                logits = target.forward([pending, *scored])
                after = perf_counter()
                verdict = verifier.verify(proposal, logits, self._sampling, history, chance)
            except ValueError as error:
                raise OmniDraftError(f"{error}; its files may be damaged") from error
            stats.target_seconds += after - before
            stats.native_seconds += perf_counter() - after
            target.truncate(target.length - len(scored) + verdict.accepted)
            stats.rounds += 1
            stats.proposed += verdict.proposed
            stats.accepted += verdict.accepted
            stats.ngram_hits += verdict.merged
            stats.ngram_accepted += verdict.merged_accepted
            emitted = verdict.tokens
            if drafter:
                drafter.accept(proposal, emitted, verdict.accepted)
            pending = emitted[-1]
            for token, origin in zip(emitted, verdict.origins, strict=True):
                stats.target_tokens += 1
                stats.seconds = perf_counter() - started
                ended = token in stop
                if ended:
                    self.finish_reason = "stop"
                yield Emitted(token, origin)
                if ended:
                    return


class _DraftSide:
    """The drafter's half of the rounds of one generation."""

    def __init__(
        self, drafting: Drafting, draft: Draft, chance: Generator, stats: Statistics
    ) -> None:
        self._drafting = drafting
        self._draft = draft
        self._chance = chance
        self._stats = stats
        self._context = DraftContext(drafting.speller, drafting.cache, drafting.begin)
        self._fed: list[int] = []  # draft tokens in the drafter's KV cache
        drafting.model.truncate(0)

    def read(self, prompt: Sequence[int]) -> None:
        self._stats.ngram_inserted += self._context.extend(prompt)

    def propose(self, room: int) -> Proposal:
        """Draft at most ``room`` tokens, so that the round cannot emit more than are wanted."""
        count = min(self._drafting.length, room)
        # The first step catches up with what the target has said since.
        tokens = self._unread(count) if count > 0 else []
        confidence = 1.0
        while count > 0 and tokens and confidence >= self._drafting.confidence:
            before = perf_counter()
            logits = self._drafting.model.forward(tokens, rows=1)
            self._fed += tokens
            after = perf_counter()
            token = self._draft.step(logits[0], self._chance)
            self._stats.draft_seconds += after - before
            self._stats.native_seconds += perf_counter() - after
            if token < 0:
                break
            self._stats.draft_tokens += 1
            confidence *= self._draft.confidence
            tokens = [token]
            count -= 1
        return self._draft.finish()

    def accept(self, proposal: Proposal, emitted: Sequence[int], accepted: int) -> None:
        """Take the round's tokens into the context, n-grams into the cache."""
        spellings = []
        begin = 0
        for count in proposal.draft_counts[:accepted]:
            spellings.append(proposal.drafts[begin : begin + count])
            begin += count
        self._stats.ngram_inserted += self._context.extend(emitted, spellings)

    def _unread(self, steps: int) -> list[int]:
        """Cut the drafter's KV cache back to what still holds and return what it has to read."""
        model, tokens = self._drafting.model, self._context.tokens
        if len(tokens) + steps > model.max_length:
            # The drafter's context is shorter than the target's: it keeps the more recent half.
            keep = model.max_length // 2
            del tokens[: len(tokens) - keep]
            self._fed = []
        common = 0
        limit = min(len(self._fed), len(tokens) - 1)
        while common < limit and self._fed[common] == tokens[common]:
            common += 1
        model.truncate(common)
        del self._fed[common:]
        return tokens[common:]


def _nothing_to_draft(vocab_size: int) -> NgramCache:
    """A pair without common tokens, so that plain decoding runs through the same verification."""
    target = Vocabulary([None] * vocab_size)
    return NgramCache(VocabularyPair(Vocabulary([None]), target))
