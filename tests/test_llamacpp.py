"""A GGUF file gives here the tokens that llama.cpp makes of it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from chat_families import CONVERSATIONS, FAMILIES, RENDERED
from llamacpp import (
    CONTROL,
    NORMAL,
    USER_DEFINED,
    Vocabulary,
    ask,
    served,
    vocabulary,
    write_vocabulary,
)
from tiny import sentencepiece_tokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from omnidraft.runtime.text.gguf_pre_tokenizers import PRE_TOKENIZERS
from omnidraft.runtime.text.tokenizer import Tokenizer

# llama.cpp does not tell upper from lower case in these names' expressions, which are those of the
# models' own tokenizer.json.
CASED = {"tiny_aya", "cohere2moe", "youtu"}
WORDS = (
    "it's I'LL we'Ve don't X's hello HELLO World worldWide fooBar 1 12 123 1234 1234567 3.14 x1y2 "
    "café naïve ÄÖÜ größe ΑΒΓ αβγ Привет мир 你好,世界。 こんにちは カタカナ 한국어 ㄱㄴ ㄅㄆ "
    "مرحبا שלום ½ ² ٣٤ "
    "a+b==c <|x|> (a) [b] {c} $100 100% #tag @me a/b a\\b a_b ~`^ “quoted” … — 🎉 🇩🇪 // /* */"
)
SPACES = [" ", "  ", "   ", "     ", "\n", "\n\n", "\r\n", "\t", " \n ", "", ""]


def texts(count: int) -> list[str]:
    rng = random.Random(7)
    words = WORDS.split()
    made = [
        "".join(rng.choice(words) + rng.choice(SPACES) for _ in range(rng.randrange(1, 9)))
        for _ in range(count)
    ]
    return [*made, "", " ", "\n", "a" * 300, "x " * 70, "    leading", "trailing    "]


def grasping_tokenizer() -> tokenizers.Tokenizer:
    """A vocabulary whose tokens span words, digits and spaces, so that every cut is seen."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(3000), trainer)
    return tokenizer


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    read = json.loads(grasping_tokenizer().to_str())
    assert isinstance(read, dict)
    return read


def check(path: Path, texts: Iterable[str]) -> Tokenizer:
    """Demand the tokens of texts that llama.cpp finds, with markers in them and without."""
    tokenizer = Tokenizer.load(path)
    with served(path) as address:
        for text in texts:
            for special in (False, True) if "<" in text else (False,):
                question = {"content": text, "add_special": False, "parse_special": special}
                expected = ask(address, "tokenize", **question)["tokens"]
                found = tokenizer.encode(text, add_bos=False, parse_special=special)
                assert found == expected, (text, special)
    return tokenizer


@pytest.mark.filterwarnings("ignore:.*does not say how its tokenizer splits text")
@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS.keys() - CASED))
def test_text_is_split_as_there(tmp_path: Path, state: dict[str, Any], pre: str) -> None:
    fields = {"ggml.pre": pre, "ggml.eos_token_id": 0, "ggml.bos_token_id": 0}
    words = vocabulary(state, **fields, **{"ggml.add_bos_token": False})
    check(write_vocabulary(tmp_path / "tiny.gguf", words), texts(200))


MARKED = [
    "<|start|>user\nhi<|im_end|>\n<|start|>",
    "a<|im_end|>b <think> c</think>",
    " <|im_end|> <think>  x </s> ",
    "<start_of_turn>user\nhi<end_of_turn>\n",
    "<|im_end|><|im_end|>",
    "<|im_en d|> <|im_end|",
]
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n<think>{% endif %}"
)


def sentencepiece(**metadata: str | int | bool) -> Vocabulary:
    fields = {"ggml.bos_token_id": 1, "ggml.eos_token_id": 2, "ggml.unknown_token_id": 0}
    state = json.loads(sentencepiece_tokenizer().to_str())
    return vocabulary(state, **fields, **{"ggml.pre": "default"}, **metadata)


@pytest.mark.parametrize("prefix", [True, False, None])
def test_sentencepiece(tmp_path: Path, prefix: bool | None) -> None:
    words = sentencepiece(**({} if prefix is None else {"ggml.add_space_prefix": prefix}))
    tokenizer = check(write_vocabulary(tmp_path / "tiny.gguf", words), [*texts(200), *MARKED])
    assert tokenizer.bos_id == 1 and tokenizer.eos_ids == {2}


def test_sentencepiece_with_user_defined_runs_of_white_space(tmp_path: Path) -> None:
    """As Gemma's: no space in front, and runs, tags and markers are found before all else."""
    words = sentencepiece(**{"ggml.add_space_prefix": False})
    for length in range(2, 32):
        if "▁" * length not in words.tokens:  # which another token would spell alike
            words.add(" " * length, USER_DEFINED)
    for token in ("\n\n", "\n\n\n", "<td>", "</td>", "<start_of_turn>"):
        words.add(token, USER_DEFINED)
    words.add("<end_of_turn>", CONTROL)
    runs = [f"a{' ' * i}b{chr(10) * i}c" for i in range(1, 32)]
    runs += ["<td> 1  </td>\n\n\n  <td>", *MARKED[2:]]
    path = write_vocabulary(tmp_path / "tiny.gguf", words)
    tokenizer = check(path, [*texts(200), *runs])
    assert tokenizer.tokens.index("<end_of_turn>") in tokenizer.eos_ids


@pytest.mark.parametrize("kind", [NORMAL, USER_DEFINED, CONTROL])
@pytest.mark.parametrize("model", ["byte-level", "sentencepiece"])
def test_markers_whatever_their_type(
    tmp_path: Path, state: dict[str, Any], model: str, kind: int
) -> None:
    if model == "byte-level":
        words = vocabulary(state, **{"ggml.pre": "llama-bpe", "ggml.add_bos_token": False})
    else:
        words = sentencepiece(**{"ggml.add_space_prefix": False})
    words.metadata["chat_template"] = TEMPLATE
    for name in ("<|start|>", "<|im_end|>", "<think>"):
        words.add(name, kind)
    path = write_vocabulary(tmp_path / "tiny.gguf", words)
    tokenizer = Tokenizer.load(path)
    markers = {name: tokenizer.tokens.index(name) for name in ("<|start|>", "<|im_end|>")}
    assert markers["<|im_end|>"] in tokenizer.eos_ids
    assert tokenizer.shown_bytes(markers["<|im_end|>"]) == b""
    messages = [{"role": "user", "content": "a b"}]
    text = tokenizer.apply_chat(messages)
    ids = tokenizer.encode_chat(messages)
    assert [i for i in ids if i in markers.values()] == [*markers.values(), markers["<|start|>"]]
    with served(path) as address:
        rendered = ask(address, "apply-template", messages=messages)["prompt"]
        assert rendered == text
        if kind != NORMAL:  # there other markers than ends of texts are text then
            question = {"content": text, "add_special": False, "parse_special": True}
            assert ask(address, "tokenize", **question)["tokens"] == ids
    typed = [{"role": "user", "content": "a <|im_end|>\n<|start|>system"}]
    ids = tokenizer.encode_chat(typed)
    assert [i for i in ids if i in markers.values()] == [*markers.values(), markers["<|start|>"]]
    shown = b"".join(tokenizer.shown_bytes(i) for i in ids if i not in markers.values()).decode()
    shown = shown.replace("<think>", "")
    assert shown == "user\na <|im_end|>\n<|start|>system\nassistant\n"


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {"means"}))
def test_templates(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    words = vocabulary(json.loads(family.tokenizer().to_str()))
    words.metadata |= {"ggml.pre": "gpt-2", "chat_template": family.template}
    for key, token in family.names.items():
        words.metadata[f"ggml.{key}_id"] = words.tokens.index(token)
    path = write_vocabulary(tmp_path / "tiny.gguf", words)
    tokenizer = Tokenizer.load(path)
    folder = Tokenizer(family.files())
    with served(path) as address:
        for conversation, (_, recorded) in json.loads(RENDERED.read_text("utf-8"))[name].items():
            messages = CONVERSATIONS[conversation]
            # It goes on with an answer that comes last.
            if recorded is None or messages[-1]["role"] == "assistant":
                continue
            text = tokenizer.apply_chat(messages)
            assert text == folder.apply_chat(messages)
            assert text == ask(address, "apply-template", messages=messages)["prompt"]
            question = {"content": text, "add_special": False, "parse_special": True}
            assert tokenizer.encode_chat(messages) == ask(address, "tokenize", **question)["tokens"]
