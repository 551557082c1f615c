"""A drafter's tokenizer as other programs are to have it: a text begins without a space."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from omnidraft.runtime.text.tokenizer import Tokenizer


def without_prefix(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """A tokenizer's files, changed so that it reads texts as drafters are fed here.

    No space is put in front of a text, as it goes on from wherever a target's tokens end, and
    none is taken away in decoding. The token that begins a text is put there by tokenizer.json
    itself. tokenizer_config.json names the class that takes tokenizer.json as it is.

    Args:
        files: see ``tokenizer_files``.
    """
    tokenizer = Tokenizer(files)
    state = json.loads(files["tokenizer.json"])
    state["normalizer"] = _changed(state["normalizer"], "normalizers", _unprefixed)
    state["pre_tokenizer"] = _changed(state["pre_tokenizer"], "pretokenizers", _unprefixed)
    state["decoder"] = _changed(state["decoder"], "decoders", _unstripped)
    beginning = tokenizer.bos_id if tokenizer.add_bos else None
    state["post_processor"] = _beginning(beginning, tokenizer.tokens)
    config = json.loads(files.get("tokenizer_config.json", b"{}"))
    config = {key: value for key, value in config.items() if key not in _OF_OTHER_CLASSES}
    config |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": beginning is not None,
        "clean_up_tokenization_spaces": False,
    }
    return {
        **files,
        "tokenizer.json": json.dumps(state, ensure_ascii=False).encode(),
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=1).encode(),
    }


# Settings of classes that make a tokenizer of their own of a vocabulary.
_OF_OTHER_CLASSES = {"add_prefix_space", "legacy", "sp_model_kwargs", "use_default_system_prompt"}


def _changed(part: dict[str, Any] | None, parts: str, change: Any) -> dict[str, Any] | None:
    """A part of tokenizer.json, or what is in its sequence, changed; None: nothing is left."""
    if part is None or part["type"] != "Sequence":
        return change(part) if part else None
    kept = [changed for each in part[parts] if (changed := change(each))]
    return {**part, parts: kept} if kept else None


def _unprefixed(part: dict[str, Any]) -> dict[str, Any] | None:
    kind = part["type"]
    if kind == "Prepend":
        return None
    if kind == "Metaspace":
        return {**part, "prepend_scheme": "never", "add_prefix_space": False}
    if kind == "ByteLevel":
        return {**part, "add_prefix_space": False}
    return part


def _unstripped(part: dict[str, Any]) -> dict[str, Any] | None:
    return None if part["type"] == "Strip" else _unprefixed(part)


def _beginning(token: int | None, tokens: list[str]) -> dict[str, Any] | None:
    """The post-processor that puts a token in front of a text."""
    if token is None:
        return None
    name = tokens[token]

    def special(kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": kind}}

    def sequence(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    return {
        "type": "TemplateProcessing",
        "single": [special(0), sequence("A", 0)],
        "pair": [special(0), sequence("A", 0), special(1), sequence("B", 1)],
        "special_tokens": {name: {"id": name, "ids": [token], "tokens": [name]}},
    }
