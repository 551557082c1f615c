"""What is made of a request with its model: token ids, how answers are generated, and the reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from omnidraft.runtime.decoding.constraint import Constraint
from omnidraft.runtime.decoding.decoder import check_prompt
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.options import GenerationOptions
from omnidraft.runtime.session import Prompt, Session
from omnidraft.runtime.text.tool_probes import Tool
from omnidraft.serve.errors import ApiError, refused
from omnidraft.serve.forms import Form
from omnidraft.serve.grammar import Grammars
from omnidraft.serve.penalties import PenalisedAnswer
from omnidraft.serve.replies import ChatReply, CompletionReply, Reply
from omnidraft.serve.requests import ChatRequest, CompletionRequest, Defaults
from omnidraft.serve.tool_replies import ToolReply


class Choice(NamedTuple):
    """One answer that is wanted: the prompt's token ids, and how it is generated."""

    tokens: Sequence[int]
    options: GenerationOptions


class Prepared(NamedTuple):
    """A request that can be answered. It does not keep a model open."""

    choices: Sequence[Choice]
    reply: Reply


class Preparing:
    """Prepares requests, in one thread at a time.

    All methods raise ApiError, 400, for what the model cannot answer.

    Args:
        defaults: what holds where a request says nothing.
    """

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults
        self._grammars: WeakKeyDictionary[CausalModel, dict[int, Grammars]] = WeakKeyDictionary()
        """By targets, while they are open, and their drafters' ids."""

    def chat(
        self, asked: ChatRequest, messages: Prompt, form: Form | None, session: Session
    ) -> Prepared:
        """The next message of a conversation."""
        use = asked.tool_use(session.target)
        if use is None:
            return self._prepared(asked, [messages], form, session, ChatReply)
        kind = partial(ToolReply, use)
        return self._prepared(asked, [messages], use.form, session, kind, tools=use.shown)

    def completion(
        self,
        asked: CompletionRequest,
        prompts: Sequence[Prompt],
        form: Form | None,
        session: Session,
    ) -> Prepared:
        """How texts go on."""
        return self._prepared(asked, prompts, form, session, CompletionReply, raw=True)

    def _prepared(
        self,
        asked: ChatRequest | CompletionRequest,
        prompts: Sequence[Prompt],
        form: Form | None,
        session: Session,
        kind: Callable[..., Reply],
        *,
        raw: bool = False,
        tools: Sequence[Tool] = (),
    ) -> Prepared:
        target = session.target
        constraint: Callable[[], Constraint | None] = lambda: None  # noqa: E731
        if form is not None:
            try:
                constraint = self._constraints(session, form)
            except OmniDraftError as error:
                raise refused(error, form.param) from error
        if penalties := asked.penalties(target.model.vocab_size):
            inner, constraint = constraint, lambda: PenalisedAnswer(penalties, inner())
        choices: list[Choice] = []
        for prompt in prompts:
            try:
                tokens = session.encode(prompt, raw=raw, tools=tools)
                check_prompt(target.model, len(tokens))
            except OmniDraftError as error:
                raise refused(error, "prompt" if raw else "messages") from error
            if not tokens:
                raise ApiError(400, "the prompt holds no tokens: give it some text", param="prompt")
            room = target.model.max_length - len(tokens)
            for _ in range(asked.n or 1):
                index = len(choices)
                options = asked.generation(index, room, self._defaults, raw, constraint())
                choices.append(Choice(tokens, options))
        told: tuple[Any, ...] = (asked.model, target.tokenizer, len(choices))
        return Prepared(choices, kind(*told, asked.include_usage, len(prompts)))

    def _constraints(self, session: Session, form: Form) -> Callable[[], Constraint]:
        made = self._grammars.setdefault(session.target.model, {})
        if (grammars := made.get(drafter := id(session.drafter))) is None:
            grammars = made[drafter] = Grammars(session.target, session.drafter)
        return partial(grammars.constraint, grammars.grammar(form))
