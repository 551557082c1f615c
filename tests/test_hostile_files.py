"""Whatever a file holds, it is read or refused in a sentence: no other exception comes out."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import (
    CONFIG,
    TOKENIZER,
    all_weights,
    gguf_tensors,
    random_weights,
    write_companions,
    write_folder,
    write_gguf,
    write_parts,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_sentencepiece import model_of
from test_torch_files import write_bin

from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.runtime.engines import engine_of
from omnidraft.runtime.engines.external_onnx import ExternalOnnxModel
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError
from omnidraft.runtime.storage.checkpoints import source_sha256
from omnidraft.runtime.storage.gguf import read_gguf
from omnidraft.runtime.text.tokenizer import Tokenizer

Write = Callable[[Path], Path]
MANY = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read(source: Path) -> None:
    """Everything that is read of a model, each for itself; errors for people are right."""

    def weights() -> None:
        all_weights(open_checkpoint(source))

    def tokens() -> None:
        tokenizer = Tokenizer.load(source)
        tokenizer.decode(tokenizer.encode("a b <s>", parse_special=True))
        tokenizer.segment(b"a b")
        if tokenizer.has_chat_template:
            tokenizer.encode_chat([{"role": "user", "content": "a <s>"}])

    for use in (lambda: engine_of(source), weights, tokens, lambda: source_sha256(source)):
        try:
            use()
        except OmniDraftError as error:
            assert str(error)


def gguf(folder: Path) -> Path:
    return write_gguf(folder / "tiny.gguf", gguf_tensors(random_weights()))


def part(folder: Path) -> Path:
    tensors = gguf_tensors(random_weights())
    second = {name: tensors.pop(name) for name in list(tensors) if name.startswith("blk.1")}
    return write_parts(folder, [tensors, second])[1]


def safetensors(folder: Path) -> Path:
    return write_folder(folder, random_weights()) / "model.safetensors"


def torch_file(folder: Path) -> Path:
    write_companions(folder)
    return write_bin(folder / "pytorch_model.bin", random_weights())


def sentencepiece(folder: Path) -> Path:
    write_folder(folder, random_weights())
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(model_of(json.loads(TOKENIZER.to_str())))
    return folder / "tokenizer.model"


def tokenizer(folder: Path) -> Path:
    return write_folder(folder, random_weights()) / "tokenizer.json"


def config(folder: Path) -> Path:
    return write_folder(folder, random_weights()) / "config.json"


# Numbers that a count, a size or an offset may not be.
NUMBERS = st.sampled_from(
    [0, 1, 2, 8, 9, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 64) - 1]
)


@st.composite
def changed(draw: st.DrawFn, data: bytes, head: int) -> bytes:
    """Some bytes of a file, those of its first ``head`` most of all, changed."""
    changes = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        end = min(draw(st.sampled_from([64, head, len(changes)])), len(changes))
        place = draw(st.integers(0, max(end - 1, 0)))
        kind = draw(st.sampled_from(["byte", "number", "cut", "insert", "remove"]))
        if kind == "byte":
            changes[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == "number":
            form = draw(st.sampled_from(["<I", "<Q"]))
            number = draw(NUMBERS) % (1 << 8 * struct.calcsize(form))
            changes[place : place + struct.calcsize(form)] = struct.pack(form, number)
        elif kind == "cut":
            del changes[place:]
        elif kind == "insert":
            changes[place:place] = draw(st.binary(min_size=1, max_size=9))
        else:
            del changes[place : place + draw(st.integers(1, 9))]
    return bytes(changes)


@pytest.mark.parametrize(
    ("write", "head"),
    [
        (gguf, 12_000),
        (part, 1_500),
        (safetensors, 2_500),
        (torch_file, 300),
        (sentencepiece, 8_000),
        (tokenizer, 8_000),
        (config, 500),
    ],
)
def test_changed_bytes(tmp_path: Path, write: Write, head: int) -> None:
    path = write(tmp_path)
    whole = path.read_bytes()
    source = path if path.suffix == ".gguf" else path.parent
    if write is torch_file:
        # The pickle and the directory lie elsewhere than at the beginning.
        place = whole.index(b"archive/data.pkl") + 16
        pickled = whole[place : place + 4000]

    @MANY
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        if write is torch_file and data.draw(st.booleans()):
            other = data.draw(changed(pickled, len(pickled)))[: len(pickled)]
            content = whole[:place] + other.ljust(len(pickled), b".") + whole[place + 4000 :]
        elif write is torch_file and data.draw(st.booleans()):
            content = whole[:-2000] + data.draw(changed(whole[-2000:], 2000))
        else:
            content = data.draw(changed(whole, head))
        path.write_bytes(content)
        read(source)

    check()


ODD = st.sampled_from(
    [
        *(None, True, -1, 0, 1, 3, 1 << 31, 1 << 63, 10**400, 0.5, 1e308, float("nan")),
        *("", "x", "\ud800", "llama", [], [1], ["x"], [None], [[]], {}, {"content": 3}, {"x": {}}),
        json.loads("[" * 500 + "]" * 500),
    ]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Ways to all parts of a value of JSON, of lists to the first ones."""
    yield path
    if isinstance(value, dict):
        for key in list(value)[:60]:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for i in range(min(len(value), 4)):
            yield from places(value[i], (*path, i))


def with_value(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    value = copy.copy(value)
    value[path[0]] = with_value(value[path[0]], path[1:], new)
    return value


SETTINGS = {
    "bos_token": "<s>",
    "eos_token": {"content": "</s>"},
    "add_bos_token": True,
    "legacy": False,
    "added_tokens_decoder": {"413": {"content": "<x>", "special": True}},
    "additional_special_tokens": ["<x>"],
    "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}],
}
ROPES = {"rope_theta": 1e4, "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0}
ROPES |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
FILES: dict[str, Any] = {
    "config.json": CONFIG | {"rope_parameters": ROPES, "layer_types": [], "head_dim": 16},
    "tokenizer.json": json.loads(TOKENIZER.to_str()),
    "tokenizer_config.json": SETTINGS,
    "special_tokens_map.json": SETTINGS,
    "added_tokens.json": {"<x>": 413},
    "generation_config.json": {"eos_token_id": [2], "bos_token_id": 1},
    "chat_template.json": {"chat_template": "x"},
    "model.safetensors.index.json": {"weight_map": {"a": "model-00001-of-00001.safetensors"}},
    "genai_config.json": {
        "model": {"decoder": {"filename": "m.onnx"}, "context_length": 9},
        "search": {},
    },
}


@pytest.mark.parametrize("name", FILES)
def test_odd_values(tmp_path: Path, name: str) -> None:
    write_folder(tmp_path, random_weights())
    if name == "model.safetensors.index.json":
        (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    if name in ("added_tokens.json", "tokenizer_config.json", "special_tokens_map.json"):
        sentencepiece(tmp_path)
    value = FILES[name]
    ways = list(places(value))

    @MANY
    @given(way=st.sampled_from(ways), new=ODD)
    def check(way: tuple[Any, ...], new: Any) -> None:
        odd = with_value(value, way, new)
        (tmp_path / name).write_text(json.dumps(odd), "utf-8", "surrogatepass")
        read(tmp_path)
        if name == "genai_config.json":
            with pytest.raises(OmniDraftError):
                ExternalOnnxModel(tmp_path)

    check()


@MANY
@given(
    key=st.sampled_from(
        [
            *("general.architecture", "general.alignment", "llama.block_count"),
            *("llama.context_length", "llama.embedding_length", "llama.feed_forward_length"),
            *("llama.attention.head_count", "llama.attention.head_count_kv"),
            *("llama.attention.key_length", "llama.attention.layer_norm_rms_epsilon"),
            *("llama.rope.freq_base", "llama.rope.scaling.type", "llama.rope.scaling.factor"),
            *("llama.rope.dimension_count", "llama.expert_count", "split.count", "split.no"),
            *("tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"),
            *("tokenizer.ggml.bos_token_id", "tokenizer.ggml.model", "tokenizer.chat_template"),
        ]
    ),
    kind=st.sampled_from(["string", "uint32", "int64", "float32", "bool", "array"]),
    number=st.sampled_from([-1, 0, 1, 2, 3, 7, 1 << 20, (1 << 31) - 1, (1 << 62)]),
)
@example(key="llama.rope.freq_base", kind="float32", number=-1)
@example(key="llama.block_count", kind="int64", number=1 << 62)
def test_odd_metadata(tmp_path: Path, key: str, kind: str, number: int) -> None:
    def change(writer: Any) -> None:
        writer.kv_data[0].pop(key, None)
        limited = number % (1 << 31) if kind == "uint32" else number
        values: dict[str, Any] = {
            "string": str(number),
            "float32": float(number),
            "bool": number > 0,
            "array": [number % 100, 1],
        }
        getattr(writer, f"add_{kind}")(key, values.get(kind, limited))

    read(write_gguf(tmp_path / "tiny.gguf", gguf_tensors(random_weights()), change=change))


# --- memory that a file asks for ----------------------------------------------------------------


def header(*fields: bytes, tensors: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, len(fields)) + b"".join(fields)


def field(key: str, kind: int, content: bytes) -> bytes:
    name = key.encode()
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + content


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0),
        header(field("a", 9, struct.pack("<IQ", 8, 1 << 60))),
        header(field("a", 9, struct.pack("<IQ", 0, 1 << 60))),
        header(field("a", 9, struct.pack("<IQ", 9, 1) * 5000)),
        header(field("a", 8, struct.pack("<Q", 1 << 62))),
        header(field("a", 13, bytes(8))),
        header(struct.pack("<Q", (1 << 64) - 1) + bytes(20)),
        header(field("general.alignment", 4, struct.pack("<I", 0))),
        header(field("general.alignment", 4, struct.pack("<I", 1 << 31))),
        header(field("a", 4, bytes(4)), field("a", 4, bytes(4))),
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
    ],
)
def test_counts_of_a_gguf_are_bounded(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tiny.gguf"
    for padding in (0, 64):
        path.write_bytes(content + bytes(padding))
        with pytest.raises(DamagedFileError, match="not a readable GGUF"):
            read_gguf(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "it is empty"), (b"GG", "it is cut off"), (b"GGUF\x03\0\0\0\x01", "it is cut off")],
)
def test_a_gguf_that_is_cut_short_is_told_in_words(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=rf"GGUF file \({reason}\)\. Fetch"):
        read_gguf(path)


def test_a_list_longer_than_any_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    count = 1 << 24
    path.write_bytes(header(field("a", 9, struct.pack("<IQ", 0, count) + bytes(count))))
    with pytest.raises(DamagedFileError, match="lists have more than"):
        read_gguf(path)


def test_files_that_are_too_large_to_be_what_they_are_called(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, random_weights())
    for name, use in (("config.json", open_checkpoint), ("tokenizer.json", Tokenizer.load)):
        with (folder / name).open("r+b") as file:
            file.truncate(1 << 30)
        with pytest.raises(DamagedFileError, match=rf"{name} has 1,073,741,824 bytes"):
            use(folder)


def test_sizes_that_no_model_has(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1 << 30, "head_dim": 1 << 30, "max_position_embeddings": 1 << 40}
    for name, size in sizes.items():
        with pytest.raises(DamagedFileError, match=name):
            open_checkpoint(write_folder(tmp_path, random_weights(), **{name: size}))
    for name in ("vocab_size", "hidden_size", "intermediate_size"):
        with pytest.raises(DamagedFileError, match="says"):
            open_checkpoint(write_folder(tmp_path, random_weights(), **{name: 1 << 30}))


def test_a_vocabulary_with_a_hole_as_large_as_memory(tmp_path: Path) -> None:
    state = json.loads(TOKENIZER.to_str())
    state["model"]["vocab"]["x" * 9] = (1 << 32) - 1
    with pytest.raises(DamagedFileError, match="token 4,294,967,295"):
        Tokenizer({"tokenizer.json": json.dumps(state).encode()})
