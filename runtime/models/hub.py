"""Models of the Hugging Face hub: which files of a repository make one, and where they lie."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.models.progress import Progress
from omnidraft.runtime.storage.folders import is_disk_full

CONNECTION_TIMEOUT = 20
"""Seconds of silence on a connection."""
_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?(:(?P<file>.+))?")
_TOKENIZERS = {"tokenizer.json", "tokenizer.model"}
_LONGEST = 96
"""Characters of a repository's name, as the hub has it."""
_COMPANIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
# The forms that weights are published in, the better one first: one file, its parts' index, parts.
_FORMS = (
    ("model.safetensors", "model.safetensors.index.json", "*.safetensors"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model*.bin"),
)
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.\w+$)")
_GGUF = re.compile(r"\.gguf$", re.I)


@dataclass(frozen=True)
class HubName:
    """``organisation/name``, maybe ``@revision``, maybe ``:file`` of its GGUF files.

    Attributes:
        repository: organisation/name.
        revision: a branch, tag or commit; None: the main branch.
        file: the name of a GGUF file, or what tells it from the others, say ``Q4_K_M``.
    """

    repository: str
    revision: str | None
    file: str | None

    def __str__(self) -> str:
        return self.repository + (f"@{self.revision}" if self.revision else "")


def hub_name(name: str) -> HubName | None:
    """What a name says as one of the hub; None where it has another form or is a path here."""
    match = _NAME.fullmatch(name)
    if match is None or len(match["repository"]) > _LONGEST:
        return None
    # Unlike Path.exists, this takes a name that is too long for a path.
    if name.startswith(".") or os.path.exists(name):
        return None
    return HubName(match["repository"], match["revision"], match["file"])


def hub_config(name: HubName, progress: Progress) -> dict[str, Any]:
    """The config.json of a repository, of which nothing else is fetched.

    Raises:
        ModelNotFoundError: no such repository, no access, no connection, or no config.json in it.
        DamagedFileError: its config.json names no ``model_type``.
        OmniDraftError: the disk is full.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = _fetch(name, partial(_config_of, name), Path(scratch), progress)
        try:
            config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
            config["model_type"]
            return config
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise DamagedFileError(
                f"The config.json of {name} names no model_type. Name another repository."
            ) from error


def fetch_hub(name: HubName, folder: Path | None, progress: Progress) -> Path:
    """A repository's configuration, tokenizer and weights, or one of its GGUF files.

    What the hub's own cache holds of the repository is used, and completed there.

    Args:
        name: of the repository.
        folder: where to download to if the hub's cache holds nothing of it; None: into that cache.
        progress: told each step.

    Returns:
        The folder that holds the files, or the GGUF file (the first of its parts).

    Raises:
        ModelNotFoundError: no such repository, no access, no connection, no weights in it, or
            several GGUF files of which the name chooses none.
        OmniDraftError: the disk is full.
    """

    wanted = partial(_model_of, name)
    found = _fetch(name, wanted, folder, progress)
    ggufs = [file for file in wanted(_files(found)) if _GGUF.search(file)]
    return found / ggufs[0] if ggufs else found


def _fetch(
    name: HubName,
    wanted: Callable[[list[str]], list[str]],
    folder: Path | None,
    progress: Progress,
) -> Path:
    """The folder of the hub's cache if it holds what is wanted of a repository's files."""
    import huggingface_hub

    place: dict[str, Any] = {"repo_id": name.repository, "revision": name.revision}
    cached, lacking = None, ["everything"]
    try:
        cached = Path(huggingface_hub.snapshot_download(**place, local_files_only=True))
        lacking = _lacking(cached, wanted)
    except Exception:  # nothing of it is there; the library's errors share no base class
        progress(f"{name} is not in the hub's cache", None)
    if cached is not None and not lacking:
        return cached
    progress(f"downloading {name} from the Hugging Face hub", None)
    try:
        # snapshot_download waits forever for a silent server, so this asks first, with a timeout.
        about = huggingface_hub.HfApi().model_info(
            name.repository, revision=name.revision, timeout=CONNECTION_TIMEOUT
        )
        files = wanted([sibling.rfilename for sibling in about.siblings or ()])
        if cached is None and folder is not None:
            place["local_dir"] = folder
        return Path(
            huggingface_hub.snapshot_download(**place, allow_patterns=[escape(f) for f in files])
        )
    except OmniDraftError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and is_disk_full(error):
            raise OmniDraftError(
                "The disk of the cache folder is full; nothing was kept. Free space and try again."
            ) from error
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        if cached is not None:
            raise ModelNotFoundError(
                f"The hub's cache holds a part of {name} and lacks {', '.join(lacking)}, which "
                f"cannot be fetched: {reason.rstrip('.')}. Try again when you are online."
            ) from error
        raise ModelNotFoundError(
            f"{name} cannot be fetched from the Hugging Face hub: {reason.rstrip('.')}. If you are "
            "offline or the model needs a login, give the path of a GGUF file or a model folder."
        ) from error


def _files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def _lacking(folder: Path, wanted: Callable[[list[str]], list[str]]) -> list[str]:
    """Names of what a folder of the hub's cache lacks, as far as its own files tell."""
    files = _files(folder)
    try:
        chosen = wanted(files)
    except ModelNotFoundError:
        return ["weights"] if "config.json" in files else ["config.json"]
    needed = {"config.json"} if any(file.endswith(".json") for file in chosen) else set()
    if needed and chosen != ["config.json"] and not _TOKENIZERS & set(files):
        needed.add("tokenizer.json")
    for index in (file for file in chosen if file.endswith(".index.json")):
        try:
            needed |= set(json.loads((folder / index).read_text("utf-8"))["weight_map"].values())
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            needed.add(index)
    for file in chosen:
        if part := _PART.search(file):
            needed |= {
                _PART.sub(f"-{number + 1:05}-of-{part[2]}", file) for number in range(int(part[2]))
            }
    return sorted(needed - set(files))


def _config_of(name: HubName, files: list[str]) -> list[str]:
    if "config.json" not in files:
        raise ModelNotFoundError(
            f"{name} holds no config.json. Name a repository with config.json and safetensors, or "
            f"one of its GGUF files ({name}:FILE)."
        )
    return ["config.json"]


def _model_of(name: HubName, files: list[str]) -> list[str]:
    """The files of a repository that make a model.

    Raises:
        ModelNotFoundError: none do, or the name does not say which.
    """
    if name.file is None and "config.json" in files:
        for whole, index, parts in _FORMS:
            weights = [f for f in files if "/" not in f and Path(f).match(parts)]
            if whole in weights:
                weights = [whole]
            elif numbered := [f for f in weights if _PART.search(f)]:
                weights = numbered
            if weights or index in files:
                kept = [f for f in _COMPANIONS if f in files]
                if index in files and weights != [whole]:
                    kept.append(index)
                if "tokenizer.json" not in files and "tokenizer.model" in files:
                    kept.append("tokenizer.model")
                return [*kept, *weights]
    return _gguf_of(name, files)


def _gguf_of(name: HubName, files: list[str]) -> list[str]:
    ggufs = [
        file
        for file in files
        if _GGUF.search(file) and not re.match("mmproj|imatrix", Path(file).name, re.I)
    ]
    # Each model by its name, with the files that it is in.
    models: dict[str, list[str]] = {}
    for file in sorted(ggufs):
        models.setdefault(_PART.sub("", file), []).append(file)
    fitting = models
    if name.file is not None:
        fitting = _fitting(name.file, models)
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    if not ggufs:
        raise ModelNotFoundError(
            f"{name} holds neither a config.json with safetensors (or PyTorch) weights nor a GGUF "
            "file. Load it with transformers, save it with save_pretrained(), and give the path of "
            "that folder."
        )
    what = f"no GGUF file {name.file!r}" if not fitting else f"{len(fitting)} GGUF files that fit"
    choices = _choices(name, fitting or models)
    raise ModelNotFoundError(f"{name} holds {what}. Name one of them: {choices}.")


def _fitting(asked: str, models: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The models that are called so; if there are none, those whose names end so, or have it."""
    asked = _PART.sub("", _GGUF.sub("", asked) + ".gguf")
    word = rf"(?:^|[-._/]){re.escape(_GGUF.sub('', asked))}"
    for pattern in (re.escape(asked), rf".*{word}\.gguf", rf".*{word}(?:[-._/].*)"):
        told = re.compile(pattern, re.I)
        if found := {model: files for model, files in models.items() if told.fullmatch(model)}:
            return found
    return {}


def _choices(name: HubName, models: Iterable[str]) -> str:
    paths = [_GGUF.sub("", model) for model in sorted(models)]
    stems = [Path(path).name for path in paths]
    if len(set(stems)) < len(stems):  # their folders tell them apart
        stems = paths
    # What they have in common tells nobody which is which.
    common = Path(stems[0]).name
    for stem in stems[1:]:
        while not stem.startswith(common):
            common = common[:-1]
    common = common[: max(common.rfind(c) for c in "-._") + 1] if len(stems) > 1 else ""
    return ", ".join(f"{name}:{stem.removeprefix(common)}" for stem in stems)
