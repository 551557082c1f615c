"""The messages of a conversation as requests give them, and as chat templates take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from omnidraft.serve.errors import mistaken, unknown, unsupported
from omnidraft.serve.json_text import read_json

# What there is elsewhere, and may be empty here.
_NOT_IN_MESSAGES = {
    *("annotations", "audio", "function_call", "name", "refusal", "tool_call_id", "tool_calls"),
}


def _closed(schema: dict[str, Any]) -> None:
    """Describe what is refused by its name."""
    schema["additionalProperties"] = False
    for name in sorted(_NOT_IN_MESSAGES):
        # Of a tool's message it may be given; it is that of the call nonetheless.
        value: dict[str, Any] = {"enum": [None, []]}
        if name == "name":
            value = {"type": ["string", "null"]}
        schema["properties"].setdefault(name, value)


class _Called(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    arguments: str
    parsed_arguments: Any = None
    """The same again, as the package openai has it in answers that it read."""


class _ToolCall(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    id: str = Field(min_length=1, max_length=200)
    type: str = "function"
    function: _Called

    def shown(self, place: str) -> dict[str, Any]:
        """As templates take it: the arguments are an object."""
        if self.type != "function":
            raise unsupported(place, {"type": self.type})
        for name, value in (self.model_extra or {}).items():
            if name != "index" or type(value) is not int:  # of a stream's chunks
                raise unknown(f"{place}.{name}")
        where = f"{place}.function.arguments"
        try:
            arguments = read_json(self.function.arguments or "{}")
        except ValueError as error:
            raise mistaken(where, "must be JSON") from error
        if not isinstance(arguments, dict):
            raise mistaken(where, "must be a JSON object")
        called = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": called}


class Message(BaseModel):
    """One message."""

    model_config = ConfigDict(extra="allow", strict=True, json_schema_extra=_closed)

    role: str = Field(min_length=1, max_length=64)
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    parsed: Any = None
    """The content again, as the package openai has it in answers that it read."""

    def shown(self, place: str, calls: dict[str, str]) -> dict[str, Any]:
        """The message as templates take it.

        Args:
            place: where it stands in the request.
            calls: the functions that were called before, by the ids of the calls; its own are
                added.

        Raises:
            ApiError: 400: it holds more than text and calls, which is named; it answers no call.
        """
        shown: dict[str, Any] = {"role": self.role}
        answers = self.role == "tool" and self.tool_call_id is not None
        extra = self.model_extra or {}
        for name, value in extra.items():
            if name not in _NOT_IN_MESSAGES:
                raise unknown(f"{place}.{name}")
            if value not in (None, []) and not (answers and name == "name"):
                raise unsupported(f"{place}.{name}", value)
        if self.tool_calls:
            if self.role != "assistant":
                raise unsupported(f"{place}.tool_calls", self.tool_calls)
            shown["tool_calls"] = [
                each.shown(f"{place}.tool_calls[{i}]") for i, each in enumerate(self.tool_calls)
            ]
            calls |= {each.id: each.function.name for each in self.tool_calls}
        if self.tool_call_id is not None:
            if not answers:
                raise unsupported(f"{place}.tool_call_id", self.tool_call_id)
            if self.tool_call_id not in calls:
                raise mistaken(f"{place}.tool_call_id", "is of no call in the messages before")
            shown |= {"tool_call_id": self.tool_call_id, "name": calls[self.tool_call_id]}
        return {**shown, "content": self._text(place)}

    def _text(self, place: str) -> str:
        if self.content is None:
            if self.tool_calls:
                return ""
            raise mistaken(f"{place}.content", "is missing")
        if isinstance(self.content, str):
            return self.content
        for index, part in enumerate(self.content):
            where = f"{place}.content[{index}]"
            if part.get("type") != "text":
                raise unsupported(where, part)
            if part.keys() != {"type", "text"} or not isinstance(part["text"], str):
                raise mistaken(where, "must hold a type and a text and nothing else")
        return "".join(part["text"] for part in self.content)


def shown_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as templates take them.

    Raises:
        ApiError: see ``Message.shown``.
    """
    calls: dict[str, str] = {}
    return [each.shown(f"messages[{i}]", calls) for i, each in enumerate(messages)]
