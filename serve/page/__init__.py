"""The page at ``/``: a chat that shows how its answers come about.

Static files beside this module, which ask for nothing but the server's own interface.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # no text can become HTML
    )
)


def page_files() -> dict[str, Callable[[Request], Awaitable[Response]]]:
    """What answers for each path of the page, ``/`` and those under ``/page/``."""
    files = {}
    for path in sorted(Path(__file__).parent.iterdir()):
        if (kind := _TYPES.get(path.suffix)) is not None:
            place = "/" if path.name == "index.html" else f"/page/{path.name}"
            files[place] = _file(path.read_bytes(), kind)
    return files


def _file(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    headers = {
        "Content-Type": kind,
        "Content-Security-Policy": _POLICY,
        # A newer server's files are not mixed with an older one's.
        "Cache-Control": "no-cache",
    }

    async def respond(request: Request) -> Response:
        return Response(content, headers=headers)

    return respond
