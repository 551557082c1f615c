"""The experiments on adaptation: replayed targets, recorded answers, and each experiment once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import needs
from tiny import write_drafter, write_target
from toy import ToyModel, toy_pair

from omnidraft.export.learnable import learnable_drafter
from omnidraft.runtime.bench import Prompt
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.errors import ContextOverflowError, OmniDraftError
from omnidraft.runtime.learning.learner import AdapterChoice
from omnidraft.runtime.learning.objective import Objective
from omnidraft.runtime.learning.store import AdapterStore
from omnidraft.runtime.learning.trainer import LearningOptions
from omnidraft.runtime.models import load_model
from omnidraft.runtime.options import GenerationOptions
from omnidraft.runtime.session import Session
from omnidraft.runtime.statistics import Statistics
from omnidraft.runtime.storage.manifest import Manifest

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from benchmarks.adaptation import replay as replaying  # noqa: E402
from benchmarks.adaptation.__main__ import main  # noqa: E402
from benchmarks.adaptation.experiments import EXPERIMENTS  # noqa: E402
from benchmarks.adaptation.lab import Answered, Lab, Setting, figures, gain  # noqa: E402
from benchmarks.adaptation.replay import Answers, ReplayModel  # noqa: E402

TASKS = ("math", "code")
COUNTED = ("target_tokens", "rounds", "proposed", "accepted", "draft_tokens", "ngram_hits")


@dataclass(frozen=True)
class World:
    root: Path
    target: Path
    other_target: Path
    drafter: Path

    def prompts(self, task: str, count: int = 12) -> Path:
        path = self.root / f"{task}-{count}.jsonl"
        lines = [{"task": task, "prompt": f"{task} {i}: quick brown fox?"} for i in range(count)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def run(self, experiment: Any, json_file: Path, **options: Any) -> dict[str, Any]:
        targets = [self.target, self.other_target][: 1 + (experiment == "target-drift")]
        settings: dict[str, Any] = {
            "stream": self.prompts("math"),
            "test": self.prompts("math"),
            "other": self.prompts("code"),
            "target": [str(target) for target in targets],
            "drafter": str(self.drafter),
            "limit": 4,
            "test_limit": 3,
            "interval": 2,
            "max_new_tokens": 12,
            "every": 2,
            "rank": [2, 4] if experiment == "ranks" else None,
            "capacity": [2, 8],
            "draft_confidence": 0.0,
            "json_file": json_file,
        }
        main(experiment, **(settings | options))
        report: dict[str, Any] = json.loads(json_file.read_text())
        return report


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("experiments")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIDRAFT_CACHE", str(root / "cache"))
        drafter = learnable_drafter(str(write_drafter(root / "drafter", seed=1)))
        yield World(
            root, write_target(root / "one"), write_target(root / "two", seed=3), Path(drafter)
        )


def lab_of(world: World, tmp_path: Path, **options: Any) -> Lab:
    setting = Setting(
        AdapterStore(tmp_path / "store"),
        tmp_path / "answers",
        str(world.drafter),
        GenerationOptions(max_new_tokens=20, draft_length=4, draft_confidence=0.0, **options),
        LearningOptions(Objective(), rank=2, interval=2),
    )
    return Lab(load_model(str(world.target)), setting, lambda what, done, count: None)


# --- replay -----------------------------------------------------------------------------------


@settings(max_examples=40)
@given(seed=st.integers(0, 50), length=st.integers(1, 6), wanted=st.integers(1, 40))
def test_a_replayed_answer_is_decoded_as_with_the_target(
    seed: int, length: int, wanted: int
) -> None:
    """Tokens, rounds, what was proposed and accepted, and the n-grams learned are the same."""

    def decode(model: CausalModel | None) -> tuple[list[int], Statistics, Any]:
        pair = toy_pair(seed)
        target = ToyModel(len(pair.target), seed)
        decoder = SpeculativeDecoder(model or target, pair.drafting(seed + 1, length))
        tokens = [emitted.token for emitted in decoder.generate([1, 2], wanted)]
        return tokens, decoder.statistics, pair.cache.ngrams()

    tokens, statistics, ngrams = decode(None)
    model = ReplayModel(len(toy_pair(seed).target), 512)
    model.play([1, 2], tokens)
    again, replayed, same_ngrams = decode(model)
    assert again == tokens
    assert same_ngrams == ngrams
    for name in (*COUNTED, "ngram_accepted", "ngram_inserted"):
        assert getattr(replayed, name) == getattr(statistics, name), name


def test_a_replayed_model_knows_the_recorded_tokens_only() -> None:
    model = ReplayModel(5, 6)
    assert isinstance(model, CausalModel)
    model.play([1, 2], [3, 4])
    assert model.forward([1, 2]).tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0]]
    assert model.forward([3, 1, 4]).argmax(axis=1).tolist() == [4, 0, 0]
    assert not model.forward([4]).any()
    model.truncate(2)
    assert model.forward([3, 4], rows=1).tolist() == [[0] * 5]
    model.truncate(0)
    assert model.forward([1], rows=1).tolist() == [[0, 0, 1, 0, 0]]
    with pytest.raises(ContextOverflowError):
        model.forward([2, 3, 4, 1, 1, 1])
    with pytest.raises(ValueError, match="token ids"):
        model.forward([5])
    with pytest.raises(ValueError, match="truncate"):
        model.truncate(2)


def test_answers_are_recorded_once_and_plainly(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_model(str(world.target))
    options = GenerationOptions(max_new_tokens=6)
    prompts = [Prompt("math", f"fox {i}") for i in range(3)]
    Answers(target, options, tmp_path).record(prompts[:2])
    again = Answers(target, options, tmp_path)
    plain = Session(target)
    for prompt in prompts[:2]:
        assert again.get(prompt) == plain.generate(prompt.prompt, options).token_ids
    assert again.get(prompts[2]) is None
    asked = []
    generate = Session.generate

    def listen(self: Session, prompt: str, options: Any = None) -> Any:
        asked.append(prompt)
        return generate(self, prompt, options)

    monkeypatch.setattr(replaying.Session, "generate", listen)
    again.record(prompts)
    assert asked == ["fox 2"]
    # Other options, other answers.
    shorter = replace(options, max_new_tokens=3)
    assert Answers(target, shorter, tmp_path).get(prompts[0]) is None
    again.path.write_text(again.path.read_text()[:-9])
    with pytest.raises(OmniDraftError, match="delete the file"):
        Answers(target, options, tmp_path)


def test_answers_outlive_a_measurement_of_the_target(world: World, tmp_path: Path) -> None:
    target = load_model(str(world.target))
    options = GenerationOptions(max_new_tokens=4)
    prompt = Prompt("math", "fox")
    Answers(target, options, tmp_path).record([prompt])
    manifest = Manifest.load(target.path)
    replace(manifest, invariance={**manifest.invariance, "machine": "other"}).save(target.path)
    try:
        assert Answers(target, options, tmp_path).get(prompt) is not None
    finally:
        manifest.save(target.path)


def test_an_interrupted_recording_keeps_what_it_has(world: World, tmp_path: Path) -> None:
    target = load_model(str(world.target))
    options = GenerationOptions(max_new_tokens=4)
    prompts = [Prompt("math", f"fox {i}") for i in range(4)]
    count = 0

    def interrupt() -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Answers(target, options, tmp_path).record(prompts, interrupt)
    known = Answers(target, options, tmp_path)
    assert [known.get(prompt) is not None for prompt in prompts] == [True, True, False, False]


def test_a_lab_replays_what_a_session_does(world: World, tmp_path: Path) -> None:
    lab = lab_of(world, tmp_path)
    prompts = [Prompt("math", f"The quick fox {i}") for i in range(3)]
    lab.record(prompts)
    replayed = lab.answer(lab.replaying(lab.cache()), prompts, "")
    session = Session(lab.target, load_model(str(world.drafter)))
    for run, prompt in zip(replayed, prompts, strict=True):
        real = session.generate(prompt.prompt, lab.setting.generation).statistics
        for name in (*COUNTED, "ngram_inserted"):
            assert getattr(run.statistics, name) == getattr(real, name), name
        assert run.identical
    told = figures(replayed)
    assert told["ngram_tokens"] >= told["ngram_inserted"] > 0
    assert 0 <= told["hit_rate"] < 1


def test_cross_entropy_learns_from_a_replay_what_it_learns_from_the_target(
    world: World, tmp_path: Path
) -> None:
    """So does no other loss: it is given the target itself."""
    lab = lab_of(world, tmp_path)
    prompts = [Prompt("math", f"The quick brown fox {i}") for i in range(5)]
    lab.record(prompts)
    options = lab.setting.learning
    replayed = lab.learning("replayed", options)
    lab.answer(replayed, prompts, "")
    choice = AdapterChoice(lab.setting.store, "real", options)
    real = Session(lab.target, load_model(str(world.drafter), threads=2), adapter=choice)
    for prompt in prompts:
        real.generate(prompt.prompt, lab.setting.generation)
    states = []
    for session in (replayed, real):
        assert session.learner is not None and session.learner.trainer is not None
        states.append(session.learner.trainer.state())
    (_, ours, progress), (_, theirs, expected) = states
    assert progress.updates == expected.updates == 2
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        np.testing.assert_allclose(values, theirs[name], rtol=1e-5, atol=1e-8, err_msg=name)
    assert lab.learning("dm", lab.setting.with_loss("dm")).target is lab.target


def test_without_a_cache_nothing_is_merged(world: World, tmp_path: Path) -> None:
    lab = lab_of(world, tmp_path)
    prompts = [Prompt("math", "The quick brown fox")] * 2
    lab.record(prompts)
    empty = lab.no_cache()
    runs = lab.answer(lab.replaying(empty), prompts, "")
    assert len(empty) == 0
    assert not any(run.statistics.ngram_hits for run in runs)
    assert figures(runs, cached=False)["hit_rate"] is None


# --- figures ----------------------------------------------------------------------------------


def answered(tokens: int, rounds: int) -> Answered:
    return Answered(Statistics(target_tokens=tokens, rounds=rounds), 0, 0, None)


@given(
    st.lists(
        st.tuples(st.integers(1, 99), st.integers(1, 99), st.integers(1, 99)),
        min_size=1,
        max_size=20,
    )
)
def test_a_gain_lies_in_its_interval_and_is_1_for_the_same(
    runs: list[tuple[int, int, int]],
) -> None:
    before = [answered(tokens, rounds) for tokens, rounds, _ in runs]
    after = [answered(tokens, rounds) for tokens, _, rounds in runs]
    found = gain(before, after)
    expected = sum(rounds for _, rounds, _ in runs) / sum(rounds for _, _, rounds in runs)
    assert found["gain"] == pytest.approx(expected)
    low, high = found["gain_interval"]
    assert low <= high
    assert gain(before, before) == {"gain": 1.0, "gain_interval": [1.0, 1.0]}
    doubled = [answered(2 * tokens, rounds) for tokens, rounds, _ in runs]
    assert np.allclose(gain(before, doubled)["gain_interval"], 2)


# --- experiments ------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_writes_its_report(
    world: World, tmp_path: Path, experiment: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    report = world.run(experiment, tmp_path / "report.json")
    assert report["complete"] is True
    assert report["experiment"] == experiment
    assert "recorded" in report["replayed"]
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert len(capsys.readouterr().out.splitlines()) > 2
    # Every answer that was compared with plain decoding's is the same, learning or not.
    compared = [part for part in walk(report) if part.get("compared")]
    assert compared
    assert all(part["identical"] == part["compared"] for part in compared)
    if experiment == "ablation":
        variants = {each["variant"]: each for each in report["variants"]}
        assert list(variants)[:3] == ["no cache", "cache", "L_DM"]
        assert len(variants) == 7
        assert variants["no cache"]["gain"] == 1.0
        assert variants["no cache"]["ngrams"]["entries"] == 0
        assert variants["L_DM"]["before"] == variants["no cache"]["before"]
        assert variants["cache"]["ngrams"]["entries"] > 0
        learned = [each for each in variants.values() if each["loss"]]
        assert [each["updates"] for each in learned] == [2] * 5
        assert report["test"] == ["math-12.jsonl", 3]
        hybrid, alone = variants["hybrid + cache"]["after"], variants["L_DM"]["after"]
        assert report["hybrid_over"]["L_DM"]["gain"] == pytest.approx(
            hybrid["block_efficiency"] / alone["block_efficiency"]
        )
    elif experiment == "ranks":
        assert [each["rank"] for each in report["ranks"]] == [2, 4]
    elif experiment == "curve":
        assert [point["prompts"] for point in report["points"]] == [0, 2, 4]
        first = report["points"][0]
        # Nothing is learned yet.
        assert first["cache_only"] == first["learned"]
        assert report["points"][-1]["updates"] == 2
    elif experiment == "cache":
        entries = [point["ngrams"]["entries"] for point in report["points"]]
        assert entries == sorted(entries) and entries[0] > 0
        assert [paper["entries"] for paper in report["paper"]] == [5569, 2238, 20339, 17013]
        assert round(report["paper"][0]["bytes_per_entry"]) == 246
    elif experiment == "eviction":
        for each in report["bounded"]:
            assert each["ngrams"]["entries"] <= each["capacity"]
            assert each["hit_rate"] <= report["unbounded"]["hit_rate"]
        assert any(each["ngrams"]["evictions"] for each in report["bounded"])
    else:
        for way in report["ways"]:
            assert len(way["phases"]) == 3
            assert len(way["curve"]) == 12
        last = {way["way"]: way["phases"][-1] for way in report["ways"]}
        if experiment == "target-drift":
            # The adapter goes on from the first phase; what begins anew does not.
            assert last["its adapter"]["updates"] == 4
            assert last["begun anew"]["updates"] == 2
        else:
            assert last["ce + cache"]["updates"] == 6
            assert last["ce, no cache"]["ngrams"]["entries"] == 0


def walk(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a JSON value."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from walk(each)


@pytest.mark.parametrize("experiment", ["ablation", "cache"])
def test_a_plot_is_drawn(world: World, tmp_path: Path, experiment: Any) -> None:
    needs("matplotlib")
    plot = tmp_path / "plot.png"
    world.run(experiment, tmp_path / "report.json", plot=plot, limit=2, test_limit=1)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("experiment", "options", "message"),
    [
        ("ablation", {"test": None}, "--test"),
        ("task-drift", {"other": None}, "--other"),
        ("task-drift", {"limit": 12}, "further prompts"),
        ("cache", {"rank": [2, 4]}, "one --rank"),
        ("cache", {"target": ["a", "b"]}, "--target once"),
        ("target-drift", {"target": ["a"]}, "--target twice"),
        ("ablation", {"limit": 12}, "nothing to test"),
        ("cache", {"json_file": Path("missing/folder/x.json")}, "No file can be written"),
        ("cache", {"stream": Path("missing.jsonl")}, "cannot be read"),
    ],
)
def test_bad_input_is_told_before_anything_is_measured(
    world: World, tmp_path: Path, experiment: Any, options: dict[str, Any], message: str
) -> None:
    options = {"json_file": tmp_path / "report.json", **options}
    with pytest.raises(OmniDraftError, match=message):
        world.run(experiment, **options)
    assert not list(tmp_path.iterdir())


def test_bad_input_ends_with_exit_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.adaptation", "cache", "--stream", "missing.jsonl"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "missing.jsonl" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_drafters_are_compared_on_recorded_answers(world: World, tmp_path: Path) -> None:
    from benchmarks.drafters import main as compare

    prompts, name = world.prompts("code", 3), str(world.drafter)
    out = tmp_path / "out.json"
    compare(
        prompts,
        target=str(world.target),
        drafter=[name, name],
        limit=None,
        max_new_tokens=12,
        draft_length=4,
        draft_confidence=0.0,
        raw=True,
        threads=1,
        json_file=out,
    )
    first, second = json.loads(out.read_text())["drafters"]
    assert first == second
    assert first["gain"] == 1
    # What is replayed is what decoding itself does.
    session = Session(load_model(str(world.target), threads=1), load_model(name, threads=1))
    options = GenerationOptions(12, draft_length=4, draft_confidence=0.0, raw=True)
    decoded = Statistics()
    for line in prompts.read_text().splitlines():
        decoded += session.generate(json.loads(line)["prompt"], options).statistics
    assert first["block_efficiency"] == decoded.block_efficiency
