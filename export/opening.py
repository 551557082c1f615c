"""Open what an export wrote, or what it was made from, to ask what it says."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from omnidraft.runtime.engines import open_engine
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.storage.bundle import Bundle
from omnidraft.runtime.storage.manifest import CHECKPOINTS

if TYPE_CHECKING:
    from omnidraft.export.checkpoint import Checkpoint


@contextmanager
def opened(bundle: Bundle, folder: Path, threads: int) -> Iterator[CausalModel]:
    """A bundle's model, by its engine.

    A checkpoint for other programs is read anew, and what its file holds computed in float32.

    Raises:
        See ``open_engine`` and ``open_checkpoint``.
    """
    if bundle.backend not in CHECKPOINTS:
        yield open_engine(folder, threads=threads)
        return
    from omnidraft.export.checkpoint import open_checkpoint

    source = folder / bundle.graphs[0].file if bundle.backend == "gguf" else folder
    context = bundle.geometry.context_length
    with float32_model(open_checkpoint(source), context, threads=threads) as model:
        yield model


@contextmanager
def float32_model(
    checkpoint: Checkpoint, context: int, scratch: Path | None = None, *, threads: int = 2
) -> Iterator[CausalModel]:
    """A checkpoint itself, by a float32 graph that is thrown away.

    Args:
        scratch: where it lies meanwhile; None: among the system's temporary files.
    """
    # Here, as what only runs bundles need not import what writes graphs.
    from omnidraft.export.manifests import describe_bundle, with_files
    from omnidraft.export.recipes import Options, find_recipe

    with tempfile.TemporaryDirectory(prefix="reference-", dir=scratch) as name:
        folder = Path(name)
        recipe = find_recipe("onnx")
        options = Options("none", lora_rank=0, context=context)
        built = recipe.build(checkpoint, folder, options, [], lambda stage, done, total: None)
        bundle = describe_bundle("reference", recipe, options, built, checkpoint, None)
        with_files(bundle, folder).save(folder)
        yield open_engine(folder, threads=threads)
