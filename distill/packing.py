"""A drafter's weights as they are shipped: int8 in blocks of 32, halves for vectors.

Every matrix NAME becomes int8 NAME [out, in] and float16 NAME.scale [out, in / 32], with
weight = int8 x scale; vectors are float16. What was trained on the grid loses nothing.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from omnidraft.distill.config import BLOCK
from omnidraft.distill.grid import split

FORMAT = "omnidraft-int8-block32"


def pack(state: dict[str, Tensor], *, grid: bool) -> dict[str, Tensor]:
    """Tensors of the file.

    Args:
        state: float32, by name.
        grid: whether the matrices lie on the grid of ``grid``.
    """
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        if value.dim() == 2:
            tensors[name], tensors[f"{name}.scale"] = (_from_grid if grid else _nearest)(value)
        else:
            tensors[name] = value.half()
    return {name: value.contiguous() for name, value in tensors.items()}


def unpack(path: Path) -> dict[str, Tensor]:
    """float32 tensors of a packed file, or of one that is not packed."""
    raw = load_file(path)
    return {
        name: _dequantized(value, raw[f"{name}.scale"])
        if value.dtype == torch.int8
        else value.float()
        for name, value in raw.items()
        if not name.endswith(".scale")
    }


def _nearest(weight: Tensor) -> tuple[Tensor, Tensor]:
    blocks = weight.float().unflatten(1, (-1, BLOCK))
    scale = (blocks.abs().amax(-1) / 127).half()
    # A float16 scale rounded down would push the largest weight of its block past 127.
    steps = blocks / scale.float().clamp(min=2**-24)[..., None]
    return steps.round().clamp(-127, 127).to(torch.int8).flatten(1), scale


def _from_grid(weight: Tensor) -> tuple[Tensor, Tensor]:
    level, multiple, scale = split(weight)
    steps = (level * multiple).to(torch.int8).flatten(1)
    return steps, scale.half().expand(multiple.shape)[..., 0].contiguous()


def _dequantized(weight: Tensor, scale: Tensor) -> Tensor:
    return (weight.float().unflatten(1, (-1, BLOCK)) * scale.float()[..., None]).flatten(1)
