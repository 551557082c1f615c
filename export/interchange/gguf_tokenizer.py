"""A tokenizer as GGUF files have it, proven to read texts alike."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnidraft.export.recipes import Words
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.text.gguf_pre_tokenizers import PRE_TOKENIZERS
from omnidraft.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import gguf

# Values of tokenizer.ggml.token_type.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_BYTES = {f"<0x{byte:02X}>" for byte in range(256)}
# What ByteLevel splits by, unless it is told not to.
_GPT2 = PRE_TOKENIZERS["gpt-2"].expressions[0]
# What no text is made of and yet has its place in the vocabulary.
_NO_SCORE = -1e9
_ODD = (
    *("", " ", "  ", "\n", " \n ", "\t", "a", " a", "<s>", "</s>", "\u00e9", "e\u0301", "\u4e2d"),
    *("\U0001f600 caf\u00e9 na\u00efve", "    indented\n\n\treturn 1", "123 4567", "x" * 70),
    "it's I'LL don't (a) [b] {c} a/b \u201cquoted\u201d \u2026 \u2014 100% #tag @me",
)


def add_tokenizer(writer: gguf.GGUFWriter, words: Words, size: int) -> None:
    """Write a tokenizer's fields.

    Args:
        words: the tokenizer as ``without_prefix`` gives it.
        size: how many ids the model has; those without a token get one that is not used.

    Raises:
        OmniDraftError: llama.cpp has no tokenizer like that.
    """
    tokenizer = Tokenizer(words.files)
    state = json.loads(words.files["tokenizer.json"])
    model = state["model"]
    added = {each["id"]: each for each in state["added_tokens"]}
    tokens = [tokenizer.tokens[i] if i < tokenizer.vocab_size else "" for i in range(size)]
    types = [_NORMAL if token else _UNUSED for token in tokens]
    for index, each in added.items():
        types[index] = _CONTROL if each["special"] else _USER_DEFINED
    sentencepiece = bool(model.get("byte_fallback"))
    if model["type"] != "BPE" or not (sentencepiece or _splits(state)):
        raise _unknown(f"its model is {model['type']}")
    unknown = model["vocab"].get(model.get("unk_token"))
    merges = [each if isinstance(each, list) else each.split(" ") for each in model["merges"]]
    writer.add_tokenizer_model("llama" if sentencepiece else "gpt2")
    writer.add_tokenizer_pre("default" if sentencepiece else _pre_tokenizer(state))
    if sentencepiece:
        for index, token in enumerate(tokens):
            if token in _BYTES and types[index] == _NORMAL:
                types[index] = _BYTE
        if unknown is not None:
            types[unknown] = _UNKNOWN
        # The sooner a piece is merged, the better its score.
        ranks: dict[str, int] = {}
        for rank, (first, second) in enumerate(merges):
            ranks.setdefault(first + second, rank)
        writer.add_token_scores([-float(ranks.get(token, -_NO_SCORE)) for token in tokens])
        writer.add_add_space_prefix(False)
    else:
        writer.add_token_merges([" ".join(merge) for merge in merges])
    names = [token or f"[unused {index}]" for index, token in enumerate(tokens)]
    writer.add_token_list(names)
    writer.add_token_types(types)
    _add_special(writer, words, unknown)
    if (template := _template(words.files)) is not None:
        writer.add_chat_template(template)


def check_tokenizer(path: Path, words: Words, texts: Iterable[str]) -> None:
    """Demand that a GGUF file's tokenizer reads texts as the drafter's own does.

    Raises:
        OmniDraftError: it reads one otherwise.
    """
    own, written = Tokenizer(words.files), Tokenizer.load(path)
    for text in (*_ODD, *texts):
        if written.encode(text) != own.encode(text):
            raise OmniDraftError(
                f"The drafter's tokenizer cannot be told in a GGUF file: {text[:40]!r} would be "
                "read otherwise. Nothing was kept. Choose another --backend."
            )


def _add_special(writer: gguf.GGUFWriter, words: Words, unknown: int | None) -> None:
    if unknown is not None:
        writer.add_unk_token_id(unknown)
    beginning, ends = words.special.beginning, list(words.special.ends)
    writer.add_add_bos_token(beginning is not None)
    if beginning is not None:
        writer.add_bos_token_id(beginning)
    config = json.loads(words.files["tokenizer_config.json"])
    named = config.get("eos_token")
    named = named.get("content") if isinstance(named, dict) else named
    tokens = Tokenizer(words.files).tokens
    ends.sort(key=lambda end: tokens[end] != named)
    for end, add in zip(ends, (writer.add_eos_token_id, writer.add_eot_token_id), strict=False):
        add(end)


def _template(files: Mapping[str, bytes]) -> str | None:
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].decode()
    template = json.loads(files["tokenizer_config.json"]).get("chat_template")
    return template if isinstance(template, str) else None


def _splits(state: Mapping[str, Any]) -> tuple[str, ...]:
    """The expressions by which a byte-level tokenizer splits text; none: it is another one."""
    part = state["pre_tokenizer"] or {"type": "none"}
    expressions: list[str] = []
    for each in part["pretokenizers"] if part["type"] == "Sequence" else [part]:
        if each["type"] == "ByteLevel":
            return (*expressions, _GPT2) if each.get("use_regex", True) else tuple(expressions)
        if each["type"] == "Digits" and each["individual_digits"]:
            expressions.append(r"\p{N}")
        elif each["type"] == "Split" and "Regex" in each["pattern"]:
            expressions.append(each["pattern"]["Regex"])
        else:
            break
    return ()


def _pre_tokenizer(state: Mapping[str, Any]) -> str:
    """The name by which llama.cpp knows how a tokenizer splits text."""
    splits, whole = _splits(state), bool(state["model"].get("ignore_merges"))
    composes = (state["normalizer"] or {}).get("type") == "NFC"
    for name, known in PRE_TOKENIZERS.items():
        if (known.expressions, known.whole_words, known.composes) == (splits, whole, composes):
            return name
    raise _unknown("it splits text in a way that has no name there")


def _unknown(why: str) -> OmniDraftError:
    return OmniDraftError(
        f"llama.cpp has no tokenizer like this drafter's: {why}. Choose another --backend."
    )
