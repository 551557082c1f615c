"""Muon where bfloat16 is slow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # as torch has them
_ITERATIONS = 5


class Float32Muon(torch.optim.Optimizer):
    """``torch.optim.Muon`` with Nesterov's momentum and ``match_rms_adamw``, in float32.

    torch's own turns matrices in bfloat16, which a processor without instructions for it multiplies
    many times more slowly than float32.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float, momentum: float):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Change the matrices that have a gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix.grad)
                buffer = state["momentum_buffer"]
                buffer.lerp_(matrix.grad, 1 - group["momentum"])
                update = _orthogonal(matrix.grad.lerp(buffer, group["momentum"]))
                rate = group["lr"] * 0.2 * max(matrix.shape) ** 0.5
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)


def _orthogonal(matrix: Tensor) -> Tensor:
    """Near the orthogonal matrix that is nearest, by Newton and Schulz's iteration."""
    a, b, c = _COEFFICIENTS
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = wide / wide.norm().clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    result: Tensor = x.T if matrix.shape[0] > matrix.shape[1] else x
    return result
