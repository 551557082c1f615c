"""Engines for models that were not converted here keep the contract of ``CausalModel``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from needs import needs
from onnx import parser
from tiny import write_target
from toy import ToyModel

from omnidraft.runtime.engines import ENGINES, engine_of, open_engine, registry
from omnidraft.runtime.engines.external_onnx import ExternalOnnxModel
from omnidraft.runtime.engines.invariance import batch_noise
from omnidraft.runtime.engines.model import CausalModel, reserve_cache
from omnidraft.runtime.engines.registry import EngineSpec
from omnidraft.runtime.errors import (
    ContextOverflowError,
    DamagedFileError,
    ModelNotFoundError,
    OmniDraftError,
    OptionError,
)
from omnidraft.runtime.models.resolve import resolve

pytestmark = pytest.mark.usefixtures("all_cores")

VOCAB, HEADS, SIZE = 50, 2, 8
TOKENS = np.random.default_rng(0).integers(0, VOCAB, 20)

# One layer of causal attention, as optimum names its inputs and outputs.
CONCAT_GRAPH = """
<ir_version: 8, opset_import: ["" : 17]>
decoder (int64[1,n] input_ids, int64[1,t] attention_mask, int64[1,n] position_ids{branch},
         {kv}[1,2,p,8] past_0_key, {kv}[1,2,p,8] past_0_value)
  => (float[1,n,50] logits, {kv}[1,2,t,8] present_0_key, {kv}[1,2,t,8] present_0_value) {{
  one = Constant<value_ints = [1]>()
  zero = Constant<value_ints = [0]>()
  split = Constant<value_ints = [0, 0, 2, 8]>()
  merged = Constant<value_ints = [0, 0, 16]>()
  embedded = Gather(table, input_ids)
  shaped = Reshape(embedded, split)
  q = Transpose<perm = [0, 2, 1, 3]>(shaped)
  new = Cast<to = {kv_type}>(q)
  present_0_key = Concat<axis = 2>(past_0_key, new)
  present_0_value = Concat<axis = 2>(past_0_value, new)
  k = Cast<to = 1>(present_0_key)
  v = Cast<to = 1>(present_0_value)
  kt = Transpose<perm = [0, 1, 3, 2]>(k)
  scores = MatMul(q, kt)
  columns = CumSum(attention_mask, one)
  before = Sub(columns, one)
  across = Unsqueeze(before, one)
  two = Constant<value_ints = [2]>()
  down = Unsqueeze(position_ids, two)
  hidden3 = Greater(across, down)
  hidden = Unsqueeze(hidden3, one)
  low = Constant<value_float = -1e9>()
  masked = Where(hidden, low, scores)
  weights = Softmax<axis = -1>(masked)
  mixed = MatMul(weights, v)
  back = Transpose<perm = [0, 2, 1, 3]>(mixed)
  flat = Reshape(back, merged)
  out = Add(flat, embedded)
  logits = MatMul(out, head)
}}
"""
# The same kind of layer with GroupQueryAttention, as onnxruntime-genai's builder writes it.
SHARED_GRAPH = """
<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
decoder (int64[1,n] input_ids, int64[1,t] attention_mask,
         float[1,2,p,8] past_0_key, float[1,2,p,8] past_0_value)
  => (float[1,n,v] logits, float[1,2,s,8] present_0_key, float[1,2,s,8] present_0_value) {
  one = Constant<value_ints = [1]>()
  embedded = Gather(table, input_ids)
  count = ReduceSum<keepdims = 0>(attention_mask, one)
  last = Sub(count, one)
  seqlens = Cast<to = 6>(last)
  shape = Shape(attention_mask)
  where = Constant<value_int = 1>()
  length = Gather(shape, where)
  total = Cast<to = 6>(length)
  mixed, present_0_key, present_0_value =
    com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 2>(
      embedded, embedded, embedded, past_0_key, past_0_value,
      seqlens, total)
  out = Add(mixed, embedded)
  logits = MatMul(out, head)
}
"""


# The text format allows no dots in names.
NAMES = {
    f"{short}_0_{part}": f"{name}.0.{part}"
    for short, name in (("past", "past_key_values"), ("present", "present"))
    for part in ("key", "value")
}


def _write_graph(path: Path, text: str) -> None:
    model = parser.parse_model(text)
    for node in model.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = NAMES.get(name, name)
    for value in (*model.graph.input, *model.graph.output):
        value.name = NAMES.get(value.name, value.name)
    rng = np.random.default_rng(1)
    for name, shape in (("table", (VOCAB, HEADS * SIZE)), ("head", (HEADS * SIZE, VOCAB))):
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def _concat_graph(path: Path, *, half: bool = False, merged: bool = False) -> None:
    text = CONCAT_GRAPH.format(
        kv="float16" if half else "float",
        kv_type=10 if half else 1,
        branch=", bool[1] use_cache_branch" if merged else "",
    )
    _write_graph(path, text)


def _genai_folder(folder: Path, *, shared: bool) -> Path:
    _write_graph(folder / "model.onnx", SHARED_GRAPH)
    config = {
        "model": {
            "context_length": 64,
            "decoder": {"filename": "model.onnx", "num_key_value_heads": 2, "head_size": 8},
        },
        "search": {"past_present_share_buffer": shared},
    }
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder


def check_contract(model: CausalModel, tolerance: float) -> None:
    """One token at a time, in passes and after truncation, the rows are the same."""
    tokens = TOKENS % model.vocab_size
    assert model.length == 0
    whole = model.forward(tokens).copy()
    assert whole.shape == (len(tokens), model.vocab_size)
    assert whole.dtype == np.float32
    assert model.length == len(tokens)
    model.truncate(0)
    single = np.concatenate([model.forward([token]).copy() for token in tokens])
    np.testing.assert_allclose(single, whole, atol=tolerance)
    model.truncate(5)
    assert model.length == 5
    model.forward(tokens[::-1][:7])  # other tokens, to be forgotten again
    model.truncate(5)
    np.testing.assert_allclose(model.forward(tokens[5:], rows=3), whole[-3:], atol=tolerance)
    with pytest.raises(ValueError, match="truncate"):
        model.truncate(model.length + 1)
    with pytest.raises(ValueError, match="truncate"):
        model.truncate(-1)
    for wrong in ({"tokens": []}, {"tokens": [1], "rows": 2}, {"tokens": [1], "rows": 0}):
        with pytest.raises(ValueError, match="rows"):
            model.forward(**wrong)  # type: ignore[arg-type]
    before = model.length
    with pytest.raises(ContextOverflowError):
        model.forward([1] * (model.max_length - before + 1))
    assert model.length == before


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("name", ["model.onnx", "onnx/decoder_model_merged.onnx"])
def test_decoder_with_growing_cache(name: str, merged: bool, half: bool, tmp_path: Path) -> None:
    _concat_graph(tmp_path / name, half=half, merged=merged)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64}')
    assert engine_of(tmp_path) == "external-onnx"
    check_contract(open_engine(tmp_path), 1e-4 if not half else 1e-2)


def test_what_a_path_holds_chooses_the_engine(tmp_path: Path) -> None:
    for name, files, engine in (
        ("gguf", ["model.gguf"], "transformers"),
        ("graph", ["model.onnx"], "external-onnx"),
        ("checkpoint", ["folder/config.json", "folder/model.safetensors"], "transformers"),
        ("decoder", ["folder/config.json", "folder/onnx/model.onnx"], "external-onnx"),
        (
            "both",
            ["folder/config.json", "folder/model.safetensors", "folder/onnx/model.onnx"],
            "transformers",
        ),
        (
            "genai",
            ["folder/genai_config.json", "folder/config.json", "folder/model.safetensors"],
            "external-onnx",
        ),
        ("converted", ["folder/omnidraft-model.json", "folder/model.onnx"], "onnx"),
    ):
        for file in files:
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"{}")
        path = tmp_path / name / files[0].split("/")[0]
        assert engine_of(path) == engine, name


@pytest.mark.parametrize(
    ("files", "named", "match"),
    [
        (["a.gguf", "b.GGUF"], ".", r"name one of its GGUF files \(a\.gguf, b\.GGUF\)"),
        (["config.json", "model.safetensors"], "config.json", "name its folder"),
        (["config.json", "model.safetensors"], "model.safetensors", "name its folder"),
        (["model.safetensors"], "model.safetensors", r"holds no model\."),
    ],
)
def test_what_lies_near_is_named(tmp_path: Path, files: list[str], named: str, match: str) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(ModelNotFoundError, match=match):
        engine_of(tmp_path / named)


def test_a_new_engine_is_a_file_and_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def load(path: Path, threads: int, context: int | None) -> CausalModel:
        loaded.append((path, threads, context))
        return ToyModel(5)

    path = tmp_path / "model.made-up"
    with pytest.raises(ModelNotFoundError, match=r"holds no model\. Known are: a folder that"):
        engine_of(path)
    path.touch()
    spec = EngineSpec(load=load, opens=lambda path: path.suffix == ".made-up", what="a wish")
    module = SimpleNamespace(ENGINE=spec)
    monkeypatch.setitem(sys.modules, "omnidraft.runtime.engines.made_up", module)
    with pytest.raises(OptionError, match="engine must be one of onnx, "):
        open_engine(path, "made-up")
    monkeypatch.setattr(registry, "ENGINES", (*ENGINES, "made-up"))
    assert open_engine(path, threads=3).vocab_size == 5
    assert loaded == [(path, 3, None)]
    with pytest.raises(OptionError, match="made-up takes no context"):
        open_engine(path, context=9)
    with pytest.raises(ModelNotFoundError, match="a wish"):
        engine_of(tmp_path / "nothing")


@pytest.mark.parametrize("ours", [True, False])
def test_threads_sleep_once_a_pass_has_ended(
    ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would take the cores of the other model's threads, or of the host's work."""
    monkeypatch.setenv("OMNIDRAFT_CACHE", str(tmp_path / "cache"))
    target = tmp_path / "target"
    folder = resolve(str(write_target(target))) if ours else _genai_folder(tmp_path, shared=True)
    opened: list[ort.SessionOptions] = []
    session = ort.InferenceSession

    def recorded(graph: str, options: ort.SessionOptions, **others: Any) -> ort.InferenceSession:
        opened.append(options)
        return session(graph, options, **others)

    monkeypatch.setattr(ort, "InferenceSession", recorded)
    open_engine(folder, threads=3)
    (options,) = opened
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"


@pytest.mark.parametrize("shared", [False, True])
def test_genai_decoder(shared: bool, tmp_path: Path) -> None:
    model = ExternalOnnxModel(_genai_folder(tmp_path, shared=shared))
    assert model.max_length == 64
    check_contract(model, 1e-4)


def test_a_shared_buffer_changes_nothing(tmp_path: Path) -> None:
    one, other = (
        ExternalOnnxModel(_genai_folder(tmp_path / str(shared), shared=shared))
        for shared in (True, False)
    )
    np.testing.assert_allclose(one.forward(TOKENS), other.forward(TOKENS), atol=1e-5)


def test_long_passes_are_cut(tmp_path: Path) -> None:
    _concat_graph(tmp_path / "model.onnx")
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 1000}')
    tokens = np.random.default_rng(2).integers(0, VOCAB, 600)
    model = ExternalOnnxModel(tmp_path)
    whole = model.forward(tokens).copy()
    model.truncate(0)
    np.testing.assert_allclose(model.forward(tokens, rows=300), whole[-300:], atol=1e-4)
    model.truncate(0)
    np.testing.assert_allclose(model.forward(tokens, rows=1), whole[-1:], atol=1e-4)


def test_batch_noise_measures_and_empties(tmp_path: Path) -> None:
    _concat_graph(tmp_path / "model.onnx")
    model = ExternalOnnxModel(tmp_path)
    assert 0.0 <= batch_noise(model, context=10) < 1e-3
    assert model.length == 0


def test_graphs_that_are_no_decoders(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        ExternalOnnxModel(tmp_path)
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a graph")
    with pytest.raises(DamagedFileError, match="cannot be loaded"):
        ExternalOnnxModel(tmp_path)
    text = "<ir_version: 8, opset_import: ['' : 17]> g (float[1] x) => (float[1] y) {y = Abs(x)}"
    onnx.save(parser.parse_model(text.replace("'", '"')), path)
    with pytest.raises(DamagedFileError, match="KV cache"):
        ExternalOnnxModel(tmp_path)
    value = "past_0_value)"
    _write_graph(path, SHARED_GRAPH.replace(value, value[:-1] + ", float[1] pixels)", 1))
    with pytest.raises(DamagedFileError, match="pixels"):
        ExternalOnnxModel(tmp_path)


def test_the_converted_graph_is_what_transformers_computes(tmp_path: Path) -> None:
    needs("torch")
    needs("transformers")
    from omnidraft.export.conversion import convert

    checkpoint = write_target(tmp_path / "checkpoint")
    assert engine_of(checkpoint) == "transformers"
    reference = open_engine(checkpoint)
    check_contract(reference, 1e-4)
    convert(checkpoint, tmp_path / "converted", "float32")
    converted = open_engine(tmp_path / "converted")
    reference.truncate(0)
    expected = reference.forward(TOKENS)
    np.testing.assert_allclose(converted.forward(TOKENS), expected, atol=2e-4)


def test_a_model_of_the_genai_builder(tmp_path: Path) -> None:
    needs("onnxruntime_genai")
    needs("transformers")
    checkpoint = write_target(tmp_path / "checkpoint")
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(checkpoint)]
    command += ["-o", str(tmp_path / "genai"), "-c", str(tmp_path / "cache")]
    subprocess.run([*command, "-p", "fp32", "-e", "cpu"], check=True, capture_output=True)
    model = open_engine(tmp_path / "genai")
    assert engine_of(tmp_path / "genai") == "external-onnx"
    check_contract(model, 1e-3)
    reference = open_engine(checkpoint)
    model.truncate(0)
    np.testing.assert_allclose(model.forward(TOKENS), reference.forward(TOKENS), atol=1e-3)


def test_a_cache_that_cannot_be_reserved_is_said() -> None:
    with pytest.raises(OmniDraftError, match=r"GB for the keys and values of 7 tokens.*context=…"):
        reserve_cache({"k": (2**50,), "v": (2**50,)}, np.float32, 7)
