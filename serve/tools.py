"""Functions that a model may call: what requests say of them, and what is made of that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.text.tokenizer import Tokenizer
from omnidraft.serve.call_grammar import call_grammar
from omnidraft.serve.calls import PYTHON_TAG, CallFormat, CallReader, call_format
from omnidraft.serve.errors import mistaken
from omnidraft.serve.forms import MAX_FORM, Form, check_numbers

MAX_TOOLS = 128
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
_ANY: dict[str, Any] = {
    # As models write it; with free white space some would write nothing else.
    "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "type": "object",
}


class _Function(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The schema of a call's arguments."""
        given = self.parameters
        if given is None:  # it takes none, says OpenAI
            given = {"properties": {}, "additionalProperties": False}
        return {**_ANY, **given}


class Tool(BaseModel):
    """What may be called."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["function"]
    function: _Function

    def shown(self) -> dict[str, Any]:
        """As chat templates take it."""
        function = self.function.model_dump(exclude_none=True, exclude={"strict"})
        return {"type": "function", "function": function}


class _Named(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name


class NamedTool(BaseModel):
    """The function that must be called."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["function"]
    function: _Named


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class ToolUse:
    """How one request's tools are used.

    Attributes:
        shown: the tools as chat templates take them.
        markers: names of tokens that readers do not see, and by which calls are known.
        form: what the answer is held to; None: it may be any text.

    Args:
        tools: at least one.
        choice: not "none".
        several: whether one answer may hold several calls.
        target: that answers.

    Raises:
        ApiError: 400: the model's chat template has no tools, or its calls cannot be read; or the
            tools contradict each other.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        choice: Literal["auto", "required"] | NamedTool,
        several: bool,
        target: LoadedModel,
    ) -> None:
        self.shown = [each.shown() for each in tools]
        functions = {each.function.name: each.function for each in tools}
        self._names = list(functions)
        if len(functions) < len(tools):
            raise mistaken("tools", "have two functions of one name: rename one of them")
        if isinstance(choice, NamedTool):
            name = choice.function.name
            if name not in functions:
                raise mistaken("tool_choice", f"names {name}, which is none of the tools")
            functions = {name: functions[name]}
            several = False
        tokenizer = target.tokenizer
        self._format = form = _format(tokenizer)
        shown = {form.opening, form.closing, PYTHON_TAG}
        self.markers = {
            token: name
            for token, name in enumerate(tokenizer.tokens)
            if name in shown and not tokenizer.shown_bytes(token)
        }
        free = choice == "auto"
        strict = {each.name for each in functions.values() if each.strict or not free}
        self.form: Form | None = None
        if free and not form.opening:
            if strict:
                raise mistaken(
                    "tools",
                    "are strict, and nothing tells where this model's calls begin: leave strict "
                    "out, or set tool_choice to required",
                )
        elif strict or not several:
            schemas = {
                name: each.arguments if name in strict else _ANY for name, each in functions.items()
            }
            if any(each["type"] != "object" for each in schemas.values()):
                raise mistaken("tools", "have parameters that are no object: see their type")
            if len(json.dumps(schemas)) > MAX_FORM:
                raise mistaken("tools", f"have schemas of more than {MAX_FORM:,} characters")
            check_numbers("tools", schemas)
            grammar = call_grammar(form, schemas, target, free=free, several=several)
            self.form = Form("tools", grammar)

    def reader(self) -> CallReader:
        """For one answer."""
        return CallReader(self._format, self._names)


def _format(tokenizer: Tokenizer) -> CallFormat:
    if not tokenizer.has_chat_template or tokenizer.tools_text is None:
        raise mistaken(
            "tools",
            "are nothing that the model's chat template shows: leave them out, or ask a model "
            "that was trained with tools. response_format gives JSON without them",
        )
    form = call_format(tokenizer)
    if form is None:
        raise mistaken(
            "tools",
            "are called by this model in a way that is not known here: leave them out, or set "
            "tool_choice to none. response_format gives JSON without them",
        )
    return form
