"""What rounds teach a drafter, kept small.

    buffer = AdaptationBuffer(direct_mapping(pair))
    decoder = SpeculativeDecoder(target, drafting, observer=buffer.observe, steps=buffer.trace)
    ...                                   # an answer
    for batch in batches(buffer.end_prompt(), Objective("hybrid"), buffer.mapping):
        step.run(batch.training, lora)

A round shows the target's distribution after each token that was proposed, also after tokens that
it then rejected. What the drafter did there is on its own policy, and carries loss as well. So a
prompt is kept as one sequence of draft tokens. Beside it lies the end of each round's draft, where
the draft left the sequence. Of a distribution only those direct tokens are kept that the target or
the drafter finds likeliest; what they lack is one further outcome of the loss.

A loss that needs less than distributions says so by its ``Detail``, and less is kept. The default
loss needs tokens alone: for it no row of either model is read.

Nothing is kept of the row after the end of a rejected draft. Neither model chose a token there, and
the drafter's own distribution, which a reverse divergence needs, was not computed.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omnidraft._native import VocabularyPair
from omnidraft.runtime.decoding.observed import Round
from omnidraft.runtime.engines.model import HiddenStates
from omnidraft.runtime.learning.lessons import Lessons, lessons_of
from omnidraft.runtime.learning.objective import Detail
from omnidraft.runtime.learning.trace import DraftTrace

DEFAULT_MAX_BYTES: Final = 64_000_000
DEFAULT_KEPT: Final = 64
"""Tokens of a distribution: see benchmarks/README.md for the reduction's error."""
# Context that a row sees at most. Long prompts would otherwise cost memory with their square.
WINDOW: Final = 512
# Less likely than the likeliest by more than this, a token is not kept.
_NEGLIGIBLE: Final = 1e-4
_LOG_NEGLIGIBLE: Final = math.log(_NEGLIGIBLE)
_TINY: Final = 1e-30
_LEAST_LOG_P: Final = -60.0
# Of an object that holds a round, beside its arrays.
_ROUND_OVERHEAD: Final = 200


@dataclass(frozen=True)
class Mapping:
    """Direct pairs as arrays.

    Attributes:
        drafts, targets: int64 [D] the pairs, one by one.
        place: int64 [draft vocabulary] where a draft token stands among the pairs, or −1.
        ngram: bool [target vocabulary] whether a target token has a surface but no direct pair.
        plain: bool [target vocabulary] whether a target token has a surface.
    """

    drafts: NDArray[np.int64]
    targets: NDArray[np.int64]
    place: NDArray[np.int64]
    ngram: NDArray[np.bool_]
    plain: NDArray[np.bool_]


def direct_mapping(pair: VocabularyPair, plain: Sequence[bool], draft_vocab: int) -> Mapping:
    """The direct pairs of two vocabularies.

    Args:
        plain: of each target token, whether it has a surface.
        draft_vocab: width of the drafter's logits.
    """
    to_draft = np.array([pair.to_draft(token) for token in range(len(plain))], np.int64)
    has_surface = np.array(plain, bool)
    targets = np.flatnonzero(to_draft >= 0)
    drafts = to_draft[targets]
    place = np.full(draft_vocab, -1, np.int64)
    place[drafts] = np.arange(len(drafts))
    return Mapping(drafts, targets, place, has_surface & (to_draft < 0), has_surface)


_NO_IDS = np.empty(0, np.int32)
_NO_FLOATS = np.empty(0, np.float32)


@dataclass
class ObservedRound:
    """One round. Row i follows the first i of the m proposed tokens.

    Attributes:
        begin: draft tokens of the sequence before the draft.
        counts: draft tokens of each of the m proposed tokens.
        accepted: how many of these stood.
        last: the token that ended the round.
        rows: how many rows are kept: 0 … ``accepted``, and from ``Detail.PROBABILITIES`` on also
            those after rejected tokens, as far as both models have seen their places.
        end: draft tokens of the sequence after ``last``; −1 where that was not seen any more.
        lessons: for the acceptance head, where one is to learn.

    From ``Detail.PROBABILITIES`` on, else empty:
        tail: int32, the draft tokens that did not stand.
        log_p: float32 [min(rows, m)] the target's log-probabilities of the proposed tokens.
        last_log_p: that of ``last``.

    For ``Detail.DISTRIBUTIONS``, else empty:
        log_mass: float32 [rows] log of the target's mass on direct tokens.
        ends: int32 [rows] where each row's part of ``ids`` and ``ids_log_p`` ends.
        ids: int32, draft tokens.
        ids_log_p: float32, the target's log-probabilities of these.
    """

    begin: int
    counts: tuple[int, ...]
    accepted: int
    last: int
    rows: int
    end: int = -1
    lessons: Lessons | None = None
    tail: NDArray[np.int32] = field(default_factory=lambda: _NO_IDS)
    log_p: NDArray[np.float32] = field(default_factory=lambda: _NO_FLOATS)
    last_log_p: float = 0.0
    log_mass: NDArray[np.float32] = field(default_factory=lambda: _NO_FLOATS)
    ends: NDArray[np.int32] = field(default_factory=lambda: _NO_IDS)
    ids: NDArray[np.int32] = field(default_factory=lambda: _NO_IDS)
    ids_log_p: NDArray[np.float32] = field(default_factory=lambda: _NO_FLOATS)

    @property
    def stood(self) -> int:
        """Draft tokens that stood."""
        return sum(self.counts[: self.accepted])

    @property
    def nbytes(self) -> int:
        arrays = (self.tail, self.log_p, self.log_mass, self.ends, self.ids, self.ids_log_p)
        lessons = self.lessons.nbytes if self.lessons else 0
        kept = sum(sys.getsizeof(each) for each in arrays if len(each))
        return _ROUND_OVERHEAD + lessons + kept


@dataclass
class ObservedPrompt:
    """A prompt and its answer as draft tokens, and the rounds that made it."""

    tokens: array[int] = field(default_factory=lambda: array("i"))
    rounds: deque[ObservedRound] = field(default_factory=deque)
    nbytes: int = 0
    proposed: int = 0
    accepted: int = 0
    emitted: int = 0

    @property
    def block_efficiency(self) -> float:
        """Target tokens per round."""
        return self.emitted / len(self.rounds) if self.rounds else 0.0


class AdaptationBuffer:
    """Keeps what rounds teach, at most ``max_bytes`` of it: the oldest goes first.

    Args:
        detail: how much of each round to keep; the loss says how much it needs.
        kept: of each distribution, so many tokens that are the target's likeliest and so many that
            are the drafter's; from the number of direct tokens on, all of them.
        states: the drafter, where an acceptance head learns from its hidden states, too.

    Attributes:
        trace: must see the drafter's steps, as ``steps`` of a ``SpeculativeDecoder``; None where
            nothing is kept of them.
    """

    def __init__(
        self,
        mapping: Mapping,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        detail: Detail = Detail.DISTRIBUTIONS,
        kept: int = DEFAULT_KEPT,
        states: HiddenStates | None = None,
    ) -> None:
        self.mapping = mapping
        self.max_bytes = max_bytes
        self.kept = kept
        self.detail = detail
        self.trace: DraftTrace | None = None
        if detail > Detail.TOKENS or states is not None:
            keep_logits = detail == Detail.DISTRIBUTIONS or states is not None
            self.trace = DraftTrace(keep_logits=keep_logits, states=states)
        self._states = states
        self.prompts: deque[ObservedPrompt] = deque()
        self.nbytes = 0
        self._open: list[ObservedPrompt] = []  # parts of one prompt; the last goes on
        # Masks of direct tokens: cheaper in every round than gathering these.
        self._place = np.full(len(mapping.plain), -1, np.int64)
        self._place[mapping.targets] = np.arange(len(mapping.targets))
        self._direct = (self._place >= 0).astype(np.float32)
        self._indirect = np.where(mapping.place < 0, np.float32(-np.inf), np.float32(0))
        self._scratch = np.empty(0, np.float32)
        self._dropped = 0  # tokens of the open prompt's context that are not kept
        self._seen = 0  # length of its context at the last round

    def observe(self, shown: Round) -> None:
        """Take a round: the ``observer`` of a ``SpeculativeDecoder``."""
        context = shown.context
        if not len(context) or not len(self.mapping.drafts):
            return
        if not self._open or len(context) < self._seen:
            # New, or the drafter has dropped the older half of a long context.
            self._open.append(ObservedPrompt())
            self.prompts.append(self._open[-1])
            self._dropped = max(0, len(context) - WINDOW)
            self._seen = self._dropped
        prompt = self._open[-1]
        size = sys.getsizeof(prompt.tokens)
        prompt.tokens.extend(context[self._dropped + len(prompt.tokens) :].tolist())
        self._seen = len(context)
        if prompt.rounds and prompt.rounds[-1].end < 0:
            prompt.rounds[-1].end = len(prompt.tokens)
        observed = self._reduce(shown, len(prompt.tokens))
        prompt.tokens.extend(shown.drafts[: observed.stood])
        prompt.rounds.append(observed)
        prompt.proposed += len(shown.tokens)
        prompt.accepted += shown.accepted
        prompt.emitted += shown.accepted + 1
        grown = observed.nbytes + sys.getsizeof(prompt.tokens) - size
        prompt.nbytes += grown
        self.nbytes += grown
        self._shrink()

    def end_prompt(self) -> list[ObservedPrompt]:
        """The answer is over; what was kept of it, in parts where the drafter's context was cut."""
        parts, self._open = self._open, []
        return parts

    def discard_prompt(self) -> None:
        """The answer was broken off: nothing of it is kept."""
        parts = self.end_prompt()
        self.prompts = deque(p for p in self.prompts if not any(p is part for part in parts))
        self.nbytes = sum(prompt.nbytes for prompt in self.prompts)

    def _reduce(self, shown: Round, begin: int) -> ObservedRound:
        observed = ObservedRound(
            begin, tuple(shown.counts), shown.accepted, shown.last, rows=shown.accepted + 1
        )
        if self.trace is not None and self._states is not None:
            observed.lessons = lessons_of(shown, self.trace)
        if self.detail >= Detail.PROBABILITIES:
            observed.tail = np.array(shown.drafts[observed.stood : sum(shown.counts)], np.int32)
            self._add_rows(observed, shown)
        return observed

    def _add_rows(self, observed: ObservedRound, shown: Round) -> None:
        """Add the target's probabilities, and of its distributions what matters."""
        assert self.trace is not None
        proposed, accepted = shown.tokens, shown.accepted
        begins = np.cumsum((0, *observed.counts))
        steps = len(self.trace.confidences)
        observed.rows = len(proposed) + 1
        if accepted < len(proposed) and begins[-1] >= steps:
            observed.rows -= 1
        log_p, log_mass, ids, ids_log_p = [], [], [], []
        for i, logits in enumerate(shown.logits[: observed.rows]):
            largest = logits.max()
            if len(self._scratch) != len(logits):
                self._scratch = np.empty_like(logits)
            weights = np.exp(np.subtract(logits, largest, out=self._scratch), out=self._scratch)
            log_z = largest + np.log(weights.sum())
            if i < len(proposed):
                log_p.append(logits[proposed[i]] - log_z)
            if i == accepted:
                observed.last_log_p = max(float(logits[observed.last] - log_z), _LEAST_LOG_P)
            if self.detail < Detail.DISTRIBUTIONS:
                continue
            weights *= self._direct
            log_mass.append(np.log(weights.sum() + _TINY) + largest - log_z)
            places = self._place[self._likeliest(weights, weights.max() * _NEGLIGIBLE)]
            # A reverse divergence is made where q is large, which p need not be.
            if begins[i] < steps:
                draft_logits = self.trace.logits[begins[i]] + self._indirect
                likely = self._likeliest(draft_logits, draft_logits.max() + _LOG_NEGLIGIBLE)
                places = np.union1d(places, self.mapping.place[likely])
            if self.kept >= len(self.mapping.drafts):
                places = np.arange(len(self.mapping.drafts))
            ids.append(self.mapping.drafts[places])
            ids_log_p.append(logits[self.mapping.targets[places]] - log_z)
        observed.log_p = _finite(log_p)
        if ids:
            observed.log_mass = _finite(log_mass)
            observed.ends = np.cumsum([len(each) for each in ids]).astype(np.int32)
            observed.ids = np.concatenate(ids).astype(np.int32)
            observed.ids_log_p = _finite(np.concatenate(ids_log_p))

    def _likeliest(self, values: NDArray[np.float32], threshold: float) -> NDArray[np.intp]:
        """Where the largest values are, at most ``kept`` of them, above a threshold."""
        places = np.flatnonzero(values > threshold)
        if len(places) > self.kept:
            places = places[np.argpartition(values[places], -self.kept)[-self.kept :]]
        return places

    def _shrink(self) -> None:
        while self.nbytes > self.max_bytes:
            oldest = self.prompts[0]
            if len(self.prompts) > 1:
                self.nbytes -= self.prompts.popleft().nbytes
                self._open = [part for part in self._open if part is not oldest]
            elif oldest.rounds:
                size = oldest.rounds.popleft().nbytes
                oldest.nbytes -= size
                self.nbytes -= size
            else:
                break


def _finite(values: Any) -> NDArray[np.float32]:
    return np.maximum(np.array(values, np.float32), _LEAST_LOG_P)
