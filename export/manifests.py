"""The manifest of what a recipe built."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from omnidraft.export.checkpoint import Checkpoint
from omnidraft.export.recipes import Built, Options, Recipe
from omnidraft.runtime.storage.bundle import BUNDLE_FILE, Bundle, FileEntry, Geometry
from omnidraft.runtime.storage.checkpoints import source_sha256
from omnidraft.runtime.storage.manifest import describe_files


def describe_bundle(
    name: str,
    recipe: Recipe,
    options: Options,
    built: Built,
    checkpoint: Checkpoint,
    source: Path | None,
) -> Bundle:
    """The manifest, without the files.

    Args:
        source: the checkpoint's own; None: of a bundle that nobody is to keep.
    """
    d = checkpoint.decoder
    assert options.quantization is not None
    return Bundle(
        name=name,
        backend=recipe.backend,
        layout=options.layout,
        quantization=options.quantization,
        geometry=Geometry(
            layers=d.layers,
            hidden_size=d.hidden_size,
            feed_forward_size=d.feed_forward_size,
            heads=d.heads,
            kv_heads=d.kv_heads,
            head_size=d.head_size,
            vocab_size=d.vocab_size,
            context_length=options.context,
        ),
        soc=built.soc,
        lora=built.lora,
        max_threads=built.max_threads,
        graphs=built.graphs,
        weights=built.weights,
        source_sha256=source_sha256(source) if source else "",
        versions={"omnidraft": version("omnidraft"), **built.versions},
        files={},
    )


def with_files(bundle: Bundle, folder: Path) -> Bundle:
    """The manifest with every other file of the folder."""
    files = {file: FileEntry(**entry) for file, entry in describe_files(folder).items()}
    files.pop(BUNDLE_FILE, None)
    return bundle.model_copy(update={"files": files})
