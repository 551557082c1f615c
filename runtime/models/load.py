"""Load a model by name or path."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from omnidraft.runtime.cores import default_threads, own_cores
from omnidraft.runtime.engines import Engine, engine_of, engine_spec, open_engine
from omnidraft.runtime.engines.environment import measured_here
from omnidraft.runtime.engines.invariance import measure_invariance
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError, OptionError
from omnidraft.runtime.models.cache import cache_folder
from omnidraft.runtime.models.catalogue import DEFAULT_QUANTIZATION, Quantization
from omnidraft.runtime.models.progress import Progress, by_stage, silent
from omnidraft.runtime.models.resolve import resolve, resolve_checkpoint
from omnidraft.runtime.storage.manifest import MANIFEST_FILE, Manifest
from omnidraft.runtime.text.tokenizer import Tokenizer

_MOST_THREADS = 16
"""Threads that are allowed on a machine with fewer cores."""


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
    threads: int | None = None,
    drafts: bool = False,
    context: int | None = None,
    progress: Progress = silent,
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
        threads: threads for one pass; None: see ``cores.default_threads``.
        drafts: it is loaded as a drafter, which need not be batch-invariant: nothing is measured.
        context: longest sequence in tokens; None: the model's own.
        progress: told each step of fetching, converting and measuring.

    Raises:
        ModelNotFoundError: no such model, or it cannot be fetched here.
        DamagedFileError: a file is damaged; the message says how to mend it.
        MissingDependencyError: the engine needs an optional package.
        OptionError: more threads than this machine can use; the model's context is shorter than
            ``context``, or the engine takes none.
    """
    if threads is None:
        threads = default_threads()
    else:
        _check_threads(threads, warn=not drafts)
    path = find_model(name, quantization=quantization, engine=engine, progress=progress)
    kind = engine or engine_of(path)
    try:
        model = open_engine(path, kind, threads=threads, context=context)
        tokenizer = Tokenizer.load(path)
    except DamagedFileError as error:
        if not path.is_relative_to(cache_folder()):
            raise
        remedy = f"omnidraft models pull {name} --quantization {quantization}"
        raise DamagedFileError(f"{error} To mend it: {remedy}") from error
    if context is not None and model.max_length < context:
        raise OptionError(
            f"context must be at most {model.max_length}, which is what {name} holds, not {context}"
        )
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
            # Without the memory that this took.
            model = open_engine(path, kind, threads=threads, context=context)
            # Also where the folder could not be written.
            model.least_pass = least_pass  # type: ignore[attr-defined]
    return LoadedModel(name, path, model, tokenizer, difference == 0, kind, threads, difference)


def find_model(
    name: str,
    *,
    quantization: Quantization = DEFAULT_QUANTIZATION,
    engine: Engine | None = None,
    progress: Progress = silent,
) -> Path:
    """The place of what ``load_model`` loads, fetched and converted if need be.

    Raises:
        ModelNotFoundError, MissingDependencyError: see ``load_model``.
        OmniDraftError: see ``resolve``.
    """
    if engine is not None:
        engine_spec(engine).check()  # before much is fetched for it
        if engine_spec(engine).checkpoints:
            return resolve_checkpoint(name, progress=progress)
    return resolve(name, quantization, progress=progress)


def _check_threads(threads: int, *, warn: bool) -> None:
    cores = own_cores()
    if threads > (most := max(_MOST_THREADS, cores.logical)):
        raise OptionError(
            f"threads must be at most {most} here, not {threads}: more than there are cores wait "
            "for each other"
        )
    if warn and threads > cores.usable:
        warnings.warn(
            f"threads: {threads} are more than this process may keep busy at once, which is "
            f"{cores.usable}: they wait for each other",
            stacklevel=3,
        )


def _measure(name: str, path: Path, model: OnnxModel, progress: Progress) -> float:
    """Measure the batch invariance of a model, record it and say what came out."""
    manifest = measure_invariance(path, model, by_stage(progress))
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
