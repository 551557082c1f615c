"""QNN bundles: the static graph, its quantization, and what the chip's emulation makes of it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import needs
from numpy.typing import NDArray
from onnx import ModelProto, load
from test_convert import LLAMA as SMALL
from test_convert import random_weights, write_safetensors
from tiny import write_drafter

from omnidraft.export.checkpoint import Checkpoint, Decoder, open_checkpoint
from omnidraft.export.conversion import convert
from omnidraft.export.graphs.qdq import observe, quantize, round_weights
from omnidraft.export.graphs.static import StaticGraph, fix, write_static_graph
from omnidraft.export.pipeline import export
from omnidraft.export.recipes import Options, find_recipe
from omnidraft.export.recipes.qnn import compare, compile_graph
from omnidraft.export.socs import DEFAULT_SOC, find_soc, soc_names
from omnidraft.runtime.engines import open_engine
from omnidraft.runtime.engines.model import HiddenStates
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.engines.qnn import StaticDecoder
from omnidraft.runtime.errors import (
    ContextOverflowError,
    DamagedFileError,
    MissingDependencyError,
    OmniDraftError,
)
from omnidraft.runtime.storage.bundle import Bundle

CONTEXT, RANK = 96, 4
TEXTS = [list(np.random.default_rng(seed).integers(3, 400, 70)) for seed in range(6)]


def silent(stage: str, done: int, total: int) -> None:
    pass


def decoder_of(model: ModelProto, sizes: tuple[int, ...] = (1, 8)) -> StaticDecoder:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return StaticDecoder(
        {
            size: ort.InferenceSession(fix(model, size, CONTEXT).SerializeToString(), options)
            for size in sizes
        }
    )


def adapter(shapes: Mapping[str, tuple[int, int]], rank: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(5)
    sizes = {
        name: (shape[0], rank) if name.endswith(".A") else (rank, shape[1])
        for name, shape in shapes.items()
    }
    return {
        name: (rng.standard_normal(size) * 0.1).astype(np.float32) for name, size in sizes.items()
    }


@dataclasses.dataclass
class Merged:
    """A checkpoint with an adapter added to its weights."""

    base: Checkpoint
    adapter: Mapping[str, NDArray[np.float32]]

    @property
    def decoder(self) -> Decoder:
        return self.base.decoder

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        rows = self.base.rows(name, start, stop)
        layer, _, part = name.partition(".")
        d = self.decoder
        joined = {
            "qkv": ("q", "k", "v"),
            "o": ("o",),
            "gate_up": ("gate", "up"),
            "down": ("down",),
        }
        heads = {"q": d.heads, "k": d.kv_heads, "v": d.kv_heads}
        sizes = {part: count * d.head_size for part, count in heads.items()}
        for linear, parts in joined.items():
            if part in parts:
                a, b = (self.adapter[f"lora.{layer}.{linear}.{half}"] for half in "AB")
                widths = [sizes.get(p, b.shape[1] // len(parts)) for p in parts]
                first = sum(widths[: parts.index(part)])
                delta = (a @ b).T[first : first + widths[parts.index(part)]]
                return rows + delta[start:stop]
        return rows


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter") / "checkpoint", seed=1)


@pytest.fixture(scope="module")
def graph(source: Path) -> StaticGraph:
    return write_static_graph(open_checkpoint(source), CONTEXT, RANK)


@pytest.fixture(scope="module")
def quantized(graph: StaticGraph) -> ModelProto:
    return quantize(graph, observe(graph, TEXTS, silent), silent)


@pytest.fixture(scope="module")
def static(graph: StaticGraph) -> StaticDecoder:
    return decoder_of(graph.model)


@pytest.fixture(scope="module")
def plain(source: Path, tmp_path_factory: pytest.TempPathFactory) -> OnnxModel:
    folder = tmp_path_factory.mktemp("plain") / "model"
    convert(source, folder, "float32")
    return OnnxModel(folder)


def test_a_static_graph_of_a_drafter_with_biases(tmp_path: Path) -> None:
    config = SMALL | {"attention_bias": True, "mlp_bias": True}
    source = write_safetensors(tmp_path / "source", config, random_weights(config))
    convert(source, tmp_path / "plain", "float32")
    static = decoder_of(write_static_graph(open_checkpoint(source), CONTEXT, RANK).model)
    tokens = np.random.default_rng(0).integers(0, config["vocab_size"], 40)
    expected = OnnxModel(tmp_path / "plain").forward(tokens)
    np.testing.assert_allclose(static.forward(tokens), expected, rtol=0, atol=1e-4)


@settings(max_examples=15)
@given(steps=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 12)), max_size=4))
def test_static_graph_computes_the_decoder(
    static: StaticDecoder, plain: OnnxModel, steps: list[tuple[int, int]]
) -> None:
    rng = np.random.default_rng(len(steps))
    static.set_adapter(None)
    plain.truncate(0)
    for count, dropped in steps:
        tokens = rng.integers(0, plain.vocab_size, count)
        rows = max(1, count // 2)
        found = static.forward(tokens, rows)
        np.testing.assert_allclose(found, plain.forward(tokens, rows), atol=2e-4, rtol=1e-4)
        for model in (static, plain):
            model.truncate(max(0, model.length - dropped))
        assert static.length == plain.length


def test_hidden_states_are_what_the_head_reads(
    source: Path, static: StaticDecoder, quantized: ModelProto
) -> None:
    head = open_checkpoint(source).rows("head")
    assert isinstance(static, HiddenStates) and static.hidden_size == head.shape[1]
    found = decoder_of(quantized)
    for decoder, error in ((static, 1e-5), (found, 0.02)):
        decoder.set_adapter(None)
        logits = decoder.forward(TEXTS[0][:13])[-1]  # the last pass is padded
        again = head @ decoder.last_hidden()
        assert np.linalg.norm(again - logits) < error * np.linalg.norm(logits)


def test_the_context_can_be_filled_and_not_exceeded(
    static: StaticDecoder, plain: OnnxModel
) -> None:
    tokens = np.random.default_rng(1).integers(0, plain.vocab_size, CONTEXT)
    static.set_adapter(None)
    plain.truncate(0)
    assert static.max_length == CONTEXT
    np.testing.assert_allclose(static.forward(tokens), plain.forward(tokens), atol=2e-4, rtol=1e-4)
    with pytest.raises(ContextOverflowError):
        static.forward([1])
    assert static.length == CONTEXT


@pytest.mark.parametrize("rank", [RANK, RANK - 1])
def test_an_adapter_adds_to_the_weights(source: Path, static: StaticDecoder, rank: int) -> None:
    values = adapter(static.lora_shapes, rank)
    static.set_adapter(values)
    merged = write_static_graph(Merged(open_checkpoint(source), values), CONTEXT, 0)
    found = static.forward(TEXTS[0][:20])
    np.testing.assert_allclose(
        found, decoder_of(merged.model).forward(TEXTS[0][:20]), atol=1e-3, rtol=1e-3
    )
    static.set_adapter(None)
    assert static.length == 0
    assert np.abs(static.forward(TEXTS[0][:20]) - found).max() > 0.1


def test_adapters_that_do_not_fit(static: StaticDecoder) -> None:
    with pytest.raises(OmniDraftError, match=f"--lora-rank {RANK + 1}"):
        static.set_adapter(adapter(static.lora_shapes, RANK + 1))
    with pytest.raises(OmniDraftError, match="no input"):
        static.set_adapter({"lora.9.o.A": np.zeros((64, RANK), np.float32)})


def test_quantized_graph_is_near_the_float_one(
    quantized: ModelProto, static: StaticDecoder
) -> None:
    found = decoder_of(quantized)
    for values in (None, adapter(static.lora_shapes, RANK)):
        for decoder in (found, static):
            decoder.set_adapter(values)
        for text in TEXTS[:2]:
            for decoder in (found, static):
                decoder.truncate(0)
            expected, logits = static.forward(text), found.forward(text)
            assert np.linalg.norm(logits - expected) < 0.04 * np.linalg.norm(expected)


def test_only_lora_is_left_in_floating_point(quantized: ModelProto, graph: StaticGraph) -> None:
    from_integers = {
        node.output[0] for node in quantized.graph.node if node.op_type == "DequantizeLinear"
    }
    others = {
        name
        for node in quantized.graph.node
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear")
        and node.name not in graph.lora_nodes
        for name in node.input
    }
    integers = {"tokens", "positions"}
    integers |= {t.name for t in quantized.graph.initializer if t.name.startswith("integers_")}
    assert others <= from_integers | integers
    types = {value.name: value.type.tensor_type.elem_type for value in quantized.graph.input}
    assert types["mask"] == 2 and types["past.0.key"] == types["past.1.value"] == 5
    assert types["lora.0.qkv.A"] == 1


@settings(max_examples=20)
@given(rows=st.integers(1, 30), columns=st.integers(1, 20), seed=st.integers(0, 99))
def test_weights_of_unrelated_inputs_are_rounded_to_the_nearest(
    rows: int, columns: int, seed: int
) -> None:
    weight = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    levels, scales = round_weights(weight, np.eye(rows) * 7)
    np.testing.assert_allclose(scales, np.abs(weight).max(axis=0) / 127, rtol=1e-6)
    assert np.abs(levels * scales - weight).max() <= scales.max() / 2 * 1.001


def test_weights_of_related_inputs_make_up_for_each_other() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 8)) @ rng.standard_normal((8, 64))
    x += 0.1 * rng.standard_normal(x.shape)
    weight = rng.standard_normal((64, 32)).astype(np.float32)
    levels, scales = round_weights(weight, x.T @ x)
    nearest = np.rint(weight / scales) * scales
    errors = [np.linalg.norm(x @ (rounded - weight)) for rounded in (levels * scales, nearest)]
    assert errors[0] < errors[1] / 2


def test_a_drafter_that_is_too_large_is_refused(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnidraft.export.graphs.static._LARGEST", 10_000)
    with pytest.raises(OmniDraftError, match="smaller drafter"):
        write_static_graph(open_checkpoint(source), CONTEXT, 0)


def test_socs() -> None:
    assert find_soc(None).name == DEFAULT_SOC == find_soc(DEFAULT_SOC.lower()).name
    assert len({find_soc(name).model_id for name in soc_names()}) == len(soc_names())
    with pytest.raises(OmniDraftError) as caught:
        find_soc("SM1")
    assert "SM1" in str(caught.value)
    assert all(name in str(caught.value) for name in soc_names())


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    with pytest.raises(MissingDependencyError, match="pip install onnxruntime-qnn"):
        find_recipe("qnn").check(Options())


def test_training_is_refused() -> None:
    with pytest.raises(OmniDraftError, match="--train-step"):
        find_recipe("qnn").check(Options(train_step=True))


# --- with onnxruntime-qnn ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("onnxruntime_qnn")
    folder = tmp_path_factory.mktemp("qnn") / "bundle"
    export(str(source), folder, "qnn", Options(lora_rank=RANK, context=CONTEXT, soc="SM8750"))
    return folder


def test_a_bundle_runs_in_emulation(bundle: Path, static: StaticDecoder) -> None:
    manifest = Bundle.load(bundle)
    assert manifest.soc is not None and manifest.soc.emulation is not None
    assert (manifest.soc.name, manifest.soc.model_id) == ("SM8750", 69)
    assert manifest.soc.emulation.relative_error < 0.03
    assert [graph.tokens for graph in manifest.decoders] == [8, 1]
    assert manifest.parity is not None and manifest.parity.measured_with.endswith("emulated")
    model = open_engine(bundle)
    assert isinstance(model, StaticDecoder) and model.emulated
    values = adapter(static.lora_shapes, RANK)
    for current in (None, values):
        for decoder in (model, static):
            decoder.set_adapter(current)
        found, expected = model.forward(TEXTS[0][:13]), static.forward(TEXTS[0][:13])
        assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


def test_a_bundle_tells_how_its_integers_are_read(
    bundle: Path, static: StaticDecoder, quantized: ModelProto
) -> None:
    manifest = Bundle.load(bundle)
    assert manifest.soc is not None and not manifest.soc.shared_weights
    for graph in manifest.decoders:
        model = load(bundle / graph.file)
        told = {tensor.name: tensor for tensor in (*graph.inputs, *graph.outputs)}
        assert told.keys() == {v.name for v in (*model.graph.input, *model.graph.output)}
        assert told["hidden"].dtype == told["logits"].dtype == "float32"
        assert (told["mask"].dtype, told["mask"].zero_point) == ("uint8", 255)
        assert told["mask"].scale == pytest.approx(100 / 255)
        for name in ("past.0.key", "present.0.key", "past.1.value", "present.1.value"):
            assert (told[name].dtype, told[name].zero_point) == ("int16", 0)
            # What leaves a pass enters the next one as it is.
            assert told[name].scale == told[name.replace("present", "past")].scale
        key = next(value for value in model.graph.input if value.name == "past.0.key")
        assert f"(stored - 0) x {told['past.0.key'].scale:.9g}" in key.doc_string
        properties = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
        quantized_names = properties["omnidraft.quantized"]
        assert quantized_names["past.0.key"]["scale"] == told["past.0.key"].scale
        assert "mask" in graph.usage and graph.usage == model.graph.doc_string
    # The scales are those of the graph: a key in integers is the key.
    model = decoder_of(quantized)
    static.set_adapter(None)
    ids = np.array(TEXTS[0][:1])
    exact, stored = (d.run(ids, 1)["present.0.key"] for d in (static, model))
    parameters = {t.name: t for t in quantized.graph.initializer}
    scale = np.frombuffer(parameters["present.0.key.scale"].raw_data, np.float32)
    assert np.abs(stored * scale - exact).max() < 0.05 * np.abs(exact).max()
    static.truncate(0)


def test_one_binary_with_shared_weights(source: Path, tmp_path: Path) -> None:
    """It is compiled here and proven by its unshared twins; only a chip can load it."""
    needs("onnxruntime_qnn")
    options = Options(lora_rank=0, context=CONTEXT, share_weights=True)
    manifest = export(str(source), tmp_path / "shared", "qnn", options)
    assert manifest == Bundle.load(tmp_path / "shared")
    assert manifest.soc is not None and manifest.soc.shared_weights
    assert manifest.soc.emulation is not None and manifest.parity is not None and manifest.latency
    (binary,) = (name for name in manifest.files if name.endswith(".bin"))
    nodes = [
        {a.name: a.s for a in load(tmp_path / "shared" / graph.file).graph.node[0].attribute}
        for graph in manifest.decoders
    ]
    assert [node["ep_cache_context"].decode() for node in nodes] == [binary, binary]
    assert len({node["partition_name"] for node in nodes}) == 2
    assert (tmp_path / "shared" / "README.md").is_file()
    with pytest.raises(OmniDraftError, match="without --share-weights"):
        open_engine(tmp_path / "shared")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shared"]


def test_sharing_is_for_compiled_graphs(source: Path, tmp_path: Path) -> None:
    with pytest.raises(OmniDraftError, match="the onnx backend has the weights once"):
        export(str(source), tmp_path / "out", options=Options(share_weights=True))
    assert not (tmp_path / "out").exists()


def test_qualcomms_libraries_do_not_write_into_json(bundle: Path) -> None:
    code = (
        "from pathlib import Path; from omnidraft.runtime.engines import open_engine; import sys;"
        "open_engine(Path(sys.argv[1])).forward([1]); print('{}')"
    )
    command = [sys.executable, "-c", code, str(bundle)]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"{}\n"


def test_a_damaged_context_is_refused(bundle: Path) -> None:
    context = next(bundle.glob("decoder_8*.bin"))
    content = context.read_bytes()
    context.write_bytes(content[: len(content) // 2])
    try:
        with pytest.raises(DamagedFileError):
            open_engine(bundle)
    finally:
        context.write_bytes(content)


def test_a_graph_that_is_compiled_wrongly_is_noticed(quantized: ModelProto, tmp_path: Path) -> None:
    needs("onnxruntime_qnn")
    soc = find_soc(None)
    other = ModelProto()
    other.CopyFrom(quantized)
    norm = next(t for t in other.graph.initializer if t.name == "0.mlp_norm.scale")
    norm.raw_data = (np.frombuffer(norm.raw_data, np.float32) * np.float32(1.5)).tobytes()
    sources, compiled = {}, {}
    for tokens in (8, 1):
        sources[tokens] = tmp_path / f"source_{tokens}.onnx"
        compiled[tokens] = tmp_path / f"compiled_{tokens}.onnx"
        sources[tokens].write_bytes(fix(other, tokens, CONTEXT).SerializeToString())
        compile_graph(sources[tokens], compiled[tokens], soc)
        sources[tokens].write_bytes(fix(quantized, tokens, CONTEXT).SerializeToString())
    with pytest.raises(OmniDraftError, match="emulation"):
        compare(sources, compiled, TEXTS, soc)


def test_no_space_left(quantized: ModelProto, tmp_path: Path) -> None:
    """A small limit on a file's size, which the compiled graph exceeds, for a full disk."""
    needs("onnxruntime_qnn")
    source = tmp_path / "decoder.onnx"
    source.write_bytes(fix(quantized, 1, CONTEXT).SerializeToString())
    code = """
import resource, signal, sys
from pathlib import Path
from omnidraft.export.recipes.qnn import compile_graph
from omnidraft.export.socs import find_soc
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.storage.folders import whole_folder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    with whole_folder(Path(sys.argv[2])) as folder:
        compile_graph(Path(sys.argv[1]), folder / "compiled.onnx", find_soc(None))
except OmniDraftError as error:
    print(error)
"""
    command = [sys.executable, "-c", code, str(source), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.endswith("is full; nothing was kept. Free space and try again.\n")
    assert list(tmp_path.iterdir()) == [source]


def test_libraries_say_nothing_of_themselves(bundle: Path) -> None:
    command = [sys.executable, "-m", "omnidraft", "inspect", str(bundle), "--verify", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    report = json.loads(done.stdout)
    assert report["verified"]["latency"]["emulated"]
    assert {part["bits"]: part["products"] for part in report["weights"]} == {8: 9, 16: 0}


def test_nodes_left_to_the_cpu_are_refused(quantized: ModelProto, tmp_path: Path) -> None:
    needs("onnxruntime_qnn")
    # An older chip, which has no product of two 16-bit activations.
    soc = find_soc(None).model_copy(update={"name": "SM8450", "model_id": 36})
    path = tmp_path / "decoder.onnx"
    path.write_bytes(fix(quantized, 1, CONTEXT).SerializeToString())
    with pytest.raises(OmniDraftError, match="SM8450"):
        compile_graph(path, tmp_path / "compiled.onnx", soc)
