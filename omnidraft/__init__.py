"""OmniDraft: one small draft model makes any local language model answer faster, losslessly.

import omnidraft

session = omnidraft.load("smollm2-135m")
for piece in session.stream("Why is the sky blue?"):
    print(piece.text, end="", flush=True)
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

# ONNX Runtime reads it once, when it is imported. Without it, it writes a device id and records of
# use into the user's cache folder and sends them to its maker; no later call stops that.
if "ORT_DISABLE_TELEMETRY" not in os.environ:
    if "onnxruntime" in sys.modules:
        warnings.warn(
            "onnxruntime was imported before omnidraft, so its telemetry is on and stays on in "
            "this process. Import omnidraft first, or set ORT_DISABLE_TELEMETRY=1",
            stacklevel=2,
        )
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# The hub learns what it is asked for, and no more about this machine than it must.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

# Read by type checkers; at run time a name is imported when it is first used. Thus the command can
# take charge of Ctrl-C before anything large is imported.
if TYPE_CHECKING:
    from omnidraft._native import Origin, SamplingParameters, Verification
    from omnidraft.runtime.errors import OmniDraftError
    from omnidraft.runtime.session import Answer, GenerationOptions, Piece, Session
    from omnidraft.runtime.statistics import Statistics

_HOMES = {
    "Answer": "omnidraft.runtime.session",
    "GenerationOptions": "omnidraft.runtime.session",
    "OmniDraftError": "omnidraft.runtime.errors",
    "Origin": "omnidraft._native",
    "Piece": "omnidraft.runtime.session",
    "SamplingParameters": "omnidraft._native",
    "Session": "omnidraft.runtime.session",
    "Statistics": "omnidraft.runtime.statistics",
    "Verification": "omnidraft._native",
}

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "GenerationOptions",
    "OmniDraftError",
    "Origin",
    "Piece",
    "SamplingParameters",
    "Session",
    "Statistics",
    "Verification",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def load(target: str, drafter: str | None = "default") -> Session:
    """Open a target and a drafter by name, folder, GGUF file or Hugging Face id.

    Models are fetched and converted at first use. ``drafter=None`` decodes plainly.

    Raises:
        OmniDraftError: a model cannot be found, fetched or read; the message says what to do.
    """
    from omnidraft.runtime.models import load_model
    from omnidraft.runtime.session import Session

    return Session(load_model(target), load_model(drafter, drafts=True) if drafter else None)
