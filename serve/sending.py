"""Answers on the wire: one JSON object, or server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from omnidraft.serve.answering import Answering, Begun, Ended, Failed, Told, Work
from omnidraft.serve.drafting import DraftingTold
from omnidraft.serve.errors import ApiError, failed
from omnidraft.serve.replies import Json, Reply

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies are to pass on what comes at once
]


class _GoneError(Exception):
    """The client has gone."""


class AnswerResponse:
    """The response to a request that waits for its turn, or whose turn has come.

    Its first byte is sent when the turn has come, so that whatever goes wrong before has a status
    of its own. A client that goes away is noticed at once, and its request leaves.

    Args:
        drafting: adds to the chunks of a stream how their text came about; None: nothing is added.
    """

    def __init__(
        self,
        answering: Answering,
        work: Work,
        reply: Reply,
        stream: bool,
        drafting: DraftingTold | None = None,
    ) -> None:
        self._answering = answering
        self._work = work
        self._reply = reply
        self._stream = stream
        self._drafting = drafting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it.

        Raises:
            ApiError: there is no answer, and nothing was sent yet.
        """
        gone = asyncio.create_task(self._leave_when_gone(receive))
        try:
            send_answer = self._send_events if self._stream else self._send_whole
            await send_answer(scope, receive, send)
        except _GoneError:
            pass
        finally:
            self._answering.leave(self._work)
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _leave_when_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._answering.leave(self._work)
        self._work.fail(_GoneError())  # while it waits nothing else would come

    async def _events(self) -> AsyncIterator[Begun | Told | Ended]:
        while (event := await self._work.events.get()) is not None:
            if isinstance(event, Failed):
                raise event.error
            yield event

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for event in self._events():
                if isinstance(event, Told):
                    self._reply.add(event.choice, event.piece)
                elif isinstance(event, Ended):
                    self._end(event)
        except _GoneError:
            raise
        except Exception as error:
            raise failed(error) from error
        await JSONResponse(self._reply.object())(scope, receive, send)

    async def _send_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        try:
            async for event in self._events():
                if not begun:
                    begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                    await self._send_data(send, self._reply.openings())
                if isinstance(event, Told):
                    chunks = self._reply.chunks(event.choice, event.piece)
                    if self._drafting is not None:
                        chunks = self._drafting.with_pieces(event, chunks)
                    await self._send_data(send, chunks)
                elif isinstance(event, Ended):
                    self._end(event)
                    chunks = self._reply.endings(event.choice)
                    if self._drafting is not None:
                        chunks = self._drafting.with_figures(event, chunks)
                    await self._send_data(send, chunks)
            await self._send_data(send, self._reply.last())
            await self._send_raw(send, b"data: [DONE]\n\n")
        except _GoneError:
            raise
        except Exception as error:
            told = failed(error)
            if not begun:
                raise told from error
            await self._send_data(send, [told.body()])
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _end(self, event: Ended) -> None:
        if event.reason == "cancelled":  # the client is here: it is the server that ends
            raise ApiError(503, "the server is ending", code="server_ending")
        self._reply.end(event.choice, event.reason, event.statistics)

    async def _send_data(self, send: Send, chunks: Iterable[Json]) -> None:
        for chunk in chunks:
            await self._send_raw(send, b"data: " + as_json(chunk) + b"\n\n")

    @staticmethod
    async def _send_raw(send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})


def as_json(value: Any) -> bytes:
    """As it is sent, in one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
