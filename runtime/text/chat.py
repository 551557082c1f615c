"""Chat templates, rendered the way Hugging Face models expect."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from omnidraft.runtime.errors import OmniDraftError, OptionError

Message = Mapping[str, Any]
"""One turn: ``role`` ("system", "user", "assistant", …) and ``content``."""

_ROLES = ("system", "developer", "user", "assistant", "tool")


def checked_messages(value: object) -> list[Message]:
    """The messages of a conversation as a file or a program gave them.

    Raises:
        OptionError: they are none.
    """
    form = 'a list of messages, each such as {"role": "user", "content": "Why?"}'
    if not isinstance(value, list) or not value:
        raise OptionError(f"expected {form}, not {value!r:.80}")
    for each in value:
        if not isinstance(each, dict):
            raise OptionError(f"expected {form}; it holds {each!r:.80}")
        for part in (each.get("role"), each.get("content")):
            if not isinstance(part, str):
                raise OptionError(f"expected {form}; it holds {each!r:.80}")
            if any("\ud800" <= character <= "\udfff" for character in part):
                raise OptionError(f"half a surrogate pair is no text: {each!r:.80}")
    return value


def render_chat(
    template: str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    special_tokens: Mapping[str, str] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Render a Jinja chat template in a sandbox, which ends one that computes too much.

    Args:
        template: the template's text.
        messages: the turns so far.
        add_generation_prompt: end with the opening of the assistant's turn.
        special_tokens: the values of ``bos_token``, ``eos_token``, …
        tools: what the model may call.

    Raises:
        OmniDraftError: the template is broken, refuses these messages, or computes too much.
    """
    if _takes_parts(template):
        messages = [{**each, "content": _in_parts(each["content"])} for each in messages]
    try:
        return _rendered(template, messages, add_generation_prompt, special_tokens or {}, tools)
    except Exception as error:  # a template may fail in any way a program can
        reason = str(error) or type(error).__name__
        raise OmniDraftError(
            f"The model's chat template cannot render this conversation: {reason:.300}. "
            "Use the raw prompt instead (raw=True)."
        ) from error


def _rendered(
    template: str,
    messages: Sequence[Message],
    opens: bool,
    special_tokens: Mapping[str, str],
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    # Imported here: plain prompts need no templates.
    from omnidraft.runtime.text.template import render

    given = {
        "messages": list(messages),
        "add_generation_prompt": opens,
        # Templates ask whether they are none, which what is undefined is not.
        "tools": list(tools) or None,
        "documents": None,
        **special_tokens,
    }
    return render(template, given)


def check_roles(template: str, messages: Sequence[Message]) -> None:
    """Refuse messages that a template would leave out, and those whose role nobody knows.

    Most templates write any role into the prompt, and some show only those that they know.

    Raises:
        OptionError: there is such a message; the roles that the template takes are named.
    """
    for role in (each["role"] for each in messages):
        if role in _roles(template):
            shown = _shown(template, role)
            # One that the template refuses is refused in its own words.
            if shown is not False:
                continue
        taken = (each for each in _roles(template) if _shown(template, each))
        raise OptionError(
            f"the model's chat template takes no message with the role {role!r:.80}. It takes: "
            f"{', '.join(taken) or 'none'}"
        )


@functools.lru_cache(maxsize=8)
def _roles(template: str) -> tuple[str, ...]:
    """The usual roles, and what a template compares roles with."""
    compared = [
        text
        for statement in re.findall(r"\{%(.*?)%\}", template, re.DOTALL)
        if "role" in statement
        for texts in re.findall(r"""(?:[!=]=|\bin)\s*[\[(]?((?:\s*["'][\w-]+["'],?)+)""", statement)
        for text in re.findall(r"[\w-]+", texts)
    ]
    return tuple(dict.fromkeys((*_ROLES, *compared)))


@functools.lru_cache(maxsize=64)
def _shown(template: str, role: str) -> bool | None:
    """Whether a template shows what a message of a role says; None: it refuses such messages."""
    probe = "271828"
    asked, said = {"role": "user", "content": "?"}, {"role": role, "content": probe}
    found = None
    for turns in ([said], [asked, said], [said, asked]):
        with contextlib.suppress(OmniDraftError):
            found = bool(found) or probe in render_chat(template, turns)
    return found


def _in_parts(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


@functools.lru_cache(maxsize=8)
def _takes_parts(template: str) -> bool:
    """Whether it shows what a message says only where that is a list of parts.

    So do templates of some models that see. Of a text they would show nothing, and say nothing.
    """
    probe = "omnidraft"
    if "text" not in template:  # the name of what a part says
        return False

    def shows(content: object) -> bool:
        try:
            return probe in _rendered(template, [{"role": "user", "content": content}], True, {})
        except Exception:  # a template may fail in any way a program can
            return False

    return not shows(probe) and shows(_in_parts(probe))


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
