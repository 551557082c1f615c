"""Files of checkpoints as people have them: read whole, or refused by what is wrong with them."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import pytest
from checkpoint_files import (
    HEADS,
    KV_HEADS,
    LAYERS,
    SIZE,
    VOCAB,
    Weights,
    all_weights,
    assert_same,
    gguf_tensors,
    random_weights,
    write_folder,
    write_gguf,
    write_parts,
)
from needs import needs

from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.export.checkpoint.safetensors import describe
from omnidraft.export.conversion import Quantization, convert, convert_drafter
from omnidraft.runtime.engines import engine_of
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.engines.transformers import TransformersModel
from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.models.fetch import content_key
from omnidraft.runtime.models.resolve import folder_name
from omnidraft.runtime.storage.checkpoints import source_sha256
from omnidraft.runtime.text.tokenizer import Tokenizer

# --- GGUF --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny.GGUF", "sha256-0123abcd", "tiny.bin", "tiny.gguf.part"])
def test_a_gguf_is_known_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    weights = random_weights()
    path = write_gguf(tmp_path / name, gguf_tensors(weights))
    folder = write_folder(tmp_path / "folder", weights)
    assert engine_of(path) == "transformers"
    assert_same(all_weights(open_checkpoint(path)), all_weights(open_checkpoint(folder)))
    assert Tokenizer.load(path).vocab_size == VOCAB


def test_a_gguf_by_name_only(tmp_path: Path) -> None:
    page = tmp_path / "tiny.gguf"
    page.write_text("<html>Sign in</html>")
    with pytest.raises(DamagedFileError, match="first bytes"):
        open_checkpoint(page)
    with pytest.raises(DamagedFileError, match="first bytes"):
        Tokenizer.load(page)
    with pytest.raises(ModelNotFoundError, match="holds no model"):
        engine_of(page.rename(tmp_path / "page.html"))


READABLE = ["F32", "F16", "F64", *sorted(kind.name for kind in gguf.quants._type_traits)]


@pytest.mark.parametrize("kind", READABLE)
def test_all_types_of_tensors(tmp_path: Path, kind: str) -> None:
    """Rows, those of interleaved heads and vectors too, are what the gguf library reads."""
    known = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[known]
    hidden, rng = 512, np.random.default_rng(0)

    def some(*shape: int) -> np.ndarray:
        # With low bytes, so that no scale is infinite or no number.
        return rng.integers(0, 60, (*shape[:-1], shape[-1] // block * size), np.uint8)

    tensors = {
        name: np.ones((*value.shape[:-1], hidden), np.float32)
        for name, value in gguf_tensors(random_weights()).items()
    }
    for i in range(2):
        tensors[f"blk.{i}.ffn_down.weight"] = np.ones((hidden, 96), np.float32)
        tensors[f"blk.{i}.attn_q.bias"] = np.ones(64, np.float32)
        tensors[f"blk.{i}.attn_k.bias"] = np.ones(32, np.float32)
        tensors[f"blk.{i}.attn_v.bias"] = np.ones(32, np.float32)
        tensors[f"blk.{i}.attn_output.weight"] = np.ones((hidden, 64), np.float32)
    stored = {
        "blk.1.attn_k.weight": some(32, hidden),
        "blk.1.ffn_up.weight": some(96, hidden),
        "blk.1.ffn_norm.weight": some(hidden),
    }
    if 32 % block == 0:
        stored["blk.1.attn_k.bias"] = some(32)
    path = write_gguf(
        tmp_path / "tiny.gguf",
        tensors | stored,
        types=dict.fromkeys(stored, known),
        hidden=hidden,
    )
    expected = {}
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name in stored:
            values = tensor.data if kind == "F64" else gguf.dequantize(tensor.data, known)
            expected[tensor.name] = values.astype(np.float32)
    checkpoint = open_checkpoint(path)
    up = expected["blk.1.ffn_up.weight"]
    np.testing.assert_array_equal(checkpoint.rows("1.up"), up)
    np.testing.assert_array_equal(checkpoint.rows("1.up", 5, 9), up[5:9])
    np.testing.assert_array_equal(checkpoint.rows("1.mlp_norm"), expected["blk.1.ffn_norm.weight"])
    for name, place in (("1.k", "blk.1.attn_k.weight"), ("1.k.bias", "blk.1.attn_k.bias")):
        if (value := expected.get(place)) is not None:
            split = value.reshape(2, 8, 2, -1).swapaxes(1, 2).reshape(value.shape)
            np.testing.assert_array_equal(checkpoint.rows(name), split)
            np.testing.assert_array_equal(checkpoint.rows(name, 3, 20), split[3:20])


@pytest.mark.parametrize(
    ("kind", "said"), [(42, "42"), (153, "153"), (4, "4"), (9, "Q8_1"), (24, "I8"), (2**32 - 1, "")]
)
def test_a_type_of_tensors_that_is_not_read_is_named(tmp_path: Path, kind: int, said: str) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", gguf_tensors(random_weights()))
    data = bytearray(path.read_bytes())
    name = b"blk.0.ffn_up.weight"
    # Name, number of dimensions, two dimensions, type, offset.
    place = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name) + 4 + 16
    struct.pack_into("<I", data, place, kind)
    path.write_bytes(data)
    with pytest.raises(OmniDraftError, match=rf"ffn_up.weight is of type {said}") as caught:
        open_checkpoint(path)
    assert not isinstance(caught.value, DamagedFileError)


# --- every tensor ------------------------------------------------------------------------------

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def logits(source: Path, scratch: Path, quantization: Quantization = "float32") -> np.ndarray:
    convert(source, scratch, quantization, calibration=range(40))
    tokens = np.random.default_rng(1).integers(0, VOCAB, 20)
    return OnnxModel(scratch, threads=1).forward(tokens).copy()


def reference(weights: Weights, tokens: np.ndarray) -> np.ndarray:
    """What a Llama computes, written down on its own, float64."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    def heads(x: np.ndarray, count: int) -> np.ndarray:
        split = x.reshape(len(tokens), count, SIZE).swapaxes(0, 1)
        return np.repeat(split, HEADS // count, axis=0)

    def rotated(x: np.ndarray) -> np.ndarray:
        angle = np.outer(np.arange(len(tokens)), 10_000.0 ** -(np.arange(0, SIZE, 2) / SIZE))
        a, b = x[..., : SIZE // 2], x[..., SIZE // 2 :]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(LAYERS):
        place = f"model.layers.{layer}."
        h = norm(x, f"{place}input_layernorm")
        q, k, v = (linear(h, f"{place}self_attn.{part}_proj") for part in "qkv")
        scores = rotated(heads(q, HEADS)) @ rotated(heads(k, KV_HEADS)).swapaxes(1, 2) / SIZE**0.5
        scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = share / share.sum(-1, keepdims=True) @ heads(v, KV_HEADS)
        x = x + linear(mixed.swapaxes(0, 1).reshape(len(tokens), -1), f"{place}self_attn.o_proj")
        h = norm(x, f"{place}post_attention_layernorm")
        gate = linear(h, f"{place}mlp.gate_proj")
        gated = gate / (1 + np.exp(-gate)) * linear(h, f"{place}mlp.up_proj")
        x = x + linear(gated, f"{place}mlp.down_proj")
    return norm(x, "model.norm") @ w["lm_head.weight"].T


@pytest.mark.parametrize("biased", [*((linear,) for linear in LINEARS), LINEARS])
def test_biases_of_a_gguf_are_computed_with(tmp_path: Path, biased: tuple[str, ...]) -> None:
    weights = random_weights(biased=biased)
    path = write_gguf(tmp_path / "tiny.gguf", gguf_tensors(weights))
    tokens = np.random.default_rng(1).integers(0, VOCAB, 20)
    expected = reference(weights, tokens)
    np.testing.assert_allclose(logits(path, tmp_path / "out"), expected, atol=2e-3)
    # Calibration moves factors between linears, and biases have to follow.
    eight = logits(path, tmp_path / "out", "8bit")
    assert np.abs(eight - expected).mean() < 0.05 * np.abs(expected).mean()


def test_biases_of_a_drafter(tmp_path: Path) -> None:
    weights = random_weights(biased=("q_proj", "k_proj", "v_proj", "o_proj"))
    folder = write_folder(tmp_path / "in", weights, attention_bias=True)
    convert_drafter(folder, tmp_path / "out")
    tokens = np.random.default_rng(1).integers(0, VOCAB, 20)
    expected = reference(weights, tokens)
    found = OnnxModel(tmp_path / "out", threads=1).forward(tokens)
    assert np.abs(found - expected).mean() < 0.05 * np.abs(expected).mean()


EXTRA = {
    "blk.0.attn_sinks.weight": (HEADS,),
    "blk.1.attn_q_norm.weight": (SIZE,),
    "blk.1.ffn_gate_exps.weight": (96, 64),
    "blk.2.attn_q.weight": (64, 64),
    "output_norm.bias": (64,),
    "output.bias": (VOCAB,),
    "output.scale": (1,),
    "rope_factors_long.weight": (8,),
}


@pytest.mark.parametrize("name", EXTRA)
def test_a_tensor_of_a_gguf_that_would_not_be_read(tmp_path: Path, name: str) -> None:
    tensors = gguf_tensors(random_weights()) | {name: np.ones(EXTRA[name], np.float32)}
    with pytest.raises(OmniDraftError, match=name):
        open_checkpoint(write_gguf(tmp_path / "tiny.gguf", tensors))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.self_attn.sinks", (HEADS,)),
        ("model.layers.1.self_attn.q_proj.bias", (64,)),
        ("model.layers.1.mlp.down_proj.bias", (64,)),
        ("model.layers.2.mlp.down_proj.weight", (64, 96)),
        ("model.norm.bias", (64,)),
        ("lm_head.bias", (VOCAB,)),
        ("score.weight", (2, 64)),
    ],
)
def test_a_tensor_of_a_folder_that_would_not_be_read(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    weights = random_weights() | {name: np.ones(shape, np.float32)}
    with pytest.raises(OmniDraftError, match=name):
        open_checkpoint(write_folder(tmp_path, weights))


def test_tensors_that_are_of_no_concern(tmp_path: Path) -> None:
    weights = random_weights()
    expected = all_weights(open_checkpoint(write_folder(tmp_path / "plain", weights)))
    buffers = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
        "model.rotary_emb.inv_freq": np.ones(8, np.float32),
        "model.layers.0.self_attn.bias": np.ones((1, 1, 4, 4), np.uint8),
        "model.layers.0.self_attn.masked_bias": np.ones((), np.float32),
    }
    assert_same(
        all_weights(open_checkpoint(write_folder(tmp_path / "old", weights | buffers))), expected
    )
    pictures = {"v.blk.0.attn_q.weight": np.ones((4, 4), np.float32), "mm.0.bias": np.ones(4)}
    path = write_gguf(tmp_path / "tiny.gguf", gguf_tensors(weights) | pictures)
    assert_same(all_weights(open_checkpoint(path)), expected)


def test_the_frequencies_of_a_gguf_are_used(tmp_path: Path) -> None:
    tensors = gguf_tensors(random_weights())
    plain = open_checkpoint(write_gguf(tmp_path / "plain.gguf", tensors)).decoder
    tensors["rope_freqs.weight"] = np.arange(1, 9, dtype=np.float32)
    slow = open_checkpoint(write_gguf(tmp_path / "slow.gguf", tensors)).decoder
    np.testing.assert_allclose(
        np.array(plain.ropes[0].inverse_frequencies) / np.arange(1, 9),
        slow.ropes[0].inverse_frequencies,
    )


def test_a_missing_tensor_is_named_on_opening(tmp_path: Path) -> None:
    for name in random_weights():
        weights = random_weights()
        del weights[name]
        with pytest.raises(DamagedFileError, match=f"no tensor {name}"):
            open_checkpoint(write_folder(tmp_path / "folder", weights))
        tensors = gguf_tensors(weights)
        path = write_gguf(tmp_path / "tiny.gguf", tensors)
        if name in ("lm_head.weight", "model.embed_tokens.weight"):  # tied
            assert open_checkpoint(path).decoder.tied_embeddings
        else:
            lost = (gguf_tensors(random_weights()).keys() - tensors.keys()).pop()
            with pytest.raises(DamagedFileError, match=f"no tensor {lost}"):
                open_checkpoint(path)


# --- parts -------------------------------------------------------------------------------------


def in_parts(weights: Weights, *starts: str) -> list[Weights]:
    """Tensors, those whose names begin with the i-th of ``starts`` in part i + 2."""
    parts: list[Weights] = [{} for _ in (*starts, "")]
    for name, value in gguf_tensors(weights).items():
        place = next((i + 1 for i, start in enumerate(starts) if name.startswith(start)), 0)
        parts[place][name] = value
    return parts


@pytest.mark.parametrize("suffix", [".gguf", ".GGUF"])
@pytest.mark.parametrize("named", [0, 1, 2])
def test_parts_are_read_whichever_is_named(tmp_path: Path, named: int, suffix: str) -> None:
    weights = random_weights()
    whole = all_weights(open_checkpoint(write_gguf(tmp_path / "a.gguf", gguf_tensors(weights))))
    paths = write_parts(tmp_path, in_parts(weights, "blk.1", "output"), suffix=suffix)
    assert_same(all_weights(open_checkpoint(paths[named])), whole)
    assert Tokenizer.load(paths[named]).tokens == Tokenizer.load(tmp_path / "a.gguf").tokens
    before = source_sha256(paths[named])
    os.utime(paths[1], ns=(0, 0))
    key = content_key(paths[named])
    data = bytearray(paths[1].read_bytes())
    data[-1] ^= 1
    paths[1].write_bytes(data)
    assert source_sha256(paths[named]) != before
    assert content_key(paths[named]) != key


def test_parts_are_one_model_of_the_cache(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, in_parts(random_weights(), "blk.1", "output"))
    assert len({folder_name(str(path), "8bit") for path in paths}) == 1


def changed(values: dict[str, Any]) -> Callable[[gguf.GGUFWriter], None]:
    def change(writer: gguf.GGUFWriter) -> None:
        for key, value in values.items():
            writer.kv_data[0].pop(key, None)
            kinds = {bool: "bool", int: "int64", float: "float32", str: "string", list: "array"}
            getattr(writer, f"add_{kinds[type(value)]}")(key, value)

    return change


@pytest.mark.parametrize(
    ("values", "factor"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.factor": 0.0}, 1.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0),
    ],
)
def test_linear_scaling_as_llamacpp_reads_it(
    tmp_path: Path, values: dict[str, Any], factor: float
) -> None:
    change = changed({f"llama.{key}": value for key, value in values.items()})
    path = write_gguf(tmp_path / "a.gguf", gguf_tensors(random_weights()), change=change)
    assert open_checkpoint(path).decoder.ropes[0].inverse_frequencies[0] == 1 / factor


def test_a_size_for_each_layer(tmp_path: Path) -> None:
    tensors = gguf_tensors(random_weights())
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        size = {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS}.get(key, 96)
        for sizes in ([size] * LAYERS, [size, size + 1]):
            change = changed({f"llama.{key}": sizes})
            path = write_gguf(tmp_path / "a.gguf", tensors, change=change)
            if sizes[0] == sizes[1]:
                open_checkpoint(path)
            else:
                with pytest.raises(OmniDraftError, match=re.escape(f"llama.{key} cannot be")):
                    open_checkpoint(path)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"attention.causal": False}, "attention to what follows"),
        ({"expert_count": 8}, "architecture 'llama' with 8 experts is not supported"),
    ],
)
def test_what_a_gguf_of_a_known_architecture_may_ask_for(
    tmp_path: Path, values: dict[str, Any], match: str
) -> None:
    change = changed({f"llama.{key}": value for key, value in values.items()})
    path = write_gguf(tmp_path / "a.gguf", gguf_tensors(random_weights()), change=change)
    with pytest.raises(OmniDraftError, match=match):
        open_checkpoint(path)


@pytest.mark.parametrize("value", ["text", -1, True, [1, 2], math.nan, math.inf, -2.5, 1 << 62])
@pytest.mark.parametrize(
    "key",
    [
        *("rope.freq_base", "rope.scaling.factor", "rope.scaling.original_context_length"),
        *("rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast"),
        *("rope.scaling.yarn_beta_slow", "rope.scaling.yarn_log_multiplier"),
    ],
)
def test_odd_rotation_is_told_in_words(tmp_path: Path, key: str, value: Any) -> None:
    values = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    change = changed(values | {f"llama.{key}": value})
    path = write_gguf(tmp_path / "a.gguf", gguf_tensors(random_weights()), change=change)
    try:
        rope = open_checkpoint(path).decoder.ropes[0]
    except OmniDraftError as error:
        assert re.search(r"rope\.(scaling|freq_base).*(must|cannot) be", str(error))
    else:
        assert value == 1 << 62 and all(map(math.isfinite, rope.inverse_frequencies))


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_part_that_is_missing_is_named(tmp_path: Path, lost: int) -> None:
    # A head that lies elsewhere does not make the embedding one.
    paths = write_parts(tmp_path, in_parts(random_weights(), "blk.1", "output.weight"))
    paths[lost].unlink()
    for path in set(paths) - {paths[lost]}:
        for read in (open_checkpoint, Tokenizer.load):
            with pytest.raises(
                ModelNotFoundError, match=rf"{paths[lost].name}.*part {lost + 1} of 3"
            ):
                read(path)


def test_a_part_under_another_name(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, in_parts(random_weights(), "blk.1", "output.weight"))
    (other := tmp_path / "other").mkdir()
    for i, name in enumerate(["blob", "x-00001-of-00002.gguf", "tiny-00002-of-00003.gguf"]):
        shutil.copy(paths[i], other / name)
        with pytest.raises(OmniDraftError, match=f"part {i + 1} of 3"):
            open_checkpoint(other / name)


def test_parts_of_different_models(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, in_parts(random_weights(), "blk.1", "output.weight"))
    other = write_parts(
        tmp_path / "other", in_parts(random_weights(), "blk.1.attn", "output.weight")
    )
    shutil.copy(other[1], paths[1])
    with pytest.raises(DamagedFileError, match="tensors"):
        open_checkpoint(paths[0])
    shutil.copy(paths[0], paths[1])
    with pytest.raises(DamagedFileError, match="not part 2 of 3"):
        open_checkpoint(paths[0])


def test_a_name_of_parts_alone_means_nothing(tmp_path: Path) -> None:
    """Some people name whole files so."""
    path = write_gguf(tmp_path / "tiny-00001-of-00002.gguf", gguf_tensors(random_weights()))
    open_checkpoint(path)
    assert len(source_sha256(path)) == 64


def test_engine_transformers_reads_no_parts(tmp_path: Path) -> None:
    needs("transformers")
    paths = write_parts(tmp_path, in_parts(random_weights(), "blk.1", "output.weight"))
    with pytest.raises(OmniDraftError, match="in parts"):
        TransformersModel(paths[0])


# --- folders -----------------------------------------------------------------------------------


def in_shards(folder: Path, *, index: bool = True) -> list[Path]:
    """Cut ``model.safetensors`` into three shards, and perhaps write their index."""
    from safetensors.numpy import load_file, save_file

    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    paths, where = [], {}
    for i in range(3):
        paths.append(folder / f"model-{i + 1:05}-of-00003.safetensors")
        names = sorted(whole)[i::3]
        save_file({name: whole[name] for name in names}, paths[-1])
        where |= dict.fromkeys(names, paths[-1].name)
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return paths


@pytest.mark.parametrize("index", [True, False])
def test_shards_with_and_without_an_index(tmp_path: Path, index: bool) -> None:
    folder = write_folder(tmp_path, random_weights())
    whole = all_weights(open_checkpoint(folder))
    paths = in_shards(folder, index=index)
    assert_same(all_weights(open_checkpoint(folder)), whole)
    paths[1].unlink()
    with pytest.raises(ModelNotFoundError, match=r"lacks model-00002-of-00003.safetensors: 2 of 3"):
        open_checkpoint(folder)


def test_an_index_that_is_left_over(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, random_weights())
    whole = (folder / "model.safetensors").read_bytes()
    for path in in_shards(folder):
        path.unlink()
    (folder / "model.safetensors").write_bytes(whole)
    assert open_checkpoint(folder).rows("head").shape == (VOCAB, 64)


def test_other_files_beside_the_weights(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    folder = write_folder(tmp_path, random_weights())
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    for name in ("adapter_model", "consolidated"):
        save_file({"layers.0.wq": np.ones(3)}, folder / f"{name}.safetensors")
    open_checkpoint(folder)


def test_a_tied_matrix_under_either_name(tmp_path: Path) -> None:
    weights = random_weights()
    embedding, head = weights.pop("model.embed_tokens.weight"), weights.pop("lm_head.weight")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        one = weights | {name: embedding}
        folder = write_folder(tmp_path / name, one, tie_word_embeddings=True)
        path = write_gguf(tmp_path / f"{name}.gguf", gguf_tensors(one))
        for checkpoint in (open_checkpoint(folder), open_checkpoint(path)):
            assert checkpoint.decoder.tied_embeddings
            np.testing.assert_array_equal(checkpoint.rows("embedding"), embedding)
            np.testing.assert_array_equal(checkpoint.rows("embedding", 5, 9), embedding[5:9])
    # Both, as PyTorch saves them; and both, though training has parted them.
    both = weights | {"model.embed_tokens.weight": embedding}
    same = both | {"lm_head.weight": embedding.copy()}
    checkpoint = open_checkpoint(write_folder(tmp_path / "same", same, tie_word_embeddings=True))
    assert checkpoint.decoder.tied_embeddings
    apart = both | {"lm_head.weight": head}
    checkpoint = open_checkpoint(write_folder(tmp_path / "apart", apart, tie_word_embeddings=True))
    assert not checkpoint.decoder.tied_embeddings
    np.testing.assert_array_equal(checkpoint.rows("head"), head)


@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        ("model.language_model.", "lm_head."),
        ("language_model.model.", "language_model.lm_head."),
        ("language_model.", "lm_head."),
        ("", "lm_head."),
    ],
)
def test_the_decoder_of_a_multimodal_model(tmp_path: Path, prefix: str, head: str) -> None:
    weights = random_weights()
    expected = all_weights(open_checkpoint(write_folder(tmp_path / "plain", weights)))
    renamed = {
        name.replace("model.", prefix, 1).replace("lm_head.", head): value
        for name, value in weights.items()
    }
    if prefix:
        renamed["vision_tower.layers.0.self_attn.q_proj.weight"] = np.ones((3, 3), np.float32)
        renamed["multi_modal_projector.linear.bias"] = np.ones(3, np.float32)
    assert_same(all_weights(open_checkpoint(write_folder(tmp_path / "whole", renamed))), expected)
    renamed[f"{prefix}layers.0.self_attn.sinks"] = np.ones(3, np.float32)
    with pytest.raises(OmniDraftError, match="sinks"):
        open_checkpoint(write_folder(tmp_path / "whole", renamed))


# --- configurations that leave out defaults ----------------------------------------------------

GEMMA: dict[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
}


@pytest.mark.parametrize("left_out", [*((name,) for name in GEMMA), tuple(GEMMA)])
@pytest.mark.parametrize("null", [False, True])
def test_a_gemma_3_that_leaves_out_defaults(left_out: tuple[str, ...], null: bool) -> None:
    stated, _ = describe({"model_type": "gemma3_text", **GEMMA}, "here")
    short = {name: value for name, value in GEMMA.items() if name not in left_out}
    if null:  # which of these two says something else
        short |= dict.fromkeys(set(left_out) - {"sliding_window", "hidden_activation"})
    assert describe({"model_type": "gemma3_text", **short}, "here")[0] == stated
    multimodal = {"model_type": "gemma3", "text_config": short, "vision_config": {}}
    assert describe(multimodal, "here")[0] == stated


def test_bases_of_the_rotation_that_a_gemma_3_leaves_out() -> None:
    stated, _ = describe({"model_type": "gemma3_text", **GEMMA}, "here")
    bare = {name: value for name, value in GEMMA.items() if not name.startswith("rope")}
    for ropes in (
        {},
        {"full_attention": {"rope_type": "default"}},
        {"sliding_attention": {"rope_theta": 10_000.0}, "full_attention": None},
    ):
        config = {"model_type": "gemma3_text", **bare, "rope_parameters": ropes}
        assert describe(config, "here")[0] == stated
    for ropes in ([1], {"full_attention": 3}, {"full_attention": {"rope_theta": "high"}}):
        config = {"model_type": "gemma3_text", **bare, "rope_parameters": ropes}
        with pytest.raises(DamagedFileError, match="rope_parameters"):
            describe(config, "here")


def test_the_defaults_of_gemma_3_are_those_of_transformers() -> None:
    transformers = needs("transformers")
    theirs = transformers.Gemma3TextConfig()
    decoder, _ = describe({"model_type": "gemma3_text"}, "here")
    for name, value in GEMMA.items():
        if hasattr(theirs, name):
            assert getattr(theirs, name) == value, name
    windows = [kind == "sliding_attention" for kind in theirs.layer_types]
    assert [window is not None for window in decoder.windows] == windows
    ropes = theirs.rope_parameters
    for kind, window in (("full_attention", 5), ("sliding_attention", 0)):
        base = ropes[kind]["rope_theta"]
        second = decoder.ropes[window].inverse_frequencies[1]
        assert second == pytest.approx(base ** (-2 / 256))


def test_a_gemma_3_that_looks_ahead_is_refused() -> None:
    with pytest.raises(OmniDraftError, match="use_bidirectional_attention"):
        describe({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "here")
