"""A server on a free port, in a thread."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import uvicorn
from starlette.testclient import TestClient

from omnidraft import Answer, GenerationOptions, LoadedModel, Session
from omnidraft.runtime.options import sampling_parameters
from omnidraft.serve.app import ServeOptions, application
from omnidraft.serve.grammar import Grammar, Grammars
from omnidraft.serve.models import Models
from omnidraft.serve.requests import Defaults
from omnidraft.serve.server import bind


@contextmanager
def drafting_client(models: tuple[LoadedModel, LoadedModel]) -> Iterator[TestClient]:
    """Asks a server, without a network, of the model "tiny", which drafts four tokens a round."""
    defaults = Defaults(temperature=0, draft_length=4, draft_confidence=0)
    app = application({"tiny": Session(*models)}, ServeOptions(defaults))
    with TestClient(app, "http://localhost") as opened:
        yield opened


SAID = ["The quick brown fox", "What is the answer?"]
SAMPLING = [(0.0, None), (0.8, 3), (1.4, 11)]


def plain_and_drafted(
    models: tuple[LoadedModel, LoadedModel],
    grammars: Grammars,
    grammar: Grammar,
    drafts: dict[str, Any],
    logprobs: int | None = None,
) -> Iterator[tuple[Answer, Answer]]:
    """Answers held to a grammar, each plainly and with a drafter."""
    plain, drafting = Session(models[0]), Session(*models)
    for temperature, seed in SAMPLING:
        options = GenerationOptions(
            150, sampling_parameters(temperature), seed=seed, logprobs=logprobs, **drafts
        )
        for said in SAID:
            right, found = (
                session.generate(said, replace(options, constraint=grammars.constraint(grammar)))
                for session in (plain, drafting)
            )
            yield right, found


@contextmanager
def served(models: Models | Mapping[str, Session], options: ServeOptions) -> Iterator[str]:
    """Its address, such as http://127.0.0.1:1234."""
    config = uvicorn.Config(application(models, options), log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with bind("127.0.0.1", 0) as bound:
        bound.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def send(
    address: str, body: dict[str, Any], agent: str = "a", path: str = "/v1/chat/completions"
) -> socket.socket:
    """Send a request, and leave its answer unread."""
    host, port = address.removeprefix("http://").split(":")
    opened = socket.create_connection((host, int(port)))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    opened.sendall(head.encode() + data)
    return opened
