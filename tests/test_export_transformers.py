"""Drafters as checkpoints for transformers: what is written and refused, and what that one says."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from needs import needs
from safetensors.numpy import load_file, save_file
from test_described_bundles import PROMPT, continued, run_example
from test_export import add_biases, random_adapter
from test_export_merged import TARGET, adapter_of
from tiny import byte_level_tokenizer, write_checkpoint, write_drafter, write_target

from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.export.checkpoint.config import RopeScaling
from omnidraft.export.checkpoint.rope import Rope, rope_of
from omnidraft.export.checkpoint.spec import tensor_names
from omnidraft.export.interchange.rotation import rope_fields
from omnidraft.export.learnable import learnable_drafter
from omnidraft.export.opening import float32_model, opened
from omnidraft.export.pipeline import export
from omnidraft.export.recipes import Options
from omnidraft.runtime.engines import engine_of
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.learning.store import AdapterStore, adapters_folder
from omnidraft.runtime.models.catalogue import default_drafter_folder
from omnidraft.runtime.storage.bundle import Bundle, Quantization
from omnidraft.runtime.text.tokenizer import Tokenizer

PROMPTS = ["The capital of France is", "def add(a, b):", "Once upon a time", "1 + 1 =", "\nimport"]
ODD = ["", " ", "  two  spaces ", "\n\tx\n", "é e\u0301 中 😀", "a" * 90, "3.14, (b) don't: 100% …"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter") / "checkpoint", seed=1)


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("default") / "bundle"
    export("default", folder, "transformers")
    return folder


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "omnidraft", *map(str, arguments)], capture_output=True, text=True
    )


def texts() -> list[str]:
    """Many odd texts, always the same."""
    rng = random.Random(7)
    words = ["The", "quick", "Ünïcödé", "😀", "don't", "x1y2", "12345", "中文", "(a)", "a/b", "…"]
    gaps = [" ", "  ", "\n", "\t", "", "    "]
    made = (
        "".join(rng.choice(words) + rng.choice(gaps) for _ in range(rng.randrange(1, 9)))
        for _ in range(100)
    )
    return [*ODD, *made]


# --- what is written -----------------------------------------------------------------------------


def test_the_default_drafters_weights_are_kept(default: Path) -> None:
    ours, written = open_checkpoint(default_drafter_folder()), open_checkpoint(default)
    assert written.decoder == ours.decoder
    for name in tensor_names(ours.decoder):
        assert np.array_equal(written.rows(name), ours.rows(name)), name
    bundle = Bundle.load(default)
    assert bundle.parity is not None and bundle.parity.largest_logit_difference == 0
    assert [(part.bits, part.products) for part in bundle.weights] == [(32, 22)]
    assert bundle.lora is None and bundle.latency == []


def test_no_other_program_is_needed(source: Path, tmp_path: Path) -> None:
    """Neither PyTorch nor transformers is imported to write a checkpoint."""
    code = """
import sys
from pathlib import Path
from omnidraft.export.pipeline import export
export(sys.argv[1], Path(sys.argv[2]), "transformers")
print(*({"torch", "transformers"} & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(source), str(tmp_path / "out")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.strip() == "", done.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["bos_token_id"] == 1
    assert (config["rope_theta"], "rope_scaling" in config) == (10_000.0, False)
    # Anybody may read it who may read the folder's other files.
    modes = {path.stat().st_mode for path in (tmp_path / "out").iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize("change", [{"model_type": "qwen2"}, {"attention_bias": True}])
def test_a_drafter_with_biases_is_a_llama_with_biases(
    source: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    biased = tmp_path / "biased"
    shutil.copytree(source, biased)
    add_biases(biased, "qkv" if "model_type" in change else "qkvo")
    config = json.loads((biased / "config.json").read_text())
    (biased / "config.json").write_text(json.dumps(config | change))
    bundle = export(str(biased), tmp_path / "out", "transformers")
    assert bundle.parity is not None and bundle.parity.largest_logit_difference == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "llama"
    assert len(load_file(tmp_path / "out" / "model.safetensors")) == 21 + 8


@pytest.mark.parametrize(
    "scaling",
    [
        {},
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ],
)
@pytest.mark.parametrize("base", [10_000.0, 500_000.0, 1_000_000.0])
def test_rotations_are_said_as_they_were(base: float, scaling: dict[str, object]) -> None:
    rope = rope_of(base, 64, RopeScaling.model_validate(scaling))
    found = rope_fields(rope)
    assert found["rope_theta"] == pytest.approx(base, rel=1e-5)
    again = rope_of(found["rope_theta"], 64, RopeScaling(**found.get("rope_scaling", {})))
    assert again.inverse_frequencies == pytest.approx(rope.inverse_frequencies, rel=1e-6)


def test_rotations_that_cannot_be_said(source: Path, tmp_path: Path) -> None:
    odd = Rope(tuple(np.linspace(1, 0.1, 32)))
    with pytest.raises(OmniDraftError, match="rotation is scaled in a way"):
        rope_fields(odd)
    scaled = tmp_path / "scaled"
    shutil.copytree(source, scaled)
    config = json.loads((scaled / "config.json").read_text())
    for change in (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0}},
        {"partial_rotary_factor": 0.5},
    ):
        (scaled / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(OmniDraftError, match="rotat"):
            export(str(scaled), tmp_path / "out", "transformers")
        assert sorted(tmp_path.iterdir()) == [scaled]


def test_float16(source: Path, tmp_path: Path) -> None:
    bundle = export(str(source), tmp_path / "out", "transformers", Options("float16"))
    assert {value.dtype for value in load_file(tmp_path / "out/model.safetensors").values()} == {
        np.dtype(np.float16)
    }
    assert bundle.parity is not None and 0 < bundle.parity.logit_error < 1e-5
    assert [part.bits for part in bundle.weights] == [16]
    large = tmp_path / "large"
    shutil.copytree(source, large)
    weights = load_file(large / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = 1e5
    save_file(weights, large / "model.safetensors", metadata={"format": "pt"})
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OmniDraftError, match=r"1\.up are too large for float16"):
        export(str(large), tmp_path / "more", "transformers", Options("float16"))
    assert sorted(tmp_path.iterdir()) == before


def test_texts_are_read_without_a_space_in_front(default: Path) -> None:
    own, written = Tokenizer.load(default_drafter_folder()), Tokenizer.load(default)
    assert own.tokens == written.tokens and written.eos_ids == own.eos_ids
    special = Bundle.load(default).special_tokens
    assert special is not None
    assert (special.beginning, special.tokenizer_adds_it, special.ends) == (1, True, [2])
    for text in texts():
        ids = written.encode(text)
        assert ids[0] == 1 and written.decode(ids) == text
        if text and not text.startswith(" "):  # as what stands behind a line, or a word
            assert own.encode(f"\n{text}")[-len(ids) + 1 :] == ids[1:], text


def test_it_is_inspected_and_drafts_here(source: Path, tmp_path: Path) -> None:
    """What is a checkpoint to others is one to this program, too."""
    out = tmp_path / "out"
    done = command("export", source, "--output", out, "--backend", "transformers", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["backend"] == "transformers"
    done = command("inspect", out, "--verify", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["verified"]["ok"], done.stderr
    assert report["verified"]["latency"] is None and report["verified"]["parity"]["kl"] == 0
    assert "found now" in command("inspect", out, "--verify").stdout
    assert "AutoModelForCausalLM" in (out / "README.md").read_text("utf-8")
    assert engine_of(out) == "transformers"
    target = write_target(tmp_path / "target", seed=2)
    answers = [
        command(
            *("generate", "The quick", "--target", target, "--drafter", drafter),
            *("--max-new-tokens", "8", "--draft-length", "4", "--json"),
        )
        for drafter in (source, out)
    ]
    for answer in answers:
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout)["stats"]["draft_tokens"] > 0
    assert learnable_drafter(str(out)).is_dir()
    (out / "model.safetensors").write_bytes(b"")
    done = command("inspect", out)
    assert done.returncode == 2 and "model.safetensors has 0 bytes" in done.stderr


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["transformers", "gguf"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--soc", "SM8650"], "compiled for no chip"),
        (["--train-step"], "no training step"),
        (["--share-weights"], "weights once"),
        (["--lora-rank", "8"], "--adapter merges an adapter"),
        (["--layout", "genai"], "no layout genai"),
        (["--quantization", "a16w8"], "no quantization a16w8"),
        (["--calibration", "text.txt"], "no effect"),
        (["--context", "100000"], "more than the model's limit"),
        (["--min-agreement", "2"], "from 0 to 1"),
    ],
)
def test_options_that_do_not_apply(
    source: Path, tmp_path: Path, backend: str, arguments: list[str], words: str
) -> None:
    out = tmp_path / "out"
    done = command("export", source, "--output", out, "--backend", backend, *arguments)
    assert done.returncode == 2 and words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr and list(tmp_path.iterdir()) == []


def test_what_is_further_from_float32_than_was_asked_for(source: Path, tmp_path: Path) -> None:
    for backend, quantization in (("transformers", "float16"), ("gguf", "int4")):
        options = Options(quantization, min_agreement=1.0)  # type: ignore[arg-type]
        with pytest.raises(OmniDraftError, match="too far from float32"):
            export(str(source), tmp_path / "out", backend, options)
        assert list(tmp_path.iterdir()) == []


# --- with an adapter -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "quantization"),
    [("transformers", "none"), ("transformers", "float16"), ("gguf", "int8"), ("gguf", "none")],
)
def test_an_adapter_is_merged(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    quantization: Quantization,
) -> None:
    monkeypatch.setenv("OMNIDRAFT_DATA", str(tmp_path / "data"))
    lora = {name: 2 * values for name, values in random_adapter(4).items()}
    AdapterStore(adapters_folder()).save("math", adapter_of(source, lora))
    out = tmp_path / "out"
    bundle = export(str(source), out, backend, Options(quantization), adapter="math")
    assert bundle.merged is not None and bundle.merged.target == TARGET.name
    assert bundle.merged.kept == pytest.approx(1, abs=0.05)
    export(str(source), tmp_path / "base", options=Options("none"))
    from omnidraft.runtime.engines.onnx import OnnxModel

    base = OnnxModel(tmp_path / "base", threads=1)
    tokens = np.arange(3, 120)
    without = base.forward(tokens).copy()
    base.truncate(0)
    base.set_adapter(lora)
    expected = base.forward(tokens)
    with opened(bundle, out, 1) as model:
        found = model.forward(tokens)
    scale = np.abs(expected - without).mean()
    assert np.abs(found - expected).mean() < (0.1 if quantization == "int8" else 0.002) * scale


# --- transformers itself -------------------------------------------------------------------------


def test_transformers_says_what_the_drafter_says(default: Path) -> None:
    torch, transformers = needs("torch"), needs("transformers")
    load = transformers.AutoModelForCausalLM.from_pretrained
    model, report = load(default, output_loading_info=True)
    assert not any(report.values()) and model.dtype == torch.float32
    assert (model.generation_config.bos_token_id, model.generation_config.eos_token_id) == (1, 2)
    tokenizer = Tokenizer.load(default)
    checkpoint = open_checkpoint(default_drafter_folder())
    with float32_model(checkpoint, 1024) as own:
        for prompt in PROMPTS:
            ids = tokenizer.encode(prompt)
            own.truncate(0)
            logits = own.forward(ids)
            with torch.inference_mode():
                found = model(torch.tensor([ids])).logits[0].numpy()
            assert np.abs(found - logits).max() < 1e-3
            own.truncate(0)
            expected = continued(own, ids, tokenizer.eos_ids, 40)
            whole = model.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False)
            assert whole[0, len(ids) :].tolist() == expected


def test_its_tokenizer_reads_as_ours(default: Path, source: Path, tmp_path: Path) -> None:
    transformers = needs("transformers")
    export(str(source), tmp_path / "tiny", "transformers")
    plain = write_checkpoint(tmp_path / "plain", byte_level_tokenizer(), seed=2)
    export(str(plain), tmp_path / "bytes", "transformers")
    for folder in (default, tmp_path / "tiny", tmp_path / "bytes"):
        ours, theirs = Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
        for text in texts():
            ids = ours.encode(text)
            assert theirs(text)["input_ids"] == ids
            # Tokens of bytes that a small vocabulary lacks are no text.
            assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids)


def test_it_assists_a_target_of_another_vocabulary(default: Path, tmp_path: Path) -> None:
    torch, transformers = needs("torch"), needs("transformers")
    folder = write_target(tmp_path / "target", seed=3)
    load, words = transformers.AutoModelForCausalLM, transformers.AutoTokenizer
    target, tokenizer = load.from_pretrained(folder), words.from_pretrained(folder)
    drafter, draft_tokenizer = load.from_pretrained(default), words.from_pretrained(default)
    read: list[int] = []
    drafter.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    for prompt in ("The quick brown fox", "What is the answer?"):
        inputs = tokenizer(prompt, return_tensors="pt")
        options = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
        plain = target.generate(**inputs, **options)
        read.clear()
        assisted = target.generate(
            **inputs,
            **options,
            assistant_model=drafter,
            tokenizer=tokenizer,
            assistant_tokenizer=draft_tokenizer,
        )
        assert torch.equal(assisted, plain) and len(read) > 3


def test_the_documented_loader(default: Path, tmp_path: Path) -> None:
    needs("transformers")
    tokenizer = Tokenizer.load(default)
    with float32_model(open_checkpoint(default), 1024) as own:
        expected = continued(own, tokenizer.encode(PROMPT), tokenizer.eos_ids, 24)
    assert run_example("load_transformers.py", default, 24) == expected
    target = write_target(tmp_path / "target", seed=3)
    program = Path(__file__).parent.parent / "docs/load_transformers.py"
    answers = []
    for arguments in ([target, PROMPT, "20"], [default, PROMPT, "20", target]):
        done = subprocess.run(
            [sys.executable, program, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout.splitlines()[-1])["tokens"])
    assert answers[0] == answers[1] and answers[0]
