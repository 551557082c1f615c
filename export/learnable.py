"""A drafter that can learn: its bundle with LoRA inputs and a training step, made at first use."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

from omnidraft.export.pipeline import export, find_checkpoint
from omnidraft.export.recipes import Options
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models.cache import cache_folder
from omnidraft.runtime.models.catalogue import DEFAULT_DRAFTER
from omnidraft.runtime.models.progress import Progress
from omnidraft.runtime.storage.bundle import BUNDLE_FILE, Bundle, Quantization
from omnidraft.runtime.storage.checkpoints import source_sha256
from omnidraft.runtime.storage.files import expanded
from omnidraft.runtime.storage.manifest import CHECKPOINTS

_GRAPHS = 5
"""Changes when the exported graphs do, so that bundles made before are not used."""


def learnable_drafter(name: str, *, progress: Progress = lambda step, fraction: None) -> Path:
    """The bundle of a drafter that takes adapters; it needs no PyTorch.

    Args:
        name: a bundle, which is taken as it is, or what ``export`` can make one of.
        progress: told each step.

    Raises:
        OmniDraftError: see ``export``; or the bundle has no LoRA inputs.
    """
    folder = expanded(name)
    bundle = Bundle.load(folder, checksums=False) if (folder / BUNDLE_FILE).is_file() else None
    # A checkpoint that was exported for other programs is one here, too.
    if bundle is not None and bundle.backend not in CHECKPOINTS:
        if bundle.lora is None:
            raise OmniDraftError(
                f"{folder} has no LoRA inputs and takes no adapter. Export it again with "
                "--lora-rank from 1."
            )
        if bundle.layout == "genai":
            raise OmniDraftError(
                f"{folder} was exported for other programs (--layout genai): here it takes no "
                "adapter. Export it again without --layout."
            )
        return folder
    source = find_checkpoint(name, progress)
    kept = cache_folder() / "learnable"
    output = kept / f"{source_sha256(source)[:16]}-{version('omnidraft')}-{_GRAPHS}"
    if _is_whole(output):
        return output
    kept.mkdir(parents=True, exist_ok=True)
    with FileLock(output.with_suffix(".lock")):
        # Another process may have made it while this one waited.
        if not _is_whole(output):
            shutil.rmtree(output, ignore_errors=True)
            progress("preparing the drafter to learn", None)
            # The built-in drafter's weights lie on a 4-bit grid; of another the export would have
            # to try which matrices bear 4 bits.
            quantization: Quantization = "int4" if name == DEFAULT_DRAFTER else "int8"
            options = Options(quantization, train_step=True, own=True)
            export(name, output, options=options, progress=progress)
    return output


def _is_whole(folder: Path) -> bool:
    """Whether a bundle is there with all its files as they were written."""
    try:
        Bundle.load(folder)
    except OmniDraftError:
        return False
    return True
