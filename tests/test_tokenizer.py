"""Tokenizers: surfaces, exact segmentation, GGUF metadata, chat templates, streaming."""

from __future__ import annotations

import gzip
import json
import random
import re
import warnings
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import byte_level_tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.storage.gguf import read_gguf_metadata
from omnidraft.runtime.text.chat import render_chat
from omnidraft.runtime.text.surface import TextStream, byte_level_surface, sentencepiece_surface
from omnidraft.runtime.text.tokenizer import Tokenizer, tokenizer_files

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "tokenizers"
CORPUS = [
    "the cat sat on the mat, and then the other cat sat there too",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2))\n",
    "it's 2024; we'll see 1000 words, they've said.  Two  spaces",
    "naïve café 你好 世界 🎉",
] * 20
NASTY = [
    "",
    " ",
    "Hello world",
    " leading and trailing ",
    "🎉👩‍👩‍👧 🇩🇪!",
    "你好,世界。这是一个测试",
    "مرحبا بالعالم",
    "def f(x):\n\treturn  x\n    if y:\n        pass\n",
    "a\r\nb\r\n\r\nc",
    "nul\0byte\0\0",
    "x" * 2000,
    "abc" * 300 + "äöü" * 100,
    "12345 67,890.12 ٣٤ ½ ² 1 2  3   4",
    "it's I'LL we'Ve don't",
    "e\u0301 decomposed",
    "▁ literally",
    "<s>x</s> <table> [INST]",
    "\u200b\u00a0nbsp\t\t\tx",
    "a " * 50 + "-----=====",
]


def _shuffled_texts(count: int) -> list[str]:
    rng = random.Random(0)
    alphabet = "ab Z09\n\t\r é你🎉م'.,<>/"
    return ["".join(rng.choices(alphabet, k=rng.randrange(1, 60))) for _ in range(count)]


def _byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>", "<|start|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<think>", "    "])
    return tokenizer


def _sentencepiece() -> tokenizers.Tokenizer:
    """Like Llama-2's: byte fallback, ▁ for a space, one put in front."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = normalizer
    trained.train_from_iterator(
        CORPUS[:3], trainers.BpeTrainer(vocab_size=200, show_progress=False)
    )
    state = json.loads(trained.to_str())["model"]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for piece in sorted(state["vocab"], key=state["vocab"].__getitem__):
        vocab.setdefault(piece, len(vocab))
    merges = [tuple(merge) for merge in state["merges"]]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def _wrap(tokenizer: tokenizers.Tokenizer, **config: Any) -> Tokenizer:
    return Tokenizer(
        {
            "tokenizer.json": tokenizer.to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }
    )


BYTE_LEVEL = _wrap(_byte_level(), eos_token="<|end|>")
SENTENCEPIECE = _wrap(
    _sentencepiece(), bos_token="<s>", eos_token={"content": "</s>"}, add_bos_token=True
)
_real: dict[str, Tokenizer] = {}


def _shared(name: str) -> Tokenizer:
    path = SHARED / f"{name}.tokenizer.json.gz"
    if not path.is_file():
        pytest.skip(f"{path.name} is not in ../shared/data/tokenizers")
    if name not in _real:
        _real[name] = Tokenizer({"tokenizer.json": gzip.decompress(path.read_bytes())})
    return _real[name]


def test_surfaces_of_token_strings() -> None:
    assert sentencepiece_surface("▁the▁") == b" the "
    assert sentencepiece_surface("<0x0A>") == b"\n"
    assert sentencepiece_surface("<0x0A>x") == b"<0x0A>x"
    assert byte_level_surface("Ġthe") == b" the"
    assert byte_level_surface("Ċ") == b"\n"
    assert byte_level_surface("ðŁ") == b"\xf0\x9f"


def test_special_tokens_and_markers_have_no_surface() -> None:
    for name in ("<|end|>", "<|start|>", "<think>"):
        assert BYTE_LEVEL.surface(BYTE_LEVEL.tokens.index(name)) is None
    assert BYTE_LEVEL.surface(BYTE_LEVEL.tokens.index("    ")) == b"    "
    assert BYTE_LEVEL.shown_bytes(BYTE_LEVEL.tokens.index("<think>")) == b"<think>"
    assert BYTE_LEVEL.shown_bytes(BYTE_LEVEL.tokens.index("<|end|>")) == b""
    assert [SENTENCEPIECE.surface(index) for index in (0, 1, 2)] == [None] * 3
    assert SENTENCEPIECE.surface(3 + 0xF0) == b"\xf0"
    assert SENTENCEPIECE.is_byte_token(3 + 0x41)
    assert not SENTENCEPIECE.is_byte_token(SENTENCEPIECE.tokens.index("a"))
    assert SENTENCEPIECE.surface(10**6) is None


def test_special_ids() -> None:
    assert BYTE_LEVEL.bos_id is None
    assert BYTE_LEVEL.eos_ids == {BYTE_LEVEL.tokens.index("<|end|>")}
    assert (SENTENCEPIECE.bos_id, SENTENCEPIECE.eos_ids) == (1, {2})
    assert SENTENCEPIECE.encode("a")[0] == 1
    assert SENTENCEPIECE.encode("a", add_bos=False)[0] != 1


def test_special_names_in_a_text_are_text_unless_asked_for() -> None:
    end = BYTE_LEVEL.tokens.index("<|end|>")
    assert end not in BYTE_LEVEL.encode("a<|end|>")
    assert end in BYTE_LEVEL.encode("a<|end|>", parse_special=True)
    assert end not in BYTE_LEVEL.encode("a<|end|>")


@pytest.mark.parametrize("text", NASTY)
def test_decoding_returns_the_text(text: str) -> None:
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text
    # The space that SentencePiece puts in front is a part of its tokens.
    decoded = SENTENCEPIECE.decode(SENTENCEPIECE.encode(text))
    assert decoded == (" " + text if text else "").replace("▁", " ")


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(OmniDraftError, match="UTF-8"):
        BYTE_LEVEL.encode("a\udcff")


def _check_segment(tokenizer: Tokenizer, data: bytes) -> None:
    ids = tokenizer.segment(data)
    assert ids is not None
    assert b"".join(tokenizer.surfaces[index] or b"?!" for index in ids) == data


TEXT_BYTES = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(str.encode),
    st.text("▁ <s>/|thinkedE\u0301\n\t", max_size=40).map(str.encode),
    st.sampled_from(NASTY).map(str.encode),
    st.just(b"a<|end|>b<think></s><0x41>"),
)


@given(TEXT_BYTES)
@settings(max_examples=300)
def test_segment_spells_any_bytes(data: bytes) -> None:
    _check_segment(BYTE_LEVEL, data)
    _check_segment(SENTENCEPIECE, data)


@pytest.mark.parametrize("name", ["llama2", "qwen2.5"])
@given(data=TEXT_BYTES)
@settings(max_examples=200)
def test_segment_spells_any_bytes_with_real_tokenizers(name: str, data: bytes) -> None:
    _check_segment(_shared(name), data)


def test_segment_is_canonical_and_adds_no_space() -> None:
    llama = _shared("llama2")
    assert [llama.tokens[i] for i in llama.segment(b"Hello world") or []] == ["Hello", "▁world"]
    assert [llama.tokens[i] for i in llama.segment(b" Hello") or []] == ["▁Hello"]
    assert llama.segment(b"") == []


def test_segment_without_byte_tokens() -> None:
    tokenizer = _wrap(tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])))
    assert tokenizer.segment(b"aab") == [0, 2]
    assert tokenizer.segment(b"abc") is None


# Distinct surfaces that Llama-2 and another vocabulary share, and the paper's raw-string count.
@pytest.mark.parametrize(
    ("name", "by_bytes", "by_paper"),
    [("qwen2.5", 26_342, 22_275), ("llama3.1", 26_599, 22_416), ("deepseek-v3", 28_037, None)],
)
def test_shared_vocabulary(name: str, by_bytes: int, by_paper: int | None) -> None:
    draft, target = _shared("llama2"), _shared(name)
    shared = set(draft.surfaces) & set(target.surfaces) - {None}
    assert len(shared) == by_bytes
    if by_paper is not None:
        raw = {
            "Ċ" if t == "<0x0A>" else "Ġ" + t[1:] if t.startswith("▁") else t for t in draft.tokens
        }
        assert len(raw & set(target.tokens)) == by_paper


@given(st.lists(st.binary(max_size=4)))
def test_text_stream_is_decoding_in_pieces(pieces: list[bytes]) -> None:
    stream = TextStream()
    text = "".join(map(stream.push, pieces)) + stream.finish()
    assert text == b"".join(pieces).decode("utf-8", errors="replace")


def test_text_stream_holds_back_incomplete_characters() -> None:
    stream = TextStream()
    emoji = "🎉".encode()
    assert [stream.push(emoji[i : i + 1]) for i in range(4)] == ["", "", "", "🎉"]
    assert stream.push(emoji[:2]) == ""
    assert stream.finish() == "\ufffd"


def _write_gguf(
    path: Path,
    model: str,
    state: dict[str, Any],
    pre: str | None,
    *,
    change: dict[str, Any] | None = None,
    **fields: Any,
) -> None:
    """A GGUF file with nothing but the tokenizer of a tokenizer.json.

    Args:
        change: further metadata, or other values; None leaves a field out.
    """
    vocab = dict(state["model"]["vocab"])
    vocab |= {added["content"]: added["id"] for added in state["added_tokens"]}
    special = {added["id"]: added["special"] for added in state["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = {None: 1, True: 3, False: 4}
    types = [
        6
        if model == "llama" and len(token) == 6 and token.startswith("<0x")
        else kinds[special.get(vocab[token])]
        for token in tokens
    ]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if model == "gpt2":
        merges = state["model"]["merges"]
        writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    else:
        # The sooner a piece is merged, the better its score.
        ranks: dict[str, int] = {}
        for rank, (left, right) in enumerate(state["model"]["merges"]):
            ranks.setdefault(left + right, rank)
        writer.add_token_scores([-float(ranks.get(token, 10**6)) for token in tokens])
    for key, value in fields.items():
        getattr(writer, f"add_{key}")(value)
    for key, value in (change or {}).items():
        writer.kv_data[0].pop(key, None)
        if value is None:
            continue
        kinds = {str: "string", int: "int64", float: "float32", list: "array"}
        getattr(writer, f"add_{kinds[type(value)]}")(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("name", "model", "pre"),
    [
        ("qwen2.5", "gpt2", "qwen2"),
        ("llama3.1", "gpt2", "llama-bpe"),
        ("deepseek-v3", "gpt2", "deepseek-v3"),
        ("llama2", "llama", "default"),
    ],
)
def test_gguf_gives_the_ids_of_the_original(
    name: str, model: str, pre: str, tmp_path: Path
) -> None:
    path = SHARED / f"{name}.tokenizer.json.gz"
    if not path.is_file():
        pytest.skip(f"{path.name} is not in ../shared/data/tokenizers")
    state = json.loads(gzip.decompress(path.read_bytes()))
    _write_gguf(tmp_path / "tokenizer.gguf", model, state, pre)
    original, read = _shared(name), Tokenizer.load(tmp_path / "tokenizer.gguf")
    for text in NASTY + _shuffled_texts(300):
        expected = original.encode(text, add_bos=False)
        assert read.encode(text, add_bos=False) == expected, repr(text)
    # Unlike tokenizer.json, a GGUF file does not tell added from learned tokens.
    assert read.tokens == original.tokens
    assert read.surfaces == original.surfaces


def test_gguf_special_tokens_and_template(tmp_path: Path) -> None:
    state = json.loads(_byte_level().to_str())
    path = tmp_path / "tokenizer.gguf"
    _write_gguf(
        path,
        "gpt2",
        state,
        "gpt-2",
        eos_token_id=1,
        bos_token_id=0,
        add_bos_token=True,
        chat_template="{{ bos_token }}{{ messages[0].content }}",
    )
    tokenizer = Tokenizer.load(path)
    assert (tokenizer.bos_id, tokenizer.add_bos) == (0, True)
    assert 1 in tokenizer.eos_ids
    assert tokenizer.apply_chat([{"role": "user", "content": "hi"}]) == "<|end|>hi"
    # Written into a folder, the same files give the same tokenizer.
    for name, content in tokenizer_files(path).items():
        (tmp_path / name).write_bytes(content)
    again = Tokenizer.load(tmp_path)
    assert again.surfaces == tokenizer.surfaces
    assert again.eos_ids == tokenizer.eos_ids
    assert again.has_chat_template


def test_gguf_with_an_unknown_tokenizer(tmp_path: Path) -> None:
    state = json.loads(_byte_level().to_str())
    path = tmp_path / "tokenizer.gguf"
    _write_gguf(path, "gpt2", state, "of-the-future")
    with pytest.raises(OmniDraftError, match="of-the-future"):
        Tokenizer.load(path)


@pytest.mark.parametrize(
    ("pre", "digits"), [("deepseek-coder", 4), ("deepseek-llm", 1), ("falcon3", 2)]
)
def test_gguf_splits_digits_as_its_tokenizer_does(tmp_path: Path, pre: str, digits: int) -> None:
    state = json.loads(_byte_level().to_str())
    words = [("1", "2"), ("12", "3"), ("123", "4")]
    size = len(state["model"]["vocab"]) + len(state["added_tokens"])
    state["model"]["vocab"] |= {a + b: size + i for i, (a, b) in enumerate(words)}
    state["model"]["merges"] += [list(pair) for pair in words]
    _write_gguf(tmp_path / "tokenizer.gguf", "gpt2", state, pre)
    assert len(Tokenizer.load(tmp_path / "tokenizer.gguf").encode("1234", add_bos=False)) == digits


@pytest.mark.parametrize("pre", ["default", None])
def test_gguf_that_does_not_say_how_text_is_split(tmp_path: Path, pre: str | None) -> None:
    state = json.loads(_byte_level().to_str())
    path = tmp_path / "tokenizer.gguf"
    _write_gguf(path, "gpt2", state, pre)
    with pytest.warns(UserWarning, match="tokenizer.ggml.pre"):
        tokenizer = Tokenizer.load(path)
    assert tokenizer.decode(tokenizer.encode("a 12 b.", add_bos=False)) == "a 12 b."


ODD_FIELDS: list[tuple[str, str, Any]] = [
    ("llama", "scores", None),
    ("llama", "scores", [0.5, 1.0]),
    ("llama", "scores", "high"),
    ("llama", "token_type", [1]),
    ("llama", "token_type", ["normal"] * 400),
    ("llama", "tokens", [1, 2, 3]),
    ("llama", "eos_token_id", "two"),
    ("llama", "bos_token_id", 1.5),
    ("llama", "unknown_token_id", [0]),
    ("llama", "add_bos_token", "yes"),
    ("llama", "add_space_prefix", 1.0),
    ("gpt2", "token_type", [1] * 10),
    ("gpt2", "merges", ["a b", "ab"]),
    ("gpt2", "merges", ["no such"]),
    ("gpt2", "merges", None),
    ("gpt2", "merges", [1, 2]),
    ("gpt2", "pre", 3),
    ("gpt2", "model", 3),
]


@pytest.mark.parametrize(("model", "field", "value"), ODD_FIELDS)
def test_gguf_fields_of_another_kind_are_named(
    tmp_path: Path, model: str, field: str, value: Any
) -> None:
    state = json.loads((_byte_level() if model == "gpt2" else _sentencepiece()).to_str())
    path = tmp_path / "tokenizer.gguf"
    _write_gguf(path, model, state, "gpt-2", change={f"tokenizer.ggml.{field}": value})
    with pytest.raises(DamagedFileError, match=rf"tokenizer\.ggml\.{field}\b"):
        Tokenizer.load(path)


@pytest.mark.parametrize("model", ["gpt2", "llama"])
@pytest.mark.parametrize("field", ["bos", "eos", "eot", "eom", "unknown", "padding"])
@pytest.mark.parametrize("beyond", [0, 5, 1 << 31])
def test_gguf_ids_beyond_the_vocabulary_are_named(
    tmp_path: Path, model: str, field: str, beyond: int
) -> None:
    state = json.loads((_byte_level() if model == "gpt2" else _sentencepiece()).to_str())
    path, without = tmp_path / "tokenizer.gguf", tmp_path / "without.gguf"
    key = f"tokenizer.ggml.{field}_token_id"
    _write_gguf(without, model, state, "gpt-2", change={key: None})
    expected = Tokenizer.load(without)
    value = expected.vocab_size + beyond
    _write_gguf(path, model, state, "gpt-2", change={key: value})
    with pytest.warns(UserWarning, match=rf"{re.escape(key)} = {value}: there are") as caught:
        found = Tokenizer.load(path)
    assert len(caught) == 1
    assert (found.bos_id, found.eos_ids) == (expected.bos_id, expected.eos_ids)
    assert found.encode("ab \n") == expected.encode("ab \n")


@pytest.mark.parametrize("model", ["gpt2", "llama"])
@pytest.mark.parametrize("field", ["bos", "eos", "unknown"])
def test_gguf_ids_that_say_there_is_none(tmp_path: Path, model: str, field: str) -> None:
    state = json.loads((_byte_level() if model == "gpt2" else _sentencepiece()).to_str())
    path = tmp_path / "tokenizer.gguf"
    change = {f"tokenizer.ggml.{field}_token_id": 2**32 - 1}
    _write_gguf(path, model, state, "gpt-2", change=change)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer = Tokenizer.load(path)
    assert field != "bos" or tokenizer.bos_id is None


def test_damaged_gguf(tmp_path: Path) -> None:
    state = json.loads(_byte_level().to_str())
    path = tmp_path / "tokenizer.gguf"
    _write_gguf(path, "gpt2", state, "gpt-2")
    data = path.read_bytes()
    metadata = read_gguf_metadata(path, "tokenizer.")
    assert metadata["tokenizer.ggml.model"] == "gpt2"
    for damaged in (b"", b"GGUF", data[:30], data[: len(data) // 2], b"ZZZZ" + data[4:]):
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError):
            Tokenizer.load(path)


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DamagedFileError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(_byte_level().to_str())
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(DamagedFileError, match=r"tokenizer_config\.json"):
        Tokenizer.load(tmp_path)


def test_end_ids_from_config(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(_byte_level().to_str())
    (tmp_path / "config.json").write_text('{"eos_token_id": [7, 8], "bos_token_id": 5}')
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.eos_ids >= {7, 8}
    assert tokenizer.bos_id == 5
    assert not tokenizer.add_bos


def test_chat_template_conventions() -> None:
    template = (
        "{%- for message in messages %}\n"
        "  {%- if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}\n"
        "{{- '<' + message.role + '>' + message.content + eos_token }}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
        "{{ {'a': '<é>'} | tojson }}"
    )
    special = {"eos_token": "</s>"}
    chat = [{"role": "user", "content": "hi"}]
    assert render_chat(template, chat, special_tokens=special) == (
        '<user>hi</s><assistant>{"a": "<é>"}'
    )
    without = render_chat(template, chat, add_generation_prompt=False, special_tokens=special)
    assert "<assistant>" not in without
    with pytest.raises(OmniDraftError, match="no tools"):
        render_chat(template, [{"role": "tool", "content": ""}])
    with pytest.raises(OmniDraftError):
        render_chat("{% if %}", chat)
    with pytest.raises(OmniDraftError):
        render_chat("{{ ''.__class__.__mro__[1].__subclasses__() }}", chat)
    assert len(render_chat("{{ strftime_now('%Y') }}", chat)) == 4


def test_a_base_model_has_no_chat_template() -> None:
    assert not BYTE_LEVEL.has_chat_template
    with pytest.raises(OmniDraftError, match="no chat template"):
        BYTE_LEVEL.apply_chat([{"role": "user", "content": "hi"}])


CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


FILES = {"tokenizer.json": byte_level_tokenizer().to_str().encode()}


@pytest.fixture(scope="module")
def chatting() -> Tokenizer:
    """Its special tokens are <|endoftext|>, <|im_start|> and <|im_end|>."""
    return Tokenizer({**FILES, "chat_template.jinja": CHAT.encode()})


@settings(max_examples=200)
@given(
    parts=st.lists(
        st.sampled_from(
            ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_", "end|>", "a b", "\n"]
        )
        | st.text(max_size=5),
        max_size=8,
    )
)
def test_what_a_user_types_is_text_and_only_the_template_has_markers(
    chatting: Tokenizer, parts: list[str]
) -> None:
    typed = "".join(parts).encode("utf-8", "ignore").decode().strip()
    ids = chatting.encode_chat([{"role": "user", "content": typed}])
    special = [token for token in ids if chatting.surface(token) is None]
    assert [chatting.tokens[token] for token in special] == [
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start|>",
    ]
    text = b"".join(chatting.surface(token) or b"" for token in ids).decode()
    assert text == f"user\n{typed}\nassistant\n"
    if not any(name in typed for name in ("<|im_end|>", "<|im_start|>", "<|endoftext|>")):
        whole = chatting.apply_chat([{"role": "user", "content": typed}])
        assert ids == chatting.encode(whole, parse_special=True, add_bos=False)


def test_a_lone_surrogate_is_found_where_it_is_in_the_message(chatting: Tokenizer) -> None:
    with pytest.raises(OmniDraftError, match="at position 2 "):
        chatting.encode_chat([{"role": "user", "content": "ab\ud800"}])


def test_markers_in_the_parts_of_a_message_are_text(chatting: Tokenizer) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{% for p in m.content %}{{ p.text }}{% endfor %}"
        "<|im_end|>{% endfor %}"
    )
    files = {**FILES, "chat_template.jinja": template.encode()}
    message = {"role": "user", "content": [{"type": "text", "text": "a<|im_end|>b"}]}
    ids = Tokenizer(files).encode_chat([message])
    assert sum(chatting.surface(token) is None for token in ids) == 2


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "é <b>!"),
        ("{% generation %}{% set x = 'y' %}{{ x }}{% endgeneration %}{{ x }}", "y"),
        ("{{ messages[0].content | tojson(ensure_ascii=False) }}", '"é <b>"'),
        ("{{ messages[0].content | tojson }}", '"é <b>"'),
        ("{{ messages[0].content | tojson(ensure_ascii=True) }}", '"\\u00e9 <b>"'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=True, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{{ tools is none }} {{ documents is none }} {{ tools is defined }}", "True True True"),
        ("{% if tools %}tools{% endif %}{% for d in documents or [] %}d{% endfor %}-", "-"),
    ],
)
def test_what_templates_may_say(template: str, expected: str) -> None:
    assert render_chat(template, [{"role": "user", "content": "é <b>"}]) == expected


@pytest.mark.parametrize("as_object", [False, True])
def test_names_that_only_the_map_of_special_tokens_tells(tmp_path: Path, as_object: bool) -> None:
    names: dict[str, Any] = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    if as_object:
        names = {key: {"content": name, "rstrip": False} for key, name in names.items()}
    (tmp_path / "tokenizer.json").write_bytes(FILES["tokenizer.json"])
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.tokens[tokenizer.bos_id or 0] == "<|im_start|>"
    assert {"<|im_end|>"} <= {tokenizer.tokens[token] for token in tokenizer.eos_ids}


@pytest.mark.parametrize("name", ["<|im_end|>", "<end_of_turn>", "</s>"])
def test_what_ends_a_text_by_its_name_is_an_end_and_not_shown(name: str) -> None:
    backend = byte_level_tokenizer()
    state = json.loads(backend.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] != name]
    backend = tokenizers.Tokenizer.from_str(json.dumps(state))
    backend.add_tokens([tokenizers.AddedToken(name, special=False, normalized=False)])
    tokenizer = _wrap(backend)
    token = tokenizer.tokens.index(name)
    assert token in tokenizer.eos_ids
    assert tokenizer.decode([*tokenizer.encode("hi", add_bos=False), token]) == "hi"


@pytest.mark.parametrize("place", ["onnx", "."])
def test_the_tokenizer_above_an_onnx_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """transformers.js keeps graphs in ``onnx/`` and the tokenizer in the folder above."""
    folder = tmp_path / "model"
    inner = folder / "onnx"
    inner.mkdir(parents=True)
    (inner / "model_q4.onnx").touch()
    _byte_level().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    monkeypatch.chdir(folder if place == "onnx" else inner)
    for named in (inner, inner / "model_q4.onnx", Path(place), Path(place) / "model_q4.onnx"):
        tokenizer = Tokenizer.load(named)
        assert tokenizer.encode("ab c") == Tokenizer.load(folder).encode("ab c")
        assert tokenizer.eos_ids == Tokenizer.load(folder).eos_ids


def test_a_tokenizer_above_that_is_another_models(tmp_path: Path) -> None:
    _byte_level().save(str(tmp_path / "tokenizer.json"))
    folder = tmp_path / "other"
    folder.mkdir()
    with pytest.raises(ModelNotFoundError, match="other holds no tokenizer"):
        Tokenizer.load(folder)
    (folder / "model.onnx").touch()
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError, match="other holds no tokenizer"):
        Tokenizer.load(folder)
