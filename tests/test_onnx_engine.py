"""The ONNX Runtime engine: bit-for-bit independence of how tokens are grouped, and its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import load
from test_convert import LLAMA, random_weights, write_safetensors

from omnidraft.export.conversion import Quantization, convert
from omnidraft.export.graphs import linears
from omnidraft.runtime.engines.environment import measured_here
from omnidraft.runtime.engines.invariance import measure_invariance
from omnidraft.runtime.engines.onnx import LENGTH_STEP, MAX_PASS, OnnxModel
from omnidraft.runtime.errors import ContextOverflowError

pytestmark = pytest.mark.usefixtures("all_cores")

TOKENS = np.random.default_rng(2).integers(0, LLAMA["vocab_size"], 3 * LENGTH_STEP + 60)


class Case:
    """A tiny model and its logits computed one token at a time."""

    def __init__(
        self, folder: Path, quantization: Quantization, kv_heads: int, head_size: int, threads: int
    ) -> None:
        config: dict[str, Any] = LLAMA | {"num_key_value_heads": kv_heads, "head_dim": head_size}
        source = write_safetensors(folder / "source", config, random_weights(config))
        convert(source, folder / "model", quantization)
        self.folder = folder / "model"
        self.model = OnnxModel(self.folder, threads=threads)
        # As ``load_model`` does where it was not measured with so many threads.
        manifest = measure_invariance(self.folder, self.model, lambda *_: None)
        assert measured_here(manifest)[self.model.threads].difference == 0
        manifest.save(self.folder)
        rows = [self.model.forward([token]).copy() for token in TOKENS]
        self.expected: NDArray[np.float32] = np.concatenate(rows)


@pytest.fixture(
    scope="module",
    params=[
        ("4bit", 2, 16, 2),
        ("4bit", 1, 256, 2),
        ("4bit", 4, 64, 4),
        ("8bit", 4, 16, 1),
        ("8bit", 2, 64, 8),
        ("float32", 2, 128, 4),
        ("float32", 1, 256, 8),
    ],
    ids=lambda p: f"{p[0]}-{p[1]}kv-{p[2]}-{p[3]}threads",
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("model"), *request.param)


@settings(max_examples=60)
@given(data=st.data())
def test_any_grouping_gives_the_same_bits(case: Case, data: st.DataObject) -> None:
    """Forwards of any sizes, with truncations between them, change no bit of any row."""
    model = case.model
    # Start near a length at which the bound cache grows, so that passes straddle it.
    start = data.draw(
        st.one_of(
            st.integers(0, 40),
            st.integers(LENGTH_STEP - 20, LENGTH_STEP + 4),
            st.integers(2 * LENGTH_STEP - 20, 2 * LENGTH_STEP + 4),
        )
    )
    model.truncate(0)
    if start:
        model.forward(TOKENS[:start], rows=1)
    for _ in range(data.draw(st.integers(1, 6))):
        position = model.length
        count = data.draw(st.integers(1, min(40, len(TOKENS) - position)))
        rows = data.draw(st.integers(1, count))
        result = model.forward(TOKENS[position : position + count], rows=rows)
        assert result.flags.c_contiguous and result.dtype == np.float32
        assert np.array_equal(result, case.expected[position + count - rows : position + count])
        # What is cut off is overwritten with other tokens, and cut off again.
        keep = data.draw(st.integers(max(0, model.length - 10), model.length))
        model.truncate(keep)
        other = data.draw(st.integers(0, 5))
        if other:
            model.forward(np.zeros(other, np.int64))
            model.truncate(keep)
        if model.length >= len(TOKENS) - 6:
            break


def test_long_passes_are_cut_without_a_trace(case: Case) -> None:
    case.model.truncate(0)
    assert len(TOKENS) > MAX_PASS
    rows = len(TOKENS) - MAX_PASS + 3
    assert np.array_equal(case.model.forward(TOKENS, rows=rows), case.expected[-rows:])
    case.model.truncate(0)
    assert np.array_equal(case.model.forward(TOKENS), case.expected)


def test_linears_of_any_kind_give_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours, and ONNX Runtime's, which bundles for any program have."""
    config = LLAMA | {"intermediate_size": 160, "vocab_size": 320}
    source = write_safetensors(tmp_path / "source", config, random_weights(config))
    logits, nodes = [], []
    for fast in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(linears.LinearWriter, "packed", fast)
            convert(source, tmp_path / "model", "8bit")
        nodes.append(
            {
                node.op_type
                for node in load(tmp_path / "model/model.onnx", load_external_data=False).graph.node
            }
        )
        model = OnnxModel(tmp_path / "model")
        logits.append([model.forward(TOKENS[:count] % 320).copy() for count in (1, 2, 40)])
    assert "IntegerLinear" in nodes[0] and "MatMulIntegerToFloat" in nodes[1]
    assert not nodes[0] & nodes[1] & {"IntegerLinear", "MatMulIntegerToFloat"}
    for ours, theirs in zip(*logits, strict=True):
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_was_cut_off_leaves_nothing(case: Case, value: float) -> None:
    """Keys and values that are not numbers, left by a prompt or a draft that overflowed."""
    model = OnnxModel(case.folder, threads=1)
    for cache in model._caches.values():
        cache.fill(value)
    assert np.array_equal(model.forward(TOKENS[:30]), case.expected[:30])
    for cache in model._caches.values():
        cache[LENGTH_STEP:] = value
    for start in (30, 31, 40):
        model.truncate(start)
        assert np.array_equal(model.forward(TOKENS[start:60]), case.expected[start:60])


def test_context_limit(case: Case) -> None:
    model = OnnxModel(case.folder, threads=1, max_length=50)
    assert (model.max_length, model.length, model.vocab_size) == (50, 0, LLAMA["vocab_size"])
    model.forward(TOKENS[:45])
    with pytest.raises(ContextOverflowError, match="50"):
        model.forward(TOKENS[45:51])
    assert model.length == 45
    assert np.array_equal(model.forward(TOKENS[45:50]), case.expected[45:50])


def test_wrong_arguments(case: Case) -> None:
    model = case.model
    model.truncate(0)
    model.forward(TOKENS[:3])
    for tokens in ([], [-1], [LLAMA["vocab_size"]]):
        with pytest.raises(ValueError):
            model.forward(tokens)
    for rows in (0, 3):
        with pytest.raises(ValueError):
            model.forward(TOKENS[:2], rows=rows)
    for length in (-1, 4):
        with pytest.raises(ValueError):
            model.truncate(length)
    assert model.length == 3
