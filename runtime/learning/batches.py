"""Observed rounds as batches of the training step, by loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.learning.objective import Detail, Objective
from omnidraft.runtime.learning.observations import (
    WINDOW,
    Mapping,
    ObservedPrompt,
    ObservedRound,
)
from omnidraft.runtime.learning.training_step import MASKED, TrainingBatch

# Bounds on a batch: rows take a vocabulary of floats each, several times.
MAX_ROWS: Final = 256
MAX_TOKENS: Final = 1024


@dataclass(frozen=True)
class LearningBatch:
    """A batch of the training step, and which of its rows lie on the target's answer.

    Attributes:
        answer_rows: int64 [A] rows that follow a token of the answer (or the prompt's last).
        answer: int64 [A] the draft tokens that came there.
    """

    training: TrainingBatch
    answer_rows: NDArray[np.int64]
    answer: NDArray[np.int64]


def batches(
    prompts: Sequence[ObservedPrompt], objective: Objective, mapping: Mapping
) -> Iterator[LearningBatch]:
    """Everything these prompts teach, in batches of at most about ``MAX_ROWS`` rows.

    A row sees at most ``WINDOW`` tokens of the prompt before the batch's first row.
    """
    builder = _Builder(objective, mapping)
    for prompt in prompts:
        rounds = list(prompt.rounds)
        first = 0
        while first < len(rounds):
            last = builder.fitting(rounds, first)
            if last == first:
                yield builder.build()
                builder = _Builder(objective, mapping)
                continue
            builder.add(prompt, rounds, first, last)
            first = last
    if builder.rows:
        yield builder.build()


class _Builder:
    """A batch in the making."""

    def __init__(self, objective: Objective, mapping: Mapping) -> None:
        self.objective = objective
        self.mapping = mapping
        self.tokens: list[int] = []
        self.positions: list[int] = []
        # Runs of tokens, [begin, end), each seeing itself and one run [from, to) before it.
        self.runs: list[tuple[int, int, int, int]] = []
        self.rows: list[int] = []
        self.labels: list[int] = []
        self.label_weights: list[float] = []
        self.distributions: list[tuple[NDArray[np.int32], NDArray[np.float32], float] | None] = []
        # Rows, and the target's log-likelihood.
        self.chunks: list[tuple[list[int], float]] = []
        self.answer_rows: list[int] = []
        self.answer: list[int] = []

    def fitting(self, rounds: Sequence[ObservedRound], first: int) -> int:
        """The end of the rounds from ``first`` on that this batch has room for."""
        low = max(0, rounds[first].begin - WINDOW)
        rows, tails, last = len(self.rows), len(self.tokens), first
        answer_only = self.objective.loss == "ce"
        while last < len(rounds):
            observed = rounds[last]
            # A row for each draft token and one more; the last token's n-gram may add a few.
            rows += (observed.stood if answer_only else sum(observed.counts)) + 2
            tails += 0 if answer_only else len(observed.tail)
            tokens = tails + observed.begin + observed.stood - low
            if (rows > MAX_ROWS or tokens > MAX_TOKENS) and (last > first or self.rows):
                break
            last += 1
        return last

    def add(
        self, prompt: ObservedPrompt, rounds: Sequence[ObservedRound], first: int, last: int
    ) -> None:
        low = max(0, rounds[first].begin - WINDOW)
        high = rounds[last].begin if last < len(rounds) else len(prompt.tokens)
        start = len(self.tokens)
        self.tokens.extend(prompt.tokens[low:high])
        self.positions.extend(range(high - low))
        self.runs.append((start, len(self.tokens), start, start))
        for index in range(first, last):
            self._add_round(prompt, rounds[index], start - low)

    def _add_round(self, prompt: ObservedPrompt, seen: ObservedRound, shift: int) -> None:
        loss, weighted = self.objective.loss, self.objective.weighting == "target"
        fork = seen.begin + seen.stood  # where the draft leaves the answer
        tail_begin = len(self.tokens)
        tail = seen.tail.tolist() if loss != "ce" else []
        if tail:
            self.tokens.extend(tail)
            first = self.positions[fork - 1 + shift] + 1
            self.positions.extend(range(first, first + len(tail)))
            origin = fork - 1 + shift - self.positions[fork - 1 + shift]
            self.runs.append((tail_begin, len(self.tokens), origin, fork + shift))

        def on_answer(k: int) -> int:
            return k - 1 + shift

        def on_draft(k: int) -> int:
            return k - 1 + shift if k <= fork else tail_begin + k - fork - 1

        def spell(row: int, at: int, j: int, drafts: Sequence[int], answer: bool) -> None:
            """Label the j-th token's draft tokens, of which ``row`` predicts the first."""
            place = on_answer if answer else on_draft
            log_p = 0.0
            if self.objective.detail >= Detail.PROBABILITIES:
                log_p = seen.last_log_p if answer and j == seen.accepted else float(seen.log_p[j])
            weight = {"ce": 1.0, "hybrid": self.objective.ngram_weight, "alm": 0.0}[loss]
            weight *= float(np.exp(log_p)) if weighted else 1.0
            rows = [row, *(self._row(place(at + i)) for i in range(1, len(drafts)))]
            for each, draft in zip(rows, drafts, strict=True):
                self.labels[each] = draft
                self.label_weights[each] = weight
            if loss == "alm":
                self.chunks.append((rows, log_p))

        k = seen.begin
        ends = [0, *seen.ends.tolist()]
        # The answer alone carries cross-entropy; all else the drafter's own policy, too.
        rows = seen.rows if loss != "ce" else seen.accepted + 1
        for j in range(rows):
            row = self._row(on_draft(k))
            if loss == "hybrid":
                low, high = ends[j], ends[j + 1]
                mass = float(seen.log_mass[j])
                self.distributions[row] = (
                    seen.ids[low:high],
                    seen.ids_log_p[low:high] - mass,
                    float(np.exp(mass)),
                )
            if j <= seen.accepted:
                end = k + seen.counts[j] if j < seen.accepted else seen.end
                drafts = prompt.tokens[k:end].tolist() if end >= 0 else []
                if drafts:
                    self.answer_rows.append(row)
                    self.answer.append(drafts[0])
                kind = self.mapping.ngram if loss == "hybrid" else self.mapping.plain
                spelled = j < seen.accepted or bool(kind[seen.last])
                if loss == "hybrid":
                    spelled = spelled and len(drafts) > 1 and self.objective.ngram_weight > 0
                if drafts and spelled:
                    spell(row, k, j, drafts, True)
            if loss == "alm" and seen.accepted <= j < len(seen.counts):
                # On its own policy the drafter proposed this, too, and the target did not want it.
                drafts = tail[k - fork : k - fork + seen.counts[j]]
                spell(self._row(on_draft(k)), k, j, drafts, False)
            if j < len(seen.counts):
                k += seen.counts[j]

    def _row(self, position: int) -> int:
        self.rows.append(position)
        self.labels.append(0)
        self.label_weights.append(0.0)
        self.distributions.append(None)
        return len(self.rows) - 1

    def build(self) -> LearningBatch:
        count, rows = len(self.tokens), len(self.rows)
        mask = np.full((count, count), MASKED, np.float32)
        for begin, end, seen_from, seen_to in self.runs:
            mask[begin:end, begin:end] = np.triu(mask[begin:end, begin:end], 1)
            mask[begin:end, seen_from:seen_to] = 0
        width = max((len(d[0]) for d in self.distributions if d), default=0)
        ids = np.full((rows, width), -1, np.int64)
        log_p = np.zeros((rows, width), np.float32)
        weight = np.zeros(rows, np.float32)
        for row, distribution in enumerate(self.distributions):
            if distribution:
                listed = len(distribution[0])
                ids[row, :listed], log_p[row, :listed], weight[row] = distribution
        chunks = np.zeros((len(self.chunks), rows), np.float32)
        for chunk, (members, _) in enumerate(self.chunks):
            chunks[chunk, members] = 1
        direct = None
        if self.objective.loss == "hybrid":
            direct = np.zeros(len(self.mapping.place), np.float32)
            direct[self.mapping.drafts] = 1
        training = TrainingBatch(
            tokens=np.array(self.tokens, np.int64),
            rows=np.array(self.rows, np.int64),
            positions=np.array(self.positions, np.int64),
            mask=mask,
            direct_ids=ids,
            direct_log_p=log_p,
            direct_weight=weight,
            direct_tokens=direct,
            label=np.array(self.labels, np.int64),
            label_weight=np.array(self.label_weights, np.float32),
            chunks=chunks,
            chunk_log_p=np.array([log_p for _, log_p in self.chunks], np.float32),
            chunk_weight=np.ones(len(chunks), np.float32),
            temperature=self.objective.temperature,
        )
        return LearningBatch(
            training, np.array(self.answer_rows, np.int64), np.array(self.answer, np.int64)
        )
