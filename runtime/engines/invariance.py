"""How much an engine's rows depend on how many tokens share a pass.

Of a converted model this is measured and recorded in its manifest, for the environment it is
measured in: see ``omnidraft.runtime.engines.environment``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.engines.environment import Measured, environment, measured_here
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.engines.onnx import LENGTH_STEP, OnnxModel
from omnidraft.runtime.storage.manifest import Manifest

PASS_SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 32)
LARGEST = max(PASS_SIZES)
TREE_DEPTH = 8
# Tokens in the cache before the passes: a short one, ones that end at and just before a length at
# which the cache's bound prefix grows, so that single tokens and passes run under different
# lengths, and a long one.
CONTEXTS = (0, LENGTH_STEP - 12, LENGTH_STEP - 1, LENGTH_STEP, 1000)


def measure_invariance(
    folder: Path, model: OnnxModel, progress: Callable[[str, int, int], None]
) -> Manifest:
    """Compare, bit for bit, passes over several tokens, in a chain and as nodes of a tree, with
    passes over each token alone.

    Args:
        folder: what ``model`` was loaded from.
        model: its sequence is lost: it is empty afterwards.
        progress: called with ``invariance``, steps done, steps in all.

    Returns:
        The folder's manifest with what was measured recorded beside what was measured with other
        numbers of threads in this environment. ``model.least_pass`` is set likewise.

    Raises:
        DamagedFileError, ModelNotFoundError: see ``Manifest.load``.
    """
    contexts = [c for c in CONTEXTS if c + LARGEST <= model.max_length]
    for least_pass in (1, 2):
        model.least_pass = least_pass
        found = Measured(_largest_difference(model, contexts, progress), least_pass)
        if found.difference == 0:
            break
    else:
        model.least_pass = 1
        found = dataclasses.replace(found, least_pass=1)
    # Read only now: another process may have recorded another number of threads meanwhile.
    manifest = Manifest.load(folder)
    measured = {**measured_here(manifest), model.threads: found}
    largest = max(each.difference for each in measured.values())
    report = {
        "batch_invariant": largest == 0.0,
        "largest_difference": largest,
        "measured": {str(threads): vars(each) for threads, each in measured.items()},
        "contexts": contexts,
        "pass_sizes": list(PASS_SIZES),
        **environment(),
    }
    return dataclasses.replace(manifest, invariance=report)


def _largest_difference(
    model: OnnxModel, contexts: Sequence[int], progress: Callable[[str, int, int], None]
) -> float:
    """Of a logit, over all contexts, passes and rows; the model is empty afterwards."""
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, max(CONTEXTS) + LARGEST)
    # Text repeats itself, which makes attention sharp: every other 32 tokens are the 32 before.
    paired = tokens[: len(tokens) // 64 * 64].reshape(-1, 2, 32)
    paired[:, 1] = paired[:, 0]
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
            largest = max(largest, _difference(model.forward(ahead[:size]), alone[:size]))
        # As nodes of a tree, each beside another token, which it must not see.
        model.truncate(context)
        nodes = np.repeat(ahead[:TREE_DEPTH], 2)
        nodes[::2] = tokens[:TREE_DEPTH]
        parents = [context + node // 2 * 2 - 1 for node in range(len(nodes))]
        found = model.forward_tree(nodes, parents)[1::2]
        largest = max(largest, _difference(found, alone[:TREE_DEPTH]))
        model.truncate(context)
    model.truncate(0)
    progress("invariance", len(contexts), len(contexts))
    return largest


def _difference(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    """The largest; infinite where something is not a number."""
    if np.array_equal(left, right):
        return 0.0
    with np.errstate(invalid="ignore"):
        return float(np.nan_to_num(np.abs(left - right).max(), nan=np.inf))


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
