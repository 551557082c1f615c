"""The models that a command works with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from omnidraft.output import steps
from omnidraft.runtime.engines import Engine
from omnidraft.runtime.models import LoadedModel, Quantization, drafter_threads, load_model


def open_models(
    target: str,
    drafters: Sequence[str],
    quantization: Quantization,
    engine: Engine | None,
    threads: int,
    *,
    learnable: bool = False,
) -> tuple[LoadedModel, list[LoadedModel]]:
    """Load a target and drafters, showing what takes time.

    Args:
        learnable: the drafters are to take adapters; their bundles are made at first use.
    """
    with steps("loading") as show:
        target_model = load_model(
            target, quantization=quantization, engine=engine, threads=threads, progress=show
        )
        drafter_models = []
        for drafter in drafters:
            place = drafter
            if learnable:
                from omnidraft.export.learnable import learnable_drafter

                place = str(learnable_drafter(drafter, progress=show))
            loaded = load_model(place, threads=drafter_threads(threads), drafts=True, progress=show)
            drafter_models.append(dataclasses.replace(loaded, name=drafter))
    return target_model, drafter_models
