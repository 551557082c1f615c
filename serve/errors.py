"""Refusals in OpenAI's form."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from omnidraft.runtime.errors import (
    ContextOverflowError,
    ModelInUseError,
    ModelNotFoundError,
    OmniDraftError,
)

log = logging.getLogger("omnidraft.serve")
STATUSES = {
    400: "The request is none, or asks for what there is not.",
    401: "The key is missing or wrong.",
    403: "It was not asked by a program that may.",
    404: "There is no such model.",
    405: "The path does not take this method.",
    408: "The request came too slowly.",
    413: "The request is too large.",
    415: "The request does not say that it is JSON.",
    429: "Too many requests wait.",
    500: "The model failed.",
    503: "The server ends, or the model is in use or cannot be opened.",
}
"""Those with which a request is not answered."""
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A request that is not answered.

    Args:
        status: of HTTP.
        message: what was wrong and what to do.
        param: the name of what was wrong in the request.
        code: OpenAI's word for it.
        retry_after: seconds after which it may be tried again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    def body(self) -> dict[str, Any]:
        """The object that clients expect."""
        kind = _TYPES.get(
            self.status, "server_error" if self.status >= 500 else "invalid_request_error"
        )
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """The whole response."""
        return JSONResponse(self.body(), self.status, self.headers)


def refused(error: OmniDraftError, param: str | None = None) -> ApiError:
    """What is wrong with a request, before anything is computed.

    Args:
        param: what holds the prompt.
    """
    if isinstance(error, ContextOverflowError):
        return ApiError(400, str(error), param=param, code="context_length_exceeded")
    if isinstance(error, ModelNotFoundError):
        return ApiError(404, str(error), param="model", code="model_not_found")
    if isinstance(error, ModelInUseError):
        return ApiError(503, str(error), code="model_in_use", retry_after=1)
    return ApiError(400, str(error), param=param)


def failed(error: BaseException) -> ApiError:
    """What went wrong while an answer was made. What nobody foresaw is told to the log only."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextOverflowError | ModelInUseError):
        return refused(error)
    log_failure(error)
    if isinstance(error, OmniDraftError):
        return ApiError(500, str(error), code="model_failed")
    if isinstance(error, MemoryError):
        return ApiError(503, "there is not enough memory for this answer", code="out_of_memory")
    return ApiError(500, "the server failed; its log says how", code="internal_error")


def server_ending() -> ApiError:
    """There is no (more) answer, since the server ends."""
    return ApiError(503, "the server is ending", code="server_ending", retry_after=10)


def log_failure(error: BaseException) -> None:
    """Say where it failed, not on what: messages of errors may hold text of prompts."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    place = f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at else "unknown"
    log.error("an answer failed: %s at %s", type(error).__name__, place)


def mistaken(param: str, what: str) -> ApiError:
    """A parameter that holds what it may not.

    Args:
        what: goes on behind its name.
    """
    return ApiError(400, f"{param} {what}", param=param)


def unsupported(name: str, value: object, instead: str = "leave it out") -> ApiError:
    """A parameter that asks for what there is not.

    Args:
        instead: what to do.
    """
    kind = value.get("type") if isinstance(value, dict) else None
    what = f"{name} of the type {kind!r:.80}" if isinstance(kind, str) else name
    return ApiError(
        400, f"{what} is not supported: {instead}", param=name, code="unsupported_parameter"
    )


def unknown(name: str) -> ApiError:
    """A parameter that nobody knows."""
    return ApiError(
        400, f"there is no parameter {name:.80}", param=name[:80], code="unknown_parameter"
    )
