"""How much an engine's rows depend on how many tokens share a pass.

Of a converted model this is measured and recorded in its manifest. A measurement holds only for the
``environment``, by which kernels are chosen, and for its number of threads: kernels cut a pass by
the threads there are, so what holds with many says nothing about fewer.
"""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from omnidraft import __version__, _native
from omnidraft.runtime.engines.onnx import LENGTH_STEP, OnnxModel
from omnidraft.runtime.manifest import Manifest, file_sha256
from omnidraft.runtime.model import CausalModel
from omnidraft.runtime.processor import cpu_features

PASS_SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 32)
LARGEST = max(PASS_SIZES)
# Tokens in the cache before the passes: a short one, ones that end at and just before a length at
# which the cache's bound prefix grows, so that single tokens and passes run under different
# lengths, and a long one.
CONTEXTS = (0, LENGTH_STEP - 12, LENGTH_STEP - 1, LENGTH_STEP, 1000)


def environment() -> dict[str, Any]:
    """What a measurement depends on beside the threads, as a manifest keeps it."""
    return {
        "onnxruntime": ort.__version__,
        "machine": platform.machine(),
        "cpu_features": cpu_features(),
        "kernels": f"{__version__} {file_sha256(Path(_native.__file__))[:16]}",
    }


def measured_here(manifest: Manifest) -> dict[str, float]:
    """Largest difference of a logit by number of threads, as measured in this ``environment``."""
    report = manifest.invariance
    if any(report.get(name) != value for name, value in environment().items()):
        return {}
    return dict(report.get("measured", {}))


def measure_invariance(
    folder: Path, model: OnnxModel, progress: Callable[[str, int, int], None]
) -> Manifest:
    """Compare, bit for bit, passes over several tokens with passes over each token alone.

    Args:
        folder: what ``model`` was loaded from.
        model: its sequence is lost: it is empty afterwards.
        progress: called with ``invariance``, steps done, steps in all.

    Returns:
        The folder's manifest with the largest difference of a logit over all contexts, pass sizes
        and rows, recorded beside those of other numbers of threads in this ``environment``. The
        model is batch-invariant if it is exactly 0.

    Raises:
        DamagedFileError, ModelNotFoundError: see ``Manifest.load``.
    """
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, max(CONTEXTS) + LARGEST)
    # Text repeats itself, which makes attention sharp: every other 32 tokens are the 32 before.
    paired = tokens[: len(tokens) // 64 * 64].reshape(-1, 2, 32)
    paired[:, 1] = paired[:, 0]
    contexts = [c for c in CONTEXTS if c + LARGEST <= model.max_length]
    largest = 0.0
    model.truncate(0)
    for step, context in enumerate(contexts):
        progress("invariance", step, len(contexts))
        model.truncate(min(model.length, context))
        if model.length < context:
            model.forward(tokens[model.length : context], rows=1)
        ahead = tokens[context : context + LARGEST]
        alone = np.concatenate([model.forward([token]).copy() for token in ahead])
        for size in PASS_SIZES:
            model.truncate(context)
            together = model.forward(ahead[:size])
            if not np.array_equal(together, alone[:size]):
                with np.errstate(invalid="ignore"):
                    difference = np.abs(together - alone[:size]).max()
                # Not a number differs from everything.
                largest = max(largest, float(np.nan_to_num(difference, nan=np.inf)))
    model.truncate(0)
    progress("invariance", len(contexts), len(contexts))
    # Read only now: another process may have recorded another number of threads meanwhile.
    manifest = Manifest.load(folder)
    measured = {**measured_here(manifest), str(model.threads): largest}
    report = {
        "batch_invariant": max(measured.values()) == 0.0,
        "largest_difference": max(measured.values()),
        "measured": measured,
        "contexts": contexts,
        "pass_sizes": list(PASS_SIZES),
        **environment(),
    }
    return dataclasses.replace(manifest, invariance=report)


def batch_noise(
    model: CausalModel, *, sizes: Sequence[int] = (2, 4, 8), context: int = 64, seed: int = 0
) -> float:
    """Largest difference of a logit between a row of a pass and the same token alone.

    0.0 means that speculation cannot change a greedy answer by rounding. The model's sequence is
    lost: it is empty afterwards.

    Args:
        model: any engine's model.
        sizes: tokens in a pass, to try one after the other.
        context: tokens in the KV cache before the pass.
        seed: of the random tokens.
    """
    tokens = np.random.default_rng(seed).integers(0, model.vocab_size, context + max(sizes))
    ahead = tokens[context:]
    model.truncate(0)
    if context:
        model.forward(tokens[:context], rows=1)
    alone = np.concatenate([model.forward([token]).copy() for token in ahead])
    largest = 0.0
    for size in sizes:
        model.truncate(context)
        together = model.forward(ahead[:size])
        largest = max(largest, float(np.abs(together - alone[:size]).max()))
    model.truncate(0)
    return largest
