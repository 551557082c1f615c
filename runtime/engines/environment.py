"""What the bits of a converted model's logits depend on beside its files, and what was measured.

A measurement of batch invariance holds only for the ``environment``, by which kernels are chosen,
and for its number of threads: kernels cut a pass by the threads there are, so what holds with many
says nothing about fewer. See ``omnidraft.runtime.engines.invariance``.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort

from omnidraft import __version__, _native
from omnidraft.runtime.processor import cpu_features
from omnidraft.runtime.storage.manifest import Manifest, file_sha256


@dataclass(frozen=True)
class Measured:
    """Batch invariance with some number of threads.

    Args:
        difference: the largest of a logit between passes of different sizes; 0: invariant.
        least_pass: tokens that a pass takes at least, the last one being repeated. Where a kernel
            treats a lone row differently from the rows of any larger pass, two make it invariant.
    """

    difference: float
    least_pass: int = 1


def environment() -> dict[str, Any]:
    """What a measurement depends on beside the threads, as a manifest keeps it."""
    return {
        "onnxruntime": ort.__version__,
        "machine": platform.machine(),
        "cpu_features": cpu_features(),
        "kernels": f"{__version__} {file_sha256(Path(_native.__file__))[:16]}",
    }


def measured_here(manifest: Manifest) -> dict[int, Measured]:
    """What was measured in this ``environment``, by number of threads."""
    report = manifest.invariance
    if any(report.get(name) != value for name, value in environment().items()):
        return {}
    try:
        measured = {int(t): Measured(**each) for t, each in report["measured"].items()}
        odd = [m for m in measured.values() if not (m.difference >= 0 and m.least_pass in (1, 2))]
        return {} if odd else measured
    except (KeyError, AttributeError, TypeError, ValueError):
        return {}  # of another version: it is measured again
