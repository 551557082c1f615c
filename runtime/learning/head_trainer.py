"""Tests and trains an acceptance head, answer by answer.

trainer = HeadTrainer(head, "interleaved")
for _ in range(trainer.add(lessons)): # of every answer
    trainer.update()
trainer.proven()                      # the head, once it predicts better than the confidence
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.learning.head import AcceptanceHead
from omnidraft.runtime.learning.lessons import Floats, Lessons
from omnidraft.runtime.storage.validation import Count

HeadTraining = Literal["joint", "interleaved"]
_LEAST: Final = 1e-3
TRUST: Final = 2.0
"""A head is better when its lead is so many standard errors."""
TESTS: Final = 64
"""A head is judged by so many of the newest answers."""


@dataclass
class HeadProgress:
    """How a head has done; a JSON object, kept with the adapter.

    Attributes:
        training: the way it is trained.
        updates: steps of AdamW.
        pending: answers that wait for an update.
        tests: of the newest answers, before anything was learned from them: the weight of their
            rows and the summed binary cross-entropies, in nats, of the head and of the confidence.
        bce, confidence_bce: the means of these, nats a draft token; None before the first test.
        in_use: whether the head was better beyond chance, and so decides.
    """

    training: HeadTraining = "interleaved"
    updates: Count = 0
    pending: Count = 0
    tests: list[tuple[float, float, float]] = field(default_factory=list)
    bce: float | None = None
    confidence_bce: float | None = None
    in_use: bool = False

    def as_dict(self) -> dict[str, Any]:
        """What is to be shown: without the single tests."""
        return {name: value for name, value in vars(self).items() if name != "tests"}


class HeadTrainer:
    """Tests a head on every answer, then feeds it, in one of two ways (method, section 4).

    ``joint``: the rows of ``interval`` answers are one update, as they are of the drafter.
    ``interleaved``: they go into a replay buffer, and updates drawn from it follow, as many as make
    ``passes`` over it. So the head learns more from an answer than the drafter does, and forgets
    less. With more passes it learns the buffer by heart.

    Each answer is a test before it is a lesson. A head is ``proven`` once its cross-entropy is
    below that of the drafter's confidence, beyond chance. Until then the confidence is as good.

    Args:
        head: is trained.
        training: which way.
        interval: answers for an update.
        progress, rows: as ``state`` gave them.
        capacity: rows in the buffer; the oldest make room. A row takes 2 bytes a hidden unit.
        passes: over the buffer for each ``interval``, interleaved.
        batch: rows of an update there.
        seed: of what is drawn.
    """

    def __init__(
        self,
        head: AcceptanceHead,
        training: HeadTraining,
        *,
        interval: int = 8,
        progress: HeadProgress | None = None,
        rows: Mapping[str, NDArray[Any]] | None = None,
        capacity: int = 8192,
        passes: float = 1.0,
        batch: int = 256,
        seed: int = 0,
    ) -> None:
        self.head = head
        self.progress = progress or HeadProgress()
        self.progress.training = training
        self.rows = _restored(rows or {}, head.hidden_size)
        """What there is to learn from, the oldest first."""
        self._interval = interval
        self._capacity = capacity
        self._passes = passes
        self._batch = batch
        self._random = np.random.default_rng(seed)

    def add(self, lessons: Lessons) -> int:
        """Take an answer's rows.

        Returns:
            How many times ``update`` is now to be called.
        """
        progress = self.progress
        if len(lessons):
            self._test(lessons)
            self.rows = Lessons.join([self.rows, lessons])[-self._capacity :]
        progress.pending += 1
        if progress.pending < self._interval or not len(self.rows):
            return 0
        progress.pending = 0
        if progress.training == "joint":
            return 1
        return max(1, round(self._passes * len(self.rows) / self._batch))

    def update(self) -> float:
        """Make one update: see ``AcceptanceHead.update``, whose loss is returned."""
        self.progress.updates += 1
        batch = self.rows
        if self.progress.training == "joint":
            self.rows = batch[:0]
        else:
            drawn = self._random.integers(0, len(batch), min(self._batch, len(batch)))
            batch = batch[drawn]
        return self.head.update(batch)

    def proven(self) -> AcceptanceHead | None:
        """A copy of the head that goes on as it is, or None while the confidence is as good."""
        return AcceptanceHead.from_state(self.head.state()) if self.progress.in_use else None

    def state(self) -> tuple[dict[str, Floats], dict[str, NDArray[Any]], HeadProgress]:
        """The head's state, the rows it learns from, and how it has done."""
        return self.head.state(), self.rows.arrays(), HeadProgress(**vars(self.progress))

    def _test(self, lessons: Lessons) -> None:
        progress = self.progress
        if not progress.updates:
            return
        said = self.head.predict(lessons.hidden, lessons.confidence)
        losses = (cross_entropy(lessons, said), cross_entropy(lessons, lessons.confidence))
        progress.tests = [*progress.tests, (float(lessons.weight.sum()), *losses)][-TESTS:]
        weight, head, confidence = np.array(progress.tests).T
        progress.bce = float(head.sum() / weight.sum())
        progress.confidence_bce = float(confidence.sum() / weight.sum())
        gains = confidence - head
        # The sum's standard error, were there no difference.
        progress.in_use = bool(gains.sum() > TRUST * np.sqrt(np.square(gains).sum()))


def cross_entropy(lessons: Lessons, predicted: Floats) -> float:
    """Binary cross-entropy of predictions, in nats, summed with the rows' weights.

    Args:
        predicted: float32 [n].
    """
    f = np.clip(predicted, _LEAST, 1 - _LEAST).astype(np.float64)
    y = lessons.label
    return float(-(lessons.weight * (y * np.log(f) + (1 - y) * np.log(1 - f))).sum())


def _restored(rows: Mapping[str, NDArray[Any]], hidden_size: int) -> Lessons:
    """The rows of ``HeadTrainer.state``; none where they are another drafter's or damaged."""
    columns = Lessons.none(hidden_size).arrays()
    none = Lessons(**columns)
    if rows.keys() != columns.keys():
        return none
    count = rows["label"].size
    whole = all(
        values.shape == (count, *columns[name].shape[1:]) and values.dtype.kind == "f"
        for name, values in rows.items()
    )
    return Lessons(**rows) if whole else none
