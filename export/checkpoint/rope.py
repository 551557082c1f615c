"""Rotary embeddings: the frequencies that a checkpoint asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.checkpoint.config import Config, RopeScaling
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError


@dataclass(frozen=True)
class Rope:
    """Rotary embedding, rotate-half convention.

    Attributes:
        inverse_frequencies: [head_size/2]; 0 where nothing rotates.
        amplitude: what rotated elements are multiplied by.
    """

    inverse_frequencies: tuple[float, ...]
    amplitude: float = 1.0

    def table(self, length: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return cosine and sine, float32 [length, head_size/2]."""
        # float32 angles, as the models were trained with.
        angles = np.outer(
            np.arange(length, dtype=np.float32),
            np.array(self.inverse_frequencies, dtype=np.float32),
        )
        cosine, sine = np.cos(angles), np.sin(angles)
        if self.amplitude != 1:
            scale = np.where(np.array(self.inverse_frequencies) == 0, 1, self.amplitude)
            return cosine * scale.astype(np.float32), sine * scale.astype(np.float32)
        return cosine, sine


def rope_of(
    base: float,
    head_size: int,
    scaling: RopeScaling | None = None,
    *,
    rotary_size: int | None = None,
    amplitude: float = 1.0,
) -> Rope:
    """The rotation of heads of a size, with frequencies base ** (-2 i / rotary_size), scaled.

    Args:
        rotary_size: elements of a head that are rotated; nothing: all.

    Raises:
        DamagedFileError: the base is none.
        OmniDraftError: frequencies are scaled in a way that is not known.
    """
    if not 0 < base < math.inf:
        raise DamagedFileError(f"A rotary base (rope_theta) of {base} rotates nothing.")
    size = head_size if rotary_size is None else rotary_size
    inverse = base ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    scaling = scaling or RopeScaling()
    if scaling.kind == "linear":
        assert scaling.factor is not None
        inverse /= scaling.factor
    elif scaling.kind == "llama3":
        inverse = _llama3_frequencies(inverse, scaling)
    elif scaling.kind == "longrope":
        # Its other factors are for texts that are longer than what the model was trained with.
        assert scaling.short_factor is not None
        if len(scaling.short_factor) != len(inverse):
            raise OmniDraftError(
                f"longrope has {len(scaling.short_factor)} factors for {len(inverse)} frequencies."
            )
        inverse /= np.array(scaling.short_factor)
    elif scaling.kind == "yarn":
        inverse = _yarn_frequencies(inverse, base, scaling)
    # Dynamic scaling begins where the context ends.
    elif scaling.kind not in ("default", "dynamic"):
        raise OmniDraftError(
            f"Rotary scaling '{scaling.kind}' is not supported. Supported: default, dynamic, "
            "linear, llama3, longrope, yarn."
        )
    still = np.zeros((head_size - size) // 2)
    return Rope(tuple(float(value) for value in (*inverse, *still)), amplitude)


def ropes_of(config: Config) -> tuple[Rope, Rope]:
    """Rotations of the layers with full attention, and of those with a sliding window.

    Raises:
        OmniDraftError: see ``rope_of``.
    """
    parameters = config.rope_parameters
    if parameters is None:
        rope = _of_config(config, config.rope_theta, config.rope_scaling)
        return rope, rope
    full = parameters.full_attention or parameters
    local = parameters.sliding_attention or parameters
    assert full.rope_theta and local.rope_theta
    return _of_config(config, full.rope_theta, full), _of_config(config, local.rope_theta, local)


def _of_config(config: Config, base: float, scaling: RopeScaling | None) -> Rope:
    amplitude = 1.0
    if scaling and scaling.kind in ("longrope", "yarn"):
        original = config.trained_length(scaling)
        factor = scaling.factor or config.max_position_embeddings / original
        scaling = scaling.model_copy(update={"original_max_position_embeddings": original})
        if scaling.attention_factor:
            amplitude = scaling.attention_factor
        elif scaling.kind == "yarn":
            amplitude = yarn_amplitude(factor, scaling)
        elif factor > 1:  # LongRoPE, arXiv 2402.13753, section 3.2
            amplitude = math.sqrt(1 + math.log(factor) / math.log(original))
    return rope_of(
        base, config.head_size, scaling, rotary_size=config.rotary_size, amplitude=amplitude
    )


def still(rope: Rope) -> Rope:
    """A rotation of heads of the same size that rotates nothing."""
    return Rope((0.0,) * len(rope.inverse_frequencies))


def yarn_amplitude(factor: float, scaling: RopeScaling) -> float:
    """YaRN (arXiv 2309.00071), equation 22; with the two exponents of DeepSeek's models."""

    def growth(exponent: float) -> float:
        return 0.1 * exponent * math.log(factor) + 1 if factor > 1 else 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return growth(scaling.mscale) / growth(scaling.mscale_all_dim)
    return growth(1)


def divided(rope: Rope, factors: Sequence[float] | NDArray[np.float32]) -> Rope:
    """The rotation with each frequency divided by its factor.

    Raises:
        DamagedFileError: there are not as many factors as frequencies.
    """
    if len(factors) != len(rope.inverse_frequencies):
        raise DamagedFileError(
            f"Rotation has {len(factors)} factors for {len(rope.inverse_frequencies)} frequencies."
        )
    inverse = np.array(rope.inverse_frequencies) / factors
    return replace(rope, inverse_frequencies=tuple(float(value) for value in inverse))


def _yarn_frequencies(
    inverse: NDArray[np.float64], base: float, scaling: RopeScaling
) -> NDArray[np.float64]:
    """YaRN: what turns often within the trained length is kept, what turns seldom stretched."""
    factor, original = scaling.factor, scaling.original_max_position_embeddings
    assert factor and original
    size = 2 * len(inverse)

    def dimension(turns: float) -> float:
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    stretched = np.clip((np.arange(len(inverse)) - low) / (high - low or 0.001), 0, 1)
    return np.asarray(inverse / factor * stretched + inverse * (1 - stretched))


def _llama3_frequencies(inverse: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    """Llama 3.1: long wavelengths stretched by factor, short ones kept, a ramp between."""
    factor, original = scaling.factor, scaling.original_max_position_embeddings
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    assert factor and original and low and high
    turns = original * inverse / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(inverse * (keep + (1 - keep) / factor))
