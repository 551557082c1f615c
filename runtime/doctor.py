"""What is installed, what works, and what to do about what does not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from dataclasses import dataclass
from typing import Literal

from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.manifest import Manifest
from omnidraft.runtime.models import cache_folder, default_drafter_folder, list_models
from omnidraft.runtime.processor import usable_cores

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
    return Finding("Processor", "ok", f"{usable_cores()} usable of {os.cpu_count()} cores")


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
    findings = []
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
        manifest = Manifest.load(model.path)
        if manifest.batch_invariant:
            promise = "batch-invariant: greedy answers are bit for bit those of plain decoding"
        else:
            promise = "not batch-invariant: greedy answers may differ where two tokens are close"
        findings.append(Finding(f"{model.name} {model.quantization}", "ok", promise))
    if not any(finding.state == "ok" for finding in findings):
        findings.append(
            Finding(
                "Models",
                "problem",
                "no model has been fetched yet",
                "omnidraft models pull smollm2-135m",
            )
        )
    return findings
