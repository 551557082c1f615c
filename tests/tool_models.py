"""Tiny models whose chat templates know tools, in the ways in which families write calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import byte_level_tokenizer, write_checkpoint
from tokenizers import AddedToken

from omnidraft import LoadedModel, load_model

TOOLS_SHOWN = (
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}"
    "{% endfor %}<|im_end|>\n{% endif %}"
)
ANSWER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CALL = '{"name": "{{ call.function.name }}", "ARGUMENTS": {{ call.function.arguments | tojson }}}'
MESSAGE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}CALLS{% endif %}<|im_end|>\n{% endfor %}"
)
EACH = "{% for call in m.tool_calls %}ONE{% if not loop.last %}, {% endif %}{% endfor %}"


def _template(calls: str) -> str:
    return TOOLS_SHOWN + MESSAGE.replace("CALLS", calls) + ANSWER


_CALL = CALL.replace("ARGUMENTS", "arguments")
_HERMES = EACH.replace(", ", "\n").replace("ONE", f"<tool_call>\n{_CALL}\n</tool_call>")
TEMPLATES = {
    "hermes": _template(_HERMES),
    "spelled": _template(_HERMES),
    "listed": _template(f"<tool_call>[{EACH.replace('ONE', _CALL)}]</tool_call>"),
    "mistral": _template(f"[TOOL_CALLS] [{EACH.replace('ONE', _CALL)}]"),
    "llama": _template(EACH.replace("ONE", CALL.replace("ARGUMENTS", "parameters"))),
    "turned": _template(
        '\n<tool_call>\n{ "arguments": {{ m.tool_calls[0].function.arguments | tojson }}, "name": '
        '"{{ m.tool_calls[0].function.name }}"}\n</tool_call> '
    ),
    "said": TOOLS_SHOWN
    + "Call by <tool_call>[..]</tool_call>"
    + MESSAGE.replace("CALLS", "")
    + ANSWER,
    "unknown": _template("call:{{ m.tool_calls }}"),
    "no calls": TOOLS_SHOWN + MESSAGE.replace("CALLS", "") + ANSWER,
}
TOKENS = {
    "hermes": [("<tool_call>", False), ("</tool_call>", False), ("<think>", False)],
    "listed": [("<tool_call>", True), ("</tool_call>", True)],
    "mistral": [("[TOOL_CALLS]", True)],
    "llama": [("<|python_tag|>", True)],
}
"""Added tokens, and whether they are flagged special, so that readers do not see them."""


def write_tool_target(folder: Path, name: str) -> Path:
    """A small chat model of one of these templates."""
    tokenizer = byte_level_tokenizer()
    for token, special in TOKENS.get(name, []):
        added = AddedToken(token, special=special, normalized=False)
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([added])
    write_checkpoint(folder, tokenizer, context=2048)
    settings = folder / "tokenizer_config.json"
    config = json.loads(settings.read_text())
    settings.write_text(json.dumps({**config, "chat_template": TEMPLATES[name]}))
    return folder


def load_tool_target(folder: Path, name: str) -> LoadedModel:
    return load_model(str(write_tool_target(folder, name)), threads=1)


@contextmanager
def scripted(target: LoadedModel, prompt: int, text: str) -> Iterator[None]:
    """The target answers a prompt of so many tokens with a text, in which markers are tokens."""
    tokens = target.tokenizer.encode(text, parse_special=True, add_bos=False)
    tokens.append(min(target.tokenizer.eos_ids))
    model: Any = target.model
    forward = model.forward

    def answer(given: Any, rows: int | None = None) -> Any:
        before, count = model.length, len(given)
        logits = np.array(forward(given, rows))
        for row in range(len(logits)):
            place = before + count - len(logits) + row + 1 - prompt
            if 0 <= place < len(tokens):
                logits[row] = 0
                logits[row, tokens[place]] = 100
        return logits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "forward", answer)
        yield
