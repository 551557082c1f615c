"""A SentencePiece ``tokenizer.model``, rewritten as the ``tokenizer.json`` that is read here."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omnidraft.runtime.errors import DamagedFileError, OmniDraftError
from omnidraft.runtime.text.gguf_tokenizer import added_token, sentencepiece_bpe

MODEL_FILE = "tokenizer.model"
_LARGEST = 1 << 26
_BPE = 2
_KINDS = {1: "unigram", 3: "word", 4: "character"}
# Types of pieces, which are the same numbers in GGUF files.
_NORMAL, _LAST_TYPE = 1, 6
_SPECIAL = ("bos", "eos", "unk", "pad")
Fields = dict[int, list[Any]]


def tokenizer_files_from_sentencepiece(
    path: Path, config: Mapping[str, Any], further: Mapping[str, Any]
) -> dict[str, bytes]:
    """``tokenizer.json`` and ``tokenizer_config.json`` for a model of SentencePiece.

    Args:
        path: the ``tokenizer.model``.
        config: what the model's ``tokenizer_config.json`` and ``special_tokens_map.json`` say,
            which takes precedence.
        further: ids of tokens that ``added_tokens.json`` adds, by their names.

    Raises:
        DamagedFileError: it is no such file.
        OmniDraftError: it is of a kind that is not known here.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is larger than any vocabulary")
        model = _fields(path.read_bytes())
        trainer, normalizer = (_fields(_bytes(model, number)) for number in (2, 3))
        pieces = [_fields(data) for data in model.get(1, [])]
        tokens = [_bytes(piece, 1).decode() for piece in pieces]
        scores = [float(_last(piece, 2, 0.0)) for piece in pieces]
        types = [_number(piece, 3, _NORMAL) for piece in pieces]
        # -1, which says that there is none, takes ten bytes.
        ids = {
            name: _number(trainer, 40 + place, default)
            for place, (name, default) in enumerate(
                (("unk", 0), ("bos", 1), ("eos", 2), ("pad", -1))
            )
        }
        names = {name: tokens[index] for name, index in ids.items() if 0 <= index < len(tokens)}
        if not tokens or "unk" not in names or not all(0 < kind <= _LAST_TYPE for kind in types):
            raise ValueError("it holds no pieces")
        kind = _number(trainer, 3, 1)
        charsmap = _bytes(normalizer, 2)
        prefix, collapse, escape = (bool(_number(normalizer, number, 1)) for number in (3, 4, 5))
        suffix = bool(_number(trainer, 24, 0))
    except (ValueError, TypeError, struct.error) as error:
        raise DamagedFileError(
            f"{path} cannot be read as a SentencePiece model: {error}. Fetch the model again."
        ) from error
    if kind != _BPE or suffix or not escape:
        what = "of spaces at the ends of words" if kind == _BPE else _KINDS.get(kind, str(kind))
        raise OmniDraftError(
            f"{path} is a SentencePiece model of the kind {what}, which is not read (BPE is). Load "
            "the tokenizer with transformers' AutoTokenizer and save it there with "
            "save_pretrained()."
        )
    if isinstance(asked := config.get("add_prefix_space"), bool):
        prefix = asked
    state = sentencepiece_bpe(
        tokens, types, scores, unknown=ids["unk"], prefix=prefix and _is_legacy(config)
    )
    _normalize(state, charsmap, collapse)
    if prefix and not _is_legacy(config):
        state["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": "first",
            "split": False,
        }
    _add_tokens(state, config, further, path)
    implied: dict[str, Any] = {f"{name}_token": names[name] for name in _SPECIAL if name in names}
    implied["add_bos_token"] = "bos" in names
    return {
        "tokenizer.json": json.dumps(state, ensure_ascii=False).encode(),
        "tokenizer_config.json": json.dumps({**implied, **config}, ensure_ascii=False).encode(),
    }


def _is_legacy(config: Mapping[str, Any]) -> bool:
    """Whether every piece of text between special tokens, not only the first, gets a space."""
    return config.get("legacy") is not False


def _normalize(state: dict[str, Any], charsmap: bytes, collapse: bool) -> None:
    """Put in front what SentencePiece does to a text before spaces become ▁."""
    steps: list[dict[str, Any]] = []
    if charsmap:
        encoded = base64.b64encode(charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": encoded})
    if collapse:
        for pattern, content in ((r"\A +| +\z", ""), (" {2,}", " ")):
            steps.append({"type": "Replace", "pattern": {"Regex": pattern}, "content": content})
    if steps:
        state["normalizer"] = {"type": "Sequence", "normalizers": [*steps, state["normalizer"]]}


def _add_tokens(
    state: dict[str, Any], config: Mapping[str, Any], further: Mapping[str, Any], path: Path
) -> None:
    """Add the tokens of ``added_tokens.json`` and of ``added_tokens_decoder``."""
    special = {_content(config.get(f"{name}_token")) for name in _SPECIAL}
    names = config.get("additional_special_tokens")
    special |= set(map(_content, names if isinstance(names, list) else []))
    added = {entry["id"]: entry for entry in state["added_tokens"]}
    try:
        for name, index in further.items():
            added[_index(index)] = added_token(_index(index), name, name in special)
        for key, entry in dict(config.get("added_tokens_decoder") or {}).items():
            token = added_token(int(key), str(entry["content"]), bool(entry.get("special")))
            flags = {flag: bool(entry.get(flag)) for flag in ("lstrip", "rstrip", "single_word")}
            added[int(key)] = token | flags
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise DamagedFileError(
            f"The tokens that are added to {path} cannot be read: {error!r}. Fetch the model again."
        ) from error
    vocab: dict[str, int] = state["model"]["vocab"]
    new = {added[index]["content"]: index for index in sorted(added)}
    new = {content: index for content, index in new.items() if content not in vocab}
    # The library numbers tokens that its vocabulary lacks on from there.
    if list(new.values()) != list(range(len(vocab), len(vocab) + len(new))):
        vocab |= new
    state["added_tokens"] = [added[index] for index in sorted(added)]


def _content(value: Any) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _index(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r:.60} is no number of a token")
    return value


# --- protocol buffers --------------------------------------------------------------------------


def _fields(data: bytes) -> Fields:
    """The fields of a message by number, each with all its values; numbers, floats or bytes.

    Raises:
        ValueError, struct.error: it is no message.
    """
    fields: Fields = {}
    for number, value in _parts(data):
        fields.setdefault(number, []).append(value)
    return fields


def _parts(data: bytes) -> Iterator[tuple[int, Any]]:
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        value: Any
        if tag & 7 == 0:
            value, position = _varint(data, position)
        elif tag & 7 == 1:
            (value,), position = struct.unpack_from("<d", data, position), position + 8
        elif tag & 7 == 2:
            length, position = _varint(data, position)
            if length > len(data) - position:
                raise ValueError("it is cut off")
            value, position = data[position : position + length], position + length
        elif tag & 7 == 5:
            (value,), position = struct.unpack_from("<f", data, position), position + 4
        else:
            raise ValueError("it is no protocol buffer")
        yield tag >> 3, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for i in range(10):
        if position + i >= len(data):
            raise ValueError("it is cut off")
        byte = data[position + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, position + i + 1
    raise ValueError("it is no protocol buffer")


def _last(fields: Fields, number: int, default: Any) -> Any:
    return fields.get(number, [default])[-1]


def _number(fields: Fields, number: int, default: int) -> int:
    value = _last(fields, number, default)
    if type(value) is not int:
        raise ValueError(f"field {number} is no number")
    return value


def _bytes(fields: Fields, number: int) -> bytes:
    value = _last(fields, number, b"")
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is no text")
    return value
