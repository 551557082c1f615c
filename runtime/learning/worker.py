"""Work beside the answers: on a thread that gives way to them and keeps a budget of time."""

from __future__ import annotations

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final, Generic, Self, TypeVar

import onnxruntime as ort

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Items that may wait for the thread.
_QUEUE: Final = 64
# The thread's niceness. It then has about a tenth of a core beside the threads that answer.
_NICE: Final = 10


class Worker(ABC, Generic[_Item]):
    """Works on items, on a thread of its own or whenever it is given one.

    A subclass says what to do with an item (``work``), and does the computing by ``compute``.

    Args:
        budget: at most this share of the time is computed, 0 < budget ≤ 1.
    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._allowed = threading.Event()
        self._allowed.set()
        self._closing = threading.Event()
        self._running: ort.RunOptions | None = None
        self._error: BaseException | None = None
        self._queue: deque[_Item] = deque()
        self._wake = threading.Condition()
        self._busy = False
        self._thread: threading.Thread | None = None

    @abstractmethod
    def work(self, item: _Item) -> None:
        """Do what an item asks for."""

    @abstractmethod
    def spent(self, seconds: float) -> None:
        """A piece of work has taken so long; called with the lock held."""

    # --- from the thread that answers -----------------------------------------------------------

    def start(self) -> None:
        """Work on a thread from now on."""
        self._thread = threading.Thread(target=self._work, name="omnidraft-learn", daemon=True)
        self._thread.start()

    def put(self, item: _Item) -> bool:
        """Work on an item, now or soon; after ``close`` no more.

        Returns:
            Whether the item that has waited longest was dropped to make room: see ``full``.

        Raises:
            Exception: whatever ended the thread.
        """
        if self._error is not None:
            raise self._error
        if self._closing.is_set():
            return False
        if self._thread is None:
            self.work(item)
            return False
        with self._wake:
            full = self.full
            if full:
                self._queue.popleft()
            self._queue.append(item)
            self._wake.notify_all()
        return full

    def pause(self) -> None:
        """Compute nothing until ``resume``: a prompt is being read. What runs begins anew."""
        self._allowed.clear()
        with self._lock:
            if self._running is not None:
                self._running.terminate = True

    def resume(self) -> None:
        """Go on after ``pause``."""
        self._allowed.set()

    @property
    def waiting(self) -> int:
        """How many items are still to be done."""
        return self._busy + len(self._queue)

    @property
    def full(self) -> bool:
        """Whether the next item takes the place of one that waits."""
        return len(self._queue) >= _QUEUE

    def drain(self, timeout: float | None = None) -> None:
        """Wait until everything that was put has been done, at most ``timeout`` s.

        Raises:
            Exception: whatever ended the thread.
        """
        with self._wake:
            self._wake.wait_for(
                lambda: self._error or self._closing.is_set() or not (self._queue or self._busy),
                timeout,
            )
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread; what has not been done yet is forgotten."""
        self._closing.set()
        self.pause()
        self._allowed.set()
        with self._wake:
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- working --------------------------------------------------------------------------------

    def compute(self, call: Callable[[ort.RunOptions], _Result]) -> _Result:
        """Run a piece of work when that is allowed, and rest afterwards as the budget demands.

        Args:
            call: may run twice; setting ``terminate`` of what it is given ends it with an
                exception.
        """
        while True:
            self._allowed.wait()
            if self._closing.is_set():
                raise _ClosedError
            options = ort.RunOptions()
            with self._lock:
                self._running = options
            # ``pause`` may have come before there was anything to end.
            if not self._allowed.is_set():
                continue
            started = perf_counter()
            try:
                result = call(options)
            except Exception:
                if options.terminate:
                    continue
                raise
            finally:
                seconds = perf_counter() - started
                with self._lock:
                    self._running = None
                    self.spent(seconds)
            if self._budget < 1:
                rest = seconds * (1 / self._budget - 1)
                self._closing.wait(min(rest, threading.TIMEOUT_MAX))
            return result

    def _work(self) -> None:
        try:
            _be_nice()
            while True:
                with self._wake:
                    self._wake.wait_for(lambda: self._queue or self._closing.is_set())
                    if self._closing.is_set():
                        return
                    item = self._queue.popleft()
                    self._busy = True
                self.work(item)
                with self._wake:
                    self._busy = False
                    self._wake.notify_all()
        except _ClosedError:
            pass
        except BaseException as error:
            self._error = error
            with self._wake:
                self._wake.notify_all()


class _ClosedError(Exception):
    """The worker was closed while it computed."""


def _be_nice() -> None:
    """Let the thread that answers go first.

    ``pause`` ends a step only after the operator that runs, which may take 30 ms. Not the lowest
    priority: this thread may hold Python's lock.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < _NICE:
            os.setpriority(os.PRIO_PROCESS, thread, _NICE)
