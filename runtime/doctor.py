"""What is installed, what works, and what to do about what does not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from omnidraft.runtime.cores import own_cores
from omnidraft.runtime.engines.environment import environment, measured_here
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models.cache import cache_folder
from omnidraft.runtime.models.catalogue import default_drafter_folder
from omnidraft.runtime.models.listing import list_models
from omnidraft.runtime.storage.manifest import MANIFEST_FILE, Manifest

State = Literal["ok", "optional", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``remedy`` says what to do when there is something to do."""

    subject: str
    state: State
    detail: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Look at this installation; loads no model and changes nothing."""
    return [
        Finding("Python", "ok", f"{platform.python_version()} on {platform.machine()}"),
        _threads(),
        _package("ONNX Runtime", "onnxruntime", "the default engine", "pip install onnxruntime"),
        _package(
            "transformers engine",
            "transformers",
            "checkpoints as they are, also on CUDA",
            "pip install 'omnidraft[transformers]'",
            needs=("torch",),
            optional=True,
        ),
        _drafter(),
        _cache(),
        *_models(),
    ]


def _threads() -> Finding:
    cores, all_cores = own_cores(), os.cpu_count()
    quota = "" if cores.quota is None else f", of which a quota leaves the time of {cores.quota:g}"
    return Finding(
        "Processor",
        "ok",
        f"usable cores: {cores.logical} of {all_cores}{quota}; threads by default: {cores.threads}",
    )


def _package(
    subject: str,
    name: str,
    purpose: str,
    remedy: str,
    *,
    needs: tuple[str, ...] = (),
    optional: bool = False,
) -> Finding:
    missing = [n for n in (name, *needs) if importlib.util.find_spec(n) is None]
    if missing:
        detail = f"{', '.join(missing)} not installed ({purpose})"
        return Finding(subject, "optional" if optional else "problem", detail, remedy)
    versions = ", ".join(f"{n} {importlib.metadata.version(n)}" for n in (name, *needs))
    return Finding(subject, "ok", f"{versions} ({purpose})")


def _drafter() -> Finding:
    try:
        folder = default_drafter_folder()
    except OmniDraftError as error:
        return Finding("Default drafter", "problem", str(error), "install omnidraft again")
    return Finding("Default drafter", "ok", str(folder))


def _cache() -> Finding:
    folder = cache_folder()
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    free = shutil.disk_usage(existing).free / 1e9
    if not os.access(existing, os.W_OK):
        return Finding(
            "Cache folder",
            "problem",
            f"{folder} cannot be written",
            "set OMNIDRAFT_CACHE to a folder that can be written",
        )
    if free < 1:
        return Finding(
            "Cache folder",
            "problem",
            f"{folder}: only {free:.1f} GB free",
            "free some space, or set OMNIDRAFT_CACHE to a folder on another disk",
        )
    return Finding("Cache folder", "ok", f"{folder}, {free:.0f} GB free")


def _models() -> list[Finding]:
    findings, any_ready = [], False
    for model in list_models():
        if model.path is None:
            findings.append(
                Finding(
                    model.name,
                    "optional",
                    f"not fetched ({model.description})",
                    f"omnidraft models pull {model.name}",
                )
            )
            continue
        if model.unused:
            findings.append(
                Finding(
                    model.name,
                    "optional",
                    f"{model.state}, takes {model.size / 1e6:.0f} MB",
                    "omnidraft models rm --unused",
                )
            )
            continue
        if not (model.path / MANIFEST_FILE).is_file():
            continue
        any_ready = True
        manifest = Manifest.load(model.path)
        known = not manifest.invariance or measured_here(manifest)
        state: State = "ok" if known else "optional"
        findings.append(Finding(f"{model.name} {manifest.weights_text}", state, _promise(manifest)))
    if not any_ready:
        findings.append(
            Finding(
                "Models",
                "problem",
                "no model has been fetched yet",
                "omnidraft models pull smollm2-135m",
            )
        )
    return findings


def _promise(manifest: Manifest) -> str:
    """What is known here of a converted model's batch invariance."""
    if not manifest.invariance:
        return "made to draft: it need not be batch-invariant, the target verifies what it proposes"
    measured = measured_here(manifest)
    if not measured:
        differences = [
            f"{name} {_shown(manifest.invariance.get(name))} (here {_shown(value)})"
            for name, value in environment().items()
            if manifest.invariance.get(name) != value
        ]
        return (
            "whether it is batch-invariant here is not known: batch-invariance was measured with "
            f"{', '.join(differences) or 'no number of threads'}, and is measured again when the "
            "model is loaded"
        )
    parting = [threads for threads, each in measured.items() if each.difference != 0]
    if parting:
        largest = max(each.difference for each in measured.values())
        return (
            f"misses batch-invariance here ({_listed(parting)}) by {largest:.4g}: "
            "as a target, its greedy answers may part from plain decoding where the two largest "
            "logits are closer; a drafter need not have it"
        )
    return (
        f"batch-invariant, measured here ({_listed(measured)}): greedy answers are bit for bit "
        "those of plain decoding"
    )


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "unknown" if value is None else str(value)


def _listed(threads: Iterable[int]) -> str:
    return f"threads: {', '.join(map(str, sorted(threads)))}"
