"""Weights that 4-bit and 8-bit kernels hold exactly, and inputs as 8-bit kernels see them.

A weight is channel scale × block multiple × level: level in −7 … 7, multiple in 1 … 18 for each
block of 32 along the input. So multiple × level is an 8-bit integer under the channel's scale, and
level a 4-bit integer under the block's: nothing is lost in either form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from omnidraft.distill.config import BLOCK

LEVELS, MULTIPLES = 7, 18


def split(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest levels [out, blocks, 32], multiples [out, blocks, 1], scales [out, 1, 1]."""
    blocks = weight.float().unflatten(1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    scale = largest.amax(1, keepdim=True) / (LEVELS * MULTIPLES)
    # bfloat16 is what XNNPACK keeps scales in; products with multiples of 18 fit no fewer bits, but
    # they are formed from this one number everywhere. Not below float16's normal numbers.
    scale = scale.bfloat16().float().clamp(min=2**-14)
    multiple = (largest / (LEVELS * scale)).round().clamp(1, MULTIPLES)
    level = (blocks / (multiple * scale)).round().clamp(-LEVELS, LEVELS)
    return level, multiple, scale


def on_grid(weight: Tensor) -> Tensor:
    """[out, in] moved to the grid; gradients pass as if it had not been."""
    with torch.no_grad():
        level, multiple, scale = split(weight)
        moved = (level * multiple * scale).flatten(1) - weight
    return weight + moved


def eight_bits(x: Tensor) -> Tensor:
    """Rounded to 256 levels between each row's extremes, 0 among them; gradients pass."""
    with torch.no_grad():
        low = x.float().amin(-1, keepdim=True).clamp(max=0)
        step = (x.float().amax(-1, keepdim=True).clamp(min=0) - low) / 255 + 1e-12
        zero = (-low / step).round()
        moved = (((x / step + zero).round().clamp(0, 255) - zero) * step - x).to(x.dtype)
    return x + moved


@dataclass
class Rounding:
    """What a drafter's matrices and their inputs go through."""

    weights: Callable[[Tensor], Tensor] = lambda weight: weight
    inputs: Callable[[Tensor], Tensor] = lambda x: x
