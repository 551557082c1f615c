"""A drafter with an adapter in a session: loaded from a store, in use, learning, saved."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from omnidraft._native import CacheDamagedError, CacheMismatchError, VocabularyPair
from omnidraft.runtime.cores import default_threads
from omnidraft.runtime.engines.model import HiddenStates, TakesAdapters, use_adapter
from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.learning.adapter import Adapter, Metadata, model_key
from omnidraft.runtime.learning.head import AcceptanceHead, scorer_of
from omnidraft.runtime.learning.head_trainer import HeadProgress, HeadTrainer
from omnidraft.runtime.learning.observations import AdaptationBuffer, direct_mapping
from omnidraft.runtime.learning.store import AdapterStore
from omnidraft.runtime.learning.trainer import LearningOptions, OnlineTrainer
from omnidraft.runtime.learning.training_step import TrainingStep
from omnidraft.runtime.learning.trial import Progress
from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.models.load import drafter_threads
from omnidraft.runtime.storage.validation import mistakes

_Figures = TypeVar("_Figures")

_FIGURE, _HEAD_FIGURE = "learning", "head"
_HEAD_ROWS = "head."
"""Before the names of what a head goes on learning from, among the optimizer's state."""


@dataclass(frozen=True)
class AdapterChoice:
    """Which adapter a session uses.

    Args:
        store: where it is kept.
        name: its name there; one that does not exist yet begins when it is to learn.
        learning: how it goes on learning; None: it stays as it is, its n-gram cache on disk too.
        background: learn on a thread beside the answers, or between them.
    """

    store: AdapterStore
    name: str
    learning: LearningOptions | None = None
    background: bool = False


class Learner:
    """The adapter of one session.

    Args:
        drafter: needs LoRA inputs, and the training step beside them if it is to learn.
        pair: the two vocabularies.

    Raises:
        ModelNotFoundError: there is no such adapter, or no training step.
        OmniDraftError: the adapter belongs to other models or does not fit, or the drafter cannot
            take one.
    """

    def __init__(
        self,
        choice: AdapterChoice,
        target: LoadedModel,
        drafter: LoadedModel,
        pair: VocabularyPair,
    ) -> None:
        model = drafter.model
        if not isinstance(model, TakesAdapters):
            raise OmniDraftError(
                f"The drafter {drafter.name} takes no adapter on this engine. Export it with "
                "`omnidraft export --backend onnx`, and pass the bundle as drafter=…."
            )
        self._model = model
        self._choice = choice
        drafter_key = model_key(drafter.name, drafter.path)
        target_key = model_key(target.name, target.path)
        learning = choice.learning
        try:
            adapter = choice.store.load(
                choice.name, drafter_key, target_key, optimizer=learning is not None
            )
        except ModelNotFoundError:
            if learning is None:
                raise
            adapter = Adapter(Metadata(drafter=drafter_key, target=target_key))
        self._adapter = adapter
        try:
            self.cache = adapter.ngram_cache(pair)
        except (CacheDamagedError, CacheMismatchError) as error:
            raise OmniDraftError(
                f"The n-gram cache of adapter {choice.name!r} cannot be used: {error}."
            ) from error
        self._lora = dict(adapter.lora) or None
        self._model.set_adapter(self._lora)  # an error now, not at the first prompt
        self.head: AcceptanceHead | None = None
        """Decides the draft length in place of the drafter's confidence, once it is proven."""
        head_progress = _head_progress(adapter)
        if learning is None and head_progress is not None and head_progress.in_use:
            self.head = AcceptanceHead.from_state(adapter.head)
        self.buffer: AdaptationBuffer | None = None
        self.trainer: OnlineTrainer | None = None
        self.needs_chains = False
        """Whether a head learns. It reads the drafter's state after every token of a chain."""
        if learning is not None:
            surfaces = target.tokenizer.surfaces
            width = target.model.vocab_size
            plain = [
                token < len(surfaces) and surfaces[token] is not None for token in range(width)
            ]
            mapping = direct_mapping(pair, plain, drafter.model.vocab_size)
            head = _head_trainer(learning, adapter, drafter)
            self.needs_chains = head is not None
            self.trainer = OnlineTrainer(
                # Beside answers on the trainer's thread alone, whose priority is low.
                TrainingStep(
                    drafter.path,
                    threads=1 if choice.background else drafter_threads(default_threads()),
                ),
                mapping,
                _with_rank(learning, adapter, choice.name),
                lora=dict(adapter.lora),
                state=dict(adapter.optimizer),
                progress=_progress(adapter),
                head=head,
                background=choice.background,
            )
            self.buffer = AdaptationBuffer(
                mapping,
                detail=self.trainer.objective.detail,
                states=model if head is not None and isinstance(model, HiddenStates) else None,
            )
            self.head = self.trainer.proven_head
        self.paused = False
        """Answers change no weights while it is set."""
        self._saved = self._changes()
        self._answered = False

    @property
    def scorer(self) -> Callable[[float], float] | None:
        """See ``Drafting.scorer``; None while there is no proven head."""
        return scorer_of(self.head, self._model) if self.head is not None else None

    def begin(self) -> None:
        """Before a prompt is read: learning pauses, and what was learned comes into use."""
        if self.trainer is not None:
            self.trainer.pause()
            if (lora := self.trainer.take()) is not None:
                self._lora = lora or None
            self.head = self.trainer.proven_head
        use_adapter(self._model, self._lora)

    def first_token(self) -> None:
        """The answer has begun: learning may go on."""
        if self.trainer is not None:
            self.trainer.resume()

    def abandon(self) -> None:
        """The answer was broken off: nothing is learned from it, and nothing is saved."""
        if self.trainer is not None and self.buffer is not None:
            self.buffer.discard_prompt()
            self.trainer.resume()

    def end(self) -> None:
        """The answer was made to its end: learn from it, and save an update.

        Raises:
            OmniDraftError: see ``save``.
        """
        if self.trainer is None or self.buffer is None:
            return
        if self.paused:
            self.abandon()
            return
        self.trainer.resume()
        self.trainer.add(self.buffer.end_prompt())
        self._answered = True
        if self._changes() != self._saved:
            self.save()

    def save(self) -> None:
        """Keep everything learned so far; nothing changes without learning.

        Raises:
            OmniDraftError: see ``AdapterStore.save``.
        """
        if self.trainer is None:
            return
        changes = self._changes()
        lora, state, progress = self.trainer.state()
        figures = {**self._adapter.metadata.figures, _FIGURE: dataclasses.asdict(progress)}
        figures.pop(_HEAD_FIGURE, None)
        head: dict[str, NDArray[np.float32]] = {}
        if (head_state := self.trainer.head_state) is not None:
            head, rows, head_progress = head_state
            state |= {_HEAD_ROWS + name: values for name, values in rows.items()}
            figures[_HEAD_FIGURE] = dataclasses.asdict(head_progress)
        metadata = self._adapter.metadata.model_copy(
            update={
                "prompts": progress.prompts,
                "updates": progress.updates,
                "figures": figures,
            }
        )
        self._adapter = Adapter(metadata, lora, self.cache.to_bytes(), head, state)
        evicted = self._choice.store.save(self._choice.name, self._adapter)
        self._saved = changes
        if evicted:
            warnings.warn(f"adapters removed to make room: {', '.join(evicted)}", stacklevel=2)

    def finish(self) -> None:
        """Learn from what is waiting, and save."""
        if self.trainer is not None:
            self.trainer.drain()
            self.save()

    def close(self) -> None:
        """End learning and save; what is still waiting is forgotten: see ``finish``.

        Without an answer there is nothing to save: no adapter begins.
        """
        if self.trainer is not None:
            self.trainer.close()
            if self._answered:
                self.save()

    def _changes(self) -> tuple[int, int, int]:
        if self.trainer is None:
            return 0, 0, 0
        head = self.trainer.head_state
        progress = self.trainer.progress
        return progress.updates, progress.rollbacks, head[2].updates if head else 0


def _with_rank(options: LearningOptions, adapter: Adapter, name: str) -> LearningOptions:
    """The adapter's own rank, once it has one."""
    known: dict[str, Any] = dict(adapter.lora) or {
        key: values for key, values in adapter.optimizer.items() if key.startswith("candidate.")
    }
    matrices = (a for key, a in known.items() if key.endswith(".A") and a.ndim == 2)
    rank = next((a.shape[-1] for a in matrices), None)
    if rank is None or options.rank == rank:
        return options
    if options.rank is not None:
        raise OmniDraftError(
            f"Adapter {name!r} has rank {rank}, not {options.rank}. Leave --rank out, or choose "
            "another name."
        )
    return dataclasses.replace(options, rank=rank)


def _progress(adapter: Adapter) -> Progress | None:
    return _read(Progress, adapter, _FIGURE) if adapter.optimizer else None


def _head_progress(adapter: Adapter) -> HeadProgress | None:
    return _read(HeadProgress, adapter, _HEAD_FIGURE) if adapter.head else None


def _read(kind: type[_Figures], adapter: Adapter, figure: str) -> _Figures | None:
    """A dataclass that was kept among an adapter's figures; what it does not know is left out."""
    figures = adapter.metadata.figures.get(figure)
    if figures is None:
        return None
    try:
        return TypeAdapter(kind).validate_python(figures)
    except ValidationError as error:
        raise DamagedFileError(
            f"The adapter's figures of its {figure} cannot be read: {mistakes(error)}. "
            "Delete the adapter and learn it again."
        ) from error


def _head_trainer(
    learning: LearningOptions, adapter: Adapter, drafter: LoadedModel
) -> HeadTrainer | None:
    """What trains the head, from where the adapter's has come to."""
    progress = _head_progress(adapter)
    training = learning.head or (progress.training if progress else "none")
    if training == "none":
        return None
    model = drafter.model
    if not isinstance(model, HiddenStates) or not model.hidden_size:
        raise OmniDraftError(
            f"The drafter {drafter.name} gives no hidden states, which an acceptance head reads. "
            "Export it again with `omnidraft export --backend onnx`, or learn with --head none."
        )
    if progress is None:
        return HeadTrainer(AcceptanceHead(model.hidden_size), training, interval=learning.interval)
    head = AcceptanceHead.from_state(adapter.head)
    if head.hidden_size != model.hidden_size:
        raise OmniDraftError(
            f"The adapter's acceptance head reads hidden states of {head.hidden_size}, those of "
            f"{drafter.name} have {model.hidden_size}. Learn with --head none, or choose another "
            "name."
        )
    rows = {
        name.removeprefix(_HEAD_ROWS): values
        for name, values in adapter.optimizer.items()
        if name.startswith(_HEAD_ROWS)
    }
    return HeadTrainer(head, training, interval=learning.interval, progress=progress, rows=rows)
