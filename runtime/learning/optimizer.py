"""The optimizer of everything that is learnt on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class AdamW:
    """Adam with decoupled weight decay (arXiv 1711.05101, algorithm 2), as ``torch.optim.AdamW``.

    Attributes:
        steps: made so far.
        first, second: running means of gradients and of their squares, for each weight.
    """

    def __init__(
        self,
        weights: Mapping[str, Floats],
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        self.learning_rate = learning_rate
        self.betas = betas
        self.epsilon = epsilon
        self.weight_decay = weight_decay
        self.steps = 0
        self.first = {name: np.zeros_like(values) for name, values in weights.items()}
        self.second = {name: np.zeros_like(values) for name, values in weights.items()}

    def step(self, weights: MutableMapping[str, Floats], gradients: Mapping[str, Floats]) -> None:
        """Put new arrays into ``weights``, all of them at once: an interrupted step is none."""
        steps = self.steps + 1
        beta1, beta2 = self.betas
        size = np.float32(self.learning_rate / (1 - beta1**steps))
        correction = np.float32(1 / math.sqrt(1 - beta2**steps))
        decay = np.float32(1 - self.learning_rate * self.weight_decay)
        new, firsts, seconds = {}, {}, {}
        for name, weight in weights.items():
            gradient, first, second = gradients[name], self.first[name], self.second[name]
            firsts[name] = first = first + np.float32(1 - beta1) * (gradient - first)
            seconds[name] = second = second + np.float32(1 - beta2) * (gradient**2 - second)
            change = size * first / (np.sqrt(second) * correction + np.float32(self.epsilon))
            new[name] = decay * weight - change
        weights.update(new)
        self.first, self.second, self.steps = firsts, seconds, steps
