"""What was measured of a model's batch invariance holds where it was measured, and nowhere else."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny import write_target

from omnidraft.runtime.bench import compare, read_prompts
from omnidraft.runtime.cores import Cores
from omnidraft.runtime.doctor import examine
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.models import LoadedModel, load_model
from omnidraft.runtime.models.resolve import resolve
from omnidraft.runtime.options import GenerationOptions
from omnidraft.runtime.session import Session
from omnidraft.runtime.storage import files
from omnidraft.runtime.storage.manifest import MANIFEST_FILE

pytestmark = pytest.mark.usefixtures("all_cores")

ELSEWHERE = [
    {"onnxruntime": "1.0.0"},
    {"machine": "aarch64"},
    {"cpu_features": ["avx"]},
    {"kernels": "0.0.1 0123456789abcdef"},
    {"measured": {}},
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("OMNIDRAFT_CACHE", str(folder))
    for module in ("cores", "models.load"):
        monkeypatch.setattr(f"omnidraft.runtime.{module}.own_cores", lambda: Cores(4, 2))
    return folder


@pytest.fixture
def converted(tmp_path: Path, cache: Path) -> Path:
    return resolve(str(write_target(tmp_path / "target")))


def read(folder: Path) -> dict[str, Any]:
    invariance: dict[str, Any] = json.loads((folder / MANIFEST_FILE).read_text())["invariance"]
    return invariance


def edit(folder: Path, invariance: dict[str, Any]) -> None:
    path = folder / MANIFEST_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"invariance": invariance}))


def load(folder: Path, **options: Any) -> tuple[LoadedModel, bool]:
    """A model, and whether it was measured for it."""
    steps: list[str] = []
    loaded = load_model(str(folder), progress=lambda step, _: steps.append(step), **options)
    return loaded, "checking batch invariance" in steps


def said() -> str:
    """What doctor says of the models in the cache."""
    return " ".join(finding.detail for finding in examine() if "invarian" in finding.detail)


def invariant_with(*threads: int) -> dict[str, Any]:
    return {str(each): {"difference": 0.0, "least_pass": 1} for each in threads}


@pytest.mark.parametrize("whole", [False, True], ids=["changed", "nothing else"])
@pytest.mark.parametrize("foreign", ELSEWHERE, ids=lambda foreign: next(iter(foreign)))
def test_what_was_measured_elsewhere_is_measured_again(
    converted: Path, foreign: dict[str, Any], whole: bool
) -> None:
    here = read(converted)
    assert "are bit for bit" in said() and not load(converted)[1]
    edit(converted, foreign if whole else here | foreign)
    assert "batch-invariant" in said() and "are bit for bit" not in said()
    assert "measured again when the model is loaded" in said()
    loaded, measured = load(converted)
    assert measured and loaded.batch_invariant and loaded.largest_difference == 0.0
    assert loaded.model.length == 0
    assert read(converted) == here
    assert "are bit for bit" in said() and not load(converted)[1]


def test_a_manifest_of_before_is_measured_and_not_converted_again(converted: Path) -> None:
    here = read(converted)
    old = {name: value for name, value in here.items() if name not in ("measured", "kernels")}
    edit(converted, old | {"threads": 2})
    before = (converted / "model.onnx").stat().st_mtime_ns
    assert "kernels unknown" in said()
    loaded, measured = load(converted)
    assert measured and loaded.batch_invariant and read(converted) == here
    assert (converted / "model.onnx").stat().st_mtime_ns == before


def test_each_number_of_threads_is_measured_once(converted: Path) -> None:
    for threads, expected in [(2, False), (1, True), (2, False), (1, False), (3, True), (1, False)]:
        loaded, measured = load(converted, threads=threads)
        assert measured == expected and loaded.batch_invariant
    assert read(converted)["measured"] == invariant_with(1, 2, 3)
    assert "threads: 1, 2, 3" in said()
    # Elsewhere nothing of it holds.
    edit(converted, read(converted) | {"onnxruntime": "1.0.0"})
    assert load(converted)[1]
    assert read(converted)["measured"] == invariant_with(2)


def test_processes_that_measure_at_once_keep_each_others_results(converted: Path) -> None:
    edit(converted, {"onnxruntime": "1.0.0"})
    others: list[bool] = []

    def meanwhile(step: str, fraction: float | None) -> None:
        if not others:
            others.append(False)
            others.append(load(converted, threads=1)[1])

    assert load_model(str(converted), progress=meanwhile).batch_invariant
    assert others[1] and read(converted)["measured"] == invariant_with(1, 2)
    assert {path.name for path in converted.iterdir()} == {
        MANIFEST_FILE,
        *json.loads((converted / MANIFEST_FILE).read_text())["files"],
    }


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_target_that_is_not_invariant_here_is_said_to_be_so(tmp_path: Path) -> None:
    """Its activations overflow, so no pass gives the same twice."""
    source = write_target(tmp_path / "target")
    weights = load_file(source / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"] *= np.float32(1e10)
    weights["model.layers.0.mlp.down_proj.weight"] *= np.float32(1e30)
    save_file(weights, source / "model.safetensors")
    folder = resolve(str(source), "float32")
    # As if it had been invariant where it was converted.
    good = {"batch_invariant": True, "largest_difference": 0.0, "measured": invariant_with(1, 2)}
    edit(folder, read(folder) | good | {"onnxruntime": "1.0.0"})
    with pytest.warns(UserWarning, match="not batch-invariant here .* by up to inf"):
        loaded, _ = load(folder)
    assert not loaded.batch_invariant and loaded.largest_difference == float("inf")
    assert not read(folder)["batch_invariant"]
    assert "misses batch-invariance here (threads: 1) by inf" in said()
    assert "are bit for bit" not in said()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not load(folder)[1]


def test_a_lone_row_that_a_kernel_treats_differently_is_given_company(
    converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ONNX Runtime's 4-bit kernels do on processors without AVX-512."""
    run = OnnxModel._pass

    def alone_is_different(model: OnnxModel, tokens: Any, *place: int) -> None:
        run(model, tokens, *place)
        if max(len(tokens), model.least_pass) == 1:
            model._rows["logits"] += 1e-3

    monkeypatch.setattr(OnnxModel, "_pass", alone_is_different)
    edit(converted, {"onnxruntime": "1.0.0"})
    for measured in (True, False):
        loaded, now = load(converted)
        assert now == measured and loaded.batch_invariant
        assert loaded.model.least_pass == 2
    assert read(converted)["measured"]["2"] == {"difference": 0.0, "least_pass": 2}
    model = loaded.model
    tokens = np.arange(model.max_length) % 300
    together = model.forward(tokens).copy()
    for start in (model.max_length - 3, 96, 95, 0):
        model.truncate(start)
        for i in range(start, min(start + 3, model.max_length)):
            assert np.array_equal(model.forward(tokens[i : i + 1])[0], together[i])
        assert model.length == start + 3


@pytest.mark.parametrize("odd", [{"2": 0.0}, {"x": {}}, [], {"2": {"size": 1}}])
def test_a_record_that_says_something_else_is_no_measurement(converted: Path, odd: Any) -> None:
    edit(converted, read(converted) | {"measured": odd})
    assert "are bit for bit" not in said()
    assert load(converted)[1]
    assert read(converted)["measured"] == invariant_with(2)


def test_bench_speaks_of_what_was_measured_here(converted: Path, tmp_path: Path) -> None:
    """Also where its own short sample shows no difference."""
    threads = {"1": {"difference": 0.25}, "2": {"difference": 0.25}}
    edit(converted, read(converted) | {"batch_invariant": False, "measured": threads})
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "The quick"}\n')
    session = Session(load(converted)[0])
    report = compare(
        session, read_prompts(tmp_path / "prompts.jsonl"), GenerationOptions(max_new_tokens=2)
    )
    assert report.batch_noise == 0.25


def test_a_folder_that_cannot_be_written_is_measured_for_the_process(
    converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(converted, {"onnxruntime": "1.0.0"})
    names = sorted(path.name for path in converted.iterdir())

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(files, "mkstemp", refuse)
    loaded, measured = load(converted)
    assert measured and loaded.batch_invariant
    assert read(converted) == {"onnxruntime": "1.0.0"}
    assert sorted(path.name for path in converted.iterdir()) == names


def test_what_is_loaded_to_draft_is_not_measured(converted: Path) -> None:
    edit(converted, {"onnxruntime": "1.0.0"})
    loaded, measured = load(converted, drafts=True)
    assert not measured and not loaded.batch_invariant
    assert read(converted) == {"onnxruntime": "1.0.0"}


def test_of_what_was_made_to_draft_no_invariance_is_asked(cache: Path) -> None:
    folder = resolve("default")
    assert "it need not be batch-invariant" in said() and "not known" not in said()
    loaded, measured = load(folder)
    assert not measured and not loaded.batch_invariant
    assert read(folder) == {}


def test_a_device_measures_without_what_converts(converted: Path) -> None:
    here = read(converted)
    edit(converted, here | {"machine": "aarch64"})
    script = """
import sys
for name in ("onnx", "gguf", "safetensors", "torch", "transformers"):
    sys.modules[name] = None
import omnidraft
assert omnidraft.load_model(sys.argv[1], threads=2).batch_invariant
"""
    subprocess.run([sys.executable, "-c", script, str(converted)], check=True)
    assert read(converted) == here
