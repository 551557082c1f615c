"""Conversations, and templates and markers that look like those of the families people use."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tiny import byte_level_tokenizer

FOLDER = Path(__file__).resolve().parent / "vectors"
TEMPLATES = FOLDER / "templates"
RENDERED = FOLDER / "templates.json"


@dataclass
class ChatFamily:
    """A template and the markers it uses.

    Args:
        special: markers that the tokenizer flags special.
        unflagged: those that it does not.
        stripping: those behind which white space is swallowed.
    """

    name: str
    names: dict[str, str]
    special: list[str]
    unflagged: list[str] = field(default_factory=list)
    stripping: list[str] = field(default_factory=list)

    @property
    def template(self) -> str:
        return (TEMPLATES / f"{self.name}.jinja").read_text("utf-8")

    def tokenizer(self) -> tokenizers.Tokenizer:
        """A tiny one with these markers."""
        tokenizer = byte_level_tokenizer()
        for special, names in ((True, self.special), (False, self.unflagged)):
            for name in names:
                added = tokenizers.AddedToken(
                    name, special=special, normalized=False, rstrip=name in self.stripping
                )
                (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([added])
        return tokenizer

    def files(self) -> dict[str, bytes]:
        """As a model's folder has them."""
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **self.names}
        return {
            "tokenizer.json": self.tokenizer().to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
            "chat_template.jinja": self.template.encode(),
        }


def _family(
    name: str, bos: str, eos: str, special: str, unflagged: str = "", stripping: str = ""
) -> ChatFamily:
    names = {"eos_token": eos} | ({"bos_token": bos} if bos else {})
    flagged = list(dict.fromkeys([*special.split(), *names.values()]))
    return ChatFamily(name, names, flagged, unflagged.split(), stripping.split())


_TURNS = "<start_of_turn> <end_of_turn>"
_PHI = "<|system|> <|user|> <|assistant|> <|end|>"
FAMILIES = {
    each.name: each
    for each in (
        _family("chatml", "", "<|im_end|>", "<|im_start|> <|endoftext|>"),
        _family(
            "llama3",
            "<|begin_of_text|>",
            "<|eot_id|>",
            "<|start_header_id|> <|end_header_id|> <|eom_id|>",
        ),
        _family("mistral", "<s>", "</s>", "[INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS]"),
        _family("gemma2", "<bos>", "<eos>", _TURNS),
        _family("gemma3", "<bos>", "<eos>", f"{_TURNS} <start_of_image>"),
        _family("phi3", "<s>", "<|endoftext|>", _PHI, "</s>", f"{_PHI} </s>"),
        _family("phi4", "<|endoftext|>", "<|endoftext|>", "", f"{_PHI} <|tool|> <|/tool|>"),
        _family(
            "qwen3",
            "",
            "<|im_end|>",
            "<|im_start|> <|endoftext|>",
            "<think> </think> <tool_call> </tool_call> <tool_response> </tool_response>",
        ),
        _family(
            "deepseek",
            "<｜begin▁of▁sentence｜>",
            "<｜end▁of▁sentence｜>",
            "",
            "<｜User｜> <｜Assistant｜> <think> </think>",
        ),
        _family(
            "granite",
            "<|end_of_text|>",
            "<|end_of_text|>",
            "<|start_of_role|> <|end_of_role|> <|tool_call|>",
        ),
        _family(
            "smollm3",
            "",
            "<|im_end|>",
            "<|im_start|> <|begin_of_text|> <|end_of_text|>",
            "<think> </think> <tool_call> </tool_call>",
        ),
        _family("olmo2", "<|endoftext|>", "<|endoftext|>", "<|im_start|> <|pad|>"),
        _family("means", "<s>", "</s>", ""),
    )
}

USER = {"role": "user", "content": "Why is the sky blue?"}
ANSWER = {"role": "assistant", "content": "It scatters light.\n"}
SYSTEM = {"role": "system", "content": "Be brief."}
AGAIN = {"role": "user", "content": "  And at night? <b>Tell</b> & 'quote' \"it\" – 中文 😀\n"}
THOUGHT = {"role": "assistant", "content": "<think>\nLet me see.\n</think>\n\nBlack."}
CONVERSATIONS: dict[str, list[dict[str, str]]] = {
    "user": [USER],
    "odd user": [AGAIN],
    "system": [SYSTEM, USER],
    "turns": [USER, ANSWER, AGAIN],
    "all": [SYSTEM, USER, ANSWER, AGAIN],
    "thought": [USER, THOUGHT, USER],
    "answered": [SYSTEM, USER, ANSWER],
    "switched": [{"role": "system", "content": "Answer. /no_think"}, USER, ANSWER, USER],
    "late system": [USER, ANSWER, SYSTEM, USER],
    "tool": [USER, {"role": "tool", "content": '{"sky": "blue"}'}],
    "empty": [{"role": "user", "content": ""}],
}
