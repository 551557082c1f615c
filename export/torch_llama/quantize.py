"""Quantize a torch model's linears and embedding, and count the bits of its weights."""

from __future__ import annotations

import torch

from omnidraft.export.graphs.tensors import weight_shares
from omnidraft.runtime.storage.bundle import Quantization, WeightShare

GROUP = 32
"""Weights of an input-channel group that share a scale in 4-bit linears."""


def quantize(model: torch.nn.Module, quantization: Quantization) -> None:
    """Quantize linears and embedding in place, in the form that XNNPACK's partitioner knows."""
    if quantization == "none":
        return
    from torchao.quantization import IntxUnpackedToInt8Tensor
    from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import (
        IntxUnpackedToInt8TensorActivationQuantization,
    )

    activations = IntxUnpackedToInt8TensorActivationQuantization.INT8_ASYM_PER_TOKEN
    for module in model.modules():
        if not isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            continue
        weight = module.weight.data
        linear = isinstance(module, torch.nn.Linear)
        bits = 4 if linear and quantization == "int4" else 8
        size = weight.shape[1] if linear and bits == 8 else GROUP
        # XNNPACK holds the scales of groups as bfloat16: choose the integers for the rounded ones.
        scales = _best_scales(weight, size, bits, torch.bfloat16 if bits == 4 else torch.float32)
        quantized = IntxUnpackedToInt8Tensor.from_hp(
            weight,
            (1, size),
            getattr(torch, f"int{bits}"),
            intx_choose_qparams_algorithm=None,
            custom_scale=scales,
            custom_zero_point=torch.zeros_like(scales, dtype=torch.int8),
            activation_quantization=activations if linear else None,
        )
        module.weight = torch.nn.Parameter(quantized, requires_grad=False)


def weight_bits(model: torch.nn.Module, *, chip: bool = False) -> list[WeightShare]:
    """How many bits the weights have that are to be lowered; a chip has half precision."""

    def bits(weight: torch.Tensor) -> int:
        dtype = torch.float16 if chip else getattr(weight, "target_dtype", weight.dtype)
        # torch knows no size of int4: it holds such numbers in a byte each.
        return 4 if str(dtype) == "torch.int4" else dtype.itemsize * 8

    return weight_shares(
        (bits(module.weight), int(isinstance(module, torch.nn.Linear)), module.weight.numel())
        for module in model.modules()
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding)
    )


def _best_scales(weight: torch.Tensor, size: int, bits: int, dtype: torch.dtype) -> torch.Tensor:
    """The scale of each group of ``size`` inputs that loses least in squares: [out, groups].

    The largest weight of a group becomes one of several levels, so that weights which lie on a
    coarser grid already, as those of a drafter that was trained for it, are found there.
    """
    levels = 2 ** (bits - 1)
    groups = weight.reshape(len(weight), -1, size)
    largest = groups.abs().amax(-1)
    best = torch.full_like(largest, torch.inf)
    scales = torch.ones_like(largest)
    for peak in (levels, levels - 0.5, *range(levels - 1, levels - 5, -1)):
        scale = (largest / peak).to(dtype).float()
        inverse = torch.where(scale > 0, 1 / scale, 0.0)
        rounded = (groups * inverse[..., None]).round().clamp(-levels, levels - 1)
        error = (rounded * scale[..., None] - groups).square().sum(-1)
        better = (error < best) & (scale > 0)
        best = torch.where(better, error, best)
        scales = torch.where(better, scale, scales)
    return scales
