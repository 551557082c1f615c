"""The thread that answers, and the requests that wait for it."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from time import monotonic

from omnidraft.runtime.answer import Piece
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.session import Session
from omnidraft.runtime.statistics import Statistics
from omnidraft.serve.errors import ApiError, server_ending
from omnidraft.serve.models import Models
from omnidraft.serve.preparing import Choice, Prepared
from omnidraft.serve.replies import Reply
from omnidraft.serve.threads import grammar_thread
from omnidraft.serve.turns import Turns

log = logging.getLogger("omnidraft.serve")

_SHORT = 0.2
"""Part of a turn after which a request gives way to one that is begun."""


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
    """A request: one answer or several, made one after the other.

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
        self._steps: Iterator[SpeculativeDecoder] = iter(())
        self._paused: SpeculativeDecoder | None = None
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

    @property
    def cancelled(self) -> bool:
        """Whether it is to end."""
        return self._cancelled.is_set()

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

    def begin(self, observe: Callable[[str, Statistics], None]) -> bool:
        """Open its model, in the thread that answers.

        Args:
            observe: told the finish reason and the statistics of each answer that ended.

        Returns:
            False: there will be no answer.
        """
        try:
            if not self._cancelled.is_set():
                session = self._models.open(self.model)
            if self._cancelled.is_set():  # also while it was opened
                raise server_ending()
            self.prepare()
            assert self._prepared is not None
            self._steps = chain.from_iterable(
                self._answer(session, index, choice, observe)
                for index, choice in enumerate(self._prepared.choices)
            )
            self._tell(Begun(self._prepared.reply))
            return True
        except Exception as error:
            self._tell(Failed(error))
            return False

    def go_on(self, give_way: Callable[[], bool]) -> bool:
        """Answer, in the same thread, to the end or until it gives way to another request.

        Args:
            give_way: whether it should; asked after each piece.

        Returns:
            Whether it ended.
        """
        try:
            if self._paused is not None:
                self._paused.resume()
                self._paused = None
            for decoder in self._steps:
                if give_way() and decoder.pause():
                    self._paused = decoder
                    return False
            self._tell(None)
        except Exception as error:
            self._steps = iter(())  # gives the models back, where it was not the answer that failed
            self._tell(Failed(error))
        return True

    def _answer(
        self,
        session: Session,
        index: int,
        choice: Choice,
        observe: Callable[[str, Statistics], None],
    ) -> Iterator[SpeculativeDecoder]:
        """Yield the decoder after each piece."""
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
            yield decoders[0]
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


@dataclass(eq=False)
class _UnderWay:
    """A request that was begun.

    Attributes:
        left: seconds until its time is over.
        taken: seconds that it took.
    """

    work: Work
    left: float
    taken: float = 0.0


class Answering:
    """Answers requests, several of them in turns.

    Clients take fair turns in being begun. A request that is begun goes before those under way, so
    that its first token comes soon; then it takes turns with them. What is under way at once is of
    one model. An answer that cannot be left in the middle is made to its end, see
    ``SpeculativeDecoder.pause``.

    All methods are of the event loop.

    Args:
        places: requests that may wait to be begun.
        at_once: requests that may be under way, at least 1.
        turn: seconds of a turn, while others are under way.
        time_limit: seconds, in its own turns, after which a request is cut; to open its model is no
            part of them.
        observe: told the model, the finish reason and the statistics of each answer that ended, in
            the thread that made it.
    """

    def __init__(
        self,
        places: int,
        at_once: int,
        turn: float,
        time_limit: float,
        observe: Callable[[str, str, Statistics], None] = lambda model, reason, statistics: None,
    ) -> None:
        self._turns: Turns[Work] = Turns(places)
        self._at_once = at_once
        self._turn_seconds = turn
        self._time_limit = time_limit
        self._observe = observe
        self._thread = grammar_thread("omnidraft answer")
        self._joined = asyncio.Event()
        self._under_way: deque[_UnderWay] = deque()
        """The one that waits longest is first."""
        self._running: _UnderWay | None = None
        self._turn_began = 0.0
        self._turn_ends = math.inf
        """When the one that is running gives way; the thread that answers reads it."""
        self._others_first = False
        self._closing = False
        self._request_seconds = 1.0
        self._task = asyncio.create_task(self._work())

    @property
    def waiting(self) -> int:
        """Requests that wait to be begun."""
        return len(self._turns)

    @property
    def under_way(self) -> int:
        """Requests that were begun and have not ended."""
        return len(self._begun)

    def join(self, client: Hashable, work: Work) -> None:
        """Let a request wait for its turn.

        Raises:
            ApiError: 429: there is no place for it; 503: the server is ending.
        """
        if self._closing:
            raise server_ending()
        left = self._turns.join(client, work)
        self._joined.set()
        self._set_end_of_turn()
        if left is work:
            raise self._full()
        if left is not None:
            left.fail(self._full())

    def leave(self, work: Work) -> None:
        """Nobody wants the answer any more: it ends within a round, or never begins."""
        work.cancel()
        self._turns.leave(work)
        self._set_end_of_turn()

    def cancel_all(self) -> None:
        """Answer no more: what waits is refused, what is under way ends within a round."""
        self._closing = True
        for work in self._turns.clear():
            work.fail(server_ending())
        for each in self._begun:
            each.work.cancel()

    async def close(self) -> None:
        """The same, and wait for the end."""
        self.cancel_all()
        self._joined.set()
        await self._task
        self._thread.shutdown()

    async def _work(self) -> None:
        while True:
            if self._may_begin() and not self._others_first:
                work = self._turns.take()
                assert work is not None
                await self._turn(_UnderWay(work, self._time_limit), new=True)
                # Clients who ask for little would keep the others waiting for ever.
                self._others_first = bool(self._under_way)
            elif self._under_way:
                leaving = (each for each in self._under_way if each.work.cancelled)
                next_one = next(leaving, self._under_way[0])
                self._under_way.remove(next_one)
                self._others_first = False
                await self._turn(next_one)
            elif self._closing:
                return
            else:
                self._joined.clear()
                await self._joined.wait()

    @property
    def _begun(self) -> Sequence[_UnderWay]:
        """All under way, the one that is running included."""
        return [*self._under_way, *([self._running] if self._running else [])]

    def _may_begin(self) -> bool:
        """Whether the request that is the next to be begun may be under way with the others."""
        first = self._turns.first
        if first is None or self.under_way >= self._at_once:
            return False
        return all(each.work.model == first.model for each in self._begun)

    async def _turn(self, one: _UnderWay, new: bool = False) -> None:
        """Let a request have its turn."""
        loop = asyncio.get_running_loop()
        self._running = one
        began = monotonic()

        def observe(reason: str, statistics: Statistics) -> None:
            self._observe(one.work.model, reason, statistics)

        ended = True
        try:
            if new and not await loop.run_in_executor(self._thread, one.work.begin, observe):
                return
            self._turn_began = monotonic()
            self._set_end_of_turn()
            timer = loop.call_later(one.left, one.work.expire)
            try:
                ended = await loop.run_in_executor(self._thread, one.work.go_on, self._is_over)
            finally:
                timer.cancel()
                one.left -= monotonic() - self._turn_began
        finally:
            self._running = None
            self._turn_ends = math.inf
            one.taken += monotonic() - began
            if ended:
                # A mean in which what is long ago counts less and less.
                self._request_seconds += 0.2 * (one.taken - self._request_seconds)
            else:
                self._under_way.append(one)

    def _is_over(self) -> bool:
        return monotonic() >= self._turn_ends

    def _set_end_of_turn(self) -> None:
        if any(each.work.cancelled for each in self._under_way):
            self._turn_ends = 0.0  # its place is wanted
        elif self._may_begin():
            self._turn_ends = self._turn_began + _SHORT * self._turn_seconds
        elif self._under_way:
            self._turn_ends = self._turn_began + self._turn_seconds
        else:
            self._turn_ends = math.inf

    def _full(self) -> ApiError:
        wait = max(1, min(600, round(self._request_seconds * (len(self._turns) + 1))))
        return ApiError(
            429,
            f"{len(self._turns)} requests wait already, and no more may. Try again in about "
            f"{wait} s",
            code="queue_full",
            retry_after=wait,
        )
