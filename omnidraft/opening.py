"""The models that a command works with."""

from __future__ import annotations

import dataclasses

from omnidraft.output import steps
from omnidraft.runtime.engines import Engine
from omnidraft.runtime.models import LoadedModel, load_model
from omnidraft.runtime.models.catalogue import Quantization
from omnidraft.runtime.models.load import drafter_threads


def open_models(
    target: str,
    drafter: str | None,
    quantization: Quantization,
    engine: Engine | None,
    threads: int,
    *,
    learnable: bool = False,
) -> tuple[LoadedModel, LoadedModel | None]:
    """Load a target and, unless it is None, a drafter, showing what takes time.

    Args:
        learnable: the drafter is to take adapters; its bundle is made at first use.
    """
    with steps("loading") as show:
        target_model = load_model(
            target, quantization=quantization, engine=engine, threads=threads, progress=show
        )
        if drafter is None:
            return target_model, None
        place = drafter
        if learnable:
            from omnidraft.export.learnable import learnable_drafter

            place = str(learnable_drafter(drafter, progress=show))
        loaded = load_model(place, threads=drafter_threads(threads), drafts=True, progress=show)
        return target_model, dataclasses.replace(loaded, name=drafter)
