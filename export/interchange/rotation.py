"""Rotary frequencies as other programs' files say them: a base, and how it is scaled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.checkpoint.config import RopeScaling
from omnidraft.export.checkpoint.rope import Rope, rope_of
from omnidraft.export.checkpoint.spec import Decoder
from omnidraft.runtime.errors import OmniDraftError

# What float32 may round away of a frequency.
_CLOSE = 1e-6


def check_rotation(decoder: Decoder) -> None:
    """Refuse heads of which only a part is rotated.

    Raises:
        OmniDraftError: this decoder has such.
    """
    frequencies = decoder.ropes[0].inverse_frequencies
    if decoder.rotary_size not in (None, decoder.head_size) or not all(f > 0 for f in frequencies):
        raise OmniDraftError(
            "The drafter rotates a part of each head only, which a Llama in other programs' files "
            "cannot. Choose --backend onnx."
        )


def base_of(rope: Rope) -> float | None:
    """The base that alone gives a rotation's frequencies; None: there is none."""
    base = _base(rope)
    return base if base > 1 and _same(rope, rope_of(base, _head_size(rope))) else None


def rope_fields(rope: Rope) -> dict[str, Any]:
    """``rope_theta`` and, where frequencies are scaled, ``rope_scaling`` of a Llama's config.json.

    Raises:
        OmniDraftError: they are scaled in another way than linearly or as Llama 3 does.
    """
    if (base := base_of(rope)) is not None:
        return {"rope_theta": base}
    first, last = rope.inverse_frequencies[0], rope.inverse_frequencies[-1]
    if 0 < first < 1:
        linear = Rope(tuple(value / first for value in rope.inverse_frequencies))
        if (base := base_of(linear)) is not None:
            linear_by = {"rope_type": "linear", "factor": 1 / first}
            return {"rope_theta": base, "rope_scaling": linear_by}
    # Llama 3 leaves the first frequencies as they are, and divides the last by the whole factor.
    if (base := _base(rope)) > 1 and last > 0:
        size = _head_size(rope)
        scaling: dict[str, Any] = {
            "rope_type": "llama3",
            "factor": _rounded(rope_of(base, size).inverse_frequencies[-1] / last),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        if _same(rope, rope_of(base, size, RopeScaling(**scaling))):
            return {"rope_theta": base, "rope_scaling": scaling}
    raise OmniDraftError(
        "The drafter's rotation is scaled in a way that the transformers backend does not write: "
        "linear and Llama 3's are. Choose --backend gguf or onnx."
    )


def frequency_factors(rope: Rope, base: float) -> NDArray[np.float32]:
    """What the frequencies of a base are divided by, float32 [head_size / 2]."""
    plain = np.array(rope_of(base, _head_size(rope)).inverse_frequencies)
    factors: NDArray[np.float64] = plain / np.array(rope.inverse_frequencies)
    return factors.astype(np.float32)


def _head_size(rope: Rope) -> int:
    return 2 * len(rope.inverse_frequencies)


def _base(rope: Rope) -> float:
    """The base that the second frequency is of, if it is not scaled; 0: none."""
    second = rope.inverse_frequencies[1:2]
    return _rounded(second[0] ** (-_head_size(rope) / 2)) if second and second[0] > 0 else 0.0


def _rounded(value: float) -> float:
    return float(f"{value:.7g}")


def _same(a: Rope, b: Rope) -> bool:
    return bool(np.allclose(a.inverse_frequencies, b.inverse_frequencies, rtol=_CLOSE, atol=0))
