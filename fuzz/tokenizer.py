"""A model's tokenizer files: tokenizer.json and those beside it, by name in one JSON object."""

from __future__ import annotations

from fuzz.files import content, folder_of, parsed, refusing
from omnidraft.runtime.text.tokenizer import Tokenizer

NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
)
TEXT = "The answer is 42. é 中 <|im_end|></s>\n\n def"


def check(data: bytes) -> None:
    files = parsed(data)
    if not isinstance(files, dict):
        files = {"tokenizer.json": data.decode("utf-8", "replace")}
    contents = {name: content(value) for name, value in files.items() if name in NAMES}
    with folder_of(contents) as folder, refusing():
        use(Tokenizer.load(folder))


def use(tokenizer: Tokenizer) -> None:
    """What a session asks of a tokenizer."""
    assert len(tokenizer.tokens) == len(tokenizer.surfaces) == tokenizer.vocab_size
    ids = tokenizer.encode(TEXT)
    tokenizer.decode([*ids, tokenizer.vocab_size, -1])
    tokenizer.encode(TEXT, parse_special=True)
    tokenizer.segment(TEXT.encode() + b"\xff")
    for token in range(min(tokenizer.vocab_size, 1000)):
        tokenizer.surface(token), tokenizer.shown_bytes(token), tokenizer.is_byte_token(token)
    if tokenizer.has_chat_template:
        with refusing():
            tokenizer.encode_chat([{"role": "user", "content": TEXT}])
