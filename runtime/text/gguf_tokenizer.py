"""A GGUF file's tokenizer, rewritten as the files Hugging Face's tokenizers are kept in."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from omnidraft.runtime.errors import DamagedFileError, OmniDraftError
from omnidraft.runtime.text.gguf_metadata import read_gguf_metadata

# Values of tokenizer.ggml.token_type.
_CONTROL, _USER_DEFINED, _UNUSED, _UNKNOWN = 3, 4, 5, 2

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD_START = r"[^\r\n\p{L}\p{N}]?"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|{_WORD_START}[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_WORD_START}{_UPPER}*{_LOWER}+|{_WORD_START}{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_TAIL}"
_GPT4O = (
    rf"{_WORD_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD_START}{_UPPER}+{_LOWER}*"
    rf"{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_CASED_TAIL}"
)
_DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# tokenizer.ggml.pre → the regular expressions that split text before BPE, one after the other.
_SPLITS: dict[str, list[str]] = {
    name: expressions
    for names, expressions in (
        ("gpt-2 mpt olmo jais trillion granite-docling", [_GPT2]),
        ("smollm starcoder refact command-r codeshell exaone minerva-7b", [r"\p{N}", _GPT2]),
        ("llama3 llama-v3 llama-bpe dbrx smaug-bpe", [_LLAMA3]),
        ("qwen2 stablelm2 hunyuan deepseek-r1-qwen megrez", [_QWEN2]),
        ("qwen35", [_QWEN35]),
        ("tekken", [_TEKKEN]),
        ("gpt-4o llama4", [_GPT4O]),
        ("deepseek-v3", [r"\p{N}{1,3}", "[一-龥\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_V3]),
    )
    for name in names.split()
}
_IGNORE_MERGES = {"llama3", "llama-v3", "llama-bpe", "tekken", "gpt-4o", "llama4"}
_NFC = {"qwen2", "qwen35"}


def tokenizer_files_from_gguf(path: Path) -> dict[str, bytes]:
    """The tokenizer of a GGUF file as ``tokenizer.json`` and its companions.

    Returns:
        File name → content: ``tokenizer.json``, ``tokenizer_config.json``,
        ``generation_config.json`` (end-of-turn ids) and, if there is one, ``chat_template.jinja``.

    Raises:
        DamagedFileError: not a readable GGUF file, or one without a tokenizer.
        OmniDraftError: a tokenizer of a kind that is not known here.
    """
    metadata = _read_metadata(path)
    tokens: list[str] = metadata["tokens"]
    types: list[int] = metadata.get("token_type") or [1] * len(tokens)
    model = metadata.get("model")
    if model == "gpt2":
        tokenizer = _byte_level(path, metadata, tokens, types)
    elif model == "llama":
        tokenizer = _sentencepiece(metadata, tokens, types)
    else:
        raise OmniDraftError(
            f"{path.name}: tokenizer kind {model!r} cannot be read from a GGUF file (byte-level "
            "and SentencePiece BPE can). Use the model's Hugging Face folder instead."
        )

    def name(key: str) -> str | None:
        index = metadata.get(f"{key}_token_id")
        return tokens[index] if index is not None and 0 <= index < len(tokens) else None

    # A GGUF that does not say gets what llama.cpp would do.
    implied_bos = model == "llama" or metadata.get("pre") in {"llama3", "llama-v3", "llama-bpe"}
    config = {
        "bos_token": name("bos"),
        "eos_token": name("eos"),
        "unk_token": name("unknown"),
        "pad_token": name("padding"),
        "add_bos_token": bool(metadata.get("add_bos_token", implied_bos)),
    }
    ends = [metadata[key] for key in ("eos_token_id", "eot_token_id") if metadata.get(key)]
    files = {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False).encode(),
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=1).encode(),
        "generation_config.json": json.dumps({"eos_token_id": sorted(set(ends))}).encode(),
    }
    if template := metadata.get("chat_template"):
        files["chat_template.jinja"] = template.encode()
    return files


def _read_metadata(path: Path) -> dict[str, Any]:
    prefix = "tokenizer."
    metadata = {
        key.removeprefix(prefix).removeprefix("ggml."): value
        for key, value in read_gguf_metadata(path, prefix).items()
    }
    if "tokens" not in metadata:
        raise DamagedFileError(f"{path} holds no tokenizer. Use another GGUF of this model.")
    return metadata


def _added(tokens: list[str], ids: list[int], types: list[int]) -> list[dict[str, Any]]:
    return [
        {
            "id": index,
            "content": tokens[index],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": types[index] != _USER_DEFINED,
        }
        for index in ids
    ]


def _bpe(vocab: dict[str, int], merges: list[list[str]], **options: Any) -> dict[str, Any]:
    return {"type": "BPE", "dropout": None, "vocab": vocab, "merges": merges, **options}


def _byte_level(
    path: Path, metadata: dict[str, Any], tokens: list[str], types: list[int]
) -> dict[str, Any]:
    kind = metadata.get("pre", "gpt-2")
    if kind not in _SPLITS:
        raise OmniDraftError(
            f"{path.name}: the pre-tokenizer {kind!r} is not known here (known: "
            f"{', '.join(sorted(_SPLITS))}). Use the model's Hugging Face folder instead."
        )
    splits = [
        {
            "type": "Split",
            "pattern": {"Regex": expression},
            "behavior": "Isolated",
            "invert": False,
        }
        for expression in _SPLITS[kind]
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    added = [i for i, t in enumerate(types) if t in (_CONTROL, _USER_DEFINED, _UNKNOWN)]
    # Padding tokens are unused and may repeat a name.
    vocab = {token: index for index, token in enumerate(tokens) if types[index] != _UNUSED}
    merges = [merge.split(" ") for merge in metadata.get("merges", [])]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokens, added, types),
        "normalizer": {"type": "NFC"} if kind in _NFC else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*splits, {**byte_level, "use_regex": False}],
        },
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": False},
        "model": _bpe(vocab, merges, unk_token=None, ignore_merges=kind in _IGNORE_MERGES),
    }


def _sentencepiece(metadata: dict[str, Any], tokens: list[str], types: list[int]) -> dict[str, Any]:
    # Runs of spaces are kept with spaces in GGUF, but BPE sees them after spaces became ▁.
    pieces = [
        token.replace(" ", "▁") if types[index] == _USER_DEFINED else token
        for index, token in enumerate(tokens)
    ]
    vocab = {piece: index for index, piece in enumerate(pieces) if types[index] != _UNUSED}
    added = [
        index
        for index, kind in enumerate(types)
        if kind in (_CONTROL, _UNKNOWN) or (kind == _USER_DEFINED and tokens[index].strip(" "))
    ]
    replace: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    normalizer = replace
    if metadata.get("add_space_prefix", True):
        prepend = {"type": "Prepend", "prepend": "▁"}
        normalizer = {"type": "Sequence", "normalizers": [prepend, replace]}
    unknown = metadata.get("unknown_token_id")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokens, added, types),
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": _bpe(
            vocab,
            _merges_from_scores(vocab, metadata["scores"], types),
            unk_token=pieces[unknown] if unknown is not None else None,
            fuse_unk=True,
            byte_fallback=True,
            ignore_merges=False,
        ),
    }


def _merges_from_scores(
    vocab: dict[str, int], scores: list[float], types: list[int]
) -> list[list[str]]:
    """SentencePiece merges any two neighbours that form a piece, the best-scored piece first.

    User-defined pieces carry no real score and go before all others.
    """
    control = {index for index, kind in enumerate(types) if kind in (_CONTROL, _UNKNOWN)}
    pieces = {piece: index for piece, index in vocab.items() if index not in control}

    def rank(item: tuple[str, int]) -> tuple[float, int]:
        index = item[1]
        return (-math.inf if types[index] == _USER_DEFINED else -scores[index], index)

    return [
        [piece[:cut], piece[cut:]]
        for piece, _ in sorted(pieces.items(), key=rank)
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
