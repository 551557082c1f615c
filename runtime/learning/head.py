"""The acceptance head: from what the drafter knows of a draft token, will the target accept it?

    head = AcceptanceHead(hidden_size)
    head.score(hidden, confidence)        # of one token, in place of the confidence
    Drafting(..., scorer=scorer_of(head, drafter))

After SpecDec++ (arXiv 2405.19715) as OmniDraft uses it (method, section 4), on target-space
positions, merges included. In a chain its score takes the place of the drafter's own
probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.engines.model import CausalModel, HiddenStates
from omnidraft.runtime.errors import DamagedFileError
from omnidraft.runtime.learning.lessons import EPSILON, Floats, Lessons, normalized
from omnidraft.runtime.learning.optimizer import AdamW

WIDTH: Final = 16
# A confidence is taken as lying between this and 1 less this: the surest drafters err, too.
_LEAST: Final = 1e-3


class AcceptanceHead:
    """f(x, c) = σ(logit c + w₂ · SiLU(W₁ x̂ + b₁) + a · logit c + b₂).

    x̂ is the hidden state divided by its root mean square, c the drafter's confidence. At first w₂,
    a and b₂ are 0, so that an untrained head says what the drafter says. It learns what that lacks,
    and weight decay draws it back there.

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
        inner = normalized(hidden) @ w["w1"] + w["b1"]
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
        x = normalized(lessons.hidden)
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
            head.optimizer.steps = _count(state["steps"][0])
            for name, value in head._weights.items():
                value[...] = _of_shape(state[name], value)
                for part, moments in (
                    ("first", head.optimizer.first),
                    ("second", head.optimizer.second),
                ):
                    moments[name][...] = _of_shape(state[f"{part}.{name}"], value)
        except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
            raise DamagedFileError(
                f"The acceptance head is damaged ({error}). Delete the adapter and learn it again."
            ) from error
        return head


def scorer_of(head: AcceptanceHead, model: CausalModel) -> Callable[[float], float] | None:
    """Scores the token that a drafter drew last, by its hidden state and its confidence.

    Returns:
        None where the drafter gives no hidden states, or others than the head reads.
    """
    if not isinstance(model, HiddenStates) or model.hidden_size != head.hidden_size:
        return None
    return lambda confidence: head.score(model.last_hidden(), confidence)


def _of_shape(stored: NDArray[np.float32], like: Floats) -> NDArray[np.float32]:
    if stored.shape != like.shape:
        raise ValueError(f"an array of shape {stored.shape} instead of {like.shape}")
    if not np.isfinite(stored).all():
        raise ValueError("values that are not finite")
    return stored


def _count(steps: np.float32) -> int:
    if steps < 0:
        raise ValueError(f"{steps} steps")
    return int(steps)


def _logit(probability: Floats) -> Floats:
    p = np.clip(probability, _LEAST, 1 - _LEAST)
    result: Floats = np.log(p / (1 - p))
    return result


def _sigmoid(x: NDArray[Any]) -> Floats:
    result: Floats = np.reciprocal(1 + np.exp(-np.clip(x, -30, 30)), dtype=np.float32)
    return result
