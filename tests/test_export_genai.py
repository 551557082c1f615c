"""Bundles under transformers' names: what onnxruntime-genai and optimum's users make of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import needs
from numpy.typing import NDArray
from onnx import load
from test_described_bundles import PROMPT, continued, greedy
from test_export import random_adapter
from tiny import write_drafter

from omnidraft.export.learnable import learnable_drafter
from omnidraft.export.pipeline import export
from omnidraft.export.recipes import Options, backends
from omnidraft.runtime.engines import engine_of, open_engine
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError
from omnidraft.runtime.storage.bundle import Bundle
from omnidraft.runtime.storage.lora import write_adapter
from omnidraft.runtime.text.tokenizer import Tokenizer

COUNT = 40
Outputs = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter") / "checkpoint", seed=1)


@pytest.fixture(scope="module")
def ours(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours") / "bundle"
    export(str(source), folder)
    return folder


@pytest.fixture(scope="module")
def bundle(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("genai") / "bundle"
    export(str(source), folder, options=Options(layout="genai"))
    return folder


@pytest.fixture(scope="module")
def session(bundle: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(bundle / "model.onnx"))


def forward(
    session: ort.InferenceSession, tokens: list[int], past: int, cache: Outputs
) -> tuple[NDArray[np.float32], Outputs]:
    """One pass as optimum's consumers make it, with ``past`` tokens in the cache."""
    names = [value.name for value in session.get_outputs()]
    inputs = {
        "input_ids": np.array([tokens], np.int64),
        "attention_mask": np.ones((1, past + len(tokens)), np.int64),
        "position_ids": np.arange(past, past + len(tokens), dtype=np.int64)[None],
    }
    outputs = dict(zip(names, session.run(names, inputs | cache), strict=True))
    kept = {name: outputs[name.replace("past_key_values", "present")] for name in cache}
    return outputs["logits"][0], kept


def empty(session: ort.InferenceSession, length: int = 0) -> Outputs:
    return {
        value.name: np.zeros((1, value.shape[1], length, value.shape[3]), np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past_key_values.")
    }


def test_operators_are_onnx_runtimes_own(bundle: Path) -> None:
    graph = load(bundle / "model.onnx", load_external_data=False).graph
    assert {node.domain for node in graph.node} == {"", "com.microsoft"}
    names = [value.name for value in graph.input if not value.name.startswith("lora.")]
    assert names[:3] == ["input_ids", "attention_mask", "position_ids"]
    assert names[3:5] == ["past_key_values.0.key", "past_key_values.0.value"]
    outputs = [value.name for value in graph.output]
    assert outputs[:3] == ["logits", "present.0.key", "present.0.value"]


def test_it_is_proven_equal_and_says_the_same(bundle: Path, ours: Path) -> None:
    described, other = Bundle.load(bundle), Bundle.load(ours)
    assert (described.layout, other.layout) == ("genai", "omnidraft")
    assert described.parity is not None and other.parity is not None
    assert described.parity.top1_agreement == pytest.approx(other.parity.top1_agreement, abs=0.01)
    assert described.weights == other.weights
    assert engine_of(bundle) == "external-onnx"
    assert greedy(bundle, COUNT) == greedy(ours, COUNT)
    readme = (bundle / "README.md").read_text()
    assert "`past_key_values.i.key`" in readme and "`position_ids`" in readme


@settings(max_examples=15)
@given(
    steps=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 8)), min_size=1, max_size=4),
    room=st.sampled_from([0, 64]),
)
def test_a_cache_that_grows_and_is_cut(
    session: ort.InferenceSession,
    ours: Path,
    steps: list[tuple[int, int]],
    room: int,
) -> None:
    """What grows is cut when tokens are dropped; in a buffer with room the mask says it."""
    model, cache, length = OnnxModel(ours, threads=1), empty(session, room), 0
    rng = np.random.default_rng(len(steps))
    for count, dropped in steps:
        tokens = rng.integers(3, 400, count).tolist()
        logits, cache = forward(session, tokens, length, cache)
        np.testing.assert_allclose(logits, model.forward(tokens), rtol=0, atol=1e-2)
        length = max(0, length + count - dropped)
        model.truncate(length)
        if not room:
            cache = {name: values[:, :, :length] for name, values in cache.items()}


def test_onnxruntime_genai_says_the_same(bundle: Path, ours: Path, tmp_path: Path) -> None:
    genai = needs("onnxruntime_genai")
    model = genai.Model(str(bundle))
    adapters = genai.Adapters(model)
    adapter = random_adapter(4)
    write_adapter(tmp_path / "a.onnx_adapter", adapter)
    adapters.load(str(tmp_path / "a.onnx_adapter"), "a")
    prompt = Tokenizer.load(bundle).encode(PROMPT)
    own = OnnxModel(ours, threads=1)
    answers = []
    for name in (None, "a"):
        parameters = genai.GeneratorParams(model)
        parameters.set_search_options(max_length=len(prompt) + COUNT)
        generator = genai.Generator(model, parameters)
        own.set_adapter(None)
        if name:
            generator.set_active_adapter(adapters, name)
            own.set_adapter(adapter)
        generator.append_tokens(np.array(prompt, np.int32))
        while not generator.is_done():
            generator.generate_next_token()
        expected = continued(own, prompt, {2}, COUNT)
        found = generator.get_sequence(0)[len(prompt) :].tolist()
        assert found == [token for token in expected if token != 2]  # it leaves out the end
        answers.append(found)
    assert answers[0] != answers[1]


def test_its_tokenizer_loads_in_onnxruntime_genai(bundle: Path) -> None:
    genai = needs("onnxruntime_genai")
    tokenizer = genai.Tokenizer(genai.Model(str(bundle)))
    ids = Tokenizer.load(bundle).encode(PROMPT)
    assert tokenizer.encode(PROMPT).tolist() in (ids, ids[1:])


def test_what_the_configurations_say(bundle: Path) -> None:
    geometry = Bundle.load(bundle).geometry
    genai = json.loads((bundle / "genai_config.json").read_text())["model"]
    config = json.loads((bundle / "config.json").read_text())
    assert genai["bos_token_id"] == config["bos_token_id"] == 1
    assert genai["eos_token_id"] == config["eos_token_id"] == [2]
    assert genai["context_length"] == config["max_position_embeddings"] == geometry.context_length
    assert genai["decoder"]["num_hidden_layers"] == config["num_hidden_layers"] == geometry.layers
    assert config["model_type"] == "llama" and config["vocab_size"] == geometry.vocab_size


def test_what_is_refused(source: Path, bundle: Path, tmp_path: Path) -> None:
    for backend in set(backends()) - {"onnx"}:
        with pytest.raises(OmniDraftError, match=f"{backend} backend has no layout genai"):
            export(str(source), tmp_path / "out", backend, Options(layout="genai"))
    with pytest.raises(OmniDraftError, match="take no --train-step"):
        export(str(source), tmp_path / "out", options=Options(layout="genai", train_step=True))
    with pytest.raises(OmniDraftError, match="without --layout"):
        learnable_drafter(str(bundle))
    weights = bundle / "model.onnx.data"
    content = weights.read_bytes()
    try:
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(DamagedFileError, match="checksum"):
            open_engine(bundle)
    finally:
        weights.write_bytes(content)


def test_the_command(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "omnidraft", "export", str(source), "--layout"]
    out = ["--output", str(tmp_path / "out"), "--lora-rank", "0", "--context", "64"]
    done = subprocess.run([*command, "genai", *out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "onnx, layout genai" in done.stdout
    assert Bundle.load(tmp_path / "out").lora is None
    done = subprocess.run([*command, "abacus", *out], capture_output=True, text=True)
    assert done.returncode == 2 and "one of omnidraft, genai" in done.stderr
