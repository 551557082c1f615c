"""Forms to which an answer may be held: JSON, a regular expression, a choice, a grammar."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, NamedTuple

import llguidance
from pydantic import BaseModel, ConfigDict, Field

from omnidraft.serve.errors import mistaken, unsupported

MAX_FORM = 100_000
"""Characters of a schema, a pattern, a grammar, or all choices."""
# White space between the parts of JSON, where a schema says nothing of it: a line break and an
# indentation. Small models write white space for ever where they may.
_LAYOUT = {"whitespace_flexible": True, "whitespace_pattern": r"\n?[ \t]{0,20}"}
# Numbers from here on llguidance rounds; of some it finds no end, and takes the process with it.
_LARGEST = 2**53
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_GBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_TEMPERATURE = re.compile(r"^\s*\w+\s*\[[^\]]*\btemperature\b", re.MULTILINE)


class Form(NamedTuple):
    """What an answer is held to.

    Attributes:
        param: where the request asks for it.
        grammar: in llguidance's Lark.
    """

    param: str
    grammar: str


def json_form(schema: dict[str, Any], param: str = "response_format") -> Form:
    """JSON that fits a schema.

    Raises:
        ApiError: 400: the schema is too long, or holds a number that is not kept exactly.
    """
    check_numbers(param, schema)
    text = json.dumps({"x-guidance": _LAYOUT, **schema})
    _check_length(param, text)
    return Form(param, f"start: %json {text}\n")


def check_numbers(param: str, schema: Any) -> None:
    """Refuse a schema with a number that would not be kept exactly.

    Raises:
        ApiError: 400: there is one.
    """
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, int | float) and not abs(value) < _LARGEST:
            raise mistaken(
                param,
                f"holds the number {value!s:.40}; a schema's must lie between −2^53 and 2^53",
            )


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")


class ResponseFormat(BaseModel):
    """OpenAI's ``response_format``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: str
    json_schema: _Schema | None = None

    def form(self) -> Form | None:
        """None: any text.

        Raises:
            ApiError: 400: there is no such form, or it cannot be used.
        """
        if self.type not in ("text", "json_object", "json_schema"):
            raise unsupported("response_format", {"type": self.type})
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise mistaken(
                "response_format", "of the type 'json_schema', and no other, has a json_schema"
            )
        if self.type == "text":
            return None
        schema = {"type": "object"} if self.json_schema is None else self.json_schema.schema_
        return json_form(schema)


class StructuredOutputs(BaseModel):
    """vLLM's ``structured_outputs``: one of these.

    ``regex`` is a pattern that the whole answer fits, in the syntax of Rust's crate regex without
    what looks around; ``grammar`` is in llguidance's variant of Lark.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    json_: dict[str, Any] | None = Field(None, alias="json")
    regex: Annotated[str, Field(min_length=1)] | None = None
    choice: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = None
    grammar: Annotated[str, Field(min_length=1)] | None = None

    def form(self) -> Form:
        """What the answer is held to.

        Raises:
            ApiError: 400: none is given, or several; or it cannot be used.
        """
        given = [name.removesuffix("_") for name, value in self if value is not None]
        if len(given) != 1:
            shown = " and ".join(given) or "none"
            raise mistaken(
                "structured_outputs",
                f"must hold one of json, regex, choice and grammar, not {shown}",
            )
        param = f"structured_outputs.{given[0]}"
        if self.json_ is not None:
            return json_form(self.json_, param)
        if self.regex is not None:
            _check_length(param, self.regex)
            made = json.loads(llguidance.LLMatcher.grammar_from_regex(self.regex))
            return Form(param, made["grammars"][0]["lark_grammar"])
        if self.choice is not None:
            quoted = " | ".join(map(json.dumps, self.choice))
            _check_length(param, quoted)
            return Form(param, f"start: CHOICE\nCHOICE: {quoted}\n")
        assert self.grammar is not None
        _check_length(param, self.grammar)
        _check_lark(param, self.grammar)
        return Form(param, self.grammar)


def _check_length(param: str, text: str) -> None:
    if len(text) > MAX_FORM:
        raise mistaken(param, f"is longer than {MAX_FORM:,} characters")


def _check_lark(param: str, grammar: str) -> None:
    if _GBNF.search(grammar):
        # llguidance converts it to lexemes that are greedy, which GBNF has not.
        raise mistaken(
            param,
            "is GBNF, and must be Lark: write `root ::= …` as `start: …`. llguidance's "
            "documentation describes the syntax",
        )
    if _TEMPERATURE.search(grammar):
        raise mistaken(param, "sets a temperature, which is the request's: leave it out")
    if "%json" in grammar:
        check_numbers(param, [float(each) for each in _NUMBER.findall(grammar)])
