"""What may be asked. What is not supported is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from omnidraft.runtime.decoding.constraint import Constraint
from omnidraft.runtime.errors import OptionError
from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.options import DraftLength, GenerationOptions, sampling_parameters
from omnidraft.serve.errors import ApiError, mistaken, unknown, unsupported
from omnidraft.serve.forms import Form, ResponseFormat, StructuredOutputs
from omnidraft.serve.messages import Message, shown_messages
from omnidraft.serve.penalties import Penalties
from omnidraft.serve.tools import MAX_TOOLS, Tool, ToolChoice, ToolUse

MAX_CHOICES = 16
MAX_STOPS = 16

_FORMS = ("json", "regex", "choice", "grammar")
# What asks for nothing: these values of what is not supported are taken.
_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
}
# Other servers' names of what goes by one name here.
_INSTEAD = {
    "grammar": "structured_outputs.grammar",
    "json_schema": "response_format",
    **{f"guided_{each}": f"structured_outputs.{each}" for each in _FORMS},
}
_UNSUPPORTED = {
    *_INSTEAD,
    *("audio", "metadata", "moderation", "prediction"),
    *("prompt_cache_retention", "reasoning_effort", "verbosity", "web_search_options"),
}


def _closed(schema: dict[str, Any]) -> None:
    """Describe what is refused by its name."""
    schema["additionalProperties"] = False
    for name, values in _NEUTRAL.items():
        schema["properties"].setdefault(name, {"enum": [*values, None]})


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    include_usage: bool | None = None
    include_drafting: bool | None = None


# Token ids as JSON's names.
_Bias = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")],
        Annotated[float, Field(ge=-100, le=100)],
    ],
    Field(max_length=1024),
]


class Request(BaseModel):
    """What both kinds of requests may hold."""

    model_config = ConfigDict(
        extra="allow", strict=True, allow_inf_nan=False, json_schema_extra=_closed
    )

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: float | None = None
    min_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: _Bias | None = None
    draft_length: int | str | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that tells the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wanted_logprobs(self) -> int | None:
        """As ``GenerationOptions.logprobs``."""
        return None

    @property
    def include_drafting(self) -> bool:
        """Whether the chunks of a stream tell how their text came about."""
        return bool(self.stream_options and self.stream_options.include_drafting)

    @property
    def form(self) -> Form | None:
        """What the answer is held to; None: it may be any text.

        Raises:
            ApiError: 400: there is no such form, or it cannot be used.
        """
        return None if self.structured_outputs is None else self.structured_outputs.form()

    def penalties(self, width: int) -> Penalties | None:
        """What changes the target's logits; None: nothing does.

        Args:
            width: tokens of the vocabulary.

        Raises:
            ApiError: 400: ``logit_bias`` is of a token that there is not.
        """
        bias = {int(token): value for token, value in (self.logit_bias or {}).items()}
        if bias and max(bias) >= width:
            raise mistaken(
                "logit_bias", f"holds the token {max(bias)}, and the vocabulary ends at {width}"
            )
        penalties = Penalties(self.presence_penalty or 0.0, self.frequency_penalty or 0.0, bias)
        return None if penalties == Penalties() else penalties

    def check(self) -> None:
        """Refuse what is not supported.

        Raises:
            ApiError: 400, which names it.
        """
        _refuse_unsupported(self.model_extra or {}, "")
        if self.stream_options is not None:
            if not self.stream:
                raise mistaken("stream_options", "is for streams: set stream too")
            extra = {
                name: value
                for name, value in (self.stream_options.model_extra or {}).items()
                # Padding, of which there is none.
                if (name, value) != ("include_obfuscation", False)
            }
            _refuse_unsupported(extra, "stream_options.")

    def generation(
        self,
        index: int,
        room: int,
        defaults: Defaults,
        raw: bool = False,
        constraint: Constraint | None = None,
    ) -> GenerationOptions:
        """How one of its answers is generated.

        Args:
            index: of the answer; each is sampled by a seed of its own.
            room: tokens that fit behind the prompt.

        Raises:
            ApiError: 400: a value is out of its range.
        """
        length = defaults.draft_length if self.draft_length is None else self.draft_length
        try:
            return GenerationOptions(
                max_new_tokens=min(self._most_tokens or room, room),
                sampling=sampling_parameters(
                    defaults.temperature if self.temperature is None else self.temperature,
                    # −1 is what others call 0.
                    0 if self.top_k in (None, -1) else self.top_k,
                    1.0 if self.top_p is None else self.top_p,
                    self.min_p or 0.0,
                    1.0 if self.repetition_penalty is None else self.repetition_penalty,
                ),
                seed=None if self.seed is None else (self.seed + index) % 2**64,
                draft_length=cast(DraftLength, length),
                draft_confidence=defaults.draft_confidence,
                raw=raw,
                stop=self.stop or (),
                logprobs=self.wanted_logprobs,
                constraint=constraint,
                proposals=self.include_drafting,
            )
        except OptionError as error:
            said = str(error)
            param = said.split(" ", 1)[0].replace("-", "_")
            raise ApiError(
                400, said, param=param if param in type(self).model_fields else None
            ) from error

    @property
    def _most_tokens(self) -> int | None:
        return self.max_tokens


class ChatRequest(Request):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    def check(self) -> None:
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise mistaken("top_logprobs", "is for logprobs: set logprobs to true too")
        if not self.tools:
            if self.tool_choice not in (None, "none", "auto"):
                raise mistaken("tool_choice", "needs tools to choose from")
            if self.parallel_tool_calls is not None:
                raise mistaken("parallel_tool_calls", "is for tools: give some")
        elif self.tool_choice != "none":
            for name in ("response_format", "structured_outputs", "logprobs"):
                value = getattr(self, name)
                if value and getattr(value, "type", None) != "text":
                    raise unsupported(name, None, "beside tools leave it out")
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise mistaken(
                "max_tokens", "and max_completion_tokens are two names of one limit: give one"
            )

    @property
    def form(self) -> Form | None:
        """Of ``response_format`` or ``structured_outputs``."""
        asked = self.response_format and self.response_format.form()
        if asked and self.structured_outputs:
            raise mistaken(
                "structured_outputs", "and response_format are two forms of one answer: give one"
            )
        return asked or super().form

    def tool_use(self, target: LoadedModel) -> ToolUse | None:
        """How its tools are used; None: there are none, or none may be called.

        Raises:
            ApiError: 400: see ``ToolUse``.
        """
        choice = self.tool_choice or "auto"
        if not self.tools or choice == "none":
            return None
        return ToolUse(self.tools, choice, self.parallel_tool_calls is not False, target)

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The messages, as templates take them.

        Raises:
            ApiError: 400: one holds what is not supported.
        """
        return shown_messages(self.messages)

    @property
    def wanted_logprobs(self) -> int | None:
        """As ``GenerationOptions.logprobs``."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def _most_tokens(self) -> int | None:
        return self.max_tokens or self.max_completion_tokens


class CompletionRequest(Request):
    """``POST /v1/completions``."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each a text or token ids.

        Raises:
            ApiError: 400: there are none, or too many.
        """
        given = self.prompt
        several: list[Any]
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            several = [given]
        else:
            several = list(given)
        if not several or not all(several):
            raise mistaken("prompt", "is empty: give it some text")
        if len(several) * (self.n or 1) > MAX_CHOICES:
            raise mistaken(
                "prompt",
                f"and n ask for {len(several) * (self.n or 1)} answers; one request may have "
                f"{MAX_CHOICES}",
            )
        return several

    @property
    def wanted_logprobs(self) -> int | None:
        """As ``GenerationOptions.logprobs``."""
        return self.logprobs

    @property
    def _most_tokens(self) -> int | None:
        return 16 if self.max_tokens is None else self.max_tokens  # OpenAI's default


class Defaults(BaseModel):
    """What holds where a request says nothing, and how all are drafted."""

    model_config = ConfigDict(frozen=True)

    temperature: float = 1.0
    draft_length: DraftLength = "auto"
    draft_confidence: float = 0.3


Kind = TypeVar("Kind", bound=Request)


def read_request(kind: type[Kind], body: bytes) -> Kind:
    """A request, checked.

    Raises:
        ApiError: 400: it is none; or it asks for what is not supported, which is named.
    """
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        first = _telling(
            error.errors(include_url=False, include_context=False, include_input=False)
        )
        param = _place(first["loc"]) or None
        what = f"{param}: " if param else ""
        raise ApiError(400, f"{what}{first['msg']}", param=param) from error
    request.check()
    return request


def _telling(found: Sequence[ErrorDetails]) -> ErrorDetails:
    """The first mistake; of a value of several possible kinds, of the kind that it comes near."""
    first = found[0]
    if first["loc"][-1:] not in (("str",), ("int",)):
        return first
    value = first["loc"][:-1]
    kinds = [each for each in found if each["loc"][: len(value)] == value]
    return max(kinds, key=lambda each: (len(each["loc"]), not each["type"].endswith("_type")))


def _place(location: Sequence[str | int]) -> str:
    """messages[0].content; what pydantic says of the kinds that a value might be is left out."""
    place = ""
    for part in location:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int"):
            place += f".{part}" if place else part
        else:
            break
    return place


def _refuse_unsupported(extra: Mapping[str, Any], where: str) -> None:
    for name, value in extra.items():
        known = name in _NEUTRAL or name in _UNSUPPORTED
        if not known:
            raise unknown(where + name)
        # 0 is not the same as false, which Python thinks.
        neutral = (
            value == each and (type(value) is bool) == (type(each) is bool)
            for each in _NEUTRAL.get(name, ())
        )
        if value is None or any(neutral):
            continue
        instead = f"use {_INSTEAD[name]}" if name in _INSTEAD else "leave it out"
        raise unsupported(where + name, value, instead)
