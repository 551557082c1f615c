"""A server on a free port, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import uvicorn

from omnidraft import Session
from omnidraft.serve.app import ServeOptions, application
from omnidraft.serve.server import bind


@contextmanager
def served(models: Mapping[str, Session], options: ServeOptions) -> Iterator[str]:
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
