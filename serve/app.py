"""The routes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from omnidraft.runtime.decoding.constraint import Constraint
from omnidraft.runtime.decoding.decoder import check_prompt
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.session import Prompt, Session
from omnidraft.runtime.statistics import Statistics
from omnidraft.runtime.text.tool_probes import Tool
from omnidraft.serve.answering import Answering, Choice, Work
from omnidraft.serve.description import description
from omnidraft.serve.drafting import FIELD, DraftingTold, described
from omnidraft.serve.errors import ApiError, refused
from omnidraft.serve.forms import Form
from omnidraft.serve.grammar import Grammars
from omnidraft.serve.guard import Guard, read_body
from omnidraft.serve.metrics import CONTENT_TYPE, Metrics
from omnidraft.serve.page import page_files
from omnidraft.serve.penalties import PenalisedAnswer
from omnidraft.serve.replies import ChatReply, CompletionReply, Reply
from omnidraft.serve.requests import (
    ChatRequest,
    CompletionRequest,
    Defaults,
    read_request,
)
from omnidraft.serve.sending import AnswerResponse
from omnidraft.serve.tool_replies import ToolReply

Result = TypeVar("Result")
log = logging.getLogger("omnidraft.serve")


@dataclass(frozen=True)
class ServeOptions:
    """How the server serves.

    Args:
        defaults: what holds where a request says nothing.
        key: that requests must show; None: none.
        hosts: names by which the server may be called, beside ``localhost`` and numbers.
        places: requests that may wait.
        time_limit: seconds after which an answer is cut.
        max_body: bytes that a request may have.
    """

    defaults: Defaults = field(default_factory=Defaults)
    key: str | None = field(default=None, repr=False)
    hosts: Sequence[str] = ()
    places: int = 32
    time_limit: float = 600.0
    max_body: int = 4_000_000


class Service:
    """What the routes do.

    Args:
        models: sessions by the names that requests give. They may share loaded models.
    """

    def __init__(self, models: Mapping[str, Session], options: ServeOptions) -> None:
        self._models = models
        self._options = options
        self._created = int(time.time())
        self._open_answering: Answering | None = None
        self.metrics = Metrics(
            lambda: self.answering.waiting if self._open_answering else 0,
            lambda: self.answering.busy if self._open_answering else False,
        )
        self._grammars: dict[tuple[int, int], Grammars] = {}
        """By what target and drafter are; made at first use, in the thread below."""
        # One: a tokenizer is not for several threads at once.
        self._encoding = ThreadPoolExecutor(1, "omnidraft encoding")

    @property
    def answering(self) -> Answering:
        """Who answers."""
        assert self._open_answering is not None, "the application was not started"
        return self._open_answering

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """While the server runs."""
        options = self._options
        self._open_answering = Answering(options.places, options.time_limit, self._observe)
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
        return JSONResponse({"object": "list", "data": [self._described(n) for n in self._models]})

    async def model(self, request: Request) -> Response:
        """One of them."""
        name = request.path_params["name"]
        self._session(name)
        return JSONResponse(self._described(name))

    async def chat(self, request: Request) -> AnswerResponse:
        """The next message of a conversation."""
        asked = read_request(ChatRequest, await read_body(request, self._options.max_body))
        prompts = [asked.conversation]
        target = self._session(asked.model).target
        use = await self._encoded(asked.tool_use, target)
        if use is None:
            return await self._answer(request, asked, prompts, asked.form, ChatReply)
        kind = partial(ToolReply, use)
        return await self._answer(request, asked, prompts, use.form, kind, tools=use.shown)

    async def completions(self, request: Request) -> AnswerResponse:
        """How texts go on."""
        asked = read_request(CompletionRequest, await read_body(request, self._options.max_body))
        return await self._answer(
            request, asked, asked.prompts, asked.form, CompletionReply, raw=True
        )

    async def _encoded(self, function: Callable[..., Result], *given: Any) -> Result:
        """The result of what reads texts or grammars, which may take a while."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._encoding, partial(function, *given))

    async def _answer(
        self,
        request: Request,
        asked: ChatRequest | CompletionRequest,
        prompts: Sequence[Prompt],
        form: Form | None,
        kind: Callable[..., Reply],
        *,
        raw: bool = False,
        tools: Sequence[Tool] = (),
    ) -> AnswerResponse:
        session = self._session(asked.model)
        constraint: Callable[[], Constraint | None] = lambda: None  # noqa: E731
        if session.drafter is None and asked.draft_length not in (None, 0, "auto"):
            raise ApiError(
                400, "nothing is drafted for this model: leave it out", param="draft_length"
            )
        if form is not None:
            try:
                constraint = await self._encoded(self._constraints, session, form)
            except OmniDraftError as error:
                raise refused(error, form.param) from error
        if penalties := asked.penalties(session.target.model.vocab_size):
            inner, constraint = constraint, lambda: PenalisedAnswer(penalties, inner())
        choices: list[Choice] = []
        for prompt in prompts:
            try:
                tokens = await self._encoded(partial(session.encode, prompt, raw=raw, tools=tools))
                check_prompt(session.target.model, len(tokens))
            except OmniDraftError as error:
                raise refused(error, "prompt" if raw else "messages") from error
            if not tokens:
                raise ApiError(400, "the prompt holds no tokens: give it some text", param="prompt")
            room = session.target.model.max_length - len(tokens)
            for _ in range(asked.n or 1):
                index = len(choices)
                options = asked.generation(
                    index, room, asked.wanted_logprobs, self._options.defaults, raw, constraint()
                )
                choices.append(Choice(tokens, options))
        work = Work(asked.model, session, choices)
        reply = kind(
            asked.model,
            session.target.tokenizer,
            len(choices),
            asked.include_usage,
            len(prompts),
        )
        self.answering.join(_client(request, asked), work)
        drafting = DraftingTold(reply) if asked.include_drafting else None
        return AnswerResponse(self.answering, work, reply, bool(asked.stream), drafting)

    def _constraints(self, session: Session, form: Form) -> Callable[[], Constraint]:
        models = session.target, session.drafter
        if (grammars := self._grammars.get(which := (id(models[0]), id(models[1])))) is None:
            grammars = self._grammars[which] = Grammars(*models)
        return partial(grammars.constraint, grammars.grammar(form))

    def _session(self, name: str) -> Session:
        if name not in self._models:
            raise ApiError(
                404,
                f"there is no model {name!r:.80} here; there are: {', '.join(self._models)}",
                param="model",
                code="model_not_found",
            )
        return self._models[name]

    def _described(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "omnidraft",
            FIELD: described(name, self._models),
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


def application(models: Mapping[str, Session], options: ServeOptions) -> Starlette:
    """The server as an ASGI application; ``state.service`` is what its routes use."""
    service = Service(models, options)
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
