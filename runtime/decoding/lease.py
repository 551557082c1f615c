"""One answer at a time from a model: its KV cache holds one sequence.

with Lease([target, drafter]):
    ...                              # nobody else's tokens get into their caches
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from time import monotonic
from typing import Self

from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.errors import CancelledError, ModelInUseError, OmniDraftError

DEFAULT_WAIT = 60.0
"""Seconds that an answer waits for another one to end."""
_LOOK = 0.05
"""Seconds between looks at whether the waiting was cancelled."""


class _Lock:
    """The lock of one model. Its holder may go on in another thread, as a generator may."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: int | None = None
        """Where its holder ran last."""


_locks: dict[int, _Lock] = {}
_guard = threading.Lock()


def _lock_of(model: CausalModel) -> _Lock:
    with _guard:
        found = _locks.get(id(model))
        if found is None:
            found = _locks[id(model)] = _Lock()
            weakref.finalize(model, _locks.pop, id(model), None).atexit = False
        return found


class Lease:
    """The sole use of some models while an answer is made with them.

    It may be entered again while it is held. The models are given back when it has been left as
    often as it was entered.

    Args:
        models: each once.
        wait: seconds to wait for others to give them back; 0: not at all.
        cancelled: ends the waiting once it is set.

    Raises:
        OmniDraftError: a model is named twice.
    """

    def __init__(
        self,
        models: Sequence[CausalModel],
        wait: float = DEFAULT_WAIT,
        cancelled: threading.Event | None = None,
    ) -> None:
        if len({id(model) for model in models}) < len(models):
            raise OmniDraftError(
                "target and drafter are one loaded model, which holds one sequence: load it twice"
            )
        # Always in one order, so that no two wait for each other.
        self._locks = [_lock_of(model) for model in sorted(models, key=id)]
        self._wait = wait
        self._cancelled = cancelled or threading.Event()
        self._depth = 0
        self._lent = False

    def __enter__(self) -> Self:
        """Wait for the models.

        Raises:
            CancelledError: it was cancelled meanwhile.
            ModelInUseError: they were not given back in time; or this very thread holds them, by a
                stream that was neither read to its end nor closed, and would wait for itself.
        """
        if not self._depth:
            self._acquire()
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            if not self._lent:
                self._release(self._locks)
            self._lent = False

    def lend(self) -> None:
        """Let others use the models until ``take_back``, or for good where the lease ends first."""
        self._release(self._locks)
        self._lent = True

    def take_back(self) -> None:
        """Wait for the models again.

        Raises:
            ModelInUseError: they were not given back in time; they are still lent.
        """
        self._acquire()
        self._lent = False

    def go_on_here(self) -> None:
        """The holder goes on, perhaps in another thread."""
        thread = threading.get_ident()
        for lock in self._locks:
            lock.thread = thread

    def _acquire(self) -> None:
        deadline = monotonic() + self._wait
        held: list[_Lock] = []
        try:
            for lock in self._locks:
                if not lock.lock.acquire(blocking=False):
                    if lock.thread == threading.get_ident():
                        raise ModelInUseError(
                            "the model is in the middle of another answer in this thread; read "
                            "its stream to the end or close it first, or load the model once more"
                        )
                    while not lock.lock.acquire(
                        timeout=min(_LOOK, max(0.0, deadline - monotonic()))
                    ):
                        if self._cancelled.is_set():
                            raise CancelledError("cancelled while another answer was made")
                        if monotonic() >= deadline:
                            raise ModelInUseError(
                                "the model is in use: another answer did not end within "
                                f"{self._wait:g} s. Try again later, close streams that nobody "
                                "reads, or load the model once more"
                            )
                held.append(lock)
        except BaseException:
            self._release(held)
            raise
        self.go_on_here()

    @staticmethod
    def _release(locks: Sequence[_Lock]) -> None:
        for lock in locks:
            lock.thread = None
            lock.lock.release()
