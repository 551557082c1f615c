"""ExecuTorch programs that stock LLM runners drive, with our own form beside theirs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needs import needs
from safetensors.numpy import load_file, save_file
from test_described_bundles import PROMPT, greedy, run_example
from tiny import write_drafter

needs("torch")
needs("executorch")
needs("torchao")

from omnidraft.export.checkpoint import open_checkpoint  # noqa: E402
from omnidraft.export.checkpoint.spec import lora_shapes  # noqa: E402
from omnidraft.export.pipeline import export  # noqa: E402
from omnidraft.export.recipes import Options, find_recipe  # noqa: E402
from omnidraft.export.recipes import executorch as recipe  # noqa: E402
from omnidraft.runtime.engines.executorch import ExecuTorchModel  # noqa: E402
from omnidraft.runtime.errors import OmniDraftError  # noqa: E402
from omnidraft.runtime.storage.bundle import Bundle  # noqa: E402
from omnidraft.runtime.text.tokenizer import Tokenizer  # noqa: E402

CONTEXT, COUNT = 160, 30


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runner")
    source = write_drafter(root / "checkpoint", seed=1)
    # A runner shows text as it comes: no token that is a part of a character, and no end.
    weights = load_file(source / "model.safetensors")
    weights["lm_head.weight"][:259] = 0
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    options = Options("int8", lora_rank=1, context=CONTEXT, layout="llm-runner")
    export(str(source), root / "bundle", "executorch", options)
    return root / "bundle"


def run(code: str, *arguments: str) -> Any:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_plain_executorch_answers_as_our_engine(bundle: Path) -> None:
    expected = greedy(bundle, COUNT)
    assert len(expected) == COUNT and len(set(expected)) > 5
    assert run_example("load_executorch.py", bundle, COUNT) == expected


def test_the_stock_runner_answers_as_our_engine(bundle: Path) -> None:
    """It tokenizes, prefills and steps by itself, and begins the text where it is told to."""
    code = """
import json, sys
import executorch.kernels.quantized
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner
folder, prompt, count = sys.argv[1:]
runner = TextLLMRunner(f"{folder}/model.pte", f"{folder}/tokenizer.json")
pieces = []
config = GenerationConfig(echo=False, max_new_tokens=int(count), temperature=0.0, num_bos=1)
runner.generate(prompt, config, pieces.append)
print()
print(json.dumps({"text": "".join(pieces)}))
"""
    expected = Tokenizer.load(bundle).decode(greedy(bundle, COUNT))
    found = run(code, str(bundle), PROMPT, str(COUNT))
    # It decodes token by token, which leaves spaces out.
    assert found["text"].replace(" ", "") == expected.replace(" ", "") != ""


def test_what_the_program_tells(bundle: Path) -> None:
    code = """
import json, sys
import executorch.kernels.quantized
from executorch.runtime import Runtime
program = Runtime.get().load_program(sys.argv[1])
told = {
    name: program.load_method(name).execute([])
    for name in program.method_names - {"forward", "omnidraft"}
}
print(json.dumps(told | {"methods": sorted(program.method_names)}))
"""
    told = run(code, str(bundle / "model.pte"))
    described = Bundle.load(bundle)
    assert {"forward", "omnidraft"} <= set(told.pop("methods"))
    (about,) = told.pop("get_description")
    assert told == {
        "get_vocab_size": [described.geometry.vocab_size],
        "get_max_seq_len": [64],
        "get_max_context_len": [CONTEXT],
        "get_bos_id": [1],
        "get_eos_ids": [2],
        "use_kv_cache": [True],
        "use_sdpa_with_kv_cache": [False],
        "enable_dynamic_shape": [True],
    }
    ours, runners = described.graphs
    assert (ours.method, runners.method) == ("omnidraft", "forward")
    assert [tensor.name for tensor in runners.inputs] == ["tokens", "input_pos"]
    for graph, stated in zip(described.graphs, json.loads(about)["graphs"], strict=True):
        assert stated["inputs"] == [t.model_dump(exclude_defaults=True) for t in graph.inputs]
        assert graph.delegates == ["XnnpackBackend"]
        assert "quantized_decomposed::embedding_byte.out" in graph.operators
        assert not any(name.startswith("llama::") for name in graph.operators)
    readme = (bundle / "README.md").read_text("utf-8")
    assert "quantized kernels (quantized_decomposed::embedding_byte.out)" in readme
    assert "method `forward`" in readme and "the delegate XnnpackBackend" in readme


def test_our_engine_gives_it_adapters(bundle: Path) -> None:
    model = ExecuTorchModel(bundle)
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, 20)
    base = model.forward(tokens)
    generator = np.random.default_rng(1)
    adapter = {
        name: generator.standard_normal(shape).astype(np.float32)
        for name, shape in (("lora.0.o.A", (64, 1)), ("lora.0.o.B", (1, 64)))
    }
    model.set_adapter(adapter)
    assert np.abs(model.forward(tokens) - base).max() > 0.1
    model.set_adapter(None)
    np.testing.assert_array_equal(model.forward(tokens), base)


def test_forms_that_differ_are_refused(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = lora_shapes(open_checkpoint(bundle.parent / "checkpoint").decoder, 1)
    recipe.check_forms(bundle / "model.pte", shapes, 64, 2)
    monkeypatch.setattr(recipe, "LARGEST_ERROR", -1.0)
    with pytest.raises(OmniDraftError, match="two forms differ"):
        recipe.check_forms(bundle / "model.pte", shapes, 64, 2)


def test_what_is_refused() -> None:
    found = find_recipe("executorch")
    assert found.layouts == ("omnidraft", "llm-runner")
    with pytest.raises(OmniDraftError, match="leave --soc out"):
        found.check(Options(soc="SM8650", layout="llm-runner"))
