"""The acceptance head: from what the drafter knows of a draft token, will the target accept it?

    head = AcceptanceHead(hidden_size)
    head.score(hidden, confidence)        # of one token, in place of the confidence
    trainer = HeadTrainer(head, "interleaved")
    for _ in range(trainer.add(lessons)): # of every answer
        trainer.update()
    trainer.proven()                      # the head, once it predicts better than the confidence

After SpecDec++ (arXiv 2405.19715) as OmniDraft uses it (method, section 4), on target-space
positions, merges included. Its score takes the place of the drafter's own
probability in ``DraftLengthPolicy.go_on``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.errors import DamagedFileError
from omnidraft.runtime.learning.optimizer import AdamW

Floats = NDArray[np.float32]
HeadTraining = Literal["joint", "interleaved"]
WIDTH: Final = 16
EPSILON: Final = 1e-8
# A confidence is taken as lying between this and 1 less this: the surest drafters err, too.
_LEAST: Final = 1e-3
# Rows that are likelier never to be judged than by this teach nothing that matters.
_LEAST_WEIGHT: Final = 1e-3


@dataclass(frozen=True)
class Lessons:
    """Draft tokens and what came of them.

    Attributes:
        hidden: float16 or float32 [n, hidden_size] the hidden state that each was drawn from.
        confidence: float32 [n] the drafter's largest probability there.
        label: float32 [n] in [0, 1], see ``position_labels``.
        weight: float32 [n] how likely the tokens before it were to stand, which is when it counts.
    """

    hidden: NDArray[np.floating[Any]]
    confidence: Floats
    label: Floats
    weight: Floats

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, rows: slice | NDArray[Any]) -> Self:
        return type(self)(*(values[rows] for values in self.arrays().values()))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The attributes by name."""
        return dict(vars(self))

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in self.arrays().values())

    @classmethod
    def none(cls, hidden_size: int) -> Self:
        """No lessons."""
        empty = np.zeros(0, np.float32)
        return cls(np.zeros((0, hidden_size), np.float16), empty, empty, empty)

    @classmethod
    def join(cls, parts: Sequence[Lessons]) -> Self:
        """One after the other; at least one."""
        columns = zip(*(part.arrays().values() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    @classmethod
    def of_round(
        cls, hidden: Floats, confidence: Floats, p: Floats, q: Floats, draft_counts: Sequence[int]
    ) -> Self:
        """What a round teaches, in little memory; what was sure not to be judged is left out.

        Args:
            hidden, confidence: of each draft token of a proposed target token.
            p, q, draft_counts: see ``position_labels``.
        """
        label = position_labels(p, q, draft_counts)
        weight = np.cumprod(np.append(np.float32(1), label))[:-1].astype(np.float32)
        kept = weight >= _LEAST_WEIGHT
        small = _normalized(hidden[kept]).astype(np.float16)
        return cls(small, confidence[kept], label[kept], weight[kept])


class AcceptanceHead:
    """f(x, c) = σ(logit c + w₂ · SiLU(W₁ x̂ + b₁) + a · logit c + b₂).

    x̂ is the hidden state divided by its root mean square, c the drafter's confidence. At first w₂,
    a and b₂ are 0: an untrained head says what the drafter says, learns what that lacks, and weight
    decay draws it back there.

    Args:
        hidden_size: of the drafter.
        width: units of the hidden layer.
        rejection_weight: how much more a rejected token counts than an accepted one. Above 1 the
            predictions are no longer probabilities, but lower.
        learning_rate, weight_decay: of AdamW. As large a decay, since hundreds of numbers are to be
            learned from hundreds of rows.
        seed: of W₁.
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        width: int = WIDTH,
        rejection_weight: float = 1.0,
        learning_rate: float = 1e-3,
        weight_decay: float = 3.0,
        seed: int = 0,
    ) -> None:
        self.hidden_size = hidden_size
        self.rejection_weight = rejection_weight
        rng = np.random.default_rng(seed)
        w1 = rng.standard_normal((hidden_size, width)) / np.sqrt(hidden_size)
        self._weights: dict[str, Floats] = {
            "w1": w1.astype(np.float32),
            "b1": np.zeros(width, np.float32),
            "w2": np.zeros(width, np.float32),
            "b2": np.zeros(1, np.float32),
            "a": np.zeros(1, np.float32),
        }
        self.optimizer = AdamW(self._weights, learning_rate, weight_decay=weight_decay)

    def predict(self, hidden: NDArray[np.floating[Any]], confidence: Floats) -> Floats:
        """Probability of acceptance.

        Args:
            hidden: float [n, hidden_size].
            confidence: float32 [n].

        Returns:
            float32 [n].
        """
        w = self._weights
        inner = _normalized(hidden) @ w["w1"] + w["b1"]
        inner *= _sigmoid(inner)
        return _sigmoid(inner @ w["w2"] + (1 + w["a"]) * _logit(confidence) + w["b2"])

    def score(self, hidden: Floats, confidence: float) -> float:
        """``predict`` of one hidden state, float32 [hidden_size], in a fifth of the time."""
        w = self._weights
        size = 1 / math.sqrt(float(hidden @ hidden) / self.hidden_size + EPSILON)
        inner = (hidden @ w["w1"]) * size + w["b1"]
        inner /= 1 + np.exp(-inner)
        sure = min(1 - _LEAST, max(_LEAST, confidence))
        logit = float(inner @ w["w2"]) + float(w["b2"][0])
        logit += (1 + float(w["a"][0])) * math.log(sure / (1 - sure))
        return 1 / (1 + math.exp(-min(30.0, max(-30.0, logit))))

    def update(self, lessons: Lessons) -> float:
        """One step of AdamW on the weighted binary cross-entropy.

        Args:
            lessons: at least one; their weights not all 0.

        Returns:
            The loss before the step, in nats: Σ w (−y log f − r (1 − y) log(1 − f)) / Σ w, with r
            the ``rejection_weight``.

        Raises:
            ValueError: arrays that do not fit each other, or a label outside [0, 1].
        """
        label, weight, count = lessons.label, lessons.weight, len(lessons)
        if lessons.hidden.shape != (count, self.hidden_size):
            raise ValueError(f"hidden states {lessons.hidden.shape} do not fit the head")
        if not count or weight.shape != (count,) or not weight.sum() > 0:
            raise ValueError("an update needs rows, and a weight for each")
        if lessons.confidence.shape != (count,):
            raise ValueError(f"{len(lessons.confidence)} confidences do not fit {count} rows")
        if label.min() < 0 or label.max() > 1:
            raise ValueError("labels must lie in 0…1")
        w = self._weights
        share = weight / weight.sum()
        x = _normalized(lessons.hidden)
        sure = _logit(lessons.confidence)
        before = x @ w["w1"] + w["b1"]
        gate = _sigmoid(before)
        inner = before * gate
        f = np.clip(_sigmoid(inner @ w["w2"] + (1 + w["a"]) * sure + w["b2"]), 1e-7, 1 - 1e-7)
        rejection = self.rejection_weight * (1 - label)
        loss = float(-(share * (label * np.log(f) + rejection * np.log(1 - f))).sum())
        slope = share * (rejection * f - label * (1 - f))  # of the loss by the logit
        back = slope[:, None] * w["w2"] * (gate * (1 + before * (1 - gate)))
        gradients = {
            "w1": x.T @ back,
            "b1": back.sum(0),
            "w2": inner.T @ slope,
            "b2": slope.sum(keepdims=True),
            "a": (slope * sure).sum(keepdims=True),
        }
        self.optimizer.step(w, gradients)
        return loss

    def state(self) -> dict[str, Floats]:
        """Everything learnt, the optimizer's moments included: float32 arrays by name, copies."""
        state = {name: value.copy() for name, value in self._weights.items()}
        for name in self._weights:
            state[f"first.{name}"] = self.optimizer.first[name].copy()
            state[f"second.{name}"] = self.optimizer.second[name].copy()
        state["steps"] = np.array([self.optimizer.steps], np.float32)
        state["rejection_weight"] = np.array([self.rejection_weight], np.float32)
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray[np.float32]]) -> Self:
        """The head whose ``state`` this was.

        Raises:
            DamagedFileError: an array is missing or of another shape.
        """
        try:
            hidden_size, width = state["w1"].shape
            head = cls(
                hidden_size, width=width, rejection_weight=float(state["rejection_weight"][0])
            )
            head.optimizer.steps = int(state["steps"][0])
            for name, value in head._weights.items():
                value[...] = _of_shape(state[name], value)
                for part, moments in (
                    ("first", head.optimizer.first),
                    ("second", head.optimizer.second),
                ):
                    moments[name][...] = _of_shape(state[f"{part}.{name}"], value)
        except (KeyError, ValueError, IndexError, OverflowError) as error:
            raise DamagedFileError(
                f"The acceptance head is damaged ({error}). Delete the adapter and learn it again."
            ) from error
        return head


TRUST: Final = 2.0
"""A head is better when it was by so many standard errors."""
TESTS: Final = 64
"""Answers that this is judged by, the newest."""


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
    updates: int = 0
    pending: int = 0
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
    ``passes`` over it, so that the head learns more from an answer than the drafter does, and
    forgets less. With more passes it learns the buffer by heart.

    Each answer is a test before it is a lesson. Only a head whose cross-entropy was below that of
    the drafter's confidence, beyond chance, is ``proven``; until then the confidence is as good.

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


def position_labels(p: Floats, q: Floats, draft_counts: Sequence[int]) -> Floats:
    """What the head should say of each draft token: min(1, p / q) of its target token.

    The sub-tokens of a merged token share its label, each the n-th root of it, so that the product
    along the path is the probability that the whole path is accepted.

    Args:
        p: float32 [m] the target's probability of each proposed token; greedy: 1 for its argmax,
            else 0.
        q: float32 [m] the drafter's, the product of the sub-tokens' for a merged token; greedy: 1.
        draft_counts: m counts, see ``Proposal.draft_counts``.

    Returns:
        float32 [sum of the counts].
    """
    accepted = np.minimum(1, p / np.maximum(q, np.finfo(np.float32).tiny))
    counts = np.asarray(draft_counts, np.int64)
    shared: Floats = (accepted ** (1 / counts)).astype(np.float32)
    return np.repeat(shared, counts)


def _restored(rows: Mapping[str, NDArray[Any]], hidden_size: int) -> Lessons:
    """The rows of ``HeadTrainer.state``; none where they are another drafter's or damaged."""
    none = Lessons.none(hidden_size)
    if rows.keys() != none.arrays().keys():
        return none
    lessons = Lessons(**rows)
    return lessons if lessons.hidden.shape == (len(lessons), hidden_size) else none


def _of_shape(stored: NDArray[np.float32], like: Floats) -> NDArray[np.float32]:
    if stored.shape != like.shape:
        raise ValueError(f"an array of shape {stored.shape} instead of {like.shape}")
    return stored


def _normalized(hidden: NDArray[np.floating[Any]]) -> Floats:
    hidden = hidden.astype(np.float32)
    square = np.square(hidden).mean(-1, keepdims=True)
    result: Floats = hidden / np.sqrt(square + EPSILON)
    return result


def _logit(probability: Floats) -> Floats:
    p = np.clip(probability, _LEAST, 1 - _LEAST)
    result: Floats = np.log(p / (1 - p))
    return result


def _sigmoid(x: NDArray[Any]) -> Floats:
    result: Floats = np.reciprocal(1 + np.exp(-np.clip(x, -30, 30)), dtype=np.float32)
    return result
