"""A quantized GGUF's weights are taken over as they are: ``--quantization auto``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoint_files import KV_HEADS, SIZE, Weights, gguf_tensors, random_weights, write_gguf
from numpy.typing import NDArray
from onnx import TensorProto, helper, load, numpy_helper
from test_native_operators import session
from tiny import write_target

from omnidraft.export import conversion
from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.export.checkpoint.blocks import TAKEN, Form, taken_apart
from omnidraft.export.conversion import convert
from omnidraft.export.graphs.blocks import pack, packed_shape
from omnidraft.export.loss import divergence
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.errors import DamagedFileError
from omnidraft.runtime.models.listing import list_models
from omnidraft.runtime.models.resolve import resolve
from omnidraft.runtime.storage.manifest import Manifest

pytestmark = pytest.mark.usefixtures("all_cores")

# Where the halves of each type lie in its bytes.
HALVES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q6_K": (208,),
}
HIDDEN = 256


def some_rows(kind: str, rows: int, width: int, exponents: tuple[int, int]) -> NDArray[np.uint8]:
    """Any bits, but for halves with exponents (and 15 for 2^0) of a range."""
    rng = np.random.default_rng(0)
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    stored = rng.integers(0, 256, (rows, width // block, size), np.uint8)
    for at in HALVES[kind]:
        shape = stored.shape[:2]
        bits = rng.integers(0, 1024, shape) | rng.integers(*exponents, shape) << 10
        bits |= rng.integers(0, 2, shape) << 15
        stored[..., at : at + 2] = bits.astype("<u2")[..., None].view(np.uint8)
    return stored.reshape(rows, -1)


def operator(name: str, first: int, form: Form) -> Any:
    inputs = {"first": first, "weights": TensorProto.UINT8, "units": TensorProto.FLOAT}
    node = helper.make_node(name, list(inputs), ["y"], domain="omnidraft", form=int(form))
    return session(node, inputs, {"y": TensorProto.FLOAT})


def held(form: Form, weights: NDArray[np.uint8], units: NDArray[np.float32]) -> NDArray[np.float32]:
    """The matrix that is computed with."""
    inputs = {"first": np.arange(len(units)), "weights": weights, "units": units}
    (matrix,) = operator("BlockRows", TensorProto.INT64, form).run(None, inputs)
    found: NDArray[np.float32] = matrix
    return found


def test_what_is_known_of_types_is_the_librarys() -> None:
    for kind, (_, size, _) in TAKEN.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1] == size


@pytest.mark.parametrize("kind", TAKEN)
def test_no_value_changes(kind: str) -> None:
    """Of any bits, halves below the normal ones and the largest among them."""
    form, rows = TAKEN[kind][0], 37
    raw = some_rows(kind, rows, 512, (0, 31))
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
    weights = np.zeros(packed_shape(form, rows, 512), np.uint8)
    for start in (0, 20):
        pack(weights, taken_apart(kind, raw[start : start + 20]), start)
    units = np.ones(rows, np.float32)
    assert np.array_equal(held(form, weights, units), expected)
    units = np.ldexp(units, np.arange(rows) % 5)
    assert np.array_equal(held(form, weights, units), expected * units[:, None])


@pytest.mark.parametrize("kind", TAKEN)
def test_products_are_those_of_the_values_held(kind: str) -> None:
    form, rows = TAKEN[kind][0], 50
    raw = some_rows(kind, rows, 512, (8, 16))
    matrix = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind]).astype(np.float64)
    weights = np.zeros(packed_shape(form, rows, 512), np.uint8)
    pack(weights, taken_apart(kind, raw), 0)
    x = np.random.default_rng(1).standard_normal((70, 512)).astype(np.float32)
    inputs = {"first": x, "weights": weights, "units": np.ones(rows, np.float32)}
    linear = operator("BlockLinear", TensorProto.FLOAT, form)
    (found,) = linear.run(None, inputs)
    blocks = x.reshape(-1, 32).astype(np.float64)
    steps = np.abs(blocks).max(axis=-1, keepdims=True) / 127
    expected = (np.rint(blocks / steps) * steps).reshape(x.shape) @ matrix.T
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    for i in range(len(x)):
        (row,) = linear.run(None, inputs | {"first": x[i : i + 1]})
        assert np.array_equal(row[0], found[i])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"first": np.array([37])}, "tokens must be"),
        ({"first": np.array([-1])}, "tokens must be"),
        ({"units": np.ones(49, np.float32)}, "units must be"),
        ({"weights": np.zeros((3, 16, 320), np.uint8)}, "weights must be"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], said: str) -> None:
    inputs = {
        "first": np.array([36]),
        "weights": np.zeros((3, 16, 288), np.uint8),
        "units": np.ones(37, np.float32),
    }
    rows = operator("BlockRows", TensorProto.INT64, Form.SCALED4)
    assert rows.run(None, inputs)[0].shape == (1, 512)
    with pytest.raises(Exception, match=said):
        rows.run(None, inputs | changes)
    with pytest.raises(Exception, match="form must be"):
        operator("BlockRows", TensorProto.INT64, 7)  # type: ignore[arg-type]


# --- whole files -------------------------------------------------------------------------------


def quantized(path: Path, kinds: dict[str, str], tied: bool = False) -> Path:
    """A tiny Llama, of which tensors whose names end as ``kinds`` says are of its types."""
    tensors: Weights = {}
    rng = np.random.default_rng(1)
    for name, value in gguf_tensors(random_weights()).items():
        shape = list(value.shape)
        if "ffn_down" in name or "attn_output" in name or len(shape) == 1:
            shape[0] = HIDDEN
        if "ffn_down" not in name and "attn_output" not in name:
            shape[-1] = HIDDEN
        tensors[name] = (rng.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)
        if len(shape) == 1:
            tensors[name] = 1 + tensors[name]
    if tied:
        del tensors["output.weight"]
    types = {}
    for name, value in tensors.items():
        kind = next((kind for end, kind in kinds.items() if name.endswith(f"{end}.weight")), None)
        if kind is None or value.ndim == 1:
            continue
        known = types[name] = gguf.GGMLQuantizationType[kind]
        try:
            tensors[name] = gguf.quantize(value, known)
        except NotImplementedError:  # in about the same range
            tensors[name] = some_rows(kind, *value.shape, (1, 3))
    return write_gguf(path, tensors, types=types, hidden=HIDDEN)


MIXES = {
    "Q4_0": {"": "Q4_0"},
    "Q8_0": {"": "Q8_0"},
    "Q4_1 and Q5_1": {"ffn_down": "Q5_1", "": "Q4_1"},
    "like Q4_K_M": {
        "attn_v": "Q6_K",
        "attn_output": "Q5_0",
        "ffn_down": "Q8_0",
        "output": "Q6_K",
        "0.attn_q": "Q5_K",
        "": "Q4_K",
    },
    "floats among them": {"attn_k": "F32", "ffn_up": "F16", "output": "F16", "": "Q4_0"},
    "types that are not taken": {"attn_k": "Q3_K", "": "Q4_0"},
}


@pytest.mark.parametrize("tied", [False, True], ids=["head", "tied"])
@pytest.mark.parametrize("kinds", MIXES.values(), ids=MIXES)
def test_a_files_weights_are_those_of_the_graph(
    tmp_path: Path, kinds: dict[str, str], tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "Q3_K" in kinds.values():
        monkeypatch.setitem(HALVES, "Q3_K", (108,))
    source = quantized(tmp_path / "tiny.gguf", kinds, tied)
    folder = tmp_path / "converted"
    manifest = convert(source, folder, "auto")
    assert manifest.batch_invariant and manifest.quantization == "auto"
    matrices = 15 if tied else 16
    assert sum(manifest.weights.values()) == matrices
    assert set(manifest.weights) == {
        kind if kind in TAKEN else f"{kind} → Q8_0" for kind in kinds.values()
    }
    checkpoint = open_checkpoint(source)
    model = load(folder / "model.onnx")
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    seen = 0
    for node in model.graph.node:
        if node.op_type not in ("BlockLinear", "BlockRows"):
            continue
        weights, units = (numpy_helper.to_array(stored[name]) for name in node.input[1:])
        names = node.input[1].split("+")
        expected = np.concatenate([checkpoint.rows(name) for name in names])
        found = held(Form(node.attribute[0].i), weights, units)
        exact = all(checkpoint.kind(name) in TAKEN for name in names)  # type: ignore[attr-defined]
        assert np.array_equal(found, expected) or not exact
        np.testing.assert_allclose(found, expected, rtol=0, atol=np.abs(expected).max() / 250)
        seen += len(names)
    assert seen == matrices + tied  # embedding and head are one matrix


@pytest.mark.parametrize("kinds", [MIXES["Q4_0"], MIXES["like Q4_K_M"]], ids=["Q4_0", "Q4_K_M"])
def test_answers_are_those_of_the_dequantized_weights(
    tmp_path: Path, kinds: dict[str, str]
) -> None:
    """But for the rounding of inputs to 8 bits in blocks of 32."""
    source = quantized(tmp_path / "tiny.gguf", kinds)
    logits = []
    for quantization in ("float32", "auto"):
        convert(source, tmp_path / quantization, quantization)  # type: ignore[arg-type]
        model = OnnxModel(tmp_path / quantization)
        logits.append(model.forward(np.arange(100)).copy())
    error = np.abs(logits[1] - logits[0]).mean() / np.abs(logits[0]).mean()
    assert 0 < error < 0.03


@pytest.mark.parametrize(("largest", "chosen"), [(0.0, "8bit"), (math.inf, "4bit")])
def test_a_float_checkpoint_gets_four_bits_where_they_lose_little(
    tmp_path: Path, largest: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "LARGEST_LOSS", largest)
    source = write_target(tmp_path / "target")
    text = list(range(40))
    for quantization in (chosen, "auto"):
        manifest = convert(source, tmp_path / quantization, quantization, calibration=text)  # type: ignore[arg-type]
        assert chosen in manifest.weights and manifest.quantization == quantization
        assert (manifest.loss is None) == (quantization != "auto")
    assert manifest == Manifest.load(tmp_path / "auto")
    assert manifest.loss is not None and manifest.loss > 0
    assert manifest.choice_text.startswith(f"auto took {chosen[0]} bits: 4 bits differ from 8 by")
    held = {"4bit": "4bit, 8bit", "8bit": "8bit"}[chosen]
    assert manifest.weights_text == f"auto: {held} (4 bits: KL {manifest.loss:.3f})"
    for name in ("model.onnx", "model.onnx.data"):
        assert (tmp_path / chosen / name).read_bytes() == (tmp_path / "auto" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "auto").iterdir()) == sorted(
        path.name for path in (tmp_path / chosen).iterdir()
    )


def test_a_float_checkpoint_without_a_text_gets_eight_bits(tmp_path: Path) -> None:
    manifest = convert(write_target(tmp_path / "target"), tmp_path / "auto", "auto")
    assert list(manifest.weights) == ["8bit"] and manifest.loss is None


def test_a_text_longer_than_the_context_is_cut(tmp_path: Path) -> None:
    source = write_target(tmp_path / "target", context=96)
    for quantization in ("4bit", "8bit", "auto"):
        convert(source, tmp_path / quantization, quantization, calibration=list(range(200)))  # type: ignore[arg-type]
        assert OnnxModel(tmp_path / quantization).max_length == 96


def test_the_loss_is_the_divergence_of_what_is_likely(tmp_path: Path) -> None:
    source = write_target(tmp_path / "target")
    for quantization in ("4bit", "8bit"):
        convert(source, tmp_path / quantization, quantization)  # type: ignore[arg-type]
    tokens = list(range(20))
    p, q = (
        OnnxModel(tmp_path / each).forward(tokens).astype(np.float64) for each in ("8bit", "4bit")
    )
    p, q = (rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True)) for rows in (p, q))
    expected = (np.exp(p) * (p - q)).sum(axis=-1).mean()
    assert divergence(tmp_path / "8bit", tmp_path / "4bit", tokens) == pytest.approx(expected, 1e-3)
    assert divergence(tmp_path / "8bit", tmp_path / "8bit", tokens) == 0


def test_a_scale_that_is_no_number_is_named(tmp_path: Path) -> None:
    source = quantized(tmp_path / "tiny.gguf", MIXES["Q4_0"])
    tensor = next(t for t in gguf.GGUFReader(source).tensors if t.name == "blk.1.ffn_up.weight")
    data = bytearray(source.read_bytes())
    data[tensor.data_offset : tensor.data_offset + 2] = b"\x00\x7c"
    source.write_bytes(data)
    with pytest.raises(
        DamagedFileError, match=r"blk\.1\.ffn_up\.weight holds weights that are NaN"
    ):
        convert(source, tmp_path / "converted", "auto")
    assert not (tmp_path / "converted").exists()


def test_people_are_told_what_became_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIDRAFT_CACHE", str(tmp_path / "cache"))
    source = quantized(tmp_path / "tiny.gguf", MIXES["floats among them"])
    folder = resolve(str(source))
    assert folder.name.endswith("-auto")
    (listed,) = [model for model in list_models() if model.path == folder]
    assert listed.state == "ready" and listed.quantization == "auto"
    assert listed.weights == "auto: F16 → Q8_0, F32 → Q8_0, Q4_0"
    assert Manifest.load(folder).weights == {"F16 → Q8_0": 5, "F32 → Q8_0": 2, "Q4_0": 9}


def test_rows_of_interleaved_heads_are_ordered(tmp_path: Path) -> None:
    source = quantized(tmp_path / "tiny.gguf", MIXES["Q8_0"])
    checkpoint: Any = open_checkpoint(source)
    blocks = checkpoint.blocks("0.k", 3, 20)
    values = blocks.codes * blocks.factors.astype(np.float32)
    assert np.array_equal(values.reshape(17, -1), checkpoint.rows("0.k", 3, 20))
    assert checkpoint.height("0.k") == KV_HEADS * SIZE
