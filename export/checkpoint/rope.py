"""Rotary embeddings: the frequencies that a checkpoint asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.checkpoint.config import Config, RopeScaling
from omnidraft.runtime.errors import OmniDraftError


@dataclass(frozen=True)
class Rope:
    """Rotary embedding, rotate-half convention; ``inverse_frequencies`` are [head_size/2]."""

    inverse_frequencies: tuple[float, ...]

    def table(self, length: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return cosine and sine, float32 [length, head_size/2]."""
        # float32 angles, as the models were trained with.
        angles = np.outer(
            np.arange(length, dtype=np.float32),
            np.array(self.inverse_frequencies, dtype=np.float32),
        )
        return np.cos(angles), np.sin(angles)


def rope_of(base: float, head_size: int, scaling: RopeScaling | None = None) -> Rope:
    """The rotation of heads of a size, with frequencies base ** (-2 i / head_size), scaled.

    Raises:
        OmniDraftError: frequencies are scaled in a way that is not known.
    """
    inverse = base ** -(np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    scaling = scaling or RopeScaling()
    if scaling.kind == "linear":
        assert scaling.factor is not None
        inverse /= scaling.factor
    elif scaling.kind == "llama3":
        inverse = _llama3_frequencies(inverse, scaling)
    elif scaling.kind != "default":
        raise OmniDraftError(
            f"Rotary scaling '{scaling.kind}' is not supported. Supported: default, linear, llama3."
        )
    return _rope(inverse)


def ropes_of(config: Config) -> tuple[Rope, Rope]:
    """Rotations of the layers with full attention, and of those with a sliding window.

    Raises:
        OmniDraftError: see ``rope_of``, or only a part of each head is to be rotated.
    """
    if config.partial_rotary_factor != 1:
        raise OmniDraftError("Rotation of only a part of each head is not supported.")
    parameters = config.rope_parameters
    if parameters is None:
        rope = rope_of(config.rope_theta, config.head_size, config.rope_scaling)
        return rope, rope
    full = parameters.full_attention or parameters
    local = parameters.sliding_attention or parameters
    assert full.rope_theta and local.rope_theta
    size = config.head_size
    return rope_of(full.rope_theta, size, full), rope_of(local.rope_theta, size, local)


def divided(rope: Rope, factors: Sequence[float] | NDArray[np.float32]) -> Rope:
    """The rotation with each frequency divided by its factor."""
    return _rope(np.array(rope.inverse_frequencies) / factors)


def _rope(inverse: NDArray[np.float64]) -> Rope:
    return Rope(tuple(float(value) for value in inverse))


def _llama3_frequencies(inverse: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    """Llama 3.1: long wavelengths stretched by factor, short ones kept, a ramp between."""
    factor, original = scaling.factor, scaling.original_max_position_embeddings
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    assert factor and original and low and high
    turns = original * inverse / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(inverse * (keep + (1 - keep) / factor))
