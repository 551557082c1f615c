"""Chat templates, given a short conversation."""

from __future__ import annotations

from fuzz.files import refusing
from omnidraft.runtime.text.chat import render_chat

MESSAGES = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Hello\n**you** é"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi."},
    {"role": "user", "content": "Bye"},
]


def check(data: bytes) -> None:
    with refusing():
        render_chat(
            data.decode("utf-8", "surrogateescape"),
            MESSAGES,
            special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        )
