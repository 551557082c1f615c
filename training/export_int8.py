"""Write a float drafter as int8 with block scales, the form that the product ships.

    python export_int8.py --drafter folder --tokenizer tokenizer.json --out folder

Every matrix NAME becomes int8 NAME [out, in] and float16 NAME.scale [out, in / 32], with
weight = int8 * scale in blocks of 32 along `in`; vectors are float16.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from grid import split
from safetensors.torch import load_file, save_file
from torch import Tensor

BLOCK = 32
FORMAT = "omnidraft-int8-block32"


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[out, in] -> int8 [out, in], float16 scales [out, in / 32]; symmetric, nearest."""
    blocks = weight.float().unflatten(1, (-1, BLOCK))
    scale = (blocks.abs().amax(-1) / 127).half()
    # A float16 scale rounded down would push the largest weight of its block past 127.
    steps = blocks / scale.float().clamp(min=2**-24)[..., None]
    return steps.round().clamp(-127, 127).to(torch.int8).flatten(1), scale


def from_grid(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a matrix on the grid of grid.py, without loss."""
    level, multiple, scale = split(weight)
    steps = (level * multiple).to(torch.int8).flatten(1)
    return steps, scale.half().expand(multiple.shape)[..., 0].contiguous()


def dequantize(weight: Tensor, scale: Tensor) -> Tensor:
    """The inverse, in float32."""
    return (weight.float().unflatten(1, (-1, BLOCK)) * scale.float()[..., None]).flatten(1)


def load_float(path: Path) -> dict[str, Tensor]:
    """Float32 tensors of a float or an int8 file."""
    raw = load_file(path)
    return {
        name: dequantize(value, raw[name + ".scale"])
        if value.dtype == torch.int8
        else value.float()
        for name, value in raw.items()
        if not name.endswith(".scale")
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--grid", action="store_true", help="trained with --grid")
    args = parser.parse_args()
    tensors: dict[str, Tensor] = {}
    for name, value in load_file(args.drafter / "model.safetensors").items():
        if value.dim() == 2:
            rounded = (from_grid if args.grid else quantize)(value)
            tensors[name], tensors[name + ".scale"] = rounded
        else:
            tensors[name] = value.half()
    args.out.mkdir(parents=True, exist_ok=True)
    temporary = args.out / "model.safetensors.tmp"
    save_file(tensors, temporary, metadata={"format": FORMAT})
    temporary.rename(args.out / "model.safetensors")
    shutil.copyfile(args.drafter / "config.json", args.out / "config.json")
    shutil.copyfile(args.tokenizer, args.out / "tokenizer.json")


if __name__ == "__main__":
    main()
