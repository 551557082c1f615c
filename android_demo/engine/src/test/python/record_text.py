"""Record what Python's tokenizers and chat templates make of texts, for the Kotlin engine's tests.

    python android_demo/engine/src/test/python/record_text.py [FOLDER]

The tokenizers are the default drafter's, of the tiny models and, where FOLDER holds real models, of
these; beside each of their folders a file ``NAME.text.json`` is written.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[5]
sys.path.insert(0, str(ROOT / "tests"))

sys.path.insert(0, str(Path(__file__).resolve().parent))

from chat_families import CONVERSATIONS, FAMILIES  # noqa: E402
from syntax import SYNTAX  # noqa: E402
from test_template_bounds import ENDLESS, MESSAGES  # noqa: E402
from test_template_bounds import test_what_templates_do_they_may as allowed  # noqa: E402

from omnidraft.runtime.errors import OmniDraftError  # noqa: E402
from omnidraft.runtime.text import template as template_module  # noqa: E402
from omnidraft.runtime.text.chat import render_chat  # noqa: E402
from omnidraft.runtime.text.surface import TextStream  # noqa: E402
from omnidraft.runtime.text.tokenizer import Tokenizer  # noqa: E402

RESOURCES = Path(__file__).resolve().parents[1] / "resources" / "text"

TEXTS = (
    "",
    " ",
    "\n",
    "  two  spaces and\ttabs\r\nlines\n\n",
    "Why is the sky blue?",
    "def add(a, b):\n    return a + b\n",
    "Üñïcödé — “quotes” … ½ ① ﬁ",
    "e\u0301 a\u0300\u0301 o\u0308 \u1e69 \u0073\u0323\u0307",
    "中文字符 日本語 한국어 العربية हिन्दी ไทย",
    "😀 👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010ffff \ufffd \ufeff \u200b \u2028",
    "\x00\x01\x07\x7f\x80\xa0",
    "▁ x▁y Ġa Ċ <0x0A> <0xZZ> <unk>",
    "<|im_start|>user\nHi<|im_end|>",
    "<s>a</s> <|endoftext|><|im_end|>",
    "a<|im_end|>b <|im_end|> <think>c</think>",
    "[INST] a [/INST] <｜User｜> <|eot_id|>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "1234567890 3.14159 1e-5 0xFF",
    "\ue000\ue001 private",
    "it's he'll they're I'd 'quoted'",
)
# Bytes that are no UTF-8, or only a part of it.
ODD_BYTES = (
    b"\xff",
    b"\xf0\x9f\x98",
    b"a\xe2\x82b",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xc0\xaf",
    b"ok \xe4\xb8\xad\xe4\xb8 \xf0\x9f\x98\x80\x80",
    b"\xf0\x80\x80\x80",
)


def texts(seed: int, count: int) -> list[str]:
    """The texts above, and random pieces of them put together."""
    rng = random.Random(seed)
    made = list(TEXTS)
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 6)):
            text = rng.choice(TEXTS)
            start = rng.randrange(len(text) + 1)
            parts.append(text[start : start + rng.randrange(1, 12)])
        made.append("".join(parts))
    return made


def surfaces_digest(tokenizer: Tokenizer) -> str:
    """Of all tokens' surfaces and of what they show: each with a byte that says whether it is."""
    digest = hashlib.sha256()
    for index, surface in enumerate(tokenizer.surfaces):
        for part in (surface, tokenizer.shown_bytes(index)):
            digest.update(b"\0" if part is None else b"\1" + len(part).to_bytes(4, "big") + part)
        digest.update(b"\1" if tokenizer.is_byte_token(index) else b"\0")
    return digest.hexdigest()


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The pieces that come of tokens one by one, and the rest."""
    text = TextStream()
    return [*(text.push(tokenizer.shown_bytes(each)) for each in ids), text.finish()]


def recorded(tokenizer: Tokenizer, count: int) -> dict[str, Any]:
    """Args: count: random texts beside those above; negative: not even these."""
    rng = random.Random(9)
    found: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "bos": tokenizer.bos_id,
        "add_bos": tokenizer.add_bos,
        "eos": sorted(tokenizer.eos_ids),
        "surfaces": surfaces_digest(tokenizer),
        "texts": [],
        "bytes": [],
        "streams": [],
        "chats": [],
    }
    for text in texts(3, count) if count >= 0 else ():
        each = {
            "text": text,
            "literal": tokenizer.encode(text),
            "special": tokenizer.encode(text, parse_special=True, add_bos=False),
            "segment": tokenizer.segment(text.encode()),
        }
        each["decoded"] = tokenizer.decode(each["literal"])
        found["texts"].append(each)
    many = (rng.randbytes(rng.randrange(1, 9)) for _ in range(count))
    for data in (*ODD_BYTES, *many):
        found["bytes"].append({"hex": data.hex(), "segment": tokenizer.segment(data)})
    for _ in range(4):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(40)]
        found["streams"].append({"ids": ids, "pieces": stream(tokenizer, ids)})
    if tokenizer.has_chat_template:
        found["chats"] = chats(tokenizer)
    return found


def conversations() -> list[list[dict[str, str]]]:
    """Some, and one for every text as a user's message behind a system's."""
    typed = [
        [{"role": "system", "content": TEXTS[-1 - i]}, {"role": "user", "content": text}]
        for i, text in enumerate(TEXTS)
    ]
    answer = {"role": "assistant", "content": "<think>a</think> <|im_end|>"}
    answered = [[*turns, answer, turns[-1]] for turns in typed[12:16]]
    alone = [turns[1:] for turns in typed]
    return [*CONVERSATIONS.values(), *typed, *answered, *alone]


def chats(tokenizer: Tokenizer) -> list[list[str | None]]:
    """Digests of the text and the ids of each conversation, without and with an opened answer."""
    made: list[list[str | None]] = []
    for messages in conversations():
        for opened in (False, True):
            try:
                text = tokenizer.apply_chat(messages, add_generation_prompt=opened)
                ids = tokenizer.encode_chat(messages, add_generation_prompt=opened)
            except OmniDraftError:
                made.append([None, None])
                continue
            made.append([sha256(text), sha256(",".join(map(str, ids)))])
    return made


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def templates() -> dict[str, Any]:
    """What small templates render of two messages; null: they are refused."""
    many = "range(99999)"
    small = [
        *(template for template, _ in allowed.pytestmark[0].args[1]),
        *(each.replace("R", many) for each in ENDLESS.values() if len(each) < 10_000),
        *SYNTAX,
    ]
    found = []
    for template in small:
        try:
            text = render_chat(template, MESSAGES)
        except OmniDraftError:
            text = None
        found.append({"template": template, "text": text})
    return {"messages": MESSAGES, "templates": found}


class Then(datetime):
    """A day on which everything is recorded."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime(2024, 7, 6, 15, 4, 5)


def main(arguments: list[str]) -> None:
    template_module.datetime = Then  # type: ignore[misc]
    RESOURCES.mkdir(exist_ok=True)

    def write(path: Path, value: Any) -> None:
        path.write_text(json.dumps(value, ensure_ascii=True) + "\n", "utf-8")

    if arguments:
        for folder in sorted(Path(arguments[0]).iterdir()):
            if (folder / "tokenizer.json").is_file():
                made = recorded(Tokenizer.load(folder), 400)
                write(folder.with_name(f"{folder.name}.text.json"), made)
        return
    write(RESOURCES / "conversations.json", conversations())
    write(RESOURCES / "drafter.json", recorded(Tokenizer.load(ROOT / "drafter"), 60))
    write(RESOURCES / "templates.json", templates())
    families = RESOURCES / "families"
    families.mkdir(exist_ok=True)
    for name, family in FAMILIES.items():
        files = {key: value.decode() for key, value in family.files().items()}
        made = recorded(Tokenizer(family.files()), -1)
        write(families / f"{name}.json", {"files": files, "recorded": made})


if __name__ == "__main__":
    main(sys.argv[1:])
