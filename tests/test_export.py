"""Export: what a bundle computes, what LoRA adapters add, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hub import stand_in_hub
from hypothesis import given
from hypothesis import strategies as st
from needs import needs
from numpy.typing import NDArray
from onnx import load
from safetensors.numpy import load_file, save_file
from tiny import byte_level_tokenizer, sentencepiece_tokenizer, write_drafter, write_target

from omnidraft.export.calibration import calibration_texts, held_texts
from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.export.conversion import convert, convert_drafter
from omnidraft.export.graphs.gptq import quantize_blocks4_gptq
from omnidraft.export.latency import measure_latency
from omnidraft.export.learnable import learnable_drafter
from omnidraft.export.parity import Reference, make_reference, measure_parity, verify
from omnidraft.export.pipeline import export
from omnidraft.export.recipes import Options, backends, find_recipe
from omnidraft.export.socs import DEFAULT_SOC
from omnidraft.runtime.engines import open_engine
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.errors import (
    ContextOverflowError,
    DamagedFileError,
    MissingDependencyError,
    ModelNotFoundError,
    OmniDraftError,
)
from omnidraft.runtime.learning.training_step import TrainingStep
from omnidraft.runtime.storage.bundle import BUNDLE_FILE, Bundle
from omnidraft.runtime.storage.lora import complete_adapter
from omnidraft.runtime.text.tokenizer import tokenizer_files

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(3, 400, 120)
TEXTS = [TOKENS.tolist()]
# What a device need not have.
HEAVY = ("torch", "transformers", "onnx", "executorch", "gguf")
HIDDEN, INNER, HEADS, KV_HEADS, SIZE = 64, 96, 4, 2, 16  # of tiny.py's models
GEMMA = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "vocab_size": 130,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter") / "checkpoint", seed=1)


@pytest.fixture(scope="module")
def bundles(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The drafter as every kind of ONNX bundle."""
    root = tmp_path_factory.mktemp("bundles")
    for quantization in ("none", "int8", "int4"):
        options = Options(quantization)  # type: ignore[arg-type]
        export(str(checkpoint), root / quantization, options=options)
    return {path.name: path for path in root.iterdir()}


def logits(model: CausalModel) -> NDArray[np.float32]:
    model.truncate(0)
    return model.forward(TOKENS).copy()


# --- what a bundle computes ----------------------------------------------------------------------


def test_float32_computes_what_the_checkpoint_does(
    checkpoint: Path, bundles: dict[str, Path], tmp_path: Path
) -> None:
    convert(checkpoint, tmp_path / "converted", "float32")
    expected = logits(OnnxModel(tmp_path / "converted", threads=1))
    model = open_engine(bundles["none"], threads=1)
    np.testing.assert_allclose(logits(model), expected, rtol=0, atol=1e-4)
    model.truncate(50)
    for start, stop in ((50, 51), (51, 60), (60, 120)):
        part = model.forward(TOKENS[start:stop])
        np.testing.assert_allclose(part, expected[start:stop], rtol=0, atol=1e-4)


def add_biases(source: Path, parts: str = "qkv") -> None:
    """Make the weights those of a Qwen2, or of a Llama with biases."""
    tensors = load_file(source / "model.safetensors")
    for name, weight in list(tensors.items()):
        stem = name.removesuffix("_proj.weight")
        if stem != name and (parts == "all" or stem[-1] in parts):
            bias = RNG.normal(0, 0.3, len(weight)).astype(np.float32)
            tensors[f"{stem}_proj.bias"] = bias
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"model_type": "qwen2"}, "qkv"),
        ({"attention_bias": True, "mlp_bias": True}, "all"),
    ],
)
def test_a_drafter_of_another_family_that_computes_the_same(
    checkpoint: Path, tmp_path: Path, change: dict[str, Any], parts: str
) -> None:
    source = tmp_path / "source"
    shutil.copytree(checkpoint, source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | change))
    add_biases(source, parts)
    convert(source, tmp_path / "converted", "float32")
    expected = logits(OnnxModel(tmp_path / "converted", threads=1))
    export(str(source), tmp_path / "none", options=Options("none", lora_rank=2))
    export(str(source), tmp_path / "int8", options=Options("int8", lora_rank=2))
    convert_drafter(source, tmp_path / "own")
    for name, error in (("none", 1e-4), ("int8", 0.03), ("own", 0.03)):
        found = logits(open_engine(tmp_path / name, threads=1))
        assert np.linalg.norm(found - expected) < error * np.linalg.norm(expected), name


def test_quantized_bundles_are_near_and_smaller(bundles: dict[str, Path]) -> None:
    loaded = {name: Bundle.load(folder) for name, folder in bundles.items()}
    parity = {name: bundle.parity for name, bundle in loaded.items()}
    assert parity["none"] and parity["int8"] and parity["int4"]
    assert parity["none"].top1_agreement == 1.0 and parity["none"].kl < 1e-6
    assert parity["int8"].top1_agreement > 0.97 and parity["int8"].kl < 1e-3
    assert parity["int4"].acceptance_agreement > 0.9
    weights = {name: b.files["model.onnx.data"].size for name, b in loaded.items()}
    assert weights["int4"] < weights["int8"] < weights["none"] / 2
    assert all(b.latency and b.lora and b.lora.rank == 32 for b in loaded.values())


@pytest.mark.parametrize("tied", [False, True])
def test_four_bits_everywhere(
    tied: bool, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the price is no matter, every matrix has 4 bits and the tied ones are one."""
    source = tmp_path / "source"
    shutil.copytree(checkpoint, source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
    if tied:
        weights = load_file(source / "model.safetensors")
        del weights["lm_head.weight"]
        save_file(weights, source / "model.safetensors")
    recipe = sys.modules[type(find_recipe("onnx")).__module__]
    monkeypatch.setattr(recipe, "FOUR_BIT_BUDGET", 1e9)
    options = Options("int4", min_agreement=0.0)
    bundle = export(str(source), tmp_path / "out", options=options)
    vocab = bundle.geometry.vocab_size
    attention = HIDDEN * (2 * HEADS + 2 * KV_HEADS) * SIZE
    linears = 2 * (attention + 3 * HIDDEN * INNER)
    embeddings = (1 if tied else 2) * vocab * HIDDEN
    # 4 bits and a 32nd of a float32 for each; norms, rotary tables and page alignment beside.
    smallest = (linears + embeddings) * 5 / 8
    assert smallest < bundle.files["model.onnx.data"].size < smallest + 160_000
    assert bundle.parity is not None and bundle.parity.acceptance_agreement > 0.5
    assert [(part.bits, part.products, part.elements) for part in bundle.weights] == [
        (4, 9, linears + embeddings)
    ]
    assert bundle.promised_share == 1.0


def test_the_report_says_how_many_bits_the_weights_have(
    checkpoint: Path, bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a quantization is called, and of how much of it the name is true."""
    for name, bits in (("none", 32), ("int8", 8)):
        (part,) = Bundle.load(bundles[name]).weights
        assert (part.bits, part.products, part.share) == (bits, 9, 1.0)
    mixed = Bundle.load(bundles["int4"])
    stored = sum(part.elements * part.bits // 8 + part.elements // 8 for part in mixed.weights)
    data = mixed.files["model.onnx.data"].size
    # Scales are a float32 for each 32 weights; norms, rotary tables and page alignment beside.
    assert {part.bits for part in mixed.weights} == {4, 8} and stored < data < stored + 160_000
    shown = run("inspect", str(bundles["int4"])).stdout
    reported = json.loads(run("inspect", str(bundles["int4"]), "--json").stdout)["weights"]
    for part, entry in zip(mixed.weights, reported, strict=True):
        assert f"{part.share:.1%} have {part.bits} bits ({part.products} of 9" in shown
        assert entry == part.model_dump()
    recipe = sys.modules[type(find_recipe("onnx")).__module__]
    monkeypatch.setattr(recipe, "FOUR_BIT_BUDGET", 0.0)
    with pytest.warns(UserWarning, match=r"Only 0% .* 4 bits that int4 promises .*9 of 9"):
        bundle = export(str(checkpoint), tmp_path / "out", options=Options("int4"))
    assert bundle.promised_share == 0.0 and [part.bits for part in bundle.weights] == [8]


def test_rounding_makes_up_for_its_errors() -> None:
    """On inputs like those it saw, the output error is well below that of plain rounding."""
    mixing = RNG.standard_normal((64, 64)).astype(np.float32)
    inputs = (RNG.standard_normal((500, 64)) @ mixing).astype(np.float32)
    rows = RNG.standard_normal((40, 64)).astype(np.float32)

    def error(moments: NDArray[np.float32] | None) -> float:
        codes, scales = quantize_blocks4_gptq(rows, moments)
        nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(40, 64).astype(np.float32)
        restored = (nibbles - 8).reshape(40, 2, 32) * scales[..., None]
        assert np.abs(restored.reshape(40, 64) - rows).max() < np.abs(rows).max()
        return float(np.square(inputs @ (restored.reshape(40, 64) - rows).T).mean())

    assert error(inputs.T @ inputs) < 0.7 * error(None)


def test_held_text_is_not_calibrated_with() -> None:
    questions = [
        {text.splitlines()[0] for text in texts()} for texts in (held_texts, calibration_texts)
    ]
    assert all(questions) and not questions[0] & questions[1]


def test_parity_of_a_model_with_itself_and_with_another(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    model = open_engine(bundles["none"], threads=1)
    texts = [TOKENS[:70].tolist(), TOKENS[70:].tolist()]
    reference = make_reference(model, texts, 100)
    assert reference.lengths.tolist() == [50, 50]
    same = measure_parity(model, reference)
    assert (same.top1_agreement, same.kl, same.largest_logit_difference) == (1.0, 0.0, 0.0)
    assert same.acceptance_agreement == pytest.approx(1.0)
    convert(write_drafter(tmp_path / "other", seed=5), tmp_path / "converted", "float32")
    other = measure_parity(OnnxModel(tmp_path / "converted"), reference)
    assert other.kl > 0.5 and other.top1_agreement < 0.2 and other.acceptance_agreement < 0.5


def test_parity_against_all_of_the_vocabulary(bundles: dict[str, Path]) -> None:
    """The outcomes are the likeliest tokens and the rest as one: here by a plain computation."""
    exact, near = (open_engine(bundles[name], threads=1) for name in ("none", "int8"))
    parity = measure_parity(near, make_reference(exact, [TOKENS.tolist()], len(TOKENS)))
    p, q = (
        np.exp(rows - np.log(np.exp(rows).sum(1, keepdims=True)))
        for rows in (logits(exact).astype(np.float64), logits(near).astype(np.float64))
    )
    agreement = float((p.argmax(1) == q.argmax(1)).mean())
    assert parity.top1_agreement == pytest.approx(agreement)
    order = np.argsort(-p, axis=1)[:, :128]
    outcomes = []
    for rows in (p, q):
        best = np.take_along_axis(rows, order, axis=1)
        outcomes.append(np.concatenate([best, 1 - best.sum(1, keepdims=True)], axis=1))
    kl = (outcomes[0] * np.log(outcomes[0] / outcomes[1])).sum(1).mean()
    assert parity.kl == pytest.approx(kl, rel=1e-3, abs=1e-7)
    accepted = np.minimum(*outcomes).sum(1).mean()
    assert parity.acceptance_agreement == pytest.approx(accepted, rel=1e-5)


def test_verify_finds_a_false_report(bundles: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(bundles["int8"], folder)
    bundle = Bundle.load(folder)
    assert verify(bundle, folder, 1).ok
    assert bundle.parity is not None
    praised = bundle.parity.model_copy(update={"top1_agreement": 0.5})
    bundle.model_copy(update={"parity": praised}).save(folder)
    found = verify(Bundle.load(folder), folder, 1)
    assert not found.ok and "top1_agreement" in found.reason
    bundle.model_copy(update={"parity": None}).save(folder)
    with pytest.raises(DamagedFileError, match="no parity"):
        verify(Bundle.load(folder), folder, 1)


class Broken:
    """A model with one logit that is no number."""

    def __init__(self, model: CausalModel, value: float) -> None:
        self.model, self.value = model, value

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)

    def forward(self, tokens: NDArray[np.int64], rows: int | None = None) -> NDArray[np.float32]:
        logits = self.model.forward(tokens, rows).copy()
        logits[-1, 7] = self.value
        return logits


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_agrees_with_nothing(
    bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    model = open_engine(bundles["none"], threads=1)
    broken = Broken(model, value)
    reference = make_reference(model, [TOKENS.tolist()], 100)
    with pytest.raises(OmniDraftError, match="Broken are NaN or infinite"):
        make_reference(broken, [TOKENS.tolist()], 100)  # type: ignore[arg-type]
    with pytest.raises(OmniDraftError, match="Broken are NaN or infinite"):
        measure_parity(broken, reference)  # type: ignore[arg-type]
    monkeypatch.setattr("omnidraft.export.opening.open_engine", lambda *_, **__: broken)
    with pytest.raises(OmniDraftError, match="Broken are NaN or infinite"):
        verify(Bundle.load(bundles["none"]), bundles["none"], 1)
    reference.logits[3, 3] = value
    reference.save(tmp_path / "reference.npz")
    with pytest.raises(DamagedFileError, match="NaN or infinite"):
        Reference.load(tmp_path / "reference.npz")


def test_weights_that_are_no_numbers_are_not_exported(checkpoint: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(checkpoint, source)
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = np.nan
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DamagedFileError, match=r"layers.1.mlp.up_proj.weight.*NaN"):
        export(str(source), tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == [source]


# --- adapters ------------------------------------------------------------------------------------


def random_adapter(rank: int, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    sizes = {
        "qkv": (HIDDEN, (HEADS + 2 * KV_HEADS) * SIZE),
        "o": (HEADS * SIZE, HIDDEN),
        "gate_up": (HIDDEN, 2 * INNER),
        "down": (INNER, HIDDEN),
    }
    adapter = {}
    for layer in range(2):
        for linear, (width, height) in sizes.items():
            a = rng.standard_normal((width, rank)) * 0.1
            b = rng.standard_normal((rank, height)) * 0.1
            adapter[f"lora.{layer}.{linear}.A"] = a.astype(np.float32)
            adapter[f"lora.{layer}.{linear}.B"] = b.astype(np.float32)
    return adapter


def merged(checkpoint: Path, folder: Path, adapter: dict[str, NDArray[np.float32]]) -> Path:
    """A copy of a checkpoint with an adapter added to its weights."""
    parts = {
        "qkv": [
            ("self_attn.q_proj", HEADS * SIZE),
            ("self_attn.k_proj", KV_HEADS * SIZE),
            ("self_attn.v_proj", KV_HEADS * SIZE),
        ],
        "o": [("self_attn.o_proj", HIDDEN)],
        "gate_up": [("mlp.gate_proj", INNER), ("mlp.up_proj", INNER)],
        "down": [("mlp.down_proj", HIDDEN)],
    }
    shutil.copytree(checkpoint, folder)
    tensors = load_file(folder / "model.safetensors")
    for layer in range(2):
        for linear, names in parts.items():
            stem = f"lora.{layer}.{linear}"
            if f"{stem}.A" not in adapter:
                continue
            change = (adapter[f"{stem}.A"] @ adapter[f"{stem}.B"]).T
            start = 0
            for name, rows in names:
                full = f"model.layers.{layer}.{name}.weight"
                tensors[full] = tensors[full] + change[start : start + rows]
                start += rows
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("own", [False, True])
def test_an_adapter_is_what_merging_it_is(
    checkpoint: Path, bundles: dict[str, Path], tmp_path: Path, own: bool
) -> None:
    bundle = bundles["none"]
    if own:
        options = Options("none", own=True)
        bundle = tmp_path / "bundle"
        export(str(checkpoint), bundle, options=options)
    domains = {node.domain for node in load(bundle / "model.onnx").graph.node}
    assert ("omnidraft" in domains) == own  # else any program can run it
    model = OnnxModel(bundle, threads=1)
    base = logits(model)
    adapters = [random_adapter(8), random_adapter(3, seed=1)]
    adapters.append({n: v for n, v in random_adapter(4).items() if ".o." in n or ".1.qkv." in n})
    for number, adapter in enumerate(adapters):
        convert(
            merged(checkpoint, tmp_path / f"merged{number}", adapter),
            tmp_path / f"converted{number}",
            "float32",
        )
        expected = logits(OnnxModel(tmp_path / f"converted{number}", threads=1))
        model.set_adapter(adapter)
        assert model.length == 0
        np.testing.assert_allclose(logits(model), expected, rtol=0, atol=1e-4)
        assert np.abs(expected - base).max() > 0.1
    model.set_adapter(None)
    assert np.array_equal(logits(model), base)


def test_adapters_on_quantized_bundles(bundles: dict[str, Path]) -> None:
    exact = OnnxModel(bundles["none"], threads=1)
    near = OnnxModel(bundles["int8"], threads=1)
    plain = np.abs(logits(exact) - logits(near)).max()
    for model in (exact, near):
        model.set_adapter(random_adapter(32))
    assert np.abs(logits(exact) - logits(near)).max() < 4 * plain


def test_adapters_that_do_not_fit(
    bundles: dict[str, Path], checkpoint: Path, tmp_path: Path
) -> None:
    model = OnnxModel(bundles["none"], threads=1)
    adapter = random_adapter(4)
    model.set_adapter(adapter)
    expected = logits(model)
    a = adapter["lora.0.o.A"]
    for change in (
        {"lora.7.o.A": a, "lora.7.o.B": a},
        {"lora.0.o.A": a[:-1]},
        {"lora.0.o.A": a[:, :-1]},
        {"lora.0.o.A": a.astype(np.float64)},
        {"lora.0.o.A": a[0]},
        {"lora.0.o.B": adapter["lora.0.o.B"][:, :-1]},
    ):
        with pytest.raises(OmniDraftError, match="does not fit"):
            model.set_adapter(adapter | change)  # type: ignore[arg-type]
    with pytest.raises(OmniDraftError, match="other half"):
        model.set_adapter({"lora.0.o.A": a})
    assert np.array_equal(logits(model), expected)
    options = Options("none", lora_rank=0)
    assert export(str(checkpoint), tmp_path / "plain", options=options).lora is None
    without = OnnxModel(tmp_path / "plain", threads=1)
    with pytest.raises(OmniDraftError, match="no LoRA inputs"):
        without.set_adapter(adapter)
    without.set_adapter(None)


@given(
    smallest=st.integers(0, 5),
    extra=st.one_of(st.none(), st.integers(0, 3)),
    rank=st.integers(0, 8),
    given_names=st.sets(st.sampled_from(["lora.0.o", "lora.0.down"])),
)
def test_completing_an_adapter_changes_nothing(
    smallest: int, extra: int | None, rank: int, given_names: set[str]
) -> None:
    rng = np.random.default_rng(0)
    sizes = {"lora.0.o.A": 6, "lora.0.o.B": 3, "lora.0.down.A": 4, "lora.0.down.B": 5}
    adapter = {
        name: rng.standard_normal((size, rank) if name.endswith(".A") else (rank, size), np.float32)
        for name, size in sizes.items()
        if name[:-2] in given_names
    }
    largest = None if extra is None else smallest + extra
    if largest is not None and given_names and rank > largest:
        with pytest.raises(OmniDraftError, match=f"--lora-rank {rank}"):
            complete_adapter(adapter, sizes, smallest=smallest, largest=largest)
        return
    complete = complete_adapter(adapter, sizes, smallest=smallest, largest=largest)
    assert list(complete) == list(sizes)
    for stem in ("lora.0.o", "lora.0.down"):
        a, b = complete[f"{stem}.A"], complete[f"{stem}.B"]
        own = rank if stem in given_names else 0
        assert a.shape[1] == b.shape[0] == max(own, smallest)
        expected = adapter[f"{stem}.A"] @ adapter[f"{stem}.B"] if stem in given_names else 0
        np.testing.assert_allclose(a @ b, expected, rtol=0, atol=1e-6)


# --- the command ---------------------------------------------------------------------------------


def run(*arguments: str, code: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "omnidraft"]
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "COLUMNS": "120", **variables},
    )


def test_export_and_inspect(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(
        *("export", str(checkpoint), "--output", str(out), "--no-train-step", "--lora-rank", "4"),
        "--json",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["quantization"] == "int8" and report["lora"]["rank"] == 4
    assert report["parity"]["top1_agreement"] > 0.9 and "kl" in report["parity"]
    assert report["size_bytes"] == sum(
        path.stat().st_size for path in out.iterdir() if path.name != BUNDLE_FILE
    )
    assert sorted(tmp_path.iterdir()) == [out]
    again = run("inspect", str(out), "--verify", "--json")
    assert again.returncode == 0, again.stderr
    verified = json.loads(again.stdout)["verified"]
    assert verified["ok"] and verified["latency"]["milliseconds"] > 0
    shown = run("inspect", str(out))
    assert shown.returncode == 0 and "2 layers" in shown.stdout and "rank 4" in shown.stdout
    # A false report is found out.
    bundle = Bundle.load(out)
    assert bundle.parity is not None
    praised = bundle.parity.model_copy(update={"kl": bundle.parity.kl + 1})
    bundle.model_copy(update={"parity": praised}).save(out)
    liar = run("inspect", str(out), "--verify", "--json")
    assert liar.returncode == 2 and "kl" in liar.stderr
    assert not json.loads(liar.stdout)["verified"]["ok"]


def test_a_bundle_needs_no_more_than_a_device_has(bundles: dict[str, Path], tmp_path: Path) -> None:
    """Neither torch nor transformers nor onnx is imported, to draft and to verify."""
    source = write_target(tmp_path / "source")
    convert(source, tmp_path / "target", "8bit", extra_files=tokenizer_files(source))
    code = (
        f"HEAVY = {HEAVY}"
        + """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
from omnidraft.cli.app import main
main()
"""
    )
    for name, folder in bundles.items():
        done = run(
            *("generate", "--target", str(tmp_path / "target"), "--drafter", str(folder)),
            *("--prompt", "The quick", "--max-new-tokens", "8", "--draft-length", "4", "--json"),
            code=code,
            OMNIDRAFT_CACHE=str(tmp_path / "cache"),
        )
        assert done.returncode == 0, (name, done.stderr)
        assert json.loads(done.stdout)["stats"]["draft_tokens"] > 0
    done = run("inspect", str(bundles["int8"]), "--verify", code=code)
    assert done.returncode == 0, done.stderr


def test_refusals(checkpoint: Path, tmp_path: Path) -> None:
    """What is wrong is said, and nothing is left behind."""
    source = tmp_path / "source"
    shutil.copytree(checkpoint, source)
    out = tmp_path / "out"

    def refused(match: str, backend: str = "onnx", **options: object) -> None:
        with pytest.raises(OmniDraftError, match=match):
            export(str(source), out, backend, Options(**options))  # type: ignore[arg-type]
        assert sorted(tmp_path.iterdir()) == before

    before = sorted(tmp_path.iterdir())
    refused("unknown backend 'abacus'; known are .*onnx", backend="abacus")
    refused("no quantization a16w8", quantization="a16w8")
    refused("no chip", soc="SM8650")
    for share in (-0.1, 1.5, float("nan")):
        refused("no share from 0 to 1", min_agreement=share)
    refused("trains LoRA", train_step=True, lora_rank=0)
    config = json.loads((source / "config.json").read_text())
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}
    add_biases(source)
    for change, word in (
        ({"model_type": "qwen2", **windows}, "sliding windows. A drafter must be a Llama"),
        ({"model_type": "gpt2"}, "not supported"),
    ):
        (source / "config.json").write_text(json.dumps(config | change))
        refused(word)
    (source / "config.json").write_text(json.dumps(config))
    shutil.copy(checkpoint / "model.safetensors", source)
    larger = sentencepiece_tokenizer()
    larger.add_tokens(["larger"])
    larger.save(str(source / "tokenizer.json"))
    refused("vocabulary mismatch")
    (source / "tokenizer.json").unlink()
    refused("tokenizer.json")
    byte_level_tokenizer(300).save(str(source / "tokenizer.json"))  # smaller: padded, allowed
    tensors = load_file(source / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    refused("has no tensor")
    data = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(data[:-100])
    refused("damaged")


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (GEMMA, "someone/model@main is a gemma3 model with .* must be a Llama"),
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported"),
        ({"model_type": "llama"}, "someone/model@main/config.json: num_hidden_layers"),
        ({}, "names no model_type"),
        ([], "names no model_type"),
        (None, "no config.json"),
    ],
)
def test_a_repository_is_refused_before_its_weights_are_fetched(
    config: object, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "model.safetensors").write_bytes(b"many")
    if config is not None:
        (repository / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("OMNIDRAFT_CACHE", str(tmp_path / "cache"))
    with stand_in_hub(repository, tmp_path / "hub") as hub:
        for make in (export, lambda name, _: learnable_drafter(name)):
            with pytest.raises(OmniDraftError, match=match):
                make("someone/model@main", tmp_path / "out")
        assert hub.got == ([] if config is None else ["config.json"] * 2)
    assert {path.name for path in tmp_path.iterdir()} <= {"repository", "hub"}
    assert not list((tmp_path / "hub").rglob("*.safetensors"))


def test_a_llama_is_exported_from_the_hub(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIDRAFT_CACHE", str(tmp_path / "cache"))
    with stand_in_hub(checkpoint, tmp_path / "hub") as hub:
        bundle = export("someone/tiny", tmp_path / "out", options=Options("none"))
        assert hub.got[0] == "config.json" and "model.safetensors" in hub.got[1:]
    assert bundle.name == "someone/tiny" and bundle == Bundle.load(tmp_path / "out")


def test_other_peoples_files_are_left_alone(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    options = Options("none")
    with pytest.raises(OmniDraftError, match="exists and is no bundle"):
        export(str(checkpoint), out, options=options)
    assert [path.name for path in out.iterdir()] == ["letter.txt"]
    with pytest.raises(OmniDraftError, match="exists"):
        export(str(checkpoint), out / "letter.txt", options=options)
    (out / "letter.txt").unlink()
    export(str(checkpoint), out, options=options)  # an empty folder is taken
    first = Bundle.load(out)
    with pytest.raises(ModelNotFoundError, match="calibration"):
        export(str(checkpoint), out, options=Options("int4"), calibration=tmp_path / "none.txt")
    assert Bundle.load(out) == first
    second = export(str(checkpoint), out, options=Options("int8"))
    assert Bundle.load(out) == second and second != first
    assert sorted(tmp_path.iterdir()) == [out]
    # A manifest does not give the rest of the folder away.
    for stranger in ("thesis.txt", ".hidden", "folder/deep.txt", "empty/"):
        path = out / stranger
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if stranger.endswith("/") else path.write_text("dear")
        with pytest.raises(OmniDraftError, match=f"not of it: {stranger.split('/')[0]}"):
            export(str(checkpoint), out, options=options)
        assert path.exists() and Bundle.load(out) == second
        shutil.rmtree(path.parent if "/" in stranger[:-1] else path, ignore_errors=True)
        path.unlink(missing_ok=True)
    (out / BUNDLE_FILE).write_text("{}")
    with pytest.raises(OmniDraftError, match=f"its {BUNDLE_FILE} is not one"):
        export(str(checkpoint), out, options=options)
    assert len(list(out.iterdir())) > 1


def test_files_that_come_meanwhile_are_left_alone(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def interfere(step: str, fraction: float | None) -> None:
        if step == "parity":
            out.mkdir()
            (out / "letter.txt").write_text("dear")

    options = Options("none")
    with pytest.raises(OmniDraftError, match="exists and is no bundle"):
        export(str(checkpoint), out, options=options, progress=interfere)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "letter.txt"]


def test_places_that_cannot_be_written(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused before the work is done, and nothing is left."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "link").symlink_to("empty")
    monkeypatch.chdir(tmp_path / "empty")
    before = sorted(tmp_path.rglob("*"))
    steps: list[str] = []
    for output, match in (
        (Path("."), "current folder"),
        (Path(".."), "current folder"),
        (tmp_path / "empty" / "..", "current folder"),
        (tmp_path / "empty", "current folder"),
        (Path("/proc"), "cannot be replaced"),
        (tmp_path / "dangling", "symbolic link"),
        (tmp_path / "link", "symbolic link"),
        (tmp_path / ("n" * 300), "too long"),
        (tmp_path / ("n" * 250), "too long"),
        (tmp_path / "new" / "deep" / ("n" * 250), "too long"),
        (tmp_path / "file" / "below", "cannot be written|can be made"),
    ):
        with pytest.raises(OmniDraftError, match=match):
            export(str(checkpoint), output, progress=lambda step, _: steps.append(step))
    assert sorted(tmp_path.rglob("*")) == before and steps == []
    monkeypatch.setattr(Path, "exists", _forbidden)
    with pytest.raises(OmniDraftError, match="Permission denied"):
        export(str(checkpoint), tmp_path / "out")


def _forbidden(path: Path) -> bool:
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_files_that_may_not_be_read(
    checkpoint: Path, bundles: dict[str, Path], tmp_path: Path
) -> None:
    """Whatever may not be read, the command says which file and why."""
    # Root may read everything: a refusal of one name stands in for the file's mode.
    code = """
import sys
name = sys.argv.pop(1)
def refuse(event, arguments):
    if event == "open" and str(arguments[0]).endswith(name):
        raise PermissionError(13, "Permission denied", arguments[0])
sys.addaudithook(refuse)
from omnidraft.cli.app import main
main()
"""
    out = ("--output", str(tmp_path / "out"))
    for name, *command in (
        ("config.json", "export", str(checkpoint), *out),
        ("tokenizer.json", "export", str(checkpoint), *out),
        ("model.safetensors", "export", str(checkpoint), *out),
        (BUNDLE_FILE, "inspect", str(bundles["none"])),
        ("model.onnx.data", "inspect", str(bundles["none"])),
    ):
        done = run(name, *command, code=code)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        assert name in done.stderr and "Permission denied" in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_checkpoint(bundles: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "letter.txt").write_text("dear")
    for name in (bundles["none"], tmp_path / "folder", tmp_path / "letter.txt"):
        with pytest.raises(ModelNotFoundError, match="no checkpoint") as caught:
            export(str(name), tmp_path / "out")
        assert "ONNX" not in str(caught.value)


def test_a_bundle_of_links(checkpoint: Path, tmp_path: Path) -> None:
    """As in the hub's cache all files lie in one other folder; or each lies in its own."""
    source = tmp_path / "bundle"
    export(str(checkpoint), source, options=Options("int8", lora_rank=4, train_step=True))
    for layout in ("hub", "scattered"):
        (tmp_path / layout).mkdir()
        for number, path in enumerate(sorted(source.iterdir())):
            blob = tmp_path / "blobs" / ("" if layout == "hub" else str(number)) / f"b{number}"
            blob.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, blob)
            (tmp_path / layout / path.name).symlink_to(Path("..") / blob.relative_to(tmp_path))
    hub, scattered = tmp_path / "hub", tmp_path / "scattered"
    assert np.array_equal(logits(open_engine(hub)), logits(open_engine(source)))
    assert TrainingStep(hub).vocab_size == TrainingStep(source).vocab_size
    assert verify(Bundle.load(hub), hub, 1).ok
    assert Bundle.load(scattered) == Bundle.load(source)
    for opens in (TrainingStep, OnnxModel):
        with pytest.raises(OmniDraftError, match=f"link.*cp -rL {scattered}"):
            opens(scattered)


def test_all_files_have_the_same_mode(checkpoint: Path, tmp_path: Path) -> None:
    previous = os.umask(0o022)
    try:
        export(str(checkpoint), tmp_path / "out", options=Options(lora_rank=4, train_step=True))
    finally:
        os.umask(previous)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert "training.onnx.data" in modes and set(modes.values()) == {0o644}
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interruption_leaves_nothing(
    checkpoint: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "new" / "out"
    command = [sys.executable, "-m", "omnidraft", "export", str(checkpoint), "--output", str(out)]
    with subprocess.Popen([*command, "--quantization", "int4"], stderr=subprocess.PIPE) as child:
        while child.poll() is None and not out.parent.exists():
            time.sleep(0.005)
        child.send_signal(number)
        _, said = child.communicate(timeout=120)
    assert child.returncode == code and b"Traceback" not in said, said
    assert list(tmp_path.iterdir()) == []


def test_interruption_of_the_start() -> None:
    """Ctrl-C while modules are still being imported."""
    code = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name in ("numpy", "omnidraft.cli.app", "omnidraft._native"):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["omnidraft", "doctor"]
from omnidraft.__main__ import main
main()
"""
    done = run(code=code)
    assert done.returncode == 130 and not done.stderr and not done.stdout, done.stderr


@pytest.mark.parametrize(
    ("module", "lacking"),
    [
        ("torch", "torch"),
        ("executorch.exir", "executorch"),
        # It is there, and a package that it imports is not.
        ("executorch.devtools.backend_debug", "pandas"),
        ("executorch.backends.xnnpack.partition.xnnpack_partitioner", "tabulate"),
    ],
)
def test_half_of_what_executorch_needs(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, lacking: str
) -> None:
    def importing(name: str) -> ModuleType:
        if name == module:
            raise ModuleNotFoundError(f"No module named {lacking!r}", name=lacking)
        return ModuleType(name)

    monkeypatch.setattr("omnidraft.export.recipes.executorch.import_module", importing)
    with pytest.raises(MissingDependencyError, match=rf"needs {lacking}.*omnidraft\[executorch\]"):
        export(str(checkpoint), tmp_path / "out", "executorch")
    assert list(tmp_path.iterdir()) == []


def test_help_names_the_chip() -> None:
    shown = run("export", "--help").stdout
    assert DEFAULT_SOC in shown and "Threads to measure" in shown


def test_the_context_bounds_the_bundle(checkpoint: Path, tmp_path: Path) -> None:
    for asked, found in ((0, 512), (512, 512), (32, 32)):
        options = Options("none", context=asked)
        bundle = export(str(checkpoint), tmp_path / "out", options=options)
        assert bundle.geometry.context_length == found
        model = open_engine(tmp_path / "out")
        assert model.max_length == found
    model.forward(TOKENS[:32])
    with pytest.raises(ContextOverflowError):
        model.forward(TOKENS[:1])
    with pytest.raises(OmniDraftError, match=r"--context 513 .* limit of 512"):
        export(str(checkpoint), tmp_path / "out", options=Options(context=513))


def untrained(checkpoint: Path, folder: Path) -> Path:
    """A copy of a checkpoint that gives every token nearly the same probability."""
    shutil.copytree(checkpoint, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] *= np.float32(0.001)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_random_weights_are_said_to_be_random(checkpoint: Path, tmp_path: Path) -> None:
    """Their likeliest token is chance, so a low agreement is no reason to refuse them."""
    source = untrained(checkpoint, tmp_path / "source")
    options = Options("int8")
    with pytest.warns(UserWarning, match="looks untrained"):
        bundle = export(str(source), tmp_path / "out", options=options)
    assert bundle.parity is not None and bundle.parity.acceptance_agreement > 0.99
    assert bundle.thresholds is not None and bundle.thresholds.smallest_agreement is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export(str(checkpoint), tmp_path / "out", options=options)


def test_latencies_side_by_side(bundles: dict[str, Path], tmp_path: Path) -> None:
    """The command of benchmarks/ on bundles that are there."""
    script = Path(__file__).parent.parent / "benchmarks" / "bundle_latency.py"

    def measure(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), "--rounds", "2", "--steps", "2", "--threads", "1"]
        return subprocess.run(
            [*command, *map(str, arguments)], capture_output=True, text=True, timeout=300
        )

    figures = tmp_path / "figures.json"
    done = measure(*bundles.values(), "--context", "40", "--json", figures)
    assert done.returncode == 0, done.stderr
    report = json.loads(figures.read_text())
    assert report["machine"]["threads"] == 1 and report["context"] == 40
    rows = {row["quantization"]: row for row in report["bundles"]}
    assert rows.keys() == bundles.keys()
    assert rows["none"]["ratio"] == {"median": 1.0, "minimum": 1.0}
    for name, row in rows.items():
        assert 0 < row["milliseconds"]["minimum"] <= row["milliseconds"]["median"]
        assert row["decoder_bytes"] < Bundle.load(bundles[name]).size
    for wrong, word in (
        ([bundles["int8"]], "compared"),
        ([bundles["none"], "--context", "512"], "--context"),
        ([tmp_path], "no bundle"),
        ([bundles["none"], "--drafter", "default"], "--drafter"),
    ):
        refused = measure(*wrong)
        assert refused.returncode == 2 and word in refused.stderr, refused.stderr


def test_an_unrelated_model_is_not_kept(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained or not: two random models accept each other's drafts, and differ."""
    other = write_drafter(tmp_path / "other", seed=5)
    recipe = find_recipe("onnx")
    build = type(recipe).build

    def wrong(
        self: object, source: object, folder: Path, options: Options, *rest: object
    ) -> object:
        if options.quantization != "none":
            source = open_checkpoint(exchanged)
        return build(recipe, source, folder, options, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(type(recipe), "build", wrong)
    pairs = [(checkpoint, other)]
    pairs.append(tuple(untrained(path, tmp_path / f"u{i}") for i, path in enumerate(pairs[0])))  # type: ignore[arg-type]
    before = sorted(tmp_path.iterdir())
    for source, exchanged in pairs:
        for quantization in recipe.quantizations[:-1]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with pytest.raises(OmniDraftError, match="too far from float32") as caught:
                    export(str(source), tmp_path / "out", options=Options(quantization))
            assert "logit error is" in str(caught.value)
            assert sorted(tmp_path.iterdir()) == before
            reference = make_reference(_float32(source, tmp_path / f"{source.name}-f"), TEXTS, 90)
            parity = measure_parity(
                _float32(exchanged, tmp_path / f"{exchanged.name}-f"), reference
            )
            assert parity.logit_error > 0.8
            for path in set(tmp_path.iterdir()) - set(before):
                shutil.rmtree(path)
    assert reference.untrained and parity.acceptance_agreement > 0.95


def test_all_figures_are_reported_and_the_threshold_can_be_set(
    checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    figures = ("top-1 agreement", "acceptance agreement", "logit error", "KL", "largest logit")
    command = ("export", str(checkpoint), "--output", str(out), "--lora-rank", "0")
    refused = run(*command, "--min-agreement", "1")
    assert refused.returncode == 2 and list(tmp_path.iterdir()) == [], refused.stderr
    assert (
        "acceptance agreement is 99." in refused.stderr and "100.00% are needed" in refused.stderr
    )
    assert all(figure in refused.stderr.partition("Found:")[2] for figure in figures)
    assert "needed: 100.00%" in refused.stderr and "--min-agreement" in refused.stderr
    done = run(*command)
    assert done.returncode == 0, done.stderr
    needed = find_recipe("onnx").thresholds["int8"]
    assert all(figure in done.stdout for figure in figures)
    assert f"needed: {needed.smallest_agreement:.2%}" in done.stdout
    assert f"allowed: {needed.largest_logit_error:.2%}" in done.stdout
    assert Bundle.load(out).thresholds == needed
    done = run(*command, "--min-agreement", "0.5", "--json")
    thresholds = json.loads(done.stdout)["thresholds"]
    assert thresholds == {"smallest_agreement": 0.5, "largest_logit_error": None}


def test_logit_error_is_noise_beside_signal(bundles: dict[str, Path]) -> None:
    """Of a position's likeliest tokens, without what softmax does not see."""
    model = open_engine(bundles["none"], threads=1)
    reference = make_reference(model, [TOKENS.tolist()], len(TOKENS))
    rng = np.random.default_rng(3)
    scale = reference.logits.std(axis=1).mean()
    noise = rng.standard_normal((len(TOKENS), model.vocab_size)).astype(np.float32)

    def error(change: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> float:
        return measure_parity(Changed(model, change), reference).logit_error  # type: ignore[arg-type]

    assert error(lambda rows: rows + 7) < 1e-9
    assert error(lambda rows: rows * 0) == pytest.approx(1)
    assert error(lambda rows: rows * 0.9) == pytest.approx(0.01, rel=1e-3)
    assert error(lambda rows: rows + noise[: len(rows)] * scale / 10) == pytest.approx(
        0.01, rel=0.2
    )

    def without_half(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        rows = rows.copy()
        rows[:, ::2] = -1e30  # as a drafter's that leaves out tokens
        return rows

    half = measure_parity(Changed(model, without_half), reference)  # type: ignore[arg-type]
    assert 0.1 < half.logit_error < 1 and half.largest_logit_difference == 0


class Changed:
    """A model whose logits are changed."""

    def __init__(
        self, model: CausalModel, change: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    ) -> None:
        self.model, self.change = model, change

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)

    def forward(self, tokens: NDArray[np.int64], rows: int | None = None) -> NDArray[np.float32]:
        return self.change(self.model.forward(tokens, rows))


def _float32(checkpoint: Path, folder: Path) -> CausalModel:
    convert(checkpoint, folder, "float32")
    return OnnxModel(folder, threads=1)


# A small limit on a file's size stands in for a full disk: on a graph, on tokenizer and manifest,
# on what is written at the end.
@pytest.mark.parametrize("limit", [1_000, 12_000, 200_000, 600_000])
def test_no_space_left(checkpoint: Path, tmp_path: Path, limit: int) -> None:
    code = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
from omnidraft.cli.app import main
main()
"""
    out = ("--output", str(tmp_path / "out"), "--train-step", "--quantization", "none")
    done = run("export", str(checkpoint), *out, code=code)
    assert done.returncode == 2, done.stderr
    assert "is full" in done.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OSError(errno.EFBIG, "File too large"),
        RuntimeError("[enforce fail at inline_container.cc:662] . No space left on device"),
        RuntimeError("open file failed: File too large"),
        OmniDraftError("It does not compile: EP_FAIL : Failed to write context cache file."),
    ],
    ids=str,
)
def test_whatever_a_library_says_of_a_full_disk(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(type(find_recipe("onnx")), "build", fail)
    with pytest.raises(OmniDraftError, match=f"disk of {tmp_path} is full; nothing was kept"):
        export(str(checkpoint), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_calibration_files(tmp_path: Path) -> None:
    plain, lines, empty, broken = (
        tmp_path / name for name in ("a.txt", "b.jsonl", "c.txt", "d.jsonl")
    )
    plain.write_text("One text.\n\nAnother,\nof two lines.\n")
    assert calibration_texts(plain) == ["One text.", "Another,\nof two lines."]
    lines.write_text('{"text": "One."}\n\n{"prompt": "Why?", "answer": "So."}\n')
    assert calibration_texts(lines) == ["One.", "Why?\nSo."]
    empty.write_text("\n")
    with pytest.raises(DamagedFileError, match="no text"):
        calibration_texts(empty)
    lines.write_bytes('\ufeff{"text": "one\u2028two"}\r\n{"text": "three"}'.encode())
    assert calibration_texts(lines) == ["one\u2028two", "three"]
    with pytest.raises(DamagedFileError, match="is a folder"):
        calibration_texts(tmp_path)
    for content in (
        *("{", "[]", '{"other": 1}', '{"text": null}', '{"text": ""}', '{"text": 5}'),
        *('{"prompt": "Why?", "answer": null}', '{"text": ' + "[" * 200_000),
    ):
        broken.write_text(content)
        with pytest.raises(DamagedFileError, match="line 1"):
            calibration_texts(broken)
    plain.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DamagedFileError, match="UTF-8"):
        calibration_texts(plain)


@pytest.mark.parametrize("backend", backends())
def test_calibration_is_refused_where_it_has_no_effect(
    backend: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = find_recipe(backend)
    monkeypatch.setattr(type(recipe), "check", lambda self, options: None)  # packages may miss
    text = tmp_path / "text.txt"
    text.write_text("some text")
    for quantization in set(recipe.quantizations) - set(recipe.calibrated):
        with pytest.raises(OmniDraftError, match=r"no effect on .* only onnx int4 and qnn a16w8"):
            export(
                *(str(checkpoint), tmp_path / "out", backend, Options(quantization)),
                calibration=text,
            )
    for quantization in recipe.calibrated:
        with pytest.raises(OmniDraftError, match=r"text.txt holds \d+ tokens .* 1,024 are needed"):
            export(
                *(str(checkpoint), tmp_path / "out", backend, Options(quantization)),
                calibration=text,
            )
    assert list(tmp_path.iterdir()) == [text]


def test_calibration_that_brings_nothing_is_said_to(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text that is worse than the built-in one, none needed, and text that is as good."""
    recipe = sys.modules[type(find_recipe("onnx")).__module__]
    monkeypatch.setattr(recipe, "FOUR_BIT_BUDGET", 1e9)
    text = tmp_path / "text.jsonl"
    options = Options("int4", min_agreement=0.0)

    def made(texts: list[str]) -> Bundle:
        text.write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
        return export(str(checkpoint), tmp_path / "out", options=options, calibration=text)

    with pytest.warns(UserWarning, match=r"worse on held text .* logit error .* instead of"):
        worse = made(["a" * 1200] * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        usual = made(calibration_texts())
    assert usual.parity and worse.parity and usual.parity.kl < worse.parity.kl
    assert not list((tmp_path / "out").glob("built-in-*"))
    # Weights on a grid of four bits: there is nothing to choose.
    monkeypatch.setattr(recipe, "matrix_names", lambda checkpoint: [])
    with pytest.raises(OmniDraftError, match="no effect on this checkpoint"):
        made(calibration_texts())


def test_latency_is_measured_by_a_process_that_has_only_the_runtime(
    bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And which does not hear what libraries say, nor dies without a word."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text(f"""
import sys
print("a library's greeting")
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY}:
            raise ImportError(f"{{name}} is blocked")
sys.meta_path.insert(0, Blocked())
""")
    monkeypatch.setenv("PYTHONPATH", str(library))
    monkeypatch.setattr("omnidraft.export.latency.open_engine", None)  # not in this process
    latency = measure_latency(bundles["int8"], 1)
    assert 0 < latency.milliseconds <= latency.p95_milliseconds
    assert latency.threads == 1 and latency.context == 256 and latency.steps > 50
    (library / "sitecustomize.py").write_text("import os; os._exit(3)")
    with pytest.raises(OmniDraftError, match=r"latency of .* exit code 3"):
        measure_latency(bundles["int8"], 1)
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(OmniDraftError, match=r"latency of .* holds no model"):
        measure_latency(tmp_path, 1)


def test_latencies_of_another_processor_are_not_compared(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(bundles["int8"], folder)
    bundle = Bundle.load(folder)
    assert not verify(bundle, folder, 1).other_processor
    elsewhere = bundle.latency[0].model_copy(update={"processor": "Abacus", "milliseconds": 77.0})
    bundle.model_copy(update={"latency": [elsewhere]}).save(folder)
    shown = run("inspect", str(folder), "--verify")
    assert shown.returncode == 0 and "77.00 ms (p50)" in shown.stdout and "Abacus" in shown.stdout
    assert shown.stdout.count("(p95)") == 2 and "another processor" in shown.stdout
    report = json.loads(run("inspect", str(folder), "--verify", "--json").stdout)
    assert report["verified"]["other_processor"] and report["verified"]["ok"]
    assert report["latency"][0]["milliseconds"] == 77.0
    assert 0 < report["verified"]["latency"]["p95_milliseconds"] != 77.0


def test_a_training_step_comes_when_asked_for(checkpoint: Path, tmp_path: Path) -> None:
    command = ("export", str(checkpoint), "--json", "--quantization", "none", "--output")
    sizes = {}
    for flags in ((), ("--train-step",)):
        done = run(*command, str(tmp_path / "out"), *flags)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        roles = [graph["role"] for graph in report["graphs"]]
        assert roles == ["decoder", "training"] if flags else ["decoder"]
        sizes[flags] = report["size_bytes"]
    assert sizes[("--train-step",)] > sizes[()]


def test_passes_are_described_as_they_are(bundles: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(bundles["none"], folder)
    bundle = Bundle.load(folder)
    for sizes, text in (
        ({}, "passes of any length"),
        ({"most_tokens": 64}, "passes of up to 64 tokens"),
        ({"tokens": 8}, "8 tokens a pass"),
    ):
        graph = bundle.graphs[0].model_copy(update=sizes)
        bundle.model_copy(update={"graphs": [graph]}).save(folder)
        assert f"model.onnx: {text}" in run("inspect", str(folder)).stdout


def test_optimum_has_the_command_once_it_is_registered(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("optimum.commands")
    # A further folder of the namespace, so that the environment is left alone.
    packages, out = tmp_path / "packages", tmp_path / "out"
    monkeypatch.setenv("PYTHONPATH", str(packages))
    register = [sys.executable, "-m", "omnidraft.export.optimum", str(packages)]
    done = subprocess.run(register, capture_output=True, text=True)
    assert done.returncode == 0 and "optimum-cli export omnidraft" in done.stdout, done.stderr
    optimum = Path(sys.executable).with_name("optimum-cli")
    command = [str(optimum), "export", "omnidraft", "-m", str(checkpoint), str(out)]
    done = subprocess.run([*command, "--no-train-step"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Bundle.load(out).parity is not None
    refused = subprocess.run([*command, "--soc", "SM8650"], capture_output=True, text=True)
    assert refused.returncode == 2 and "no chip" in refused.stderr


def test_without_optimum_there_is_nothing_to_register_with(tmp_path: Path) -> None:
    code = """
import sys, runpy
sys.modules["optimum"] = None
sys.argv = ["optimum", sys.argv[1]]
runpy.run_module("omnidraft.export.optimum", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 2 and "pip install optimum" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())
