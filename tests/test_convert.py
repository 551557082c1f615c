"""Conversion without torch: what is read, what is written, and what is refused."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from needs import needs
from numpy.typing import NDArray
from onnx import load

from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.export.checkpoint.blocks import Form
from omnidraft.export.conversion import Quantization, convert
from omnidraft.export.graphs import four_bits
from omnidraft.export.graphs import target as graph
from omnidraft.export.graphs.calibrate import channel_factors
from omnidraft.export.graphs.quantize import (
    BLOCK,
    quantize_blocks4,
    quantize_blocks8,
    quantize_rows,
)
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.storage.manifest import (
    MANIFEST_FILE,
    Manifest,
    describe_files,
    is_outdated,
)

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 130,
    "max_position_embeddings": 2304,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def random_weights(
    config: dict[str, Any], seed: int = 0, deviation: float = 0.3
) -> dict[str, NDArray[np.float32]]:
    """Random weights of a Llama by their Hugging Face names."""
    rng = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    size = config.get("head_dim", hidden // config["num_attention_heads"])
    q, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        for name, shape in {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            shapes[f"model.layers.{i}.{name}.weight"] = shape
            flag = {"self_attn": "attention_bias", "mlp": "mlp_bias"}.get(name.partition(".")[0])
            if flag and config.get(flag):
                shapes[f"model.layers.{i}.{name}.bias"] = shape[:1]
    return {
        name: rng.normal(1.0 if len(shape) == 1 else 0.0, deviation, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_safetensors(
    folder: Path, config: dict[str, Any], weights: dict[str, Any], **metadata: str
) -> Path:
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata=metadata or None)
    return folder


def write_gguf(path: Path, config: dict[str, Any], weights: dict[str, Any]) -> Path:
    """Write as llama.cpp's converter does: query and key rows of each head interleaved."""
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    # Longer than any array that the reader looks into.
    writer.add_token_list([f"token {i}" for i in range(2000)])
    writer.add_token_scores([float(i) for i in range(2000)])
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, value in weights.items():
        stem = name.removesuffix(".weight")
        layer = ""
        if stem.startswith("model.layers."):
            _, _, number, stem = stem.split(".", 3)
            layer = f"blk.{number}."
        stem = names[stem]
        if stem in heads:
            count = heads[stem]
            value = value.reshape(count, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        writer.add_tensor(f"{layer}{stem}.weight", np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_safetensors(tmp_path / "source", LLAMA, random_weights(LLAMA))


def logits(folder: Path, count: int = 20) -> NDArray[np.float32]:
    tokens = np.random.default_rng(1).integers(0, LLAMA["vocab_size"], count)
    return OnnxModel(folder, threads=1).forward(tokens).copy()


def test_gguf_and_safetensors_give_the_same_model(tmp_path: Path, source: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", LLAMA, random_weights(LLAMA))
    convert(source, tmp_path / "a", "float32")
    convert(file, tmp_path / "b", "float32")
    np.testing.assert_allclose(logits(tmp_path / "a"), logits(tmp_path / "b"), rtol=0, atol=1e-4)


def test_sharded_and_half_precision(tmp_path: Path) -> None:
    import ml_dtypes
    from safetensors.numpy import save_file

    weights = random_weights(LLAMA)
    rounded = {name: value.astype(ml_dtypes.bfloat16) for name, value in weights.items()}
    folder = write_safetensors(tmp_path / "sharded", LLAMA, rounded)
    (folder / "model.safetensors").unlink()
    names = sorted(rounded)
    shards = {"one.safetensors": names[:7], "two.safetensors": names[7:]}
    for shard, members in shards.items():
        save_file({name: rounded[name] for name in members}, folder / shard)
    index = {name: shard for shard, members in shards.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    checkpoint = open_checkpoint(folder)
    name = "model.layers.1.mlp.down_proj.weight"
    expected = rounded[name].astype(np.float32)
    assert np.array_equal(checkpoint.rows("1.down"), expected)
    assert np.array_equal(checkpoint.rows("1.down", 5, 9), expected[5:9])


def test_int8_block_format_survives_8_bit_conversion(tmp_path: Path) -> None:
    """The converted integers are the stored ones: no second rounding."""
    config = LLAMA | {"tie_word_embeddings": True}
    stored: dict[str, Any] = {}
    for name, value in random_weights(config).items():
        if value.ndim == 1:
            stored[name] = value.astype(np.float16)
            continue
        blocks = value.reshape(value.shape[0], -1, BLOCK)
        scale = (np.abs(blocks).max(-1) / 127).astype(np.float16)
        levels = np.rint(blocks / scale[..., None].astype(np.float32)).clip(-127, 127)
        levels[..., 0] = 127
        stored[name] = levels.astype(np.int8).reshape(value.shape)
        stored[f"{name}.scale"] = scale
    folder = write_safetensors(tmp_path / "d", config, stored, format="omnidraft-int8-block32")
    values = open_checkpoint(folder).rows("0.down")
    integers, scales = quantize_blocks8(values)
    name = "model.layers.0.mlp.down_proj.weight"
    assert np.array_equal(integers.reshape(values.shape).astype(int) - 128, stored[name])
    assert np.array_equal(scales, stored[f"{name}.scale"].astype(np.float32))
    assert convert(folder, tmp_path / "out", "8bit").batch_invariant


def restored4(rows: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """What a 4-bit linear computes with."""
    blocks, units = quantize_blocks4(rows, importance)
    factors = blocks.factors.astype(np.float32)
    if blocks.units is not None:
        factors *= blocks.units.astype(np.float32).repeat(8, axis=1)
    values = blocks.codes * factors[..., :1] + factors[..., 1:]
    return (values.reshape(len(rows), -1) * units[:, None]).astype(np.float32)


def test_quantized_values_are_near() -> None:
    rows = np.random.default_rng(0).normal(size=(7, 70)).astype(np.float32)
    rows[3] = 0
    integers, scales = quantize_rows(rows)
    assert (np.abs(integers * scales[:, None] - rows) <= 0.501 * scales[:, None]).all()
    packed, scales = quantize_blocks8(rows)
    restored = (packed.astype(np.float32).reshape(7, 3, BLOCK) - 128) * scales[..., None]
    assert not restored.reshape(7, -1)[:, 70:].any()
    steps = scales.repeat(BLOCK, axis=1)[:, :70]
    assert (np.abs(restored.reshape(7, -1)[:, :70] - rows) <= 0.501 * steps).all()
    rows = np.random.default_rng(1).normal(size=(9, 96)).astype(np.float32)
    rows[3] = 0
    rows[4] *= np.float32(1e-15)
    rows[5] *= np.float32(1e15)
    rows[6, :32] *= np.float32(1e-6)
    # No worse than half a step of blocks from their smallest weight to their largest.
    blocks = rows.reshape(9, 3, BLOCK)
    error = np.square(restored4(rows) - rows).reshape(blocks.shape).mean(axis=-1)
    assert (error <= np.square(np.ptp(blocks, axis=-1) / 15 / 2)).all()


@pytest.mark.parametrize("offset", [0.0, 0.3])
def test_four_bits_keep_weights_that_were_quantized_to_four_bits(offset: float) -> None:
    rng = np.random.default_rng(2)
    steps = rng.uniform(0.01, 0.1, (64, 18, 1)).astype(np.float32)
    rows = (steps * (rng.integers(0, 16, (64, 18, BLOCK)) - 8 + offset)).astype(np.float32)
    rows = rows.reshape(64, -1)
    error = np.linalg.norm(restored4(rows) - rows) / np.linalg.norm(rows)
    assert error < 1e-3  # of halves; without offsets: 0.08


@pytest.mark.parametrize("width", [96, 256])
def test_four_bits_lose_least_where_inputs_are_large(width: int) -> None:
    """And nothing is lost that is not a number, where inputs are silent or weights all alike."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(64, width)).astype(np.float32)
    rows[5] = 0
    rows[6] = -0.25
    importance = np.exp(rng.normal(size=width) * 2).astype(np.float32)
    importance[:8] = 0
    plain, weighted = (restored4(rows, each) - rows for each in (None, importance))
    assert np.isfinite(weighted).all()
    assert np.abs(weighted[5:7]).max() < 0.25 / 100
    losses = [float((importance * np.square(error)).sum()) for error in (plain, weighted)]
    assert losses[1] < losses[0] * 0.8
    assert np.isfinite(restored4(rows, np.zeros(width, np.float32))).all()


# --- evened channels -----------------------------------------------------------------------------

QWEN2 = LLAMA | {"model_type": "qwen2"}
GEMMA = LLAMA | {
    "model_type": "gemma3_text",
    "hidden_act": "gelu_pytorch_tanh",
    "head_dim": 32,
    "sliding_window": 9,
    "tie_word_embeddings": True,
}
MULTI_QUERY = LLAMA | {"num_key_value_heads": 1}


def family_weights(config: dict[str, Any], outliers: float = 1.0) -> dict[str, NDArray[np.float32]]:
    """Random weights; two channels of each linear's input are larger by ``outliers``.

    The columns that read them are smaller by as much: the model is the same for all ``outliers``.
    """
    rng = np.random.default_rng(3)
    weights = random_weights(config)
    hidden = config["hidden_size"]
    size = config.get("head_dim", hidden // config["num_attention_heads"])
    gemma = config["model_type"] == "gemma3_text"
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        if config["model_type"] == "qwen2":
            for part in "qkv":
                name = f"{layer}self_attn.{part}_proj"
                rows = len(weights[f"{name}.weight"])
                weights[f"{name}.bias"] = rng.normal(0, 0.3, rows).astype(np.float32)
        if gemma:
            for norm in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
                weights[f"{layer}{norm}.weight"] = rng.normal(0, 0.3, hidden).astype(np.float32)
            for norm in ("q_norm", "k_norm"):
                values = rng.normal(0, 0.3, config["head_dim"]).astype(np.float32)
                weights[f"{layer}self_attn.{norm}.weight"] = values
        before_mlp = "pre_feedforward_layernorm" if gemma else "post_attention_layernorm"
        attention = [f"{layer}self_attn.{part}_proj.weight" for part in "qkv"]
        feed_forward = [f"{layer}mlp.{part}_proj.weight" for part in ("gate", "up")]
        for name, channels, readers in (
            ("input_layernorm", [3, 40], attention),
            (before_mlp, [3, 40], feed_forward),
            ("mlp.up_proj", [2, 11], [f"{layer}mlp.down_proj.weight"]),
        ):
            enlarge(weights, f"{layer}{name}.weight", channels, readers, outliers, gemma)
        # Value rows of the first key head, which the query heads of its group read.
        output = weights[f"{layer}self_attn.o_proj.weight"]
        for part in ("weight", "bias"):
            if (name := f"{layer}self_attn.v_proj.{part}") in weights:
                weights[name][[2, 11]] *= outliers
        for head in range(config["num_attention_heads"] // config["num_key_value_heads"]):
            output[:, [head * size + 2, head * size + 11]] /= outliers
    if not config["tie_word_embeddings"]:
        enlarge(weights, "model.norm.weight", [7, 33], ["lm_head.weight"], outliers, gemma)
    return weights


def enlarge(
    weights: dict[str, NDArray[np.float32]],
    name: str,
    channels: list[int],
    readers: list[str],
    factor: float,
    gemma: bool,
) -> None:
    """Multiply what makes some channels, divide the columns that read them."""
    one = 1 if gemma and name.endswith("norm.weight") else 0  # stored without its 1
    weights[name][channels] = (weights[name][channels] + one) * factor - one
    for reader in readers:
        weights[reader][:, channels] /= factor


def random_factors(config: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Factors of the channels of every linear's input; the heads of a group have the same."""
    rng = np.random.default_rng(4)
    size = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    factors = {"head": rng.uniform(0.2, 5, config["hidden_size"])}
    for i in range(config["num_hidden_layers"]):
        factors[f"{i}.qkv"] = rng.uniform(0.2, 5, config["hidden_size"])
        factors[f"{i}.gate_up"] = rng.uniform(0.2, 5, config["hidden_size"])
        factors[f"{i}.down"] = rng.uniform(0.2, 5, config["intermediate_size"])
        shared = rng.uniform(0.2, 5, (config["num_key_value_heads"], 1, size))
        factors[f"{i}.o"] = shared.repeat(group, axis=1).reshape(-1)
    return {name: value.astype(np.float32) for name, value in factors.items()}


FAMILIES = [LLAMA, MULTI_QUERY, QWEN2, GEMMA]
FAMILY_NAMES = ["llama", "multi-query", "qwen2", "gemma3"]


@pytest.mark.parametrize("config", FAMILIES, ids=FAMILY_NAMES)
def test_factors_of_channels_change_nothing(tmp_path: Path, config: dict[str, Any]) -> None:
    """In float32, where nothing is rounded to levels: whatever the factors."""
    source = write_safetensors(tmp_path / "source", config, family_weights(config))
    convert(source, tmp_path / "plain", "float32")
    expected = logits(tmp_path / "plain")
    # The same folder with a graph that has factors.
    manifest = convert(source, tmp_path / "evened", "float32")
    graph.write_graph(
        open_checkpoint(source),
        tmp_path / "evened",
        "float32",
        lambda stage, done, total: None,
        random_factors(config),
    )
    replace(manifest, files=describe_files(tmp_path / "evened")).save(tmp_path / "evened")
    found = logits(tmp_path / "evened")
    assert not np.array_equal(found, expected)  # the factors were used
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("config", FAMILIES, ids=FAMILY_NAMES)
def test_calibration_halves_the_error_that_outliers_cause(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    source = write_safetensors(tmp_path / "source", config, family_weights(config, outliers=30))
    convert(source, tmp_path / "float32", "float32")
    convert(source, tmp_path / "plain", "8bit")
    # Other tokens than those that the logits are compared at.
    tokens = np.random.default_rng(5).integers(0, config["vocab_size"], 100).tolist()
    manifest = convert(source, tmp_path / "evened", "8bit", calibration=tokens)
    assert manifest.batch_invariant, manifest.invariance
    expected = logits(tmp_path / "float32")
    errors = [np.linalg.norm(logits(tmp_path / name) - expected) for name in ("plain", "evened")]
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("config", FAMILIES, ids=FAMILY_NAMES)
def test_four_bits_are_rounded_by_what_a_text_shows(tmp_path: Path, config: dict[str, Any]) -> None:
    source = write_safetensors(tmp_path / "source", config, family_weights(config, outliers=30))
    tokens = np.random.default_rng(5).integers(0, config["vocab_size"], 100).tolist()
    convert(source, tmp_path / "float32", "float32")
    convert(source, tmp_path / "plain", "4bit")
    manifest = convert(source, tmp_path / "calibrated", "4bit", calibration=tokens)
    assert manifest.batch_invariant, manifest.invariance
    expected = logits(tmp_path / "float32")
    plain, calibrated = (
        np.linalg.norm(logits(tmp_path / name) - expected) for name in ("plain", "calibrated")
    )
    assert calibrated < plain * 0.8


@pytest.mark.parametrize("tied", [False, True], ids=["head", "tied"])
def test_which_matrices_get_four_bits(tmp_path: Path, tied: bool) -> None:
    config = LLAMA | {"tie_word_embeddings": tied}
    source = write_safetensors(tmp_path / "source", config, random_weights(config))
    manifest = convert(source, tmp_path / "out", "4bit")
    assert manifest.weights == {"4bit": 8, "8bit": 7 if tied else 8}
    nodes = [node for node in load(tmp_path / "out" / "model.onnx").graph.node if node.domain]
    forms = {
        node.input[1]: Form(node.attribute[0].i)
        for node in nodes
        if node.op_type in ("BlockLinear", "BlockRows")
    }
    four = {name for name, form in forms.items() if form in (Form.AFFINE4, Form.SUPER4)}
    assert four == {each for i in (0, 1) for each in (f"{i}.q", f"{i}.gate+{i}.up", f"{i}.down")}
    eight = {name for name, form in forms.items() if form == Form.SCALED8}
    assert eight == {"embedding", *([] if tied else ["head"]), "0.k+0.v", "0.o", "1.k+1.v", "1.o"}


def test_factors_are_shared_by_heads_that_share_values(tmp_path: Path) -> None:
    source = write_safetensors(tmp_path / "source", LLAMA, family_weights(LLAMA, outliers=30))
    factors = channel_factors(
        open_checkpoint(source), tmp_path, list(range(60)), lambda stage, done, total: None
    )
    linears = [f"{i}.{part}" for i in range(2) for part in ("qkv", "o", "gate_up", "down")]
    assert sorted(factors) == sorted([*linears, "head"])
    heads = factors["1.o"].reshape(LLAMA["num_key_value_heads"], 2, -1)
    assert np.array_equal(heads[:, 0], heads[:, 1])
    # The channels that were made large are made small.
    assert set(np.argsort(factors["1.qkv"])[:2]) == {3, 40}
    assert set(np.argsort(factors["head"])[:2]) == {7, 33}
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("quantization", ["4bit", "8bit", "float32"])
def test_a_model_that_overflows_is_not_called_invariant(
    tmp_path: Path, quantization: Quantization
) -> None:
    """Its weights are finite, its activations are not: that must show, whatever is rounded."""
    weights = random_weights(LLAMA)
    weights["model.layers.0.mlp.up_proj.weight"] *= np.float32(1e10)
    weights["model.layers.0.mlp.down_proj.weight"] *= np.float32(1e30)
    source = write_safetensors(tmp_path / "source", LLAMA, weights)
    manifest = convert(source, tmp_path / "out", quantization)
    assert not manifest.batch_invariant
    assert np.isnan(OnnxModel(tmp_path / "out").forward([1, 2])).all()


@pytest.mark.parametrize("quantization", ["4bit", "8bit", "float32"])
def test_converted_folder(tmp_path: Path, source: Path, quantization: Quantization) -> None:
    stages = set()
    manifest = convert(
        source,
        tmp_path / "out",
        quantization,
        calibration=range(40),
        progress=lambda stage, done, total: stages.add(stage),
        extra_files={"tokenizer.json": b"{}"},
        extra_manifest={"license": "test"},
    )
    assert manifest == Manifest.load(tmp_path / "out")
    assert manifest.batch_invariant, manifest.invariance
    assert manifest.extra == {"license": "test"}
    assert set(manifest.files) == {"model.onnx", "model.onnx.data", "tokenizer.json"}
    manifest.verify(tmp_path / "out", checksums=True)
    expected = {"layers", "checksum", "invariance"}
    assert stages == (expected if quantization == "float32" else expected | {"calibration"})
    assert isinstance(OnnxModel(tmp_path / "out"), CausalModel)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_existing_output_is_replaced(tmp_path: Path, source: Path) -> None:
    convert(source, tmp_path / "out", "8bit")
    assert convert(source, tmp_path / "out", "4bit") == Manifest.load(tmp_path / "out")
    assert Manifest.load(tmp_path / "out").quantization == "4bit"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(errno.ENOSPC, "No space left on device"), OmniDraftError),
    ],
)
def test_failure_leaves_nothing(
    tmp_path: Path,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    expected: type[BaseException],
) -> None:
    convert(source, tmp_path / "out", "8bit")
    before = Manifest.load(tmp_path / "out")

    def fail(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(four_bits, "quantize_blocks4", fail)
    with pytest.raises(expected):
        convert(source, tmp_path / "out", "4bit")
    assert Manifest.load(tmp_path / "out") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_damaged_sources(tmp_path: Path, source: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        open_checkpoint(tmp_path / "nothing")
    file = write_gguf(tmp_path / "model.gguf", LLAMA, random_weights(LLAMA))
    whole = file.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in (0, 3, 4, 20, 500, 5000, len(whole) // 2, len(whole) - 5000):
        cut.write_bytes(whole[:size])
        with pytest.raises(DamagedFileError):
            convert(cut, tmp_path / "out", "4bit")
    weights = source / "model.safetensors"
    whole = weights.read_bytes()
    for size in (0, 7, 100, len(whole) // 2):
        weights.write_bytes(whole[:size])
        with pytest.raises(DamagedFileError):
            convert(source, tmp_path / "out", "4bit")
    (source / "config.json").write_text("{")
    with pytest.raises(DamagedFileError):
        convert(source, tmp_path / "out", "4bit")


def test_missing_tensor(tmp_path: Path) -> None:
    weights = random_weights(LLAMA)
    del weights["model.layers.1.mlp.up_proj.weight"]
    folder = write_safetensors(tmp_path / "source", LLAMA, weights)
    with pytest.raises(DamagedFileError, match="up_proj"):
        convert(folder, tmp_path / "out", "4bit")


@pytest.mark.parametrize("more", [-4, 4])
@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("model.layers.1.mlp.up_proj", 0),
        ("model.layers.1.mlp.up_proj", 1),
        ("model.layers.0.self_attn.k_proj", 0),
        ("model.layers.0.self_attn.o_proj", 1),
        ("model.layers.0.input_layernorm", 0),
        ("model.norm", 0),
        ("lm_head", 0),
    ],
)
def test_wrong_shape(tmp_path: Path, name: str, axis: int, more: int) -> None:
    """Rows or columns too few or too many: nothing is cut in silence."""
    weights = random_weights(LLAMA)
    value = weights[f"{name}.weight"]
    some = np.arange(value.shape[axis] + more) % value.shape[axis]
    weights[f"{name}.weight"] = np.take(value, some, axis)
    for source in (
        write_safetensors(tmp_path / "source", LLAMA, weights),
        write_gguf(tmp_path / "model.gguf", LLAMA, weights),
    ):
        with pytest.raises(DamagedFileError, match=r"is \[\d+(, \d+)?\], but .* says \["):
            convert(source, tmp_path / "out", "4bit")
    assert not (tmp_path / "out").exists()


def test_a_bias_of_another_length(tmp_path: Path) -> None:
    config = LLAMA | {"attention_bias": True}
    weights = random_weights(LLAMA)
    for i in range(2):
        for part, size in {"q": 64, "k": 32, "v": 32, "o": 64}.items():
            weights[f"model.layers.{i}.self_attn.{part}_proj.bias"] = np.zeros(size, np.float32)
    open_checkpoint(write_safetensors(tmp_path / "right", config, weights)).rows("1.k.bias")
    weights["model.layers.1.self_attn.k_proj.bias"] = np.zeros(33, np.float32)
    with pytest.raises(DamagedFileError, match=r"k_proj.bias is \[33\]"):
        open_checkpoint(write_safetensors(tmp_path / "wrong", config, weights))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "model.norm.weight"])
def test_weights_that_are_no_numbers(tmp_path: Path, value: float, name: str) -> None:
    weights = random_weights(LLAMA)
    weights[name].flat[5] = value
    for source, stored in (
        (write_safetensors(tmp_path / "source", LLAMA, weights), name),
        (write_gguf(tmp_path / "model.gguf", LLAMA, weights), "blk.1.ffn_down|output_norm"),
    ):
        with pytest.raises(DamagedFileError, match=rf"({stored}).* NaN or infinite"):
            convert(source, tmp_path / "out", "8bit")
    assert not (tmp_path / "out").exists()


def test_weights_of_other_quantizers(tmp_path: Path) -> None:
    """Integers mean nothing without their scales, whoever keeps them."""
    import ml_dtypes

    weights: dict[str, Any] = random_weights(LLAMA)
    name = "model.layers.0.mlp.up_proj.weight"
    for stored in (np.int8, np.uint8, np.int32, ml_dtypes.float8_e4m3fn):
        quantized = weights | {name: weights[name].astype(stored)}
        folder = write_safetensors(tmp_path / np.dtype(stored).name, LLAMA, quantized)
        with pytest.raises(OmniDraftError, match=r"up_proj.weight is stored as"):
            open_checkpoint(folder).rows("0.up")
    integers = weights | {name: weights[name].astype(np.int8)}
    file = write_gguf(tmp_path / "model.gguf", LLAMA, integers)
    with pytest.raises(OmniDraftError, match=r"ffn_up.weight is of type I8"):
        open_checkpoint(file).rows("0.up")
    config = LLAMA | {"quantization_config": {"quant_method": "bitsandbytes"}}
    with pytest.raises(OmniDraftError, match=r"quantization_config.*bitsandbytes"):
        open_checkpoint(write_safetensors(tmp_path / "named", config, weights))
    # In the project's own format matrices are int8, each with a scale for 32 weights.
    marked = write_safetensors(tmp_path / "a", LLAMA, weights, format="omnidraft-int8-block32")
    with pytest.raises(OmniDraftError, match="stored as F32"):
        open_checkpoint(marked).rows("0.up")
    scaled = {name: np.ones((96, 64), np.int8), f"{name}.scale": np.ones((96, 1), np.float16)}
    folder = write_safetensors(
        tmp_path / "b", LLAMA, weights | scaled, format="omnidraft-int8-block32"
    )
    with pytest.raises(DamagedFileError, match="one scale for 32"):
        open_checkpoint(folder).rows("0.up")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_position_embeddings", value) for value in (None, "256", 256.0, -5, 0, 1, True)),
        *(("vocab_size", value) for value in ("130", -1, [130])),
        ("num_hidden_layers", 0),
        ("hidden_size", 0),
        ("num_attention_heads", 128),
        ("num_key_value_heads", 3),
        ("head_dim", 17),
        ("intermediate_size", 97),
        ("intermediate_size", 64),
        ("rms_norm_eps", "1e-5"),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", float("inf")),
        ("tie_word_embeddings", "false"),
        ("rope_scaling", "linear"),
        ("rope_scaling", {"type": "linear"}),
        ("rope_scaling", {"type": "linear", "factor": "two"}),
        ("rope_scaling", {"type": "linear", "factor": 0}),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}),
        ("rope_parameters", {"rope_type": "default"}),
        ("rope_parameters", {"rope_theta": "10000"}),
    ],
)
def test_a_wrong_field_of_the_configuration_is_named(
    tmp_path: Path, field: str, value: object
) -> None:
    config = LLAMA | {field: value}
    folder = write_safetensors(tmp_path / "source", config, random_weights(LLAMA))
    with pytest.raises(DamagedFileError, match=field):
        convert(folder, tmp_path / "out", "4bit")


def test_layers_that_are_not_all_named(tmp_path: Path) -> None:
    config = GEMMA | {"layer_types": ["full_attention"]}
    with pytest.raises(DamagedFileError, match="layer_types names 1 of 2 layers"):
        open_checkpoint(write_safetensors(tmp_path, config, family_weights(GEMMA)))


@pytest.mark.parametrize(
    "text",
    ["{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../b"}}'],
)
def test_an_index_of_nothing(tmp_path: Path, source: Path, text: str) -> None:
    (source / "model.safetensors").rename(source / "model-00001-of-00001.safetensors")
    (source / "model.safetensors.index.json").write_text(text)
    with pytest.raises(DamagedFileError, match="weight_map"):
        open_checkpoint(source)


def test_json_that_is_too_deep(source: Path) -> None:
    (source / "config.json").write_text('{"a":' + "[" * 200_000)
    with pytest.raises(DamagedFileError, match="JSON"):
        open_checkpoint(source)
    (source / MANIFEST_FILE).write_text("[" * 200_000)
    with pytest.raises(DamagedFileError, match="damaged"):
        Manifest.load(source)
    assert not is_outdated(source)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "mamba"}, "Supported architectures: .*llama, "),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 4.0}}, "spiral"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ],
)
def test_unsupported_is_named(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    folder = write_safetensors(tmp_path / "source", LLAMA | change, random_weights(LLAMA))
    with pytest.raises(OmniDraftError, match=word):
        convert(folder, tmp_path / "out", "4bit")


def test_damaged_output(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ModelNotFoundError):
        OnnxModel(out)
    manifest = convert(source, out, "4bit")
    data = bytearray((out / "model.onnx.data").read_bytes())
    data[100] ^= 1
    (out / "model.onnx.data").write_bytes(data)
    with pytest.raises(DamagedFileError, match="checksum"):
        manifest.verify(out, checksums=True)
    (out / "model.onnx.data").write_bytes(data[:-1])
    with pytest.raises(DamagedFileError, match="bytes"):
        OnnxModel(out)
    (out / "model.onnx.data").unlink()
    with pytest.raises(DamagedFileError, match="missing"):
        OnnxModel(out)
    (out / MANIFEST_FILE).write_text('{"schema_version": 1}')
    with pytest.raises(DamagedFileError):
        OnnxModel(out)


# --- against transformers ------------------------------------------------------------------------

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "vocab_size": 130,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    ("model_type", "change"),
    [
        ("llama", {"num_key_value_heads": 4}),
        ("llama", {"num_key_value_heads": 2, "tie_word_embeddings": True, "head_dim": 32}),
        (
            "llama",
            {
                "num_key_value_heads": 1,
                "attention_bias": True,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 10000.0,
                    "factor": 4.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
        ),
        ("llama", {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}),
        ("qwen2", {"num_key_value_heads": 2}),
        (
            "qwen2",
            {
                "num_key_value_heads": 2,
                "use_sliding_window": True,
                "sliding_window": 9,
                "max_window_layers": 3,
            },
        ),
        ("gemma3_text", {"num_key_value_heads": 1, "head_dim": 32, "sliding_window": 9}),
        (
            "gemma3_text",
            {"num_key_value_heads": 2, "query_pre_attn_scalar": 16, "sliding_window": 5},
        ),
    ],
)
def test_logits_equal_transformers(tmp_path: Path, model_type: str, change: dict[str, Any]) -> None:
    torch, transformers = needs("torch"), needs("transformers")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        model_type, **(SMALL | change), attn_implementation="eager"
    )
    reference = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    reference.save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "out", "float32")
    model = OnnxModel(tmp_path / "out", threads=1)
    tokens = np.random.default_rng(0).integers(0, SMALL["vocab_size"], 40)
    with torch.no_grad():
        expected = reference(torch.tensor(tokens[None])).logits[0].numpy()
    np.testing.assert_allclose(model.forward(tokens), expected, rtol=0, atol=1e-4)
    model.truncate(11)
    for start, stop in ((11, 12), (12, 25), (25, 26), (26, 40)):
        part = model.forward(tokens[start:stop])
        np.testing.assert_allclose(part, expected[start:stop], rtol=0, atol=1e-4)
