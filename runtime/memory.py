"""Give memory that is free back to the system."""

from __future__ import annotations

import ctypes
import sys


def give_back_memory() -> None:
    """Let the C library return what it keeps for later, where it can (glibc).

    It keeps the weights of a closed model otherwise: from the first large block that is freed on,
    glibc takes blocks of that size from a heap that hardly ever shrinks of itself.
    """
    if not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    if trim is not None:
        trim(ctypes.c_size_t(0))
