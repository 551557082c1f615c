"""The models and the adapter that a command or a program works with."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from omnidraft.runtime.engines import Engine
from omnidraft.runtime.models import LoadedModel, load_model
from omnidraft.runtime.models.catalogue import Quantization
from omnidraft.runtime.models.load import drafter_threads, find_model
from omnidraft.runtime.models.progress import Progress, silent

if TYPE_CHECKING:
    from omnidraft.runtime.learning.learner import AdapterChoice


def open_pair(
    target: str,
    drafter: str | None,
    quantization: Quantization,
    engine: Engine | None,
    threads: int | None,
    *,
    context: int | None = None,
    learnable: bool = False,
    progress: Progress = silent,
) -> tuple[LoadedModel, LoadedModel | None]:
    """Load a target and, unless it is None, a drafter.

    Args:
        threads: for one pass of the target; None: see ``default_threads``.
        context: of the target: see ``load_model``.
        learnable: the drafter is to take adapters; its bundle is made at first use.
        progress: told each step.

    Raises:
        See ``load_model``.
    """
    target_model = load_model(
        target,
        quantization=quantization,
        engine=engine,
        threads=threads,
        context=context,
        progress=progress,
    )
    if drafter is None:
        return target_model, None
    place = _drafter_place(drafter, learnable, progress)
    loaded = load_model(
        place, threads=drafter_threads(target_model.threads), drafts=True, progress=progress
    )
    return target_model, dataclasses.replace(loaded, name=drafter)


def find_pair(
    target: str,
    drafter: str | None,
    quantization: Quantization,
    engine: Engine | None,
    *,
    learnable: bool = False,
    progress: Progress = silent,
) -> list[Path]:
    """The places of what ``open_pair`` loads, fetched and converted if need be.

    Raises:
        See ``find_model``.
    """
    places = [find_model(target, quantization=quantization, engine=engine, progress=progress)]
    if drafter is not None:
        places.append(find_model(_drafter_place(drafter, learnable, progress), progress=progress))
    return places


def _drafter_place(drafter: str, learnable: bool, progress: Progress) -> str:
    if not learnable:
        return drafter
    from omnidraft.export.learnable import learnable_drafter

    return str(learnable_drafter(drafter, progress=progress))


def adapter_choice(name: str, learn: bool) -> AdapterChoice:
    """An adapter of the user's store, with the default way of learning.

    Raises:
        OmniDraftError: there is none, or what is learned could not be saved.
    """
    # Imported here: it takes longer than all else that every command starts with.
    from omnidraft.runtime.learning.learner import AdapterChoice
    from omnidraft.runtime.learning.store import AdapterStore, adapters_folder
    from omnidraft.runtime.learning.trainer import LearningOptions

    store = AdapterStore(adapters_folder())
    if learn:
        store.check_writable(name)
    else:
        store.check(name)
    return AdapterChoice(store, name, LearningOptions() if learn else None)
