"""The operators that the extension brings to ONNX Runtime, through ONNX Runtime."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from omnidraft import _native
from omnidraft.runtime.engines.onnx_session import OLDEST_ONNXRUNTIME, cpu_session
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError

HEADS, KV_HEADS, SIZE, LENGTH, ROWS = 4, 2, 8, 96, 5


def session(node: NodeProto, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> Any:
    def values(types: Mapping[str, int]) -> list[Any]:
        return [helper.make_tensor_value_info(name, kind, None) for name, kind in types.items()]

    graph = helper.make_graph([node], "graph", values(inputs), values(outputs))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("omnidraft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(_native.__file__)
    return ort.InferenceSession(model.SerializeToString(), options)


def attention(cache: int = TensorProto.FLOAT, **changes: Any) -> Any:
    attributes = {
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "window": 0,
        "scale": 0.5,
        "norm_epsilon": 1e-6,
    }
    integers = dict.fromkeys(("positions", "paths"), TensorProto.INT64)
    past = dict.fromkeys(("keys", "values"), cache)
    inputs = dict.fromkeys(attention_inputs(), TensorProto.FLOAT) | integers | past
    outputs = {"mixed": TensorProto.FLOAT, "present_keys": cache, "present_values": cache}
    names = [name for name in inputs if name != "paths"]
    node = helper.make_node(
        *("Attention", [*names, "", "", "paths"], list(outputs)),
        domain="omnidraft",
        **(attributes | changes),
    )
    return session(node, inputs, outputs)


def attention_inputs() -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(0)
    shapes = {
        "qkv": (1, ROWS, (HEADS + 2 * KV_HEADS) * SIZE),
        "positions": (1, ROWS),
        "cosines": (LENGTH, SIZE // 2),
        "sines": (LENGTH, SIZE // 2),
        "keys": (LENGTH, KV_HEADS, SIZE),
        "values": (LENGTH, KV_HEADS, SIZE),
    }
    inputs: dict[str, NDArray[Any]] = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    paths = np.empty((ROWS, 0), np.int64)
    return inputs | {"positions": np.arange(50, 50 + ROWS)[None], "paths": paths}


NUMBERS = pytest.mark.parametrize(
    ("number", "kind"),
    [(np.float32, TensorProto.FLOAT), (np.float16, TensorProto.FLOAT16)],
    ids=["float32", "float16"],
)


@NUMBERS
def test_a_cache_that_is_not_updated_in_place_is_copied(number: type, kind: int) -> None:
    """As for a program that gives the past and takes the present, without binding them."""
    inputs = attention_inputs()
    inputs |= {name: inputs[name].astype(number) for name in ("keys", "values")}
    before = {name: value.copy() for name, value in inputs.items()}
    mixed, keys, values = attention(kind).run(None, inputs)
    assert mixed.shape == (1, ROWS, HEADS * SIZE)
    for name, value in inputs.items():
        assert np.array_equal(value, before[name])
    rows = inputs["qkv"][0, :, (HEADS + KV_HEADS) * SIZE :].reshape(ROWS, KV_HEADS, SIZE)
    assert np.array_equal(values[50 : 50 + ROWS], rows.astype(number))
    others = np.r_[0:50, 50 + ROWS : LENGTH]
    assert np.array_equal(values[others], inputs["values"][others])
    # Keys are kept in tiles of 48 positions.
    changed = (keys != inputs["keys"]).reshape(2, KV_HEADS, SIZE, 48).any(axis=(1, 2)).reshape(-1)
    assert np.flatnonzero(changed).tolist() == list(range(50, 50 + ROWS))


@NUMBERS
def test_nodes_of_a_tree_see_their_paths(number: type, kind: int) -> None:
    """The siblings in slots 60 and 61 follow the chain of 50; 70 and 72 follow 61 and 70."""
    inputs = attention_inputs()
    inputs |= {name: inputs[name].astype(number) for name in ("keys", "values")}
    paths = np.array([[60, -1, -1], [61, -1, -1], [61, 70, -1], [61, 70, 72], [60, 90, -1]])
    positions = 49 + (paths >= 0).sum(axis=1)
    run = attention(kind).run
    tree, keys, values = run(None, inputs | {"positions": positions[None], "paths": paths})
    rows = inputs["qkv"][0, :, (HEADS + KV_HEADS) * SIZE :].reshape(ROWS, KV_HEADS, SIZE)
    assert np.array_equal(values[[60, 61, 70, 72, 90]], rows.astype(number))
    changed = (keys != inputs["keys"]).reshape(2, KV_HEADS, SIZE, 48).any(axis=(1, 2)).reshape(-1)
    assert np.flatnonzero(changed).tolist() == [60, 61, 70, 72, 90]
    for path in ([0], [1, 2, 3], [0, 4]):
        chain = {
            "qkv": inputs["qkv"][:, path],
            "positions": np.arange(50, 50 + len(path))[None],
            "paths": np.empty((len(path), 0), np.int64),
        }
        assert np.array_equal(run(None, inputs | chain)[0][0], tree[0, path])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("positions", np.full((1, ROWS), LENGTH), "position"),
        ("positions", np.full((1, ROWS), -1), "position"),
        ("positions", np.zeros((1, ROWS + 1), np.int64), "positions"),
        ("positions", np.zeros((0, ROWS), np.int64), "positions"),
        ("positions", np.zeros((2, ROWS), np.int64), "positions"),
        ("qkv", np.zeros((1, ROWS, 3), np.float32), "qkv"),
        ("qkv", np.zeros(3, np.float32), "qkv"),
        ("keys", np.zeros((50, KV_HEADS, SIZE), np.float32), "past"),
        ("values", np.zeros((LENGTH, KV_HEADS + 1, SIZE), np.float32), "past"),
        ("sines", np.zeros((LENGTH, SIZE), np.float32), "sines"),
        ("paths", np.zeros((ROWS + 1, 0), np.int64), "paths"),
        ("paths", np.zeros(ROWS, np.int64), "paths"),
        ("paths", np.full((ROWS, 1), LENGTH), "outside the cache"),
        ("paths", np.full((ROWS, 1), 49), "in the chain"),
        ("paths", np.full((ROWS, 2), 60), "ascend"),
        ("paths", np.tile(np.arange(60), (ROWS, 1)), "longer than"),
    ],
)
def test_what_does_not_fit_is_named(name: str, value: NDArray[Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        attention().run(None, attention_inputs() | {name: value})


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("activation", [0, 1])
def test_a_gate(activation: int, rows: int) -> None:
    node = helper.make_node("Gate", ["x"], ["y"], domain="omnidraft", activation=activation)
    run = session(node, {"x": TensorProto.FLOAT}, {"y": TensorProto.FLOAT}).run
    x = np.random.default_rng(1).normal(size=(1, rows, 2 * 1100)).astype(np.float32)
    gate, up = np.split(x.astype(np.float64), 2, axis=-1)
    inner = gate if activation == 0 else 1.5957691216057308 * (gate + 0.044715 * gate**3)
    expected = gate / (1 + np.exp(-inner)) * up
    assert np.allclose(run(None, {"x": x})[0], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(Exception, match="2 \\* width"):
        run(None, {"x": x[..., 1:]})


def test_lengths_that_are_no_whole_tiles_are_refused() -> None:
    part = np.zeros((50, KV_HEADS, SIZE), np.float32)
    inputs = attention_inputs() | {"keys": part, "values": part}
    with pytest.raises(Exception, match="multiple of 48"):
        attention().run(None, inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_heads": 3}, "multiple of kv_heads"),
        ({"kv_heads": 0}, "multiple of kv_heads"),
        ({"window": -1}, "attributes"),
        ({"cap": -1.0}, "cap must not be negative"),
        ({"heads": 2**61, "kv_heads": 1}, "attributes"),
    ],
)
def test_attributes_that_make_no_sense_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(Exception, match=message):
        attention(**change)


def test_rows_are_quantized_apart() -> None:
    node = helper.make_node("QuantizeRows", ["x"], ["levels", "steps"], domain="omnidraft")
    outputs = {"levels": TensorProto.UINT8, "steps": TensorProto.FLOAT}
    x = np.array([[[1, -2, 0.25]], [[300, 0, -150]]], np.float32)
    levels, steps = session(node, {"x": TensorProto.FLOAT}, outputs).run(None, {"x": x})
    assert levels.tolist() == [[[128 + 64, 1, 128 + 16]], [[255, 128, 128 - 64]]]
    np.testing.assert_allclose(steps, [[[2 / 127]], [[300 / 127]]], rtol=1e-6)


def linear() -> Any:
    inputs = {
        "levels": TensorProto.UINT8,
        "steps": TensorProto.FLOAT,
        "weights": TensorProto.INT8,
        "scales": TensorProto.FLOAT,
        "sums": TensorProto.INT32,
    }
    node = helper.make_node("IntegerLinear", list(inputs), ["y"], domain="omnidraft")
    return session(node, inputs, {"y": TensorProto.FLOAT})


def linear_inputs(panels: int = 40, width: int = 64) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(1)
    weights = rng.integers(-127, 128, (panels, width // 4, 16, 4)).astype(np.int8)
    return {
        "levels": rng.integers(0, 256, (1, 3, width)).astype(np.uint8),
        "steps": rng.uniform(0.1, 1, (1, 3, 1)).astype(np.float32),
        "weights": weights,
        "scales": rng.uniform(0.1, 1, panels * 16).astype(np.float32),
        "sums": weights.sum(axis=(1, 3), dtype=np.int32).reshape(-1),
    }


@pytest.mark.parametrize("panels", [1, 40, 301])  # of which several threads take parts
def test_linears_are_exact(panels: int) -> None:
    inputs = linear_inputs(panels)
    matrix = inputs["weights"].transpose(0, 2, 1, 3).reshape(panels * 16, -1)
    sums = (inputs["levels"].astype(np.int64) - 128) @ matrix.astype(np.int64).T
    expected = sums.astype(np.float32) * inputs["scales"] * inputs["steps"]
    (found,) = linear().run(None, inputs)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("levels", (1, 3, 60)),
        ("steps", (1, 2, 1)),
        ("weights", (640, 64)),
        ("weights", (40, 0, 16, 4)),
        ("weights", (1, 16_385, 16, 4)),
        ("scales", (3,)),
    ],
)
def test_what_does_not_fit_a_linear_is_named(name: str, shape: tuple[int, ...]) -> None:
    inputs = linear_inputs()
    inputs[name] = np.zeros(shape, inputs[name].dtype)
    with pytest.raises(Exception, match=name):
        linear().run(None, inputs)


def block_linear() -> Any:
    inputs = {"x": TensorProto.FLOAT, "weights": TensorProto.UINT8, "units": TensorProto.FLOAT}
    node = helper.make_node("BlockLinear", list(inputs), ["y"], domain="omnidraft")
    return session(node, inputs, {"y": TensorProto.FLOAT})


def block_linear_inputs(
    rows: int = 3, outputs: int = 40, blocks: int = 2
) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(3)
    weights = np.empty((-(-outputs // 16), blocks, 320), np.uint8)
    weights[..., :256] = rng.integers(0, 256, (*weights.shape[:2], 256))
    halves = rng.uniform(-1, 1, (*weights.shape[:2], 32)).astype("<f2")
    weights[..., 256:] = halves.view(np.uint8)
    return {
        "x": rng.standard_normal((1, rows, blocks * 32)).astype(np.float32),
        "weights": weights,
        "units": rng.uniform(0.5, 2, outputs).astype(np.float32),
    }


def block_matrix(inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """The weights [outputs, width]."""
    weights = inputs["weights"]
    panels, blocks = weights.shape[:2]
    codes = weights[..., :256].reshape(panels, blocks, 4, 16, 4).transpose(0, 3, 1, 2, 4)
    codes = codes.reshape(panels * 16, blocks, 16)
    codes = np.concatenate([codes & 15, codes >> 4], axis=-1).astype(np.float64)
    halves = weights[..., 256:].copy().view("<f2").reshape(panels, blocks, 2, 16)
    scales, offsets = halves.transpose(2, 0, 3, 1).reshape(2, panels * 16, blocks, 1)
    matrix = (scales.astype(np.float64) * codes + offsets).reshape(panels * 16, -1)
    return matrix[: len(inputs["units"])] * inputs["units"][:, None]


@pytest.mark.parametrize(
    ("rows", "outputs", "blocks"), [(1, 16, 1), (0, 5, 1), (70, 33, 3), (3, 3000, 40)]
)
def test_4_bit_linears_treat_each_row_alone(rows: int, outputs: int, blocks: int) -> None:
    """Also where several threads share out the outputs, and the rows' quantization."""
    inputs = block_linear_inputs(rows, outputs, blocks)
    (found,) = block_linear().run(None, inputs)
    assert found.shape == (1, rows, outputs)
    x = inputs["x"].reshape(rows, blocks, 32).astype(np.float64)
    steps = np.abs(x).max(axis=-1, keepdims=True) / 127
    rounded = (np.rint(x / steps) * steps).reshape(rows, blocks * 32)
    expected = rounded @ block_matrix(inputs).T
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=3e-4 * blocks)
    for i in range(rows):
        (row,) = block_linear().run(None, inputs | {"x": inputs["x"][:, i : i + 1]})
        assert np.array_equal(row[0, 0], found[0, i])


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("x", (1, 3, 60)),
        ("x", ()),
        ("weights", (3, 2, 319)),
        ("weights", (3, 640)),
        ("units", (32,)),
        ("units", (49,)),
        ("units", (40, 1)),
        ("x", (1, 3, 0)),
    ],
)
def test_what_does_not_fit_a_4_bit_linear_is_named(name: str, shape: tuple[int, ...]) -> None:
    inputs = block_linear_inputs()
    inputs[name] = np.zeros(shape, inputs[name].dtype)
    with pytest.raises(Exception, match=rf"\b{name} must be"):
        block_linear().run(None, inputs)


def low_rank_inputs(shape: tuple[int, ...], rank: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(2)
    width, outputs = 40, 83
    shapes = {
        "base": (*shape, outputs),
        "x": (*shape, width),
        "a": (width, rank),
        "b": (rank, outputs),
    }
    return {name: rng.standard_normal(size).astype(np.float32) for name, size in shapes.items()}


def low_rank() -> Any:
    inputs = dict.fromkeys(("base", "x", "a", "b"), TensorProto.FLOAT)
    node = helper.make_node("AddLowRank", list(inputs), ["y"], domain="omnidraft")
    return session(node, inputs, {"y": TensorProto.FLOAT})


@pytest.mark.parametrize("rank", [0, 1, 7, 8, 32, 50])
@pytest.mark.parametrize("shape", [(1, 0), (1, 1), (1, 3), (4,), (2, 37)])
def test_what_a_lora_adds(shape: tuple[int, ...], rank: int) -> None:
    inputs = low_rank_inputs(shape, rank)
    before = {name: value.copy() for name, value in inputs.items()}
    (found,) = low_rank().run(None, inputs)
    wide = {name: value.astype(np.float64) for name, value in inputs.items()}
    expected = wide["base"] + wide["x"] @ wide["a"] @ wide["b"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)
    assert found.shape == (*shape, 83)
    for name, value in inputs.items():
        assert np.array_equal(value, before[name])
    # A row is the same bits whatever rows are beside it.
    rows = inputs["x"].reshape(-1, 40), inputs["base"].reshape(-1, 83)
    for i in range(len(rows[0])):
        alone = {"x": rows[0][i : i + 1], "base": rows[1][i : i + 1]}
        (row,) = low_rank().run(None, inputs | alone)
        assert np.array_equal(row[0], found.reshape(-1, 83)[i])


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("base", (1, 3, 82)),
        ("base", (1, 2, 83)),
        ("base", (3, 83)),
        ("x", (1, 3, 41)),
        ("x", ()),
        ("a", (40, 5)),
        ("a", (40,)),
        ("b", (83,)),
    ],
)
def test_a_lora_that_does_not_fit_is_named(name: str, shape: tuple[int, ...]) -> None:
    inputs = low_rank_inputs((1, 3), 4) | {name: np.zeros(shape, np.float32)}
    with pytest.raises(Exception, match=rf"\b{name} (must be )?\["):
        low_rank().run(None, inputs)


@pytest.mark.parametrize("version", ["0.9.1", "1.16.3", "1.17.0", "1.31.9", "1.9", "unknown", ""])
def test_an_older_onnxruntime_is_refused_before_it_is_asked(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort, "__version__", version)
    nothing: Any = None  # it is not touched
    with pytest.raises(OmniDraftError, match=rf"ONNX Runtime {version} .* 1\.32 or later"):
        cpu_session(Path("graph.onnx"), nothing)


@pytest.mark.parametrize("version", ["1.32.0", "1.33.0.dev20261101", "1.100", "2.0.1"])
def test_a_later_onnxruntime_is_taken(
    version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ort, "__version__", version)
    with pytest.raises(DamagedFileError, match=r"none\.onnx"):  # it came as far as the graph
        cpu_session(tmp_path / "none.onnx", ort.SessionOptions())


def test_the_oldest_onnxruntime_is_the_one_that_is_asked_for() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    oldest = ".".join(map(str, OLDEST_ONNXRUNTIME))
    assert f"onnxruntime>={oldest}" in project["dependencies"]


def test_operators_that_onnxruntime_refuses_are_an_error_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_native, "__file__", str(tmp_path / "none.so"))
    with pytest.raises(OmniDraftError, match=r"refuses OmniDraft's operators.*none\.so"):
        cpu_session(tmp_path / "graph.onnx", ort.SessionOptions())
