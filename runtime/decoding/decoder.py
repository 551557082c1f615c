"""The decoding loop: draft, score, verify, translate back."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from threading import Event
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from omnidraft._native import Generation, Origin, SamplingParameters, Verification
from omnidraft.runtime.decoding.constraint import Constraint
from omnidraft.runtime.decoding.drafting import Drafter, Drafting, keep, run_pass
from omnidraft.runtime.decoding.kept_texts import KeptTexts
from omnidraft.runtime.decoding.lease import Lease
from omnidraft.runtime.decoding.logprobs import TokenLogprobs, token_logprobs
from omnidraft.runtime.decoding.observed import Round, StepObserver, round_of, show_steps
from omnidraft.runtime.decoding.paused import Paused, place_of
from omnidraft.runtime.decoding.proposal import Proposal
from omnidraft.runtime.engines.model import CausalModel, LimitedContext, held_of, tree_scorer
from omnidraft.runtime.errors import ContextOverflowError, OmniDraftError
from omnidraft.runtime.statistics import Statistics

PROMPT_CHUNK = 256
"""Prompt tokens per target pass: bounds the memory of attention scores."""


class Emitted(NamedTuple):
    """A token of the answer and how it came about."""

    token: int
    origin: Origin
    logprobs: TokenLogprobs | None = None
    """If they were asked for."""
    proposal: Proposal | None = None
    """Of the round whose first token this is, if proposals were asked for."""


class SpeculativeDecoder:
    """Generates tokens of a target, with a drafter or (``drafting=None``) plainly.

    One pass of the target scores the last token and everything proposed after it. Without a
    drafter nothing is proposed, and the same code is plain decoding.

    Args:
        target: what its KV cache holds is dropped at the start of a generation, see ``keep``.
        drafting: the drafter's side; None: plain decoding.
        sampling: shapes the target's distribution; temperature 0 is greedy.
        verification: EXACT or PAPER, of chains where neither greedy decoding nor a seed says which
            token is the target's.
        seed: makes a run repeatable; None takes a random one.
        observer: shown every round with a drafter after its verification.
        steps: shown the steps of the drafter before that.
        lease: of both models, if the caller holds one already. None: each generation takes one,
            and gives it back when it ends or its generator is closed.
        logprobs: tell the log-probability of each token, and of so many of the likeliest in its
            place; None: compute none.
        proposals: tell what each round proposed, with its first token.
        constraint: masks the target, for one generation. What learns is shown none of its rounds.
        keep: begin with what the target's KV cache holds of the prompt. A batch-invariant target
            gives the same answer, bit for bit; another one may not.
        kept: other texts of the target's, of which the prompt may be recalled. Not without keep.
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
        steps: StepObserver | None = None,
        lease: Lease | None = None,
        logprobs: int | None = None,
        proposals: bool = False,
        constraint: Constraint | None = None,
        keep: bool = False,
        kept: KeptTexts | None = None,
    ) -> None:
        self._target = target
        self._drafting = drafting
        self._sampling = sampling or SamplingParameters()
        follows = self._sampling.greedy or (seed is not None and verification is Verification.EXACT)
        self._verification = Verification.GREEDY if follows else verification
        self._seed = seed
        self._observer = observer
        self._steps = steps
        self._lease = lease
        self._logprobs = logprobs
        self._proposals = proposals
        self._constraint = constraint
        self._keep = keep
        self._kept = kept if keep else None
        self._paused: Paused | None = None
        self._paused_seconds = 0.0
        self.statistics = Statistics()
        """Of the last generation."""
        self.finish_reason = ""
        """Why it ended: "stop" (an end-of-text token, or ``ends``), "length" or "cancelled"."""

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        stop: Sequence[int] = (),
        cancelled: Event | None = None,
        ends: Callable[[int], bool] = lambda token: False,
    ) -> Iterator[Emitted]:
        """Yield the tokens of the answer, an end-of-text token included.

        Args:
            prompt: at least one target token.
            max_new_tokens: at most so many tokens.
            stop: end-of-text tokens.
            cancelled: ends the answer once it is set, before the next pass of the target.
            ends: asked of each token that is no end-of-text token, in order and before it is
                yielded, whether the answer ends with it.

        Raises:
            ContextOverflowError: the prompt does not fit the target's context.
            ModelInUseError: see ``Lease``.
            OmniDraftError: the prompt is empty, or the target returned logits that are not numbers.
        """
        models = [self._target, *([self._drafting.model] if self._drafting else [])]
        with self._lease or Lease(models) as lease:
            self._held = lease
            for emitted in self._generate(
                prompt, max_new_tokens, frozenset(stop), cancelled or Event(), ends
            ):
                yield emitted
                lease.go_on_here()

    def pause(self) -> bool:
        """Let other answers be made with the models until ``resume``. Between two tokens only.

        The answer is the same as without a pause, and its time does not count. It may also be
        broken off meanwhile.

        Returns:
            False: nothing changed, since the models could not go on where they were. Nothing keeps
            the target's text, it is too long, an engine does not copy its KV cache, or something
            learns from this answer.
        """
        if self._observer is not None or self._steps is not None:
            return False
        if self._kept is None or (tokens := self._kept.text_of(self._target)) is None:
            return False
        place = None
        if self._drafting is not None:
            place = place_of(self._drafting.model)
            if place is None:
                return False
        self._paused = Paused(tokens, place, perf_counter())
        self._held.lend()
        return True

    def resume(self) -> None:
        """Go on.

        Raises:
            ModelInUseError: see ``Lease``; the answer is still paused.
        """
        assert self._paused is not None and self._kept is not None, "it was not paused"
        tokens, place, since = self._paused
        self._held.take_back()
        self._kept.recall(tokens)
        self._read(tokens)
        if place is not None:
            place.put_back()
        self._paused_seconds += perf_counter() - since
        self._paused = None

    def _read(self, tokens: Sequence[int], cancelled: Event | None = None) -> int:
        """Let the target hold a text, or less if it is cancelled.

        Returns:
            How many tokens it held already.
        """
        target = self._target
        held = held_of(target, tokens) if self._keep else 0
        target.truncate(held)
        body = np.asarray(tokens[held:], dtype=np.int64)
        for begin in range(0, len(body), PROMPT_CHUNK):
            if cancelled is not None and cancelled.is_set():
                break
            target.forward(body[begin : begin + PROMPT_CHUNK], rows=1)
        return held

    def _generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        stop: frozenset[int],
        cancelled: Event,
        ends: Callable[[int], bool],
    ) -> Iterator[Emitted]:
        target = self._target
        if not prompt:
            raise OmniDraftError(
                "the prompt holds no tokens and the model has no beginning-of-text token; "
                "give it some text"
            )
        check_prompt(target, len(prompt))
        stats = self.statistics = Statistics(prompt_tokens=len(prompt))
        self.finish_reason = "length"
        generation = self._generation(stop)
        drafter = None
        if self._drafting is not None:
            mask = self._constraint.drafts if self._constraint is not None else None
            drafter = Drafter(self._drafting, generation, stats, self._steps, mask)

        started = perf_counter()
        stats.ngram_inserted += generation.read(prompt)
        if self._kept is not None:
            self._kept.recall(prompt)
        # The last token is read with the first round.
        stats.prompt_kept = self._read(prompt[:-1], cancelled)
        stats.prompt_seconds = perf_counter() - started

        started = perf_counter()
        self._paused_seconds = 0.0
        while stats.target_tokens < max_new_tokens:
            room = min(max_new_tokens - stats.target_tokens, target.max_length - target.length) - 1
            if room < 0:
                break
            if cancelled.is_set():
                self.finish_reason = "cancelled"
                break
            try:
                more = generation.begin(room, target.length, target.max_length)
                if drafter:
                    drafter.draft(more)
                wanted = generation.score()
                before = perf_counter()
                logits = run_pass(target, wanted)
                after = perf_counter()
                allowed = logits
                if self._constraint is not None:
                    # Rows behind what is proposed follow the one behind the text.
                    parents = [parent + 1 for parent in generation.parents]
                    allowed = self._constraint.masked(logits, generation.proposed, parents)
                verdict = generation.scored(allowed)
            except ValueError as error:
                raise OmniDraftError(f"{error}; its files may be damaged") from error
            verified = perf_counter()
            stats.target_seconds += after - before
            stats.native_seconds += verified - after
            emitted, stopped = verdict.tokens, generation.ended
            asked = emitted[:-1] if stopped else emitted
            end = next((i for i, token in enumerate(asked) if ends(token)), None)
            if end is not None:
                generation.end_at(end)
                emitted, stopped = verdict.tokens, True
            if self._constraint is not None:
                self._constraint.advance(emitted)
            settled = generation.settle(after - before, verified - after)
            stats.rounds += 1
            stats.proposed += verdict.proposed
            stats.accepted += verdict.accepted
            stats.ngram_hits += verdict.merged
            stats.ngram_accepted += verdict.merged_accepted
            stats.draft_tokens += settled.draft_tokens
            stats.ngram_inserted += settled.inserted
            keep(target, settled.target)
            if drafter:
                drafter.keep(settled.drafter)
                self._show(generation, logits, drafter)
                if drafter.failure:
                    warnings.warn(
                        f"the drafter failed ({drafter.failure}); the rest of this answer is "
                        "decoded without it",
                        stacklevel=2,
                    )
                    drafter = None
            if stopped:
                self.finish_reason = "stop"
            told: Sequence[TokenLogprobs | None] = [None] * len(emitted)
            if self._logprobs is not None:
                told = token_logprobs(logits[generation.rows], emitted, self._logprobs)
            proposal = None
            if self._proposals:
                stood = [row - 1 for row in generation.rows[1:]]
                proposal = Proposal(generation.proposed, generation.parents, stood)
            proposals = chain((proposal,), repeat(None))
            for each in map(Emitted, emitted, verdict.origins, told, proposals):
                stats.target_tokens += 1
                stats.seconds = perf_counter() - started - self._paused_seconds
                yield each
            if stopped:
                return

    def _generation(self, stop: frozenset[int]) -> Generation:
        drafting = self._drafting
        seed = secrets.randbits(64) if self._seed is None else self._seed
        new = partial(
            Generation,
            self._target.vocab_size,
            self._sampling,
            verification=self._verification,
            seed=seed,
            ends=list(stop),
        )
        if drafting is None:
            return new()
        held = drafting.held
        drafting.model.truncate(len(held))
        return new(
            cache=drafting.cache,
            speller=drafting.speller,
            policy=drafting.policy,
            lookup=drafting.lookup,
            begin=drafting.begin,
            tree=drafting.tree,
            max_length=drafting.model.max_length,
            scores_trees=tree_scorer(drafting.model) is not None,
            held=held,
        )

    def _show(self, generation: Generation, logits: NDArray[np.float32], drafter: Drafter) -> None:
        """Show the round to what learns from it."""
        if self._observer is None or self._drafting is None or self._constraint is not None:
            return
        tree, context = self._drafting.tree, generation.context
        followed = tree or self._verification is Verification.GREEDY
        for i, path in enumerate(generation.shown()):
            # The steps of a chain were shown as they were made.
            if self._steps is not None and (i or tree):
                show_steps(path, drafter.rows, self._steps)
            temperature = self._sampling.temperature
            self._observer(round_of(path, context, logits, temperature, followed))


def check_prompt(target: CausalModel, length: int) -> None:
    """Raise ContextOverflowError for a prompt of so many tokens, if it leaves no room to answer."""
    excess = length - target.max_length + 1
    if excess <= 0:
        return
    least = "1 token or more" if excess == 1 else f"{excess} tokens or more"
    own = target.own_length if isinstance(target, LimitedContext) else target.max_length
    if own > target.max_length:
        raise ContextOverflowError(
            f"the prompt has {length} tokens, but the context was limited to {target.max_length} "
            f"of the model's {own}; raise it with context=…, or shorten the prompt by {least}"
        )
    raise ContextOverflowError(
        f"the prompt has {length} tokens, but the model's context holds {own}; shorten the prompt "
        f"by {least}"
    )
