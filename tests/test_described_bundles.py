"""What a bundle tells other programs, and that a program which knows nothing else can run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Set
from pathlib import Path

import onnxruntime as ort
import pytest
from onnx import load
from tiny import write_drafter, write_target

from omnidraft.export.pipeline import export
from omnidraft.export.recipes import Options
from omnidraft.runtime.engines import open_engine
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.storage.bundle import BUNDLE_FILE, Bundle, _digest
from omnidraft.runtime.text.tokenizer import Tokenizer

DOCS = Path(__file__).parent.parent / "docs"
PROMPT = "The quick brown fox"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two drafters, one whose texts begin with a token, one whose texts do not."""
    root = tmp_path_factory.mktemp("described")
    sources = {
        "begins": write_drafter(root / "a", seed=1),
        "plain": write_target(root / "b", seed=2),
    }
    for name, source in sources.items():
        options = Options("int8", lora_rank=2, train_step=name == "begins")
        export(str(source), root / name, options=options)
    return {name: root / name for name in sources}


def greedy(folder: Path, count: int) -> list[int]:
    """What our own engine answers to ``PROMPT``."""
    model, tokenizer = open_engine(folder, threads=1), Tokenizer.load(folder)
    return continued(model, tokenizer.encode(PROMPT), tokenizer.eos_ids, count)


def continued(model: CausalModel, prompt: list[int], ends: Set[int], count: int) -> list[int]:
    """At most ``count`` likeliest tokens after a prompt, up to one that ends it."""
    new, answer = prompt, []
    while len(answer) < count and new[-1] not in ends:
        new = [int(model.forward(new, 1)[0].argmax())]
        answer += new
    return answer


def run_example(name: str, folder: Path, count: int) -> list[int]:
    """The tokens that an example of the documentation answers with."""
    assert "omnidraft" not in "".join(
        line for line in (DOCS / name).read_text().splitlines() if "import" in line
    )
    done = subprocess.run(
        [sys.executable, str(DOCS / name), str(folder), PROMPT, str(count)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    assert done.returncode == 0, done.stderr
    tokens: list[int] = json.loads(done.stdout.splitlines()[-1])["tokens"]
    return tokens


@pytest.mark.parametrize("name", ["begins", "plain"])
def test_plain_onnx_runtime_answers_as_our_engine(bundles: dict[str, Path], name: str) -> None:
    expected = greedy(bundles[name], 40)
    assert len(set(expected)) > 5
    assert run_example("load_onnx.py", bundles[name], 40) == expected


def test_every_input_and_output_is_described(bundles: dict[str, Path]) -> None:
    folder = bundles["begins"]
    bundle = Bundle.load(folder)
    readme = (folder / "README.md").read_text("utf-8")
    assert {graph.role for graph in bundle.graphs} == {"decoder", "training"}
    for graph in bundle.graphs:
        model = load(folder / graph.file, load_external_data=False)
        values = [*model.graph.input, *model.graph.output]
        told = [*graph.inputs, *graph.outputs]
        assert [value.name for value in values] == [tensor.name for tensor in told]
        for value, tensor in zip(values, told, strict=True):
            assert len(tensor.meaning) > 10 and value.doc_string == tensor.meaning, tensor.name
            assert "#" not in tensor.meaning
            assert f"`{tensor.name.replace('.0.', '.i.')}`" in readme or ".1." in tensor.name
        assert graph.usage and graph.usage == model.graph.doc_string and graph.usage in readme


def test_a_session_tells_what_a_caller_needs(bundles: dict[str, Path]) -> None:
    meta = {
        name: ort.InferenceSession(folder / "model.onnx").get_modelmeta()
        for name, folder in bundles.items()
    }
    about = {
        key.removeprefix("omnidraft."): json.loads(text)
        for key, text in meta["begins"].custom_metadata_map.items()
    }
    bundle = Bundle.load(bundles["begins"])
    assert about["geometry"] == bundle.geometry.model_dump()
    assert about["special_tokens"] == {"beginning": 1, "tokenizer_adds_it": True, "ends": [2]}
    assert about["lora"]["rank"] == 2 and about["quantization"] == "int8"
    assert "begins with token 1, which the caller puts there" in meta["begins"].description
    assert "capacity" in meta["begins"].graph_description
    assert "Nothing stands in front of a text" in meta["plain"].description


def test_manifests_without_descriptions_are_read(bundles: dict[str, Path], tmp_path: Path) -> None:
    """As they were written before there were any."""
    values = json.loads((bundles["plain"] / BUNDLE_FILE).read_text())
    del values["digest"], values["special_tokens"]
    for graph in values["graphs"]:
        del graph["usage"]
        for tensor in graph["inputs"] + graph["outputs"]:
            del tensor["meaning"], tensor["scale"], tensor["zero_point"]
    (tmp_path / BUNDLE_FILE).write_text(json.dumps(values | {"digest": _digest(values)}))
    bundle = Bundle.read(tmp_path)
    assert bundle.special_tokens is None and bundle.graphs[0].usage == ""
