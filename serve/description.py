"""The server's interface as an OpenAPI document, made of the models that read requests."""

from __future__ import annotations

import functools
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import omnidraft
from omnidraft.serve.errors import STATUSES
from omnidraft.serve.requests import ChatRequest, CompletionRequest

Json = dict[str, Any]

_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "minLength": 1},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_MODEL: Json = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": {"type": "string"}, "object": {"const": "model"}},
}
_MODELS: Json = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {
        "object": {"const": "list"},
        "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}},
    },
}


def _answer(kind: str) -> Json:
    return {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {
            "object": {"const": kind},
            "choices": {
                "type": "array",
                "minItems": 1,
                "items": {"type": "object", "required": ["index", "finish_reason"]},
            },
            "usage": {
                "type": "object",
                "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
            },
        },
    }


def _operation(summary: str, content: Json, body: type[BaseModel] | None = None) -> Json:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses: Json = {
        str(status): {"description": what, "content": error} for status, what in STATUSES.items()
    }
    responses["200"] = {"description": "It is answered.", "content": content}
    operation: Json = {"summary": summary, "responses": dict(sorted(responses.items()))}
    if body is not None:
        schema = {"$ref": f"#/components/schemas/{body.__name__}"}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _object(name: str) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


@functools.cache
def description() -> Json:
    """The document, OpenAPI 3.1."""
    _, made = models_json_schema(
        [(ChatRequest, "validation"), (CompletionRequest, "validation")],
        ref_template="#/components/schemas/{model}",
    )
    event = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
    events: Json = {"text/event-stream": {"schema": event}}
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    status = {"type": "object", "properties": {"status": {"const": "ok"}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "OmniDraft", "version": omnidraft.__version__},
        "paths": {
            "/v1/chat/completions": {
                "post": _operation(
                    "The next message of a conversation",
                    {**_object("ChatAnswer"), **events},
                    ChatRequest,
                )
            },
            "/v1/completions": {
                "post": _operation(
                    "How texts go on", {**_object("TextAnswer"), **events}, CompletionRequest
                )
            },
            "/v1/models": {"get": _operation("The models", _object("Models"))},
            "/v1/models/{name}": {
                "get": {**_operation("A model", _object("Model")), "parameters": [name]}
            },
            "/health": {
                "get": {
                    **_operation("Whether it runs", {"application/json": {"schema": status}}),
                    "security": [],
                }
            },
            "/metrics": {
                "get": _operation("Figures", {"text/plain": {"schema": {"type": "string"}}})
            },
        },
        "components": {
            "schemas": {
                **made["$defs"],
                "Error": _ERROR,
                "Model": _MODEL,
                "Models": _MODELS,
                "ChatAnswer": _answer("chat.completion"),
                "TextAnswer": _answer("text_completion"),
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        # A key is asked for where the server has one.
        "security": [{}, {"key": []}],
    }
