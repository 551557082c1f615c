"""Drafters as GGUF files: what is written and refused, and what llama.cpp makes of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from needs import needs
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from test_described_bundles import PROMPT, continued, run_example
from test_export import add_biases
from test_export_transformers import PROMPTS, command, texts
from tiny import byte_level_tokenizer, sentencepiece_tokenizer, write_checkpoint, write_drafter

from omnidraft.export.calibration import held_texts
from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.export.checkpoint.spec import tensor_names
from omnidraft.export.interchange.blocks import q4_0, q8_0
from omnidraft.export.opening import float32_model
from omnidraft.export.pipeline import export
from omnidraft.export.recipes import Options
from omnidraft.runtime.engines import engine_of
from omnidraft.runtime.errors import ModelNotFoundError, OmniDraftError
from omnidraft.runtime.models.catalogue import default_drafter_folder
from omnidraft.runtime.storage.bundle import Bundle, Quantization
from omnidraft.runtime.storage.gguf import read_gguf_metadata
from omnidraft.runtime.text.tokenizer import Tokenizer

Q8_0, Q4_0 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter") / "checkpoint", seed=1)


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("default")
    for quantization in ("none", "int8", "int4"):
        export("default", root / quantization, "gguf", Options(quantization))
    return {path.name: path for path in root.iterdir()}


# --- blocks --------------------------------------------------------------------------------------


def grid(seed: int, *, multiples: tuple[int, ...]) -> NDArray[np.float32]:
    """A matrix of channel scale x block multiple x level, as drafters' training leaves them."""
    rng = np.random.default_rng(seed)
    scale = (2.0 ** rng.uniform(-10, -3, (8, 1, 1))).astype(np.float16).astype(np.float32)
    multiple = rng.choice(multiples, (8, 4, 1)).astype(np.float32)
    level = rng.integers(-7, 8, (8, 4, 32)).astype(np.float32)
    values: NDArray[np.float32] = (level * multiple * scale).reshape(8, 128)
    return values


@given(st.integers(0, 2**32 - 1))
def test_weights_on_a_grid_are_held_exactly(seed: int) -> None:
    rows = grid(seed, multiples=tuple(range(1, 19)))
    assert np.array_equal(gguf.dequantize(q8_0(rows), Q8_0), rows)
    # Four bits hold them where the block's scale is one of float16; else they round the scale.
    exact = grid(seed, multiples=(1, 2, 4, 8, 16))
    assert np.array_equal(gguf.dequantize(q4_0(exact), Q4_0), exact)
    np.testing.assert_allclose(gguf.dequantize(q4_0(rows), Q4_0), rows, rtol=2**-11)


@given(st.integers(0, 2**32 - 1), st.floats(1e-4, 1e3))
def test_other_weights_lose_no_more_than_by_the_library(seed: int, size: float) -> None:
    rows = np.random.default_rng(seed).normal(0, size, (4, 96)).astype(np.float32)
    rows[1] = 0

    def lost(packed: NDArray[np.uint8], kind: Any) -> float:
        return float(np.square(gguf.dequantize(packed, kind) - rows).sum())

    for pack, kind in ((q8_0, Q8_0), (q4_0, Q4_0)):
        packed = pack(rows)
        library = gguf.quants.quantize(rows, kind)
        assert packed.shape == library.shape and packed.dtype == library.dtype
        assert lost(packed, kind) <= lost(library, kind) * (1 + 1e-3)
    with pytest.raises(OmniDraftError, match="no scale of float16"):
        q8_0(np.full((1, 32), 1e8, np.float32))


# --- what is written -----------------------------------------------------------------------------


def test_eight_bits_keep_the_default_drafter(default: dict[str, Path]) -> None:
    ours = open_checkpoint(default_drafter_folder())
    for quantization in ("none", "int8"):
        written = open_checkpoint(default[quantization] / "model.gguf")
        assert (written.decoder.ropes, written.decoder.context_length) == (
            ours.decoder.ropes,
            ours.decoder.context_length,
        )
        for name in tensor_names(ours.decoder):
            assert np.array_equal(written.rows(name), ours.rows(name)), name
        parity = Bundle.load(default[quantization]).parity
        assert parity is not None and parity.largest_logit_difference == 0
    four = Bundle.load(default["int4"])
    assert [(part.bits, part.products) for part in four.weights] == [(4, 22)]
    assert four.parity is not None and four.parity.logit_error < 1e-5
    sizes = [(default[name] / "model.gguf").stat().st_size for name in ("int4", "int8", "none")]
    assert all(a < b for a, b in pairwise(sizes)) and sizes[0] < 9e6


@pytest.mark.parametrize("quantization", ["none", "float16", "int8", "int4"])
@pytest.mark.parametrize("change", [{}, {"attention_bias": True}, {"rope_scaling": LLAMA3}])
def test_what_is_read_back_is_the_drafter(
    source: Path, tmp_path: Path, quantization: Quantization, change: dict[str, object]
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(source, changed)
    if "attention_bias" in change:
        add_biases(changed, "qkvo")
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps(config | change))
    # Weights that are on no grid lose much to four bits, and such an export is refused.
    least = 0.5 if quantization == "int4" else None
    options = Options(quantization, context=200, min_agreement=least)
    bundle = export(str(changed), tmp_path / "out", "gguf", options)
    assert bundle == Bundle.load(tmp_path / "out") and bundle.parity is not None
    bound = {"none": 1e-9, "float16": 1e-6, "int8": 1e-3, "int4": 0.2}[quantization]
    assert bundle.parity.logit_error < bound
    written = open_checkpoint(tmp_path / "out" / "model.gguf").decoder
    assert (written.context_length, written.kv_heads, written.qkv_bias) == (
        *(200, 2),
        "attention_bias" in change,
    )


def test_rows_without_whole_blocks(source: Path, tmp_path: Path) -> None:
    """They have 16 bits, and it is said."""
    narrow = tmp_path / "narrow"
    shutil.copytree(source, narrow)
    weights = load_file(narrow / "model.safetensors")
    for name in list(weights):
        if "gate_proj" in name or "up_proj" in name:
            weights[name] = weights[name][:80]
        elif "down_proj" in name:
            weights[name] = np.ascontiguousarray(weights[name][:, :80])
    save_file(weights, narrow / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((narrow / "config.json").read_text())
    (narrow / "config.json").write_text(json.dumps(config | {"intermediate_size": 80}))
    bundle = export(str(narrow), tmp_path / "out", "gguf")
    assert [(part.bits, part.products) for part in bundle.weights] == [(8, 13), (16, 2)]


def test_the_tokenizer_is_in_the_file(default: dict[str, Path], tmp_path: Path) -> None:
    plain = write_checkpoint(tmp_path / "plain", byte_level_tokenizer(), seed=2, padding=6)
    export(str(plain), tmp_path / "bytes", "gguf")
    for folder in (default["int8"], tmp_path / "bytes"):
        beside, within = Tokenizer.load(folder), Tokenizer.load(folder / "model.gguf")
        assert within.tokens[: beside.vocab_size] == beside.tokens
        assert (within.add_bos, within.eos_ids) == (beside.add_bos, beside.eos_ids)
        for text in texts():
            assert within.encode(text) == beside.encode(text)
            assert within.decode(within.encode(text)) == text
    fields = read_gguf_metadata(tmp_path / "bytes" / "model.gguf", "tokenizer.")
    assert fields["tokenizer.ggml.pre"] == "gpt-2"
    assert "<|im_start|>" in fields["tokenizer.chat_template"]
    assert fields["tokenizer.ggml.tokens"][-1] == "[unused 375]"
    fields = read_gguf_metadata(default["int8"] / "model.gguf", "tokenizer.")
    assert fields["tokenizer.ggml.add_space_prefix"] is False
    assert [fields[f"tokenizer.ggml.{name}_token_id"] for name in ("unknown", "bos", "eos")] == [
        *(0, 1, 2)
    ]


def test_tokenizers_that_llama_cpp_does_not_have(source: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    shutil.copytree(source, odd)
    state = json.loads(byte_level_tokenizer().to_str())
    split = {
        "type": "Split",
        "pattern": {"Regex": "[aeiou]"},
        "behavior": "Isolated",
        "invert": False,
    }
    parts = {"type": "Sequence", "pretokenizers": [split, state["pre_tokenizer"]]}
    upper = json.loads(sentencepiece_tokenizer().to_str())
    upper["normalizer"] = {"type": "Lowercase"}
    word = {**state, "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
    for changed, words in (
        ({**state, "pre_tokenizer": parts}, "splits text in a way that has no name"),
        (upper, "would be read otherwise"),
        (word, "its model is WordLevel"),
    ):
        (odd / "tokenizer.json").write_text(json.dumps(changed))
        with pytest.raises(OmniDraftError, match=words):
            export(str(odd), tmp_path / "out", "gguf")
        assert sorted(tmp_path.iterdir()) == [odd]


def test_the_command_and_what_becomes_of_the_file(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = command("export", source, "--output", out, "--backend", "gguf")
    assert done.returncode == 0 and "gguf, weights int8" in done.stdout, done.stderr
    assert command("inspect", out, "--verify").returncode == 0
    assert "--model-draft" in (out / "README.md").read_text("utf-8")
    with pytest.raises(ModelNotFoundError, match=r"Name the GGUF file in it: .*model\.gguf"):
        engine_of(out)
    assert engine_of(out / "model.gguf") == "transformers"  # as of any checkpoint
    again = export(str(out / "model.gguf"), tmp_path / "again", "transformers")
    assert again.parity is not None and again.parity.largest_logit_difference == 0


# --- llama.cpp itself ----------------------------------------------------------------------------


def test_llama_cpp_reads_texts_alike(default: dict[str, Path], tmp_path: Path) -> None:
    needs("xllamacpp")
    from llamacpp import ask, served

    plain = write_checkpoint(tmp_path / "plain", byte_level_tokenizer(), seed=2)
    export(str(plain), tmp_path / "bytes", "gguf")
    for folder in (default["int8"], tmp_path / "bytes"):
        tokenizer = Tokenizer.load(folder)
        with served(folder / "model.gguf") as address:
            for text in [*texts(), *held_texts()]:
                question = {"content": text, "add_special": True, "parse_special": False}
                assert ask(address, "tokenize", **question)["tokens"] == tokenizer.encode(text)


def test_llama_cpp_says_what_the_drafter_says(default: dict[str, Path]) -> None:
    needs("xllamacpp")
    from llamacpp import ask, served

    tokenizer = Tokenizer.load(default["none"])
    with float32_model(open_checkpoint(default_drafter_folder()), 1024) as own:

        def said(address: str, ids: list[int], count: int) -> list[int]:
            question: dict[str, object] = {"prompt": ids, "n_predict": count, "temperature": 0}
            more = {"return_tokens": True, "cache_prompt": False}
            tokens: list[int] = ask(address, "completion", **question, **more)["tokens"]
            return tokens

        with served(default["none"] / "model.gguf") as address:
            for prompt in PROMPTS:
                ids = tokenizer.encode(prompt)
                own.truncate(0)
                expected = continued(own, ids, tokenizer.eos_ids, 40)
                assert said(address, ids, 40) == [t for t in expected if t not in {2}]
        # llama.cpp rounds inputs to 8 bits there: what is nearly even may come out otherwise.
        for quantization in ("int8", "int4"):
            with served(default[quantization] / "model.gguf") as address:
                clear = 0
                for text in held_texts()[:24]:
                    ids = tokenizer.encode(text)[:40]
                    own.truncate(0)
                    logits = own.forward(ids, 1)[0]
                    second, first = np.sort(logits)[-2:]
                    if first - second > 1:
                        clear += 1
                        assert said(address, ids, 1) == [int(logits.argmax())]
                assert clear >= 8


def test_it_drafts_for_a_target_of_its_vocabulary(source: Path, tmp_path: Path) -> None:
    needs("xllamacpp")
    for name, quantization in (("target", "none"), ("drafter", "int8")):
        export(str(source), tmp_path / name, "gguf", Options(quantization))  # type: ignore[arg-type]
    target = tmp_path / "target" / "model.gguf"
    program = Path(__file__).parent.parent / "docs/load_llama_cpp.py"

    def run(folder: Path, *more: Path) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, program, folder, PROMPT, "24", *more], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told

    plain, drafted = run(target.parent), run(tmp_path / "drafter", target)
    assert plain["tokens"] == drafted["tokens"] and plain["tokens"]
    assert plain["drafted"] == 0 and drafted["drafted"] > 0


def test_the_documented_loader(default: dict[str, Path]) -> None:
    needs("xllamacpp")
    tokenizer = Tokenizer.load(default["none"])
    with float32_model(open_checkpoint(default_drafter_folder()), 1024) as own:
        expected = continued(own, tokenizer.encode(PROMPT), tokenizer.eos_ids, 24)
    assert run_example("load_llama_cpp.py", default["none"], 24) == expected
