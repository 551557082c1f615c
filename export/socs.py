"""Qualcomm chips that a drafter can be compiled for.

``model_id`` is QNN's ``soc_model``, which alone decides what is compiled; the architecture is that
of the chip's tensor processor (HTP). Source: the tables by which Qualcomm's backends of ExecuTorch
(backends/qualcomm/serialization/qc_schema.py) and LiteRT (vendors/qualcomm/core/schema) compile,
which agree on these. They are phones' chips of 2023 and later: HTP multiplies two 16-bit
activations from V73 on, so onnxruntime-qnn 2.7.0 leaves nodes to the CPU for the older ones.
"""

from __future__ import annotations

from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.storage.bundle import Soc

DEFAULT_SOC = "SM8650"

_SOCS = (
    ("SM8550", 43, "V73"),  # Snapdragon 8 Gen 2
    ("SM8650", 57, "V75"),  # Snapdragon 8 Gen 3
    ("SM8750", 69, "V79"),  # Snapdragon 8 Elite
    ("SM8850", 87, "V81"),  # Snapdragon 8 Elite Gen 5
)


def soc_names() -> list[str]:
    """Names of all known chips."""
    return [name for name, _, _ in _SOCS]


def find_soc(name: str | None) -> Soc:
    """A chip by its name, in capitals or not.

    Args:
        name: None: ``DEFAULT_SOC``.

    Raises:
        OmniDraftError: it is not known; the message lists those that are.
    """
    wanted = (name or DEFAULT_SOC).upper()
    for known, model_id, architecture in _SOCS:
        if known == wanted:
            return Soc(name=known, model_id=model_id, htp_architecture=architecture)
    raise OmniDraftError(f"unknown chip {name!r} (--soc); known are {', '.join(soc_names())}")
