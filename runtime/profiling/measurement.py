"""Answer a prompt and note what each round, pass and token took."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from omnidraft.runtime.options import GenerationOptions
from omnidraft.runtime.profiling.energy import EnergyMeter
from omnidraft.runtime.profiling.recording import Pass, RecordedModel
from omnidraft.runtime.profiling.report import Mode, RoundKind, Rounds, TimePerToken
from omnidraft.runtime.profiling.summary import PassKind, summarize, summarize_passes
from omnidraft.runtime.session import Prompt, Session
from omnidraft.runtime.statistics import Statistics


@dataclass
class _Moment:
    """What the decoder's statistics said when the first token of a round came."""

    seconds: float
    draft: float
    target: float
    native: float
    tokens: int = 1
    """Of this round, so far."""


@dataclass
class Measurement:
    """Samples of answers, all plain or all speculative. Durations in seconds."""

    sums: Statistics = field(default_factory=Statistics)
    joules: float = 0.0
    excess: float = 0.0
    """Time that the simulated device would not have taken; no other figure holds it."""
    repeats: list[Statistics] = field(default_factory=list)
    prompt: list[float] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)
    token: list[float] = field(default_factory=list)
    round: list[float] = field(default_factory=list)
    native: list[float] = field(default_factory=list)
    python: list[float] = field(default_factory=list)
    kinds: Counter[RoundKind] = field(default_factory=Counter)
    """Rounds of each kind."""
    target_passes: list[tuple[PassKind, int, float]] = field(default_factory=list)
    draft_prompt: list[float] = field(default_factory=list)
    draft_passes: list[tuple[PassKind, int, float]] = field(default_factory=list)

    def begin_repeat(self) -> None:
        """Count the answers to come as a new repeat."""
        self.repeats.append(Statistics())

    def speeds(self) -> list[float]:
        """Tokens per second of each repeat."""
        return [repeat.tokens_per_second for repeat in self.repeats]

    def answer(
        self,
        session: Session,
        prompt: Prompt,
        options: GenerationOptions,
        meter: EnergyMeter,
        each_token: Callable[[int], None],
    ) -> list[int]:
        """Answer a prompt and add what was seen to the last of ``repeats``.

        Args:
            session: of two ``RecordedModel``.
            each_token: called with the number of tokens so far.

        Returns:
            The answer's tokens.
        """
        target, drafter = session.target.model, session.drafter and session.drafter.model
        assert isinstance(target, RecordedModel) and isinstance(drafter, RecordedModel)
        session.forget()  # every prompt is read whole
        target.clear()
        drafter.clear()
        tokens: list[int] = []
        moments: list[_Moment] = []
        joules = meter.joules()
        started = perf_counter()
        for piece in session.stream(prompt, options):
            if piece.token is None:
                continue
            if not tokens:
                self.first_token.append(perf_counter() - started - drafter.excess_seconds)
            tokens.append(piece.token)
            assert session.last is not None
            stats = session.last.statistics
            if stats.rounds == len(moments):
                moments[-1].tokens += 1
            else:
                excess = drafter.excess_seconds
                moments.append(
                    _Moment(
                        stats.seconds - excess,
                        stats.draft_seconds - excess,
                        stats.target_seconds,
                        stats.native_seconds,
                    )
                )
            each_token(len(tokens))
        self.joules += meter.joules() - joules
        assert session.last is not None
        self._take(session.last.statistics, moments, target, drafter)
        return tokens

    def _take(
        self,
        stats: Statistics,
        moments: list[_Moment],
        target: RecordedModel,
        drafter: RecordedModel,
    ) -> None:
        stats.seconds -= drafter.excess_seconds
        stats.draft_seconds -= drafter.excess_seconds
        self.excess += drafter.excess_seconds
        self.sums += stats
        self.repeats[-1] += stats
        self.prompt.append(stats.prompt_seconds)
        before = _Moment(0.0, 0.0, 0.0, 0.0)
        for now in moments:
            whole, native = now.seconds - before.seconds, now.native - before.native
            models = now.draft - before.draft + now.target - before.target
            self.round.append(whole)
            self.native.append(native)
            self.python.append(whole - models - native)
            self.token += [whole / now.tokens] * now.tokens
            before = now
        scored = [
            each
            for each in target.passes
            if each.context >= stats.prompt_tokens - 1  # else it read the prompt
        ]
        self.kinds.update(round_kinds(scored, drafter.passes))
        self.target_passes += [(each.kind, each.tokens, each.seconds) for each in scored]
        for each in drafter.passes:
            if each.context:
                self.draft_passes.append((each.kind, each.tokens, each.seconds))
            else:
                self.draft_prompt.append(each.seconds)

    def mode(self) -> Mode:
        """The figures of at least one answer."""
        sums = self.sums
        speeds = self.speeds()
        per_token = 1e3 / sums.target_tokens
        return Mode(
            tokens=sums.target_tokens,
            rounds=sums.rounds,
            rounds_by_kind=Rounds.model_validate(dict(self.kinds)),
            nodes_per_round=sum(n - 1 for _, n, _ in self.target_passes) / sums.rounds,
            tokens_per_second=statistics.median(speeds),
            tokens_per_second_of_repeats=speeds,
            block_efficiency=sums.block_efficiency,
            acceptance_rate=sums.acceptance_rate,
            time_per_token=TimePerToken(
                draft_ms=sums.draft_seconds * per_token,
                target_ms=sums.target_seconds * per_token,
                native_ms=sums.native_seconds * per_token,
                python_ms=sums.python_seconds * per_token,
            ),
            prompt=summarize(self.prompt),
            prompt_tokens_per_second=(
                sums.prompt_tokens / sums.prompt_seconds if sums.prompt_seconds else None
            ),
            first_token=summarize(self.first_token),
            token=summarize(self.token),
            round=summarize(self.round),
            native=summarize(self.native),
            python=summarize(self.python),
            target_passes=summarize_passes(self.target_passes),
            draft_prompt=summarize(self.draft_prompt),
            draft_passes=summarize_passes(self.draft_passes),
        )


def round_kinds(scored: Sequence[Pass], drafted: Sequence[Pass]) -> Iterator[RoundKind]:
    """The kind of each round, by its pass of the target and the drafter's passes before that.

    Args:
        scored: the target's passes, one a round, in order.
        drafted: the drafter's, in order.
    """
    left = iter(drafted)
    ahead = next(left, None)
    for each in scored:
        ran = False
        while ahead is not None and ahead.began < each.began:
            ran, ahead = True, next(left, None)
        if each.tokens == 1:
            yield "plain"
        else:
            yield each.kind if ran else "lookup"
