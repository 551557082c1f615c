"""Answers on the wire: one JSON object, or server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from omnidraft.serve.answering import Answering, Begun, Ended, Failed, Told, Work
from omnidraft.serve.drafting import DraftingTold
from omnidraft.serve.errors import failed, server_ending
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
        stream: it comes in chunks.
        drafting: they tell how their text came about, too.
    """

    def __init__(
        self,
        answering: Answering,
        work: Work,
        stream: bool,
        drafting: bool = False,
    ) -> None:
        self._answering = answering
        self._work = work
        self._stream = stream
        self._drafting = drafting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it.

        Raises:
            ApiError: there is no answer, and nothing was sent yet.
        """
        gone = asyncio.create_task(self._leave_when_gone(receive))
        try:
            reply = await self._begun()
            if self._stream:
                await self._send_events(reply, send)
            else:
                await self._send_whole(reply, scope, receive, send)
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

    async def _begun(self) -> Reply:
        """Wait for the turn."""
        begun = await self._next()
        assert isinstance(begun, Begun)
        return begun.reply

    async def _next(self) -> Begun | Told | Ended | None:
        event = await self._work.events.get()
        if isinstance(event, Failed):
            error = event.error
            raise error if isinstance(error, _GoneError) else failed(error) from error
        return event

    async def _send_whole(self, reply: Reply, scope: Scope, receive: Receive, send: Send) -> None:
        while (event := await self._next()) is not None:
            if isinstance(event, Told):
                reply.add(event.choice, event.piece)
            elif isinstance(event, Ended):
                _end(reply, event)
        await JSONResponse(reply.object())(scope, receive, send)

    async def _send_events(self, reply: Reply, send: Send) -> None:
        drafting = DraftingTold(reply) if self._drafting else None
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            await self._send_data(send, reply.openings())
            while (event := await self._next()) is not None:
                if isinstance(event, Told):
                    chunks = reply.chunks(event.choice, event.piece)
                    if drafting is not None:
                        chunks = drafting.with_pieces(event, chunks)
                    await self._send_data(send, chunks)
                elif isinstance(event, Ended):
                    _end(reply, event)
                    chunks = reply.endings(event.choice)
                    if drafting is not None:
                        chunks = drafting.with_figures(event, chunks)
                    await self._send_data(send, chunks)
            await self._send_data(send, reply.last())
            await self._send_raw(send, b"data: [DONE]\n\n")
        except _GoneError:
            raise
        except Exception as error:
            await self._send_data(send, [failed(error).body()])
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_data(self, send: Send, chunks: Iterable[Json]) -> None:
        for chunk in chunks:
            await self._send_raw(send, b"data: " + as_json(chunk) + b"\n\n")

    @staticmethod
    async def _send_raw(send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})


def _end(reply: Reply, event: Ended) -> None:
    if event.reason == "cancelled":  # the client is here: it is the server that ends
        raise server_ending()
    reply.end(event.choice, event.reason, event.statistics)


def as_json(value: Any) -> bytes:
    """As it is sent, in one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
