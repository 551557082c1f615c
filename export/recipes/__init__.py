"""Recipes: each turns a checkpoint into one backend's graphs.

A new backend is one new file here, and one new name in ``storage.manifest.Backend``. A recipe is
found by its module's name; see ``onnx.py`` for an example.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from omnidraft.export.checkpoint import Checkpoint
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.storage.bundle import (
    Backend,
    Graph,
    Lora,
    Quantization,
    Soc,
    SpecialTokens,
    Thresholds,
    WeightShare,
)
from omnidraft.runtime.storage.manifest import Layout

LORA_RANK = 32
"""Of LoRA inputs, unless another is asked for."""

Progress = Callable[[str, int, int], None]
"""Called with a stage, steps done and steps in all."""


@dataclass(frozen=True)
class Options:
    """What a user asked for.

    Args:
        quantization: None: the recipe's default.
        lora_rank: rank of the LoRA inputs; 0: none; None: the recipe's default.
        context: longest sequence, in tokens; 0: the recipe's default.
        soc: name of the chip, for backends that compile for one.
        threads: threads for parity and latency.
        min_agreement: top-1 and acceptance agreement that are needed, instead of the recipe's
            thresholds; None: those.
        train_step: add a graph that trains the LoRA inputs. It holds the weights once more.
        own: for this program alone, where the recipe can: a faster graph, with an operator of
            the package's, whose head computes only what the checkpoint says is ever drafted.
        layout: see ``manifest.Layout``.
        share_weights: keep the weights of several compiled graphs once, where the recipe can.
    """

    quantization: Quantization | None = None
    lora_rank: int | None = None
    context: int = 0
    soc: str | None = None
    threads: int = 2
    min_agreement: float | None = None
    train_step: bool = False
    own: bool = False
    layout: Layout = "omnidraft"
    share_weights: bool = False


@dataclass(frozen=True)
class Words:
    """A drafter's tokenizer: its files (see ``tokenizer_files``), and how texts begin and end."""

    files: Mapping[str, bytes]
    special: SpecialTokens


NO_WORDS = Words({}, SpecialTokens(beginning=None, tokenizer_adds_it=False, ends=[]))


@dataclass(frozen=True)
class Built:
    """What a recipe wrote.

    ``calibrated`` is False where a recipe that uses calibration text had no use for it. ``finish``
    puts graphs that this machine cannot run into the place of those that were proven, and returns
    what is then said of the chip.
    """

    graphs: list[Graph]
    weights: list[WeightShare]
    lora: Lora | None
    max_threads: int | None = None
    soc: Soc | None = None
    calibrated: bool = True
    finish: Callable[[], Soc] | None = None
    versions: dict[str, str] = field(default_factory=dict)


class Recipe(Protocol):
    """One backend."""

    backend: Backend
    quantizations: tuple[Quantization, ...]
    """The first is the default, unless a chip is named and ``chip_quantization`` is another."""
    chip_quantization: Quantization | None
    """The default where a chip is named; None: as elsewhere."""
    layouts: tuple[Layout, ...]
    calibrated: tuple[Quantization, ...]
    """Those that calibration text has an effect on."""
    lora_rank: int
    """Of LoRA inputs unless another is asked for; 0: the backend has none."""
    context: int
    """The longest sequence unless another is asked for, in tokens; 0: the checkpoint's own."""
    thresholds: Mapping[Quantization, Thresholds]
    """The export fails when parity is worse."""
    parity_positions: int
    """Positions of held text that are compared."""

    def check(self, options: Options) -> None:
        """Refuse what cannot be built, before anything is written.

        Raises:
            OmniDraftError: an option does not fit the backend.
            MissingDependencyError: a package or SDK is missing.
        """

    def build(
        self,
        checkpoint: Checkpoint,
        folder: Path,
        options: Options,
        calibration: Sequence[Sequence[int]],
        progress: Progress,
        words: Words = NO_WORDS,
    ) -> Built:
        """Write the graphs into ``folder`` (which is temporary; failing halfway is fine).

        Args:
            checkpoint: of a decoder that ``check_drafts`` allows.
            options: with ``quantization``, ``lora_rank`` and ``context`` set.
            calibration: texts as the drafter's tokens, for static quantization.
            words: for files that tell of the tokenizer.
        """


def refuse_sharing(options: Options, backend: Backend) -> None:
    """Refuse ``share_weights`` where there is nothing to share.

    Raises:
        OmniDraftError: it was asked for.
    """
    if options.share_weights:
        raise OmniDraftError(
            f"--share-weights is for compiled graphs: the {backend} backend has the weights once. "
            "Leave it out."
        )


def backends() -> list[str]:
    """Names of all recipes."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find_recipe(backend: str) -> Recipe:
    """The recipe of a backend.

    Raises:
        OmniDraftError: there is none of that name.
    """
    if backend not in backends():
        raise OmniDraftError(f"unknown backend {backend!r}; known are {', '.join(backends())}")
    recipe: Recipe = importlib.import_module(f"{__name__}.{backend}").recipe
    return recipe
