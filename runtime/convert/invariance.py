"""Measure whether a converted model's rows depend on how many tokens share a pass."""

from __future__ import annotations

import dataclasses
import os
import platform
from pathlib import Path

import numpy as np
import onnxruntime as ort

from omnidraft.runtime.engines.onnx import LENGTH_STEP, OnnxModel
from omnidraft.runtime.manifest import Manifest

from .graph import Progress

PASS_SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 32)
LARGEST = max(PASS_SIZES)
# Tokens in the cache before the passes: a short one, ones that end at and just before a length at
# which the cache's bound prefix grows, so that single tokens and passes run under different
# lengths, and a long one.
CONTEXTS = (0, LENGTH_STEP - 12, LENGTH_STEP - 1, LENGTH_STEP, 1000)
CPU_FEATURES = (
    *("avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "amx_int8", "asimd", "asimddp", "i8mm", "sve"),
)


def measure_invariance(folder: Path, progress: Progress) -> Manifest:
    """Compare, bit for bit, passes over several tokens with passes over each token alone.

    Returns:
        The folder's manifest with ``invariance`` filled in: the largest difference of a logit over
        all contexts, pass sizes and rows. The model is batch-invariant if it is exactly 0.
    """
    manifest = Manifest.load(folder)
    cores = os.cpu_count() or 1
    threads = min(cores, manifest.max_threads or cores)
    model = OnnxModel(folder, threads=threads)
    contexts = [c for c in CONTEXTS if c + LARGEST <= model.max_length]
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, max(CONTEXTS) + LARGEST)
    # Text repeats itself, which makes attention sharp: every other 32 tokens are the 32 before.
    paired = tokens[: len(tokens) // 64 * 64].reshape(-1, 2, 32)
    paired[:, 1] = paired[:, 0]
    largest = 0.0
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
    progress("invariance", len(contexts), len(contexts))
    report = {
        "batch_invariant": largest == 0.0,
        "largest_difference": largest,
        "contexts": contexts,
        "pass_sizes": list(PASS_SIZES),
        "threads": threads,
        "onnxruntime": ort.__version__,
        "machine": platform.machine(),
        "cpu_features": cpu_features(),
    }
    return dataclasses.replace(manifest, invariance=report)


def cpu_features() -> list[str]:
    """The instruction sets that kernels choose by, where the system tells (Linux), else []."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return []
    line = next((x for x in text.splitlines() if x.startswith(("flags", "Features"))), "")
    present = set(line.split())
    return [name for name in CPU_FEATURES if name in present]
