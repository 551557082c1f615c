"""The thread that answers, and the requests that wait for it."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic

from omnidraft.runtime.answer import Piece
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.session import Session
from omnidraft.runtime.statistics import Statistics
from omnidraft.serve.errors import ApiError
from omnidraft.serve.models import Models
from omnidraft.serve.preparing import Choice, Prepared
from omnidraft.serve.replies import Reply
from omnidraft.serve.turns import Turns

log = logging.getLogger("omnidraft.serve")


@dataclass(frozen=True)
class Begun:
    """The request's turn has come, and its model is open."""

    reply: Reply


@dataclass(frozen=True)
class Told:
    """A piece of an answer.

    Attributes:
        seconds: since the end of the prompt.
        plain_seconds: that plain decoding is expected to take for a token here, if proposals are
            told: see ``Session.plain_seconds``.
    """

    choice: int
    piece: Piece
    seconds: float
    plain_seconds: float | None


@dataclass(frozen=True)
class Ended:
    """The end of an answer.

    Attributes:
        plain_seconds: that plain decoding took for it, or is expected to take, by what the rounds
            told; None: that is not known.
    """

    choice: int
    reason: str
    statistics: Statistics
    plain_seconds: float | None


@dataclass(frozen=True)
class Failed:
    """There is no (more) answer."""

    error: BaseException


Event = Begun | Told | Ended | Failed | None
"""None: all answers have ended."""


class Work:
    """A request: one answer or several, made one after the other in one turn.

    Its events come by ``events``, in the event loop in which it was made.

    Args:
        model: its name.
        models: where it is opened, if it is closed when the turn has come.
        prepare: makes of the request what is answered, with the model.
    """

    def __init__(self, model: str, models: Models, prepare: Callable[[Session], Prepared]) -> None:
        self.model = model
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self._models = models
        self._prepare = prepare
        self._prepared: Prepared | None = None
        self._prepared_by: weakref.ref[Session] | None = None
        """Not kept: a request that waits keeps no model open."""
        self._cancelled = threading.Event()
        self._expired = False
        self._loop = asyncio.get_running_loop()

    def prepare(self) -> None:
        """Find out early what is wrong with it, as far as its model is open; in any thread.

        Raises:
            ApiError: 400: the model cannot answer it.
        """
        with self._models.reading(self.model) as session:
            # Opened anew it may be another one: its file may have changed.
            if session is not None and (
                self._prepared_by is None or self._prepared_by() is not session
            ):
                self._prepared = self._prepare(session)
                self._prepared_by = weakref.ref(session)

    def cancel(self) -> None:
        """End it within a round."""
        self._cancelled.set()

    def expire(self) -> None:
        """The same, because its time is over: what has come of it is an answer that was cut."""
        self._expired = True
        self._cancelled.set()

    def fail(self, error: BaseException) -> None:
        """Tell that it will not be answered."""
        self.events.put_nowait(Failed(error))

    def begin(self) -> Session | None:
        """Open its model, in the thread that answers; None: there will be no answer."""
        try:
            if not self._cancelled.is_set():
                session = self._models.open(self.model)
            if self._cancelled.is_set():  # also while it was opened
                raise _ending()
            self.prepare()
            assert self._prepared is not None
            self._tell(Begun(self._prepared.reply))
            return session
        except Exception as error:
            self._tell(Failed(error))
            return None

    def run(self, session: Session, observe: Callable[[str, Statistics], None]) -> None:
        """Answer, in the same thread."""
        assert self._prepared is not None
        try:
            for index, choice in enumerate(self._prepared.choices):
                self._answer(session, index, choice, observe)
            self._tell(None)
        except Exception as error:
            self._tell(Failed(error))

    def _answer(
        self,
        session: Session,
        index: int,
        choice: Choice,
        observe: Callable[[str, Statistics], None],
    ) -> None:
        decoders: list[SpeculativeDecoder] = []
        per_token: float | None = None
        expected = 0.0
        for piece in session.stream(
            choice.tokens, choice.options, cancelled=self._cancelled, begun=decoders.append
        ):
            so_far = decoders[0].statistics
            if piece.proposal is not None:
                per_token = session.plain_seconds(len(choice.tokens) + so_far.target_tokens)
            if piece.token is not None:
                expected += per_token or 0.0
            self._tell(Told(index, piece, so_far.seconds, per_token))
        decoder = decoders[0] if decoders else None  # none: it was cancelled before it began
        reason = decoder.finish_reason if decoder else "cancelled"
        statistics = decoder.statistics if decoder else Statistics(prompt_tokens=len(choice.tokens))
        if reason == "cancelled" and self._expired:
            reason = "length"
        observe(reason, statistics)
        plainly = choice.options.draft_length == 0 or session.drafter is None
        plain = statistics.seconds if plainly else expected or None
        self._tell(Ended(index, reason, statistics, plain))

    def _tell(self, event: Event) -> None:
        try:
            self._loop.call_soon_threadsafe(self.events.put_nowait, event)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self._cancelled.set()


class Answering:
    """Answers requests, one at a time, in fair turns.

    All methods are of the event loop.

    Args:
        places: requests that may wait.
        time_limit: seconds after which an answer is cut; to open its model is no part of them.
        observe: told the model, the finish reason and the statistics of each answer that ended, in
            the thread that made it.
    """

    def __init__(
        self,
        places: int,
        time_limit: float,
        observe: Callable[[str, str, Statistics], None] = lambda model, reason, statistics: None,
    ) -> None:
        self._turns: Turns[Work] = Turns(places)
        self._time_limit = time_limit
        self._observe = observe
        self._thread = ThreadPoolExecutor(1, "omnidraft answer")
        self._joined = asyncio.Event()
        self._running: Work | None = None
        self._closing = False
        self._turn_seconds = 1.0
        self._task = asyncio.create_task(self._work())

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._turns)

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._running is not None

    def join(self, client: Hashable, work: Work) -> None:
        """Let a request wait for its turn.

        Raises:
            ApiError: 429: there is no place for it; 503: the server is ending.
        """
        if self._closing:
            raise _ending()
        left = self._turns.join(client, work)
        self._joined.set()
        if left is work:
            raise self._full()
        if left is not None:
            left.fail(self._full())

    def leave(self, work: Work) -> None:
        """Nobody wants the answer any more: it ends within a round, or never begins."""
        work.cancel()
        self._turns.leave(work)

    def cancel_all(self) -> None:
        """Answer no more: what waits is refused, what is being answered ends within a round."""
        self._closing = True
        for work in self._turns.clear():
            work.fail(_ending())
        if self._running is not None:
            self._running.cancel()

    async def close(self) -> None:
        """The same, and wait for the end."""
        self.cancel_all()
        self._joined.set()
        await self._task
        self._thread.shutdown()

    async def _work(self) -> None:
        while True:
            work = self._turns.take()
            if work is None:
                if self._closing:
                    return
                self._joined.clear()
                await self._joined.wait()
                continue
            self._running = work
            begun = monotonic()
            try:
                await self._answer(work)
            finally:
                self._running = None
            # A mean in which what is long ago counts less and less.
            self._turn_seconds += 0.2 * (monotonic() - begun - self._turn_seconds)

    async def _answer(self, work: Work) -> None:
        loop = asyncio.get_running_loop()
        session = await loop.run_in_executor(self._thread, work.begin)
        if session is None:
            return
        timer = loop.call_later(self._time_limit, work.expire)

        def observe(reason: str, statistics: Statistics) -> None:
            self._observe(work.model, reason, statistics)

        try:
            await loop.run_in_executor(self._thread, work.run, session, observe)
        finally:
            timer.cancel()

    def _full(self) -> ApiError:
        wait = max(1, min(600, round(self._turn_seconds * (len(self._turns) + 1))))
        return ApiError(
            429,
            f"{len(self._turns)} requests wait already, and no more may. Try again in about "
            f"{wait} s",
            code="queue_full",
            retry_after=wait,
        )


def _ending() -> ApiError:
    return ApiError(503, "the server is ending", code="server_ending", retry_after=10)
