"""A server on a free port, in a thread."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import uvicorn

from omnidraft import Session
from omnidraft.serve.app import ServeOptions, application
from omnidraft.serve.models import Models
from omnidraft.serve.server import bind


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
