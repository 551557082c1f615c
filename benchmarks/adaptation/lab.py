"""What the experiments share: a target, its recorded answers, and drafters that learn or do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.adaptation.replay import Answers, ReplayModel
from omnidraft._native import Eviction, NgramCache, VocabularyPair
from omnidraft.export.learnable import learnable_drafter
from omnidraft.runtime.bench import Prompt
from omnidraft.runtime.learning.learner import AdapterChoice
from omnidraft.runtime.learning.objective import LossName, Objective
from omnidraft.runtime.learning.observations import direct_mapping
from omnidraft.runtime.learning.store import AdapterStore
from omnidraft.runtime.learning.trainer import LearningOptions
from omnidraft.runtime.models import LoadedModel, load_model
from omnidraft.runtime.options import GenerationOptions
from omnidraft.runtime.pairing import native_vocabulary
from omnidraft.runtime.session import Session
from omnidraft.runtime.statistics import Statistics

AblatedLoss = LossName | Literal["dm"]
"""``dm``: L_DM, the hybrid loss without its n-grams."""

# Draws of prompts from which the interval of a gain is taken.
_RESAMPLES = 2000


@dataclass(frozen=True)
class Setting:
    """What all runs of an experiment have in common.

    Args:
        store: where learned adapters are kept meanwhile.
        answers: folder of recorded answers.
        drafter: as ``load_model`` takes it; the bundle that can learn is made at first use.
        generation: greedy.
        learning: its loss and rank are those of runs that do not name theirs.
    """

    store: AdapterStore
    answers: Path
    drafter: str
    generation: GenerationOptions
    learning: LearningOptions

    def with_loss(self, loss: AblatedLoss) -> LearningOptions:
        objective = Objective("hybrid", ngram_weight=0.0)
        if loss != "dm":
            objective = Objective(loss, self.learning.objective.ngram_weight)
        return dataclasses.replace(self.learning, objective=objective)


@dataclass(frozen=True)
class Answered:
    """One prompt's run.

    Attributes:
        statistics: of the generation.
        ngram_tokens: tokens of prompt and answer that only an n-gram can stand for.
        answer_ngram_tokens: of those, the ones of the answer.
        identical: the answer is that of plain decoding; None: that is not known.
    """

    statistics: Statistics
    ngram_tokens: int
    answer_ngram_tokens: int
    identical: bool | None


class Lab:
    """A target and its answers; opens sessions that learn with it or replay it.

    Args:
        tick: called after each prompt with what is being done.
        threads: for one pass of the drafter.
    """

    def __init__(
        self,
        target: LoadedModel,
        setting: Setting,
        tick: Callable[[str, int, int], None],
        threads: int = 2,
    ) -> None:
        self.target = target
        self._threads = threads
        self.setting = setting
        self._tick = tick
        self.answers = Answers(target, setting.generation, setting.answers)
        width, model = target.model.vocab_size, target.model
        self._replay = ReplayModel(width, model.max_length)
        self._replayed = dataclasses.replace(target, model=self._replay)
        drafter = self._open_drafter()
        self.pair = VocabularyPair(
            native_vocabulary(drafter.tokenizer, drafter.model.vocab_size),
            native_vocabulary(target.tokenizer, width),
        )
        surfaces = target.tokenizer.surfaces
        plain = [token < len(surfaces) and surfaces[token] is not None for token in range(width)]
        self._is_ngram = direct_mapping(self.pair, plain, drafter.model.vocab_size).ngram

    def cache(
        self, max_entries: int | None = None, eviction: Eviction = Eviction.LRU
    ) -> NgramCache:
        """An empty n-gram cache; None: bounded as a session's own."""
        if max_entries is None:
            return NgramCache(self.pair, eviction=eviction)
        return NgramCache(self.pair, max_entries, eviction=eviction)

    def no_cache(self) -> NgramCache:
        """An n-gram cache that stays empty."""
        return self.cache(0)

    def copy(self, cache: NgramCache) -> NgramCache:
        return NgramCache.from_bytes(cache.to_bytes(), self.pair)

    def record(self, *prompts: Sequence[Prompt]) -> None:
        """Have the target answer these plainly, where it has not."""
        wanted = [prompt for part in prompts for prompt in part]
        count = 0

        def done() -> None:
            nonlocal count
            count += 1
            self._tick(f"{self.target.name} answers plainly", count, len(wanted))

        self.answers.record(wanted, done)

    def replaying(self, cache: NgramCache | None, adapter: str | None = None) -> Session:
        """A session whose target says its recorded answers again; it learns n-grams only.

        Args:
            cache: None: the adapter's own.
        """
        choice = AdapterChoice(self.setting.store, adapter) if adapter else None
        session = Session(self._replayed, self._open_drafter(), adapter=choice)
        if cache is not None:
            session.cache = cache
        return session

    def learning(
        self, adapter: str, options: LearningOptions, cache: NgramCache | None = None
    ) -> Session:
        """A session whose drafter learns, between the answers.

        Cross-entropy looks at the answer only, and so the target may say it again. All other losses
        take the real target: they are made of its distributions, also after rejected tokens.

        Args:
            cache: in place of the adapter's own.
        """
        choice = AdapterChoice(self.setting.store, adapter, options)
        target = self._replayed if options.objective.loss == "ce" else self.target
        session = Session(target, self._open_drafter(), adapter=choice)
        if cache is not None and session.learner is not None:
            session.cache = session.learner.cache = cache
        return session

    def answer(self, session: Session, prompts: Sequence[Prompt], what: str) -> list[Answered]:
        """Answer every prompt; those of a replaying session have to be recorded."""
        runs = []
        for prompt in prompts:
            tokens = session.encode(prompt.prompt, raw=self.setting.generation.raw)
            known = self.answers.get(prompt)
            if session.target is self._replayed:
                assert known is not None
                self._replay.play(tokens, known)
            answer = session.generate(prompt.prompt, self.setting.generation)
            in_answer = int(self._is_ngram[answer.token_ids].sum())
            runs.append(
                Answered(
                    answer.statistics,
                    int(self._is_ngram[tokens].sum()) + in_answer,
                    in_answer,
                    None if known is None else known == answer.token_ids,
                )
            )
            self._tick(what, len(runs), len(prompts))
        return runs

    def _open_drafter(self) -> LoadedModel:
        """One of its own for each session: an adapter stays in the model that it was set in."""
        name = self.setting.drafter
        place = learnable_drafter(name)
        return dataclasses.replace(load_model(str(place), threads=self._threads), name=name)


def total(runs: Iterable[Answered]) -> Statistics:
    sums = Statistics()
    for run in runs:
        sums += run.statistics
    return sums


def figures(runs: Sequence[Answered], *, cached: bool = True) -> dict[str, Any]:
    """Sums over prompts.

    Args:
        cached: there was an n-gram cache that could hold something.

    Returns:
        A JSON object. Beside what ``Statistics`` names:

        ``hit_rate``: of the tokens of prompts and answers that only n-grams can stand for, the
        share whose n-gram the cache held when they came; ``merged_share``: of those of the answers,
        the share that was drafted as an n-gram, and accepted. None where there was nothing to hit.

        ``identical``: answers that are plain decoding's, of ``compared`` ones.
    """
    sums = total(runs)
    tokens = sum(run.ngram_tokens for run in runs)
    in_answers = sum(run.answer_ngram_tokens for run in runs)
    return {
        "prompts": len(runs),
        "target_tokens": sums.target_tokens,
        "rounds": sums.rounds,
        "block_efficiency": sums.block_efficiency,
        "acceptance_rate": sums.acceptance_rate,
        "ngram_tokens": tokens,
        "ngram_inserted": sums.ngram_inserted,
        "ngram_proposed": sums.ngram_hits,
        "ngram_accepted": sums.ngram_accepted,
        "hit_rate": 1 - sums.ngram_inserted / tokens if cached and tokens else None,
        "merged_share": sums.ngram_accepted / in_answers if cached and in_answers else None,
        "identical": sum(run.identical is True for run in runs),
        "compared": sum(run.identical is not None for run in runs),
    }


def footprint(cache: NgramCache) -> dict[str, Any]:
    """Of an n-gram cache: entries and the memory of all its structures, bytes."""
    return {
        "entries": len(cache),
        "bytes": cache.memory_bytes,
        "bytes_per_entry": cache.memory_bytes / len(cache) if len(cache) else None,
        "evictions": cache.evictions,
    }


def gain(before: Sequence[Answered], after: Sequence[Answered]) -> dict[str, Any]:
    """Ratio of block efficiencies on the same prompts, with a 95 % interval.

    The interval is a bootstrap's over prompts, each drawn with both its runs: what other prompts of
    the same kind would have shown.
    """
    rows = np.array(
        [
            (
                b.statistics.target_tokens,
                b.statistics.rounds,
                a.statistics.target_tokens,
                a.statistics.rounds,
            )
            for b, a in zip(before, after, strict=True)
        ],
        float,
    )
    drawn = np.random.default_rng(0).integers(0, len(rows), (_RESAMPLES, len(rows)))
    sums = rows[drawn].sum(axis=1)
    ratios = (sums[:, 2] / sums[:, 3]) / (sums[:, 0] / sums[:, 1])
    low, high = np.quantile(ratios, [0.025, 0.975])
    return {
        "gain": total(after).block_efficiency / total(before).block_efficiency,
        "gain_interval": [float(low), float(high)],
    }
