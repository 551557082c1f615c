"""Who may ask: checks of every request before anything is read of it."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
from collections.abc import Iterable
from time import monotonic

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnidraft.serve.errors import ApiError, failed

log = logging.getLogger("omnidraft.serve")
_BODY_SECONDS = 30.0
_DROPPED_BYTES = 64_000_000
"""Of what is too large anyway."""
_SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]


class Guard:
    """Lets through what comes from this machine's programs, or shows the key.

    A page of a foreign site can make a browser send requests here. Such a request tells the site in
    ``Origin``, and is refused. With a name of its own that leads here (DNS rebinding) a site would
    be no stranger; so ``Host`` must be a number, ``localhost`` or a name that was allowed.

    Args:
        key: None: none is needed.
        open_paths: never need it.
        hosts: names by which the server may be called, beside those.
    """

    def __init__(
        self, app: ASGIApp, key: str | None, hosts: Iterable[str], open_paths: Iterable[str]
    ) -> None:
        self._app = app
        self._key = None if key is None else key.encode()
        self._open_paths = frozenset(open_paths)
        self._allowed = {host.lower() for host in hosts}
        self._hosts = self._allowed | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, and log what became of it, without what it says."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = monotonic()
        status = 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _ in message["headers"]}
                added = [each for each in _SECURITY_HEADERS if each[0] not in own]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, receive, send_on)
        except ApiError as error:
            await error.response()(scope, receive, send_on)
        except Exception as error:
            told = failed(error)
            if not status:
                await told.response()(scope, receive, send_on)
        finally:
            path = scope["path"]
            if status == 404 or not path.isprintable():  # it may look like lines of the log
                path = "(unknown path)"
            seconds = monotonic() - begun
            log.info("%s %s %s %.2f s", scope["method"], path, status or "gone", seconds)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            raise ApiError(
                403,
                f"the server does not go by the name {', '.join(hosts)[:80]!r}; "
                "`omnidraft serve --allow-host NAME` lets it",
                code="host_not_allowed",
            )
        # A browser tells its pages' own requests apart from those of other sites.
        host = hosts[0].lower()
        own = {f"http://{host}"}
        if host in self._allowed:  # a proxy with a certificate may stand before it
            own.add(f"https://{host}")
        for origin in headers.getlist("origin"):
            if origin.lower() not in own:
                raise ApiError(
                    403,
                    "pages of other sites may not use this server",
                    code="origin_not_allowed",
                )
        if self._key is not None and scope["path"] not in self._open_paths:
            given = headers.get("authorization", "").encode("latin-1")
            scheme, _, shown = given.partition(b" ")
            # In a time that does not tell how much of it is right.
            if not hmac.compare_digest(shown, self._key) or scheme.lower() != b"bearer":
                error = ApiError(
                    401,
                    "the API key is missing or wrong: send the header Authorization: Bearer KEY",
                    code="invalid_api_key",
                )
                error.headers["WWW-Authenticate"] = "Bearer"
                raise error

    def _is_ours(self, host: str) -> bool:
        name = host.lower()
        bracketed = name.startswith("[")
        end = name.find("]") + 1 if bracketed else name.find(":") % (len(name) + 1)
        port = name[end:]
        if port and not (port.startswith(":") and port[1:].isascii() and port[1:].isdecimal()):
            return False
        name = name[:end]
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name[1:-1] if bracketed else name)
        except ValueError:
            return False
        return True


async def read_body(request: Request, most: int) -> bytes:
    """The body of a request that holds JSON.

    Args:
        most: bytes that it may have.

    Raises:
        ApiError: 408: it comes too slowly; 413: it is larger; 415: it says that it is no JSON,
            as forms do, which any page may send.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            415, "send the header Content-Type: application/json", code="unsupported_content_type"
        )
    too_large = ApiError(
        413,
        f"the request is larger than {most:,} bytes; `omnidraft serve --max-body` sets the limit",
        code="request_too_large",
        headers={"Connection": "close"},
    )
    length = request.headers.get("content-length", "")
    large = length.isascii() and length.isdecimal() and (len(length) > 18 or int(length) > most)
    if large and "expect" in request.headers:  # it has not begun to send
        raise too_large
    body = bytearray()
    dropped = 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                if large:
                    # Clients who see the end of the connection while they send read no answer.
                    dropped += len(part)
                    if dropped > _DROPPED_BYTES:
                        break
                else:
                    body += part
                    large = len(body) > most
    except TimeoutError as error:
        if not large:
            raise ApiError(
                408,
                f"the request did not come within {_BODY_SECONDS:g} s",
                headers={"Connection": "close"},
            ) from error
    if large:
        raise too_large
    return bytes(body)
