"""Errors of engines, which come as their makers' raw text, in words."""

from __future__ import annotations

import re
from pathlib import Path

from omnidraft.runtime.errors import DamagedFileError, OmniDraftError

# As C++, ONNX Runtime, PyTorch and Python say it; none has a class of its own that all would share.
_NO_MEMORY = re.compile(
    r"bad_alloc|bad allocation|allocate memory|not enough memory|out of memory|MemoryError", re.I
)
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : (\w+) : ")
# By ONNX Runtime's codes.
_REASONS = {
    "INVALID_PROTOBUF": "it is no ONNX graph, or only a part of one",
    "NO_SUCHFILE": "a file of it is missing",
}


def is_memory_short(error: BaseException) -> bool:
    """Whether an error says that memory was refused."""
    return isinstance(error, MemoryError) or bool(
        _NO_MEMORY.search(f"{type(error).__name__}: {error}")
    )


def cannot_load(path: Path, error: Exception) -> OmniDraftError:
    """What to raise where an engine refuses a file."""
    if is_memory_short(error):
        return OmniDraftError(
            f"There is not enough memory to load {path}. End other programs, or take weights of "
            'fewer bits (quantization="4bit") or a smaller model.'
        )
    return DamagedFileError(f"{path} cannot be loaded: {_reason(error)}.")


def cannot_run(error: Exception) -> OmniDraftError:
    """What to raise where an engine fails within a pass."""
    if is_memory_short(error):
        return OmniDraftError(
            "There is not enough memory for a pass of the model. End other programs, or take a "
            "shorter context (context=…)."
        )
    return OmniDraftError(f"The model's engine failed: {_reason(error)}.")


def _reason(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    if (prefix := _PREFIX.match(text)) is not None:
        text = _REASONS.get(prefix[1], text[prefix.end() :])
    # The first line says what, the others where in the engine's source.
    return text.splitlines()[0].rstrip(". ")
