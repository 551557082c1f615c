"""The routes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from omnidraft.runtime.session import Session
from omnidraft.runtime.statistics import Statistics
from omnidraft.serve.answering import Answering, Work
from omnidraft.serve.description import description
from omnidraft.serve.drafting import FIELD
from omnidraft.serve.errors import ApiError
from omnidraft.serve.guard import Guard, read_body
from omnidraft.serve.metrics import CONTENT_TYPE, Metrics
from omnidraft.serve.models import Described, Models
from omnidraft.serve.page import page_files
from omnidraft.serve.preparing import Prepared, Preparing
from omnidraft.serve.requests import (
    ChatRequest,
    CompletionRequest,
    Defaults,
    read_request,
)
from omnidraft.serve.sending import AnswerResponse
from omnidraft.serve.threads import grammar_thread

log = logging.getLogger("omnidraft.serve")


@dataclass(frozen=True)
class ServeOptions:
    """How the server serves.

    Args:
        defaults: what holds where a request says nothing.
        key: that requests must show; None: none.
        hosts: names by which the server may be called, beside ``localhost`` and numbers.
        places: requests that may wait.
        at_once: requests that may be under way, at least 1.
        turn: seconds that one of them is answered before another one is; where caches are large,
            to exchange them takes some hundredths.
        time_limit: seconds after which an answer is cut.
        max_body: bytes that a request may have.
    """

    defaults: Defaults = field(default_factory=Defaults)
    key: str | None = field(default=None, repr=False)
    hosts: Sequence[str] = ()
    places: int = 32
    at_once: int = 4
    turn: float = 0.25
    time_limit: float = 600.0
    max_body: int = 4_000_000


class Service:
    """What the routes do.

    Args:
        models: by the names that requests give.
    """

    def __init__(self, models: Models, options: ServeOptions) -> None:
        self._models = models
        self._options = options
        self._created = int(time.time())
        self._open_answering: Answering | None = None
        self.metrics = Metrics(
            lambda: self.answering.waiting if self._open_answering else 0,
            lambda: self.answering.under_way if self._open_answering else 0,
            models,
        )
        self._preparing = Preparing(options.defaults)
        # One: a tokenizer is not for several threads at once.
        self._encoding = grammar_thread("omnidraft encoding")

    @property
    def answering(self) -> Answering:
        """Who answers."""
        assert self._open_answering is not None, "the application was not started"
        return self._open_answering

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """While the server runs."""
        options = self._options
        self._open_answering = Answering(
            options.places, options.at_once, options.turn, options.time_limit, self._observe
        )
        try:
            yield
        except asyncio.CancelledError:  # told to end twice: nobody waits for what is under way
            self.stop()
        else:
            await self.answering.close()
        finally:
            self._encoding.shutdown()

    def stop(self) -> None:
        """Answer no more: see ``Answering.cancel_all``."""
        if self._open_answering is not None:
            self._open_answering.cancel_all()

    async def health(self, request: Request) -> Response:
        """Whether it runs."""
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, request: Request) -> Response:
        """For Prometheus."""
        return Response(self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def describe(self, request: Request) -> Response:
        """What it answers, for programs."""
        return JSONResponse(description())

    async def models(self, request: Request) -> Response:
        """Which models there are."""
        shown = [self._shown(name) for name in self._models.described]
        return JSONResponse({"object": "list", "data": shown})

    async def model(self, request: Request) -> Response:
        """One of them."""
        return JSONResponse(self._shown(request.path_params["name"]))

    async def chat(self, request: Request) -> AnswerResponse:
        """The next message of a conversation."""
        asked = read_request(ChatRequest, await read_body(request, self._options.max_body))
        prepare = partial(self._preparing.chat, asked, asked.conversation, asked.form)
        return await self._answer(request, asked, prepare)

    async def completions(self, request: Request) -> AnswerResponse:
        """How texts go on."""
        asked = read_request(CompletionRequest, await read_body(request, self._options.max_body))
        prepare = partial(self._preparing.completion, asked, asked.prompts, asked.form)
        return await self._answer(request, asked, prepare)

    async def _answer(
        self,
        request: Request,
        asked: ChatRequest | CompletionRequest,
        prepare: Callable[[Session], Prepared],
    ) -> AnswerResponse:
        model = self._model(asked.model)
        if model.drafter is None and asked.draft_length not in (None, 0, "auto"):
            raise ApiError(
                400, "nothing is drafted for this model: leave it out", param="draft_length"
            )
        asked.generation(0, 1, self._options.defaults)  # a mistake is told before models are opened
        work = Work(asked.model, self._models, prepare)
        # Not in this thread: what reads texts or grammars may take a while.
        await asyncio.get_running_loop().run_in_executor(self._encoding, work.prepare)
        self.answering.join(_client(request, asked), work)
        return AnswerResponse(self.answering, work, bool(asked.stream), asked.include_drafting)

    def _model(self, name: str) -> Described:
        described = self._models.described
        if name not in described:
            raise ApiError(
                404,
                f"there is no model {name!r:.80} here; there are: {', '.join(described)}",
                param="model",
                code="model_not_found",
            )
        return described[name]

    def _shown(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "omnidraft",
            FIELD: self._model(name)._asdict(),
        }

    def _observe(self, model: str, reason: str, statistics: Statistics) -> None:
        self.metrics.observe(model, reason, statistics)
        log.info(
            "%s: %d tokens of prompt, %d of them kept; %d of answer, %s",
            model,
            statistics.prompt_tokens,
            statistics.prompt_kept,
            statistics.target_tokens,
            reason,
        )


def application(models: Models | Mapping[str, Session], options: ServeOptions) -> Starlette:
    """The server as an ASGI application; ``state.service`` is what its routes use.

    Args:
        models: or sessions by their names, which may share loaded models.
    """
    service = Service(models if isinstance(models, Models) else Models.of(models), options)
    files = page_files()
    app = Starlette(
        routes=[
            Route("/health", service.health),
            Route("/metrics", service.show_metrics),
            Route("/openapi.json", service.describe),
            Route("/v1/models", service.models),
            Route("/v1/models/{name:path}", service.model),
            Route("/v1/chat/completions", service.chat, methods=["POST"]),
            Route("/v1/completions", service.completions, methods=["POST"]),
            *(Route(path, file) for path, file in files.items()),
        ],
        middleware=[
            # The page holds nothing of anybody's, and asks for the key itself.
            Middleware(Guard, key=options.key, hosts=options.hosts, open_paths=["/health", *files])
        ],
        exception_handlers={
            ApiError: _refuse,
            HTTPException: _no_route,
            ClientDisconnect: _gone,
        },
        lifespan=service.lifespan,
    )
    app.state.service = service
    return app


def _client(request: Request, asked: ChatRequest | CompletionRequest) -> Hashable:
    """Whose turn it will be: an address, the program that asks, and whom it asks for."""
    address = request.client.host if request.client else ""
    return address, request.headers.get("user-agent", ""), asked.safety_identifier or asked.user


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = {
        404: "there is no such path: see docs/serve.md",
        405: f"{request.url.path} does not take {request.method}",
    }
    return ApiError(
        error.status_code, what.get(error.status_code, error.detail), headers=error.headers
    ).response()


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; the log does
