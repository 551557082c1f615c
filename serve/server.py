"""The process: a socket, uvicorn, and an orderly end."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable

import uvicorn

from omnidraft.runtime.errors import OmniDraftError
from omnidraft.serve.app import ServeOptions, Service, application
from omnidraft.serve.models import Models


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn waits for the responses under way: these are broken off first.
        self._service.stop()
        await super().shutdown(sockets)


def bind(host: str, port: int) -> socket.socket:
    """A socket to serve on.

    Raises:
        OmniDraftError: it cannot be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise OmniDraftError(
            f"there is no address {host!r} to serve on; 127.0.0.1 serves this machine"
        ) from error
    family, kind, protocol, _, address = found[0]
    opened = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            raise OmniDraftError(
                f"port {port} of {host} is in use; choose another one by --port"
            ) from error
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OmniDraftError(
            f"cannot serve on {host}, port {port}: {reason}. Choose others by --host and --port"
        ) from error
    return opened


def serve(
    models: Models,
    options: ServeOptions,
    bound: socket.socket,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM; these are raised anew when it has ended.

    Args:
        bound: see ``bind``; it is closed.
        ready: called when connections are taken.
    """
    app = application(models, options)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # anybody could claim to be another client
        timeout_graceful_shutdown=10,
        ws="none",
    )
    server = _Server(config, app.state.service)
    bound.listen(config.backlog)
    ready()
    server.run(sockets=[bound])
