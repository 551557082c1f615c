"""OmniDraft: one small draft model makes any local language model answer faster, losslessly.

import omnidraft

with omnidraft.load("smollm2-135m") as model:
    for piece in model.stream("Why is the sky blue?"):
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
    from omnidraft.conversing import Chat
    from omnidraft.model import Model, Options, load
    from omnidraft.runtime.answer import Answer, Piece
    from omnidraft.runtime.decoding.logprobs import TokenLogprobs
    from omnidraft.runtime.errors import (
        ContextOverflowError,
        DamagedFileError,
        MissingDependencyError,
        ModelInUseError,
        ModelNotFoundError,
        OmniDraftError,
        OptionError,
    )
    from omnidraft.runtime.models import LoadedModel, load_model
    from omnidraft.runtime.options import GenerationOptions
    from omnidraft.runtime.session import Prompt, Session
    from omnidraft.runtime.statistics import Statistics
    from omnidraft.streams import AsyncStream, Stream

_HOMES = {
    "omnidraft._native": ("Origin", "SamplingParameters", "Verification"),
    "omnidraft.conversing": ("Chat",),
    "omnidraft.model": ("Model", "Options", "load"),
    "omnidraft.runtime.decoding.logprobs": ("TokenLogprobs",),
    "omnidraft.runtime.answer": ("Answer", "Piece"),
    "omnidraft.runtime.errors": (
        "ContextOverflowError",
        "DamagedFileError",
        "MissingDependencyError",
        "ModelInUseError",
        "ModelNotFoundError",
        "OmniDraftError",
        "OptionError",
    ),
    "omnidraft.runtime.models": ("LoadedModel", "load_model"),
    "omnidraft.runtime.options": ("GenerationOptions",),
    "omnidraft.runtime.session": ("Prompt", "Session"),
    "omnidraft.runtime.statistics": ("Statistics",),
    "omnidraft.streams": ("AsyncStream", "Stream"),
}

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AsyncStream",
    "Chat",
    "ContextOverflowError",
    "DamagedFileError",
    "GenerationOptions",
    "LoadedModel",
    "MissingDependencyError",
    "Model",
    "ModelInUseError",
    "ModelNotFoundError",
    "OmniDraftError",
    "OptionError",
    "Options",
    "Origin",
    "Piece",
    "Prompt",
    "SamplingParameters",
    "Session",
    "Statistics",
    "Stream",
    "TokenLogprobs",
    "Verification",
    "load",
    "load_model",
]


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
