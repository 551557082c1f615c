"""What a chat template makes of tools and of calls, found out by rendering some."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.text.chat import Message

Tool = Mapping[str, Any]
"""A function that may be called, as OpenAI describes it: ``{"type": "function", "function":
{"name": …, "description": …, "parameters": JSON schema}}``."""
Render = Callable[[Sequence[Message], Sequence[Tool]], str]

PROBE_NAME, PROBE_ARGUMENTS = "probe_314159", {"measure": "271828"}
_TOOL = {
    "type": "function",
    "function": {
        "name": PROBE_NAME,
        "description": "161803",
        "parameters": {
            "type": "object",
            "properties": {"measure": {"type": "string"}},
            "required": ["measure"],
        },
    },
}
_CALL_ID = "a1B2c3D4e"  # some templates take nine letters and digits only
_CALL = {
    "id": _CALL_ID,
    "type": "function",
    "function": {"name": PROBE_NAME, "arguments": PROBE_ARGUMENTS},
}
_SYSTEM, _USER = {"role": "system", "content": "?"}, {"role": "user", "content": "?"}


def tools_text(render: Render) -> str | None:
    """A conversation in which a template shows a tool; None: it shows none."""
    for messages in ([_USER], [_SYSTEM, _USER]):
        with contextlib.suppress(OmniDraftError):
            text = render(messages, [_TOOL])
            if all(part in text for part in (PROBE_NAME, "161803", "measure")):
                return text
    return None


def call_text(render: Render) -> str | None:
    """A conversation in which a template shows a call; None: it shows none."""
    called = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    told = {"role": "tool", "tool_call_id": _CALL_ID, "name": PROBE_NAME, "content": "42"}
    with contextlib.suppress(OmniDraftError):
        # The tool is left out, so that what names it is the call.
        text = render([_USER, called, told], [])
        if PROBE_NAME in text and PROBE_ARGUMENTS["measure"] in text:
            return text
    return None
