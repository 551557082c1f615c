"""Chat templates, rendered the way Hugging Face models expect."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from omnidraft.runtime.errors import OmniDraftError

if TYPE_CHECKING:
    import jinja2

Message = Mapping[str, Any]
"""One turn: ``role`` ("system", "user", "assistant", …) and ``content``."""


def render_chat(
    template: str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    special_tokens: Mapping[str, str] | None = None,
) -> str:
    """Render a Jinja chat template in a sandbox.

    Args:
        template: the template's text.
        messages: the turns so far.
        add_generation_prompt: end with the opening of the assistant's turn.
        special_tokens: the values of ``bos_token``, ``eos_token``, …

    Raises:
        OmniDraftError: the template is broken, or refuses these messages.
    """
    try:
        return _compiled(template).render(
            messages=list(messages),
            add_generation_prompt=add_generation_prompt,
            # Templates ask whether they are none, which what is undefined is not.
            tools=None,
            documents=None,
            **(special_tokens or {}),
        )
    except Exception as error:  # a template may fail in any way a program can
        raise OmniDraftError(
            f"The model's chat template cannot render this conversation: {error}. "
            "Use the raw prompt instead (--raw)."
        ) from error


def words_of_template(template: str, special_tokens: Mapping[str, str]) -> str:
    """A text that holds the name of every marker a template uses: its own, and what it renders.

    Some put names together: ``'<|' + message['role'] + '|>'``.
    """
    words = [template]
    turns = [{"role": role, "content": ""} for role in ("system", "user", "assistant")]
    for messages in (turns, turns[1:]):
        with contextlib.suppress(OmniDraftError):
            words.append(render_chat(template, messages, special_tokens=special_tokens))
    return "\n".join(words)


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def tojson(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # Jinja's own filter escapes HTML characters, which no chat model was trained on.
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    class Generation(Extension):
        """``{% generation %}`` marks what training counts; in a prompt it is a scope, no more."""

        tags = {"generation"}  # noqa: RUF012 (as the base class has it)

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)
