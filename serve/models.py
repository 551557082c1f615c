"""The models that are served: opened when their turn comes, and closed for others."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import NamedTuple, Self

from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.memory import give_back_memory
from omnidraft.runtime.models.progress import Progress, silent
from omnidraft.runtime.session import Session
from omnidraft.runtime.storage.weights import weights_bytes
from omnidraft.serve.errors import ApiError

log = logging.getLogger("omnidraft.serve")


class Described(NamedTuple):
    """What is told of a model, open or closed.

    Attributes:
        target: its name.
        drafter: its name; None: nothing is drafted.
        adapter: with which it drafts.
        learns: whether the adapter goes on learning.
    """

    target: str
    drafter: str | None
    adapter: str | None = None
    learns: bool = False


@dataclass(frozen=True, eq=False)
class Target:
    """A target, and the models that it answers for: itself, and itself with adapters.

    Args:
        models: by their names.
        nbytes: of its weights, and the drafter's.
        open: loads it, telling each step; sessions by the names of the models.
    """

    models: Mapping[str, Described]
    nbytes: int
    open: Callable[[Progress], Mapping[str, Session]]

    @property
    def name(self) -> str:
        """By which the log calls it."""
        return next(iter(self.models))


class Models:
    """Opens and closes models.

    One thread opens, and answers; another one may prepare requests meanwhile.

    Args:
        targets: what there is. All are closed at first.
        budget: bytes that open targets may take; the one in use may take more. None: any number.
        keep: keeps what a session has learned, before it is closed. What it raises refuses that.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        budget: int | None = None,
        keep: Callable[[Session], None] = lambda session: None,
    ) -> None:
        self._targets = {name: target for target in targets for name in target.models}
        self.described: Mapping[str, Described] = {
            name: target.models[name] for name, target in self._targets.items()
        }
        """All models."""
        self._budget = budget
        self._keep = keep
        self._open: dict[Target, Mapping[str, Session]] = {}
        """The one used last is at the end. It is replaced, not changed: other threads read it."""
        self._lock = threading.Lock()
        """Held while tokenizers are read with, which are not for several threads at once."""
        self.loads = 0
        """How often a target was opened."""

    @classmethod
    def of(cls, sessions: Mapping[str, Session]) -> Self:
        """Models that are open already, and stay so."""
        targets: dict[str, dict[str, Session]] = {}
        for name, session in sessions.items():
            target = next(n for n, other in sessions.items() if other.target is session.target)
            targets.setdefault(target, {})[name] = session
        models = cls([_opened(target, its) for target, its in targets.items()])
        for target in targets:
            models.open(target)
        return models

    @property
    def count(self) -> int:
        """Targets that are open."""
        return len(self._open)

    @property
    def nbytes(self) -> int:
        """Bytes that the open ones take, as far as it is known: their weights and KV caches."""
        return sum(_bytes(*each) for each in self._open.items())

    @contextmanager
    def reading(self, name: str) -> Iterator[Session | None]:
        """A model while a prompt is read with its tokenizer; None: it is closed.

        It is not closed meanwhile.
        """
        with self._lock:
            sessions = self._open.get(self._targets[name])
            yield sessions[name] if sessions else None

    def open(self, name: str, progress: Progress = silent) -> Session:
        """A model, opened if need be. The least recently used ones are closed for it.

        Raises:
            ApiError: 503: it cannot be opened, or another one not be closed.
        """
        target = self._targets[name]
        try:
            self._make_room(target)
            sessions = self._open.get(target) or self._load(target, progress)
        except Exception as error:
            # Such errors tell of files, not of what was said.
            log.error("%s cannot be opened: %s: %s", target.name, type(error).__name__, error)
            why = str(error) if isinstance(error, OmniDraftError) else "the server's log says why"
            raise ApiError(
                503, f"the model cannot be opened: {why}", code="model_not_opened"
            ) from error
        others = {each: its for each, its in self._open.items() if each is not target}
        self._open = others | {target: sessions}
        return sessions[name]

    def close(self) -> None:
        """Close all.

        Raises:
            OmniDraftError: see ``keep``.
        """
        for target in self._open:
            self._close(target)

    def _make_room(self, target: Target) -> None:
        closed = False
        for other in self._open:
            wanted = 0 if target in self._open else target.nbytes
            if self._budget is None or self.nbytes + wanted <= self._budget:
                break
            if other is not target:
                self._close(other)
                closed = True
        if closed:
            gc.collect()  # a model is large, and may be part of a circle
            give_back_memory()

    def _load(self, target: Target, progress: Progress) -> Mapping[str, Session]:
        begun = monotonic()
        sessions = target.open(progress)
        self.loads += 1
        megabytes = _bytes(target, sessions) / 1e6
        log.info("%s opened: %.0f MB, %.2f s", target.name, megabytes, monotonic() - begun)
        return sessions

    def _close(self, target: Target) -> None:
        with self._lock:
            for session in self._open[target].values():
                self._keep(session)
            self._open = {each: its for each, its in self._open.items() if each is not target}
        log.info("%s closed", target.name)


def _bytes(target: Target, sessions: Mapping[str, Session]) -> int:
    """Bytes of an open target's weights and KV caches."""
    return target.nbytes + next(iter(sessions.values())).kv_bytes


def _opened(target: str, sessions: Mapping[str, Session]) -> Target:
    """A target that is open already."""
    models: dict[str, Described] = {}
    places: set[Path] = set()
    for name, session in sessions.items():
        learner = session.learner
        models[name] = Described(
            target,
            session.drafter.name if session.drafter else None,
            name.removeprefix(f"{target}:") if learner else None,
            learner is not None and learner.trainer is not None,
        )
        places |= {each.path for each in (session.target, session.drafter) if each is not None}
    return Target(models, sum(map(weights_bytes, places)), lambda progress: sessions)
