"""What lies in the cache folder, what of it is of use, and removing it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from omnidraft.runtime.errors import ModelNotFoundError, OmniDraftError
from omnidraft.runtime.models.cache import cache_folder, lock
from omnidraft.runtime.models.catalogue import PACKAGED_MODELS, Quantization
from omnidraft.runtime.models.progress import silent
from omnidraft.runtime.models.resolve import folder_name
from omnidraft.runtime.storage.bundle import BUNDLE_FILE, Bundle
from omnidraft.runtime.storage.folders import scratch_folder
from omnidraft.runtime.storage.manifest import Manifest, is_outdated

State = Literal["ready", "left over", "outdated", "damaged", "not fetched"]
"""``left over``: no name leads to it any more, since what it was made from is gone or has changed;
``outdated``: another version made it, and it is made anew at its next use."""


@dataclass(frozen=True)
class ListedModel:
    """A model that is known by name or lies in the cache."""

    name: str
    quantization: str | None
    """None for a known model that is not here yet, and where nothing tells."""
    path: Path | None
    size: int
    """Bytes on disk."""
    state: State
    again: bool
    """Whether it can be made again: what it is made from is here, or can be fetched."""
    description: str
    licence: str
    weights: str = ""
    """The quantization, and of ``auto`` what became of it; what else tells this one from others of
    its name. Empty where nothing tells."""

    @property
    def unused(self) -> bool:
        """Whether it only takes room."""
        return self.state in ("left over", "outdated", "damaged")


def list_models() -> list[ListedModel]:
    """The models known by name, and all that lies in the cache."""
    listed = [_converted(folder) for folder in _folders("models")]
    listed += [_learnable(folder) for folder in _folders("learnable")]
    listed += [_checkpoint(folder) for folder in _folders("checkpoints")]
    here = {model.name for model in listed}
    for model in PACKAGED_MODELS.values():
        if model.name not in here:
            listed.append(
                ListedModel(
                    model.name, None, None, 0, "not fetched", True, model.description, model.licence
                )
            )
    return listed


def remove_model(name: str, quantization: Quantization | None = None) -> list[ListedModel]:
    """Remove what the cache holds of a model.

    Args:
        name: as ``list_models`` shows it.
        quantization: only these weights; None: all.

    Returns:
        What was removed.

    Raises:
        ModelNotFoundError: the cache holds nothing of that name.
        OmniDraftError: it cannot be removed.
    """
    here = [model for model in list_models() if model.path is not None]
    asked = {name, str(Path(name).expanduser().resolve())}
    found = [
        model
        for model in here
        if model.name in asked and quantization in (None, model.quantization)
    ]
    if not found:
        names = ", ".join(sorted({model.name for model in here})) or "nothing"
        what = name if quantization is None else f"{name} ({quantization})"
        raise ModelNotFoundError(f"The cache holds no {what}. It holds: {names}.")
    _remove(found)
    return found


def remove_unused() -> list[ListedModel]:
    """Remove what only takes room: see ``ListedModel.unused``. What was removed is returned.

    Raises:
        OmniDraftError: it cannot be removed.
    """
    found = [model for model in list_models() if model.unused]
    _remove(found)
    return found


def _remove(models: list[ListedModel]) -> None:
    for model in models:
        assert model.path is not None
        # Nobody is making it meanwhile, and it is never there by half.
        with lock(model.path, silent, "removed"), scratch_folder(model.path) as scratch:
            try:
                model.path.rename(scratch / "removed")
            except FileNotFoundError:
                continue  # somebody else removed it
            except OSError as error:
                raise OmniDraftError(
                    f"{model.path} cannot be removed: {error.strerror}."
                ) from error


def _folders(name: str) -> Iterator[Path]:
    place = cache_folder() / name
    for folder in sorted(place.iterdir()) if place.is_dir() else []:
        if folder.is_dir() and not folder.name.startswith("."):
            yield folder


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _converted(folder: Path) -> ListedModel:
    try:
        manifest = Manifest.load(folder)
        manifest.verify(folder)
    except OmniDraftError:
        state: State = "outdated" if is_outdated(folder) else "damaged"
        return ListedModel(folder.name, None, folder, _size(folder), state, False, "", "")
    told = {key: text for key, text in manifest.extra.items() if isinstance(text, str)}
    name = told.get("name", folder.name)
    leads_to = _leads_to(name, manifest.quantization)
    return ListedModel(
        name=name,
        quantization=manifest.quantization,
        path=folder,
        size=_size(folder),
        state="ready" if leads_to == folder.name else "left over",
        again=leads_to is not None,
        description=told.get("description", manifest.architecture),
        licence=told.get("licence", ""),
        weights=manifest.weights_text,
    )


def _leads_to(name: str, quantization: str) -> str | None:
    """Name of the folder that a model's name leads to now; None: it leads nowhere."""
    try:
        return folder_name(name, quantization)  # type: ignore[arg-type]
    except (OmniDraftError, OSError, ValueError):  # the latter: no name that a file can have
        return None


def _learnable(folder: Path) -> ListedModel:
    try:
        bundle = Bundle.load(folder, checksums=False)
    except OmniDraftError:
        state: State = "damaged" if (folder / BUNDLE_FILE).exists() else "left over"
        return ListedModel(folder.name, None, folder, _size(folder), state, False, "", "")
    return ListedModel(
        name=bundle.name,
        quantization=bundle.quantization,
        path=folder,
        size=_size(folder),
        state="ready",
        again=True,
        description="made at the first use of an adapter",
        licence="",
        weights=f"{bundle.quantization}, takes adapters",
    )


def _checkpoint(folder: Path) -> ListedModel:
    return ListedModel(
        name=folder.name,
        quantization=None,
        path=folder,
        size=_size(folder),
        state="ready",
        again=True,
        description="what it is converted from",
        licence="",
        weights="as published",
    )
