"""The drafter's graph: one attention operator, and 4 bits where the weights lie on such a grid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnxruntime import InferenceSession
from test_convert import LLAMA, random_weights, write_safetensors

from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.export.conversion import convert, convert_drafter
from omnidraft.export.graphs.drafter import write_drafter_graph
from omnidraft.export.graphs.quantize import exact_blocks4
from omnidraft.runtime.engines.onnx import LENGTH_STEP, MAX_PASS, OnnxModel
from omnidraft.runtime.errors import DamagedFileError

TOKENS = np.random.default_rng(3).integers(0, LLAMA["vocab_size"], MAX_PASS + LENGTH_STEP)


def on_grid(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Weights of 15 levels in blocks of 32, whose scales are multiples of one for each row."""
    blocks = weight.reshape(len(weight), -1, 32)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    channel = largest.max(axis=1, keepdims=True) / 126
    scale = channel * np.clip(np.rint(largest / (7 * channel)), 1, 18)
    moved = np.clip(np.rint(blocks / scale), -7, 7) * scale
    return moved.reshape(weight.shape).astype(np.float32)


def write_source(folder: Path, config: dict[str, Any], *, grid: bool) -> Path:
    weights = random_weights(config)
    if grid:
        weights = {n: on_grid(w) if w.ndim == 2 else w for n, w in weights.items()}
    return write_safetensors(folder, config, weights)


@pytest.mark.parametrize("hidden", [48, 64])
def test_any_program_can_run_the_graph(tmp_path: Path, hidden: int) -> None:
    """With ONNX Runtime alone, also where widths are no whole blocks, if it is made for that."""
    config = LLAMA | {"hidden_size": hidden, "head_dim": 16}
    source = write_source(tmp_path / "source", config, grid=False)
    graph = write_drafter_graph(open_checkpoint(source), tmp_path, "8bit", lambda *_: None)
    assert {opset.domain for opset in graph.opset_import} == {"", "com.microsoft"}
    InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    convert_drafter(source, tmp_path / "drafter")
    assert OnnxModel(tmp_path / "drafter").scores_trees


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_logits_are_the_float_models(tmp_path: Path, grid: bool, kv_heads: int) -> None:
    config = LLAMA | {"num_key_value_heads": kv_heads}
    source = write_source(tmp_path / "source", config, grid=grid)
    convert(source, tmp_path / "float", "float32")
    manifest = convert_drafter(source, tmp_path / "drafter")
    assert manifest.quantization == ("4bit" if grid else "8bit")
    assert not manifest.batch_invariant
    model = OnnxModel(tmp_path / "drafter", threads=1)
    expected = OnnxModel(tmp_path / "float").forward(TOKENS)
    found = model.forward(TOKENS).copy()
    # 4 bits lose nothing here: what differs is that inputs are rounded to 8 bits.
    assert np.square(found - expected).mean() < 0.008 * np.square(expected).mean()

    model.truncate(50)
    model.forward(TOKENS[50:51])
    model.truncate(40)
    pieces = [model.forward(part).copy() for part in np.split(TOKENS[40:], [2, 5, 9, 300])]
    difference = np.concatenate(pieces) - found[40:]
    assert np.square(difference).mean() < 4e-6 * expected.var()
    assert np.abs(difference).max() < 0.1 * expected.std()

    # A drafter need not be batch-invariant. A kernel may sum a lone row in another order. Then an
    # input comes to the next of its 255 steps, and all later rows see it in the KV cache. It is far
    # less than what rounding to 8 bits changes.
    model.truncate(40)
    alone = np.concatenate([model.forward(TOKENS[i : i + 1]).copy() for i in range(40, 80)])
    rounding = np.square(found - expected).mean()
    assert np.square(alone - found[40:80]).mean() < 0.2 * rounding
    assert model.last_hidden().shape == (config["hidden_size"],)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("grid", [False, True])
def test_a_trimmed_head_computes_the_first_tokens_only(
    tmp_path: Path, tied: bool, grid: bool
) -> None:
    config = LLAMA | {"tie_word_embeddings": tied}
    logits = {}
    for drafted in (None, 50, LLAMA["vocab_size"]):
        named = config | ({} if drafted is None else {"drafted_tokens": drafted})
        source = write_source(tmp_path / f"source-{drafted}", named, grid=grid)
        convert_drafter(source, tmp_path / f"drafter-{drafted}")
        model = OnnxModel(tmp_path / f"drafter-{drafted}", threads=1)
        model.forward(TOKENS[:7])
        logits[drafted] = model.forward(TOKENS[7:12]).copy()
    assert np.array_equal(logits[None], logits[LLAMA["vocab_size"]])
    np.testing.assert_allclose(logits[50][:, :50], logits[None][:, :50], rtol=0, atol=1e-4)
    rest = logits[50][:, 50:]
    # No probability is left, and nothing that a sum of products could turn into no number.
    assert rest.shape[1] == LLAMA["vocab_size"] - 50
    assert np.isfinite(rest).all() and (rest < -1e20).all()


@pytest.mark.parametrize("drafted", [131, 0, -1, "many"])
def test_impossible_numbers_of_drafted_tokens_are_refused(tmp_path: Path, drafted: Any) -> None:
    source = write_source(tmp_path / "source", LLAMA | {"drafted_tokens": drafted}, grid=False)
    with pytest.raises(DamagedFileError, match="drafted_tokens"):
        convert_drafter(source, tmp_path / "drafter")
    assert not (tmp_path / "drafter").exists()


@settings(max_examples=50)
@given(
    rows=st.integers(1, 5),
    blocks=st.integers(1, 4),
    seed=st.integers(0, 1000),
    half=st.booleans(),
)
def test_grids_are_found_and_nothing_else(rows: int, blocks: int, seed: int, half: bool) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((rows, 32 * blocks)).astype(np.float32)
    assert exact_blocks4(weight) is None
    weight = on_grid(weight)
    if half:
        weight = weight.astype(np.float16).astype(np.float32)
    rounded = exact_blocks4(weight)
    assert rounded is not None
    codes, scales = rounded
    levels = np.stack([codes & 15, codes >> 4], axis=-1).reshape(rows, -1, 32).astype(np.float32)
    restored = ((levels - 8) * scales[..., None]).reshape(weight.shape)
    np.testing.assert_allclose(restored, weight, atol=2e-3 * np.abs(weight).max())


def test_the_shipped_drafter_lies_on_the_grid(tmp_path: Path) -> None:
    drafter = Path(__file__).resolve().parents[1] / "drafter"
    manifest = convert_drafter(drafter, tmp_path / "drafter")
    assert manifest.quantization == "4bit"
    size = json.loads((drafter / "config.json").read_text())["vocab_size"]
    assert manifest.vocab_size == size
    # All of it: half a byte a weight, and a scale for each 32.
    weights = (tmp_path / "drafter" / "model.onnx.data").stat().st_size
    assert weights < 14e6 * (0.5 + 4 / 32) * 1.2
