"""``tokenizer.model`` without ``tokenizer.json``: the same tokens."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from needs import needs
from tiny import TEXT, sentencepiece_tokenizer

from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.text.tokenizer import Tokenizer

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "tokenizers"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def message(*fields: tuple[int, Any]) -> bytes:
    """A message of protocol buffers."""
    data = b""
    for number, value in fields:
        if isinstance(value, float):
            data += varint(number << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            data += varint(number << 3) + varint(value)
        else:
            content = value.encode() if isinstance(value, str) else value
            data += varint(number << 3 | 2) + varint(len(content)) + content
    return data


def model_of(state: dict[str, Any], *, kind: int = 2, **settings: Any) -> bytes:
    """A tokenizer.json as SentencePiece would have kept it.

    Args:
        settings: ``prefix``, ``collapse``, ``charsmap``, ``suffix`` of the model.
    """
    vocab = dict(state["model"]["vocab"])
    tokens = sorted(vocab, key=vocab.__getitem__)
    # The sooner a piece is merged, the better its score.
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(state["model"]["merges"]):
        ranks.setdefault(left + right, rank)
    types = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}
    user = {a["content"] for a in state["added_tokens"] if not a["special"]}
    pieces = []
    for token in tokens:
        piece = USER_DEFINED if token in user else types.get(token, NORMAL)
        piece = BYTE if len(token) == 6 and token.startswith("<0x") else piece
        fields = [(1, token), (2, -float(ranks.get(token, 1e6)))]
        pieces.append((1, message(*fields, *([(3, piece)] if piece != NORMAL else []))))
    suffix = settings.get("suffix", False)
    trainer = message(
        (3, kind), (24, int(suffix)), (35, 1), (40, 0), (41, 1), (42, 2), (43, -1), (45, "<unk>")
    )
    normalizer = message(
        (1, "identity"),
        (2, settings.get("charsmap", b"")),
        (3, int(settings.get("prefix", True))),
        (4, int(settings.get("collapse", False))),
    )
    return message(*pieces, (2, trainer), (3, normalizer))


def texts(count: int) -> list[str]:
    rng = random.Random(3)
    words = [*TEXT.split(), "<s>", "</s>", "<0x0A>", "▁", "x▁y", "\t", "\n", "🎉", "ﬁ", "①", "\x07"]
    spaces = [" ", "", "  ", "\n", "     "]
    made = [
        "".join(rng.choice(words) + rng.choice(spaces) for _ in range(rng.randrange(1, 12)))
        for _ in range(count)
    ]
    return ["", " ", "  a  b  ", *made]


def write(folder: Path, state: dict[str, Any], **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model_of(state, **settings))
    return folder


def test_the_same_tokens_as_llama_2(tmp_path: Path) -> None:
    path = SHARED / "llama2.tokenizer.json.gz"
    if not path.is_file():
        pytest.skip(f"{path.name} is not in ../shared/data/tokenizers")
    content = gzip.decompress(path.read_bytes())
    original = Tokenizer({"tokenizer.json": content})
    read = Tokenizer.load(write(tmp_path, json.loads(content)))
    assert read.tokens == original.tokens
    assert read.surfaces == original.surfaces
    assert (read.bos_id, read.add_bos, read.eos_ids) == (1, True, {2})
    for text in texts(300):
        expected = original.encode(text, add_bos=False)
        assert read.encode(text, add_bos=False) == expected, repr(text)
        assert read.encode(f"<s>{text}</s>", parse_special=True, add_bos=False) == original.encode(
            f"<s>{text}</s>", parse_special=True, add_bos=False
        )
        assert read.segment(text.encode()) == original.segment(text.encode())


@pytest.mark.parametrize(
    ("prefix", "collapse", "legacy"), list(itertools.product([True, False], repeat=3))
)
def test_the_same_tokens_as_transformers_makes_of_it(
    tmp_path: Path, prefix: bool, collapse: bool, legacy: bool
) -> None:
    needs("transformers")
    from transformers.convert_slow_tokenizer import SpmConverter, import_protobuf

    state = json.loads(sentencepiece_tokenizer().to_str())
    folder = write(tmp_path, state, prefix=prefix, collapse=collapse)
    (folder / "tokenizer_config.json").write_text(json.dumps({"legacy": legacy}))
    proto = import_protobuf().ModelProto()
    proto.ParseFromString((folder / "tokenizer.model").read_bytes())
    vocab = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    expected: tokenizers.Tokenizer = SpmConverter.build_tokenizer_from_spm_proto(
        proto, vocab, legacy=legacy
    )
    read = Tokenizer.load(folder)
    for text in texts(200):
        # SentencePiece has no names of special tokens in text, and this converter no ▁ in front.
        if text.strip(" ") and not text.lstrip(" ").startswith("▁"):
            ids = expected.encode(text, add_special_tokens=False).ids
            assert read.encode(text, add_bos=False) == ids, repr(text)


def test_added_tokens(tmp_path: Path) -> None:
    state = json.loads(sentencepiece_tokenizer().to_str())
    size = len(state["model"]["vocab"])
    folder = write(tmp_path, state)
    more = {"<|im_start|>": size, "<|im_end|>": size + 1, "<tool>": size + 7}
    (folder / "added_tokens.json").write_text(json.dumps(more))
    config = {
        "eos_token": {"content": "<|im_end|>"},
        "additional_special_tokens": ["<|im_start|>"],
        "add_bos_token": False,
        "added_tokens_decoder": {
            "2": {"content": "</s>", "special": True},
            str(size + 3): {"content": "<think>", "special": False},
        },
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(folder)
    for name, index in {**more, "<think>": size + 3}.items():
        assert tokenizer.tokens[index] == name
        assert tokenizer.encode(f"{name}a", parse_special=True)[0] == index
    assert tokenizer.surfaces[size] is None
    assert size + 1 in tokenizer.eos_ids
    assert not tokenizer.add_bos
    # What the special tokens' map names is not added to.
    (folder / "tokenizer_config.json").unlink()
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    assert size + 1 in Tokenizer.load(folder).eos_ids


def test_pieces_that_users_defined_are_taken_whole(tmp_path: Path) -> None:
    state = json.loads(sentencepiece_tokenizer().to_str())
    name = "quickfox"
    state["model"]["vocab"][name] = len(state["model"]["vocab"])
    state["added_tokens"].append({"content": name, "special": False})
    tokenizer = Tokenizer.load(write(tmp_path, state))
    assert state["model"]["vocab"][name] in tokenizer.encode(f"The {name}es")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": 1}, "unigram"),
        ({"kind": 3}, "word"),
        ({"kind": 4}, "char"),
        ({"suffix": 1}, "end"),
    ],
)
def test_other_kinds_are_named(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    state = json.loads(sentencepiece_tokenizer().to_str())
    with pytest.raises(OmniDraftError, match=rf"kind .*{said}"):
        Tokenizer.load(write(tmp_path, state, **settings))


def test_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no tokenizer\.model"):
        Tokenizer.load(tmp_path)
    whole = model_of(json.loads(sentencepiece_tokenizer().to_str()))
    path = tmp_path / "tokenizer.model"
    tiktoken = b"IQ== 0\nIg== 1\n"
    endless = message((1, message((1, "a")))) + b"\x0a" + b"\xff" * 12
    for content in (b"", whole[:100], whole[: len(whole) // 2], tiktoken, endless, b"\x0b\x0c"):
        path.write_bytes(content)
        with pytest.raises(DamagedFileError, match="SentencePiece"):
            Tokenizer.load(tmp_path)
    path.write_bytes(whole)
    for odd in ('{"a": "b"}', '{"a": null}', '{"a": 1.5}'):
        (tmp_path / "added_tokens.json").write_text(odd)
        with pytest.raises(DamagedFileError, match="added"):
            Tokenizer.load(tmp_path)
