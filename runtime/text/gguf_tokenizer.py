"""A GGUF file's tokenizer, rewritten as the files Hugging Face's tokenizers are kept in."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

from omnidraft.runtime.errors import DamagedFileError, OmniDraftError
from omnidraft.runtime.storage.gguf import read_gguf_metadata
from omnidraft.runtime.text.chat import words_of_template
from omnidraft.runtime.text.gguf_pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from omnidraft.runtime.text.markers import END_TOKENS, looks_like_marker

_LONGEST_PIECE = 1_000
# What a file says of a token that its model does not have; the latter is -1 of 32 bits.
_NO_TOKEN = (-1, 2**32 - 1)
# Values of tokenizer.ggml.token_type.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5


def tokenizer_files_from_gguf(path: Path) -> dict[str, bytes]:
    """The tokenizer of a GGUF file as ``tokenizer.json`` and its companions.

    Returns:
        File name → content: ``tokenizer.json``, ``tokenizer_config.json``,
        ``generation_config.json`` (end-of-turn ids) and, if there is one, ``chat_template.jinja``.

    Raises:
        DamagedFileError: not a readable GGUF file, one without a tokenizer, or one whose field is
            missing, too short or of another kind; it is named.
        OmniDraftError: a tokenizer of a kind that is not known here.
    """
    metadata = _read_metadata(path)
    tokens: list[str] = metadata["tokens"]
    types = _types(metadata)
    model = metadata.get("model")
    split = _pre_tokenizer(path, metadata) if model == "gpt2" else None
    if split is not None:
        tokenizer = _byte_level(split, metadata, tokens, types)
    elif model == "llama":
        if "scores" not in metadata:
            raise _damaged(path, "scores", "is missing")
        tokenizer = sentencepiece_bpe(
            tokens,
            types,
            metadata["scores"],
            unknown=metadata.get("unknown_token_id"),
            prefix=metadata.get("add_space_prefix", True),
        )
    else:
        raise OmniDraftError(
            f"{path.name}: tokenizer kind {model!r} cannot be read from a GGUF file (byte-level "
            "and SentencePiece BPE can). Use the model's Hugging Face folder instead."
        )

    # A GGUF that does not say gets what llama.cpp would do.
    implied = {} if split else {"unknown": 0, "bos": 1, "eos": 2}

    def name(key: str) -> str | None:
        index = metadata.get(f"{key}_token_id", implied.get(key, -1))
        return tokens[index] if 0 <= index < len(tokens) else None

    implied_bos = split is None or split.begins
    config = {
        "bos_token": name("bos"),
        "eos_token": name("eos"),
        "unk_token": name("unknown"),
        "pad_token": name("padding"),
        "add_bos_token": bool(metadata.get("add_bos_token", implied_bos)),
    }
    ends = {metadata.get(f"{key}_token_id", -1) for key in ("eos", "eot", "eom")}
    files = {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False).encode(),
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=1).encode(),
        "generation_config.json": json.dumps(
            {"eos_token_id": sorted(end for end in ends if 0 <= end < len(tokens))}
        ).encode(),
    }
    if template := metadata.get("chat_template"):
        files["chat_template.jinja"] = template.encode()
    return files


def _types(metadata: dict[str, Any]) -> list[int]:
    """The type of each token, markers being markers although a converter did not see it."""
    tokens: list[str] = metadata["tokens"]
    types = list(metadata.get("token_type", [_NORMAL] * len(tokens)))
    words = words_of_template(metadata.get("chat_template", ""), {})
    learned = {merge.replace(" ", "") for merge in metadata.get("merges", ())}
    for index, token in enumerate(tokens):
        if types[index] not in (_NORMAL, _USER_DEFINED) or not looks_like_marker(token):
            continue
        if token in END_TOKENS and token not in learned:
            types[index] = _CONTROL
        elif token in words and token not in learned:
            types[index] = _USER_DEFINED
    return types


# What the fields that are read here must be; those that are lists have an entry for every token.
_TEXTS = ("model", "pre", "chat_template")
_FLAGS = ("add_bos_token", "add_space_prefix")
_LISTS: dict[str, tuple[type, ...]] = {
    "tokens": (str,),
    "token_type": (int,),
    "scores": (float, int),
}


def _read_metadata(path: Path) -> dict[str, Any]:
    prefix = "tokenizer."
    metadata = {
        key.removeprefix(prefix).removeprefix("ggml."): value
        for key, value in read_gguf_metadata(path, prefix).items()
    }
    if "tokens" not in metadata:
        raise DamagedFileError(f"{path} holds no tokenizer. Use another GGUF of this model.")
    for key, value in metadata.items():
        if key in _TEXTS and not isinstance(value, str):
            raise _damaged(path, key, f"is no text: {value!r:.60}")
        if key in _FLAGS and not isinstance(value, bool):
            raise _damaged(path, key, f"is neither true nor false: {value!r:.60}")
        if key.endswith("_token_id") and type(value) is not int:
            raise _damaged(path, key, f"is no number of a token: {value!r:.60}")
    for key, kinds in _LISTS.items():
        _check_list(path, metadata, key, kinds, len(metadata["tokens"]))
    _drop_unknown_ids(path, metadata)
    _check_list(path, metadata, "merges", (str,))
    if metadata.get("model") == "gpt2":
        if "merges" not in metadata:  # each byte would be a token of its own
            raise _damaged(path, "merges", "is missing")
        tokens = set(metadata["tokens"])
        for merge in metadata["merges"]:
            parts = merge.split(" ")
            if len(parts) != 2 or not {*parts, "".join(parts)} <= tokens:
                raise _damaged(path, "merges", f"holds {merge!r:.60}, not two tokens of a third")
    return metadata


def _drop_unknown_ids(path: Path, metadata: dict[str, Any]) -> None:
    """Leave out ids that no token has, as llama.cpp does, and warn of them."""
    size = len(metadata["tokens"])
    odd = {
        key: value
        for key, value in metadata.items()
        if key.endswith("_token_id") and not 0 <= value < size and value not in _NO_TOKEN
    }
    for key in odd:
        del metadata[key]
    if odd:
        fields = ", ".join(f"tokenizer.ggml.{key} = {value}" for key, value in odd.items())
        warnings.warn(
            f"{path.name}: {fields}: there are {size:,} tokens, from 0 on. That is left out, and "
            "answers may not begin or end as they should. Use another GGUF of this model",
            stacklevel=2,
        )


def _check_list(
    path: Path,
    metadata: dict[str, Any],
    key: str,
    kinds: tuple[type, ...],
    length: int | None = None,
) -> None:
    values = metadata.get(key, [])
    if not isinstance(values, list):
        raise _damaged(path, key, f"is no list: {values!r:.60}")
    odd = next((value for value in values if type(value) not in kinds), None)
    if odd is not None:
        raise _damaged(path, key, f"holds {odd!r:.60}, not {kinds[0].__name__}")
    if length is not None and key in metadata and len(values) != length:
        raise _damaged(path, key, f"has {len(values):,} entries for {length:,} tokens")


def _damaged(path: Path, key: str, what: str) -> DamagedFileError:
    name = key if key == "chat_template" else f"ggml.{key}"
    return DamagedFileError(f"{path}: tokenizer.{name} {what}. Use another GGUF of this model.")


def _pre_tokenizer(path: Path, metadata: dict[str, Any]) -> PreTokenizer:
    kind = metadata.get("pre", "default")
    if kind not in PRE_TOKENIZERS:
        raise OmniDraftError(
            f"{path.name}: the pre-tokenizer {kind!r} is not known here (known: "
            f"{', '.join(sorted(PRE_TOKENIZERS))}). Use the model's Hugging Face folder instead."
        )
    found = PRE_TOKENIZERS[kind]
    if found.guessed:
        warnings.warn(
            f"{path.name} does not say how its tokenizer splits text (tokenizer.ggml.pre), so that "
            "is a guess, and answers may be worse. Use a newer GGUF of this model",
            stacklevel=2,
        )
    return found


def added_token(index: int, content: str, special: bool) -> dict[str, Any]:
    """An added token as ``tokenizer.json`` has it."""
    return {
        "id": index,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def _added(tokens: list[str], ids: list[int], types: list[int]) -> list[dict[str, Any]]:
    return [added_token(index, tokens[index], types[index] != _USER_DEFINED) for index in ids]


def _bpe(vocab: dict[str, int], merges: list[list[str]], **options: Any) -> dict[str, Any]:
    return {"type": "BPE", "dropout": None, "vocab": vocab, "merges": merges, **options}


def _byte_level(
    split: PreTokenizer, metadata: dict[str, Any], tokens: list[str], types: list[int]
) -> dict[str, Any]:
    splits = [
        {
            "type": "Split",
            "pattern": {"Regex": expression},
            "behavior": "Isolated",
            "invert": False,
        }
        for expression in split.expressions
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
        "normalizer": {"type": "NFC"} if split.composes else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*splits, {**byte_level, "use_regex": False}],
        },
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": False},
        "model": _bpe(vocab, merges, unk_token=None, ignore_merges=split.whole_words),
    }


def sentencepiece_bpe(
    tokens: list[str],
    types: list[int],
    scores: list[float],
    *,
    unknown: int | None,
    prefix: bool,
) -> dict[str, Any]:
    """The ``tokenizer.json`` of a BPE model of SentencePiece.

    Args:
        tokens, types, scores: of each piece; types as in GGUF files and in SentencePiece's.
        unknown: the piece for what no piece spells.
        prefix: whether text begins with a space.

    Raises:
        DamagedFileError: a piece is too long.
    """
    # For merges every piece is cut at every place.
    if (longest := max(map(len, tokens), default=0)) > _LONGEST_PIECE:
        raise DamagedFileError(
            f"The vocabulary has a piece of {longest:,} characters, and none needs more than "
            f"{_LONGEST_PIECE:,}. Fetch the model again."
        )
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
    if prefix:
        prepend = {"type": "Prepend", "prepend": "▁"}
        normalizer = {"type": "Sequence", "normalizers": [prepend, replace]}
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
            _merges_from_scores(vocab, scores, types),
            unk_token=pieces[unknown]
            if unknown is not None and 0 <= unknown < len(pieces)
            else None,
            fuse_unk=True,
            byte_fallback=True,
            ignore_merges=False,
        ),
    }


def _merges_from_scores(
    vocab: dict[str, int], scores: list[float], types: list[int]
) -> list[list[str]]:
    """SentencePiece merges any two neighbours that form a piece, the best-scored piece first.

    Runs of spaces that are user-defined carry no real score and go before all others; other
    user-defined pieces are found before anything is merged.
    """
    pieces = {
        piece: index
        for piece, index in vocab.items()
        if types[index] not in (_CONTROL, _UNKNOWN)
        and (types[index] != _USER_DEFINED or not piece.strip("▁"))
    }

    def rank(item: tuple[str, int]) -> tuple[float, int]:
        index = item[1]
        return (-math.inf if types[index] == _USER_DEFINED else -scores[index], index)

    return [
        [piece[:cut], piece[cut:]]
        for piece, _ in sorted(pieces.items(), key=rank)
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
