"""The comparison with peers: turns, medians, rows and files, with workers that are made up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from omnidraft.runtime.bench import Prompt, read_prompts
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models.catalogue import default_drafter_folder

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from benchmarks.peers import measure as measuring  # noqa: E402
from benchmarks.peers import prepare, report  # noqa: E402
from benchmarks.peers.measure import (  # noqa: E402
    Budget,
    Generation,
    Run,
    Task,
    Way,
    first_token,
    measure,
    rate,
    rows,
    tune,
    turns,
)
from benchmarks.peers.plan import PLAIN, Contestant, Method, contestants  # noqa: E402
from benchmarks.peers.processes import Worker, WorkerError  # noqa: E402
from benchmarks.peers.worker import Trace  # noqa: E402

TASKS = [Task("math", "one", [1, 2]), Task("code", "two", [1, 2, 3, 4]), Task("math", "three", [1])]
GREEDY = Generation(max_new_tokens=4, temperature=0.0, stop=[0])
FACTS = {"target": "toy", "context": None, "temperature": 0.0}
WANTED = {
    "engine",
    "method",
    "version",
    "target",
    "precision",
    "task",
    "context",
    "tokens_per_second",
    "speedup_over_own_plain",
    "speedup_over_fastest_plain",
    "identical",
}


class FakeWorker:
    """Answers with a given pace, in seconds a token, by method and draft length."""

    version = "1.0"

    def __init__(self, engine: str, paces: Mapping[str, float], wrong: str = "") -> None:
        self.contestant = Contestant(engine, "8bit", "none", "pip install it")
        self.paces = paces
        self.wrong = wrong
        self.dead = False
        self.asked: list[Mapping[str, Any]] = []

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(request)
        if "fresh" in request:
            if self.dead:
                raise WorkerError("it died")
            return {}
        name = f"{request['method']}{request['setting'].get('draft_length', '')}"
        if name not in self.paces:
            raise WorkerError(f"no {name}")
        count = request["max_new_tokens"]
        tokens = [len(request["tokens"])] * count
        if request["method"] == self.wrong and request["prompt"] == "two":
            tokens[-1] += 1
        seconds = self.paces[name] * (count - 1)
        return asdict(Run(tokens, count - 1, seconds, 1.0 + seconds, count))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SETTLE_SECONDS", 0)


def _way(worker: FakeWorker, name: str, **setting: Any) -> Way:
    return Way(worker, Method(name), setting)


def _row(result: list[dict[str, Any]], task: str, engine: str, method: str) -> dict[str, Any]:
    (row,) = (
        row
        for row in result
        if (row["task"], row["engine"], row["method"]) == (task, engine, method)
    )
    return row


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_all_take_turns_and_each_begins_about_equally_often(
    count: int, prompts: int, repeats: int
) -> None:
    plan = list(turns(count, prompts, repeats))
    assert [(repeat, prompt) for repeat, prompt, _ in plan] == [
        (repeat, prompt) for repeat in range(repeats) for prompt in range(prompts)
    ]
    assert all(sorted(order) == list(range(count)) for _, _, order in plan)
    for prompt in range(prompts):
        begins = [order[0] for _, each, order in plan if each == prompt]
        often = [begins.count(way) for way in range(count)]
        assert max(often) - min(often) <= 1


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 50), st.floats(0.001, 1.0)), min_size=1, max_size=5),
        min_size=1,
        max_size=4,
    )
)
def test_a_rate_lies_between_those_of_its_runs(figures: list[list[tuple[int, float]]]) -> None:
    runs = [
        [Run([0] * count, count, count * pace, count * pace, 1) for count, pace in repetitions]
        for repetitions in figures
    ]
    paces = [1 / pace for repetitions in figures for _, pace in repetitions]
    assert min(paces) * (1 - 1e-9) <= rate(runs) <= max(paces) * (1 + 1e-9)


def test_one_disturbed_repetition_does_not_move_the_rate() -> None:
    def run(seconds: float) -> Run:
        return Run([0] * 11, 10, seconds, seconds + 1, 11)

    quiet = [run(1.0)] * 3
    assert rate([quiet]) == rate([[*quiet, run(60.0)]]) == 10
    assert rate([[Run([0], 0, 0.0, 1.0, 1)]]) == 0.0  # the first round said all
    assert rate([[run(1.0)]], "total_seconds") == pytest.approx(5.5)


def test_the_first_token_is_timed_by_prompt_and_prompts_are_weighted_by_their_tokens() -> None:
    def run(first: float) -> Run:
        return Run([0] * 3, 2, 1.0, first + 1.0, 3)

    found = first_token({0: [run(0.2), run(0.1), run(9.0)], 1: [run(0.4)], 2: []}, TASKS)
    assert found["prompt_tokens"] == 3
    assert found["first_token_seconds"] == pytest.approx(0.3)
    assert found["prompt_tokens_per_second"] == pytest.approx(10)
    assert set(first_token({}, TASKS).values()) == {None}


def test_long_prompts_have_figures_of_their_own() -> None:
    ways = [_way(FakeWorker("ours", {"plain": 0.02}), PLAIN)]
    measure(ways, TASKS, GREEDY, 1, Budget(60))
    long = [Task("math", "long", [1] * 500)]
    ways[0].readings[0] = [Run([0, 0], 1, 0.5, 1.5, 2)]
    result = rows(ways, TASKS, GREEDY, FACTS, long)
    assert [row.get("long_prompts") for row in result[:2]] == [None, None]
    row = _row(result, "all", "ours", PLAIN)
    assert row["long_prompts"]["prompt_tokens_per_second"] == pytest.approx(500)
    assert row["first_token_seconds"] == pytest.approx(1.0)
    console = Console(record=True, width=100)
    report.show(result, console)
    assert "1000" in console.export_text()


def test_rows_compare_with_own_and_with_fastest_plain_decoding() -> None:
    ours = FakeWorker("ours", {"plain": 0.02, "drafted4": 0.01})
    theirs = FakeWorker("theirs", {"plain": 0.016, "drafted2": 0.032}, wrong="drafted")
    ways = [
        _way(ours, PLAIN),
        _way(ours, "drafted", draft_length=4),
        _way(theirs, PLAIN),
        _way(theirs, "drafted", draft_length=2),
    ]
    measure(ways, TASKS, GREEDY, 3, Budget(60))
    result = rows(ways, TASKS, GREEDY, FACTS)

    assert [row["task"] for row in result[::4]] == ["math", "code", "all"]
    assert all(set(row) >= WANTED for row in result)
    drafted = _row(result, "all", "ours", "drafted")
    assert drafted["tokens_per_second"] == pytest.approx(100)
    assert drafted["speedup_over_own_plain"] == pytest.approx(2)
    assert drafted["speedup_over_fastest_plain"] == pytest.approx(1.6)
    assert drafted["draft_length"] == 4
    assert (drafted["identical"], drafted["identical_prompts"]) == (True, 3)
    assert (drafted["prompts"], drafted["repeats"]) == (3, 3)
    assert _row(result, "math", "theirs", "drafted")["identical"] is True
    assert _row(result, "code", "theirs", "drafted")["identical"] is False
    assert _row(result, "all", "theirs", "drafted")["identical_prompts"] == 2
    assert _row(result, "code", "ours", PLAIN)["context"] == 4
    # What is learned is forgotten at the start of each repetition.
    assert sum("fresh" in request for request in ours.asked) == 3


def test_sampled_answers_are_not_called_identical() -> None:
    worker = FakeWorker("ours", {"plain": 0.02})
    ways = [_way(worker, PLAIN)]
    sampled = Generation(4, 1.5, [0])
    measure(ways, TASKS, sampled, 2, Budget(60))
    assert {row["identical"] for row in rows(ways, TASKS, sampled, FACTS)} == {None}


def test_a_method_that_fails_is_listed_with_its_reason() -> None:
    worker = FakeWorker("ours", {"plain": 0.02})
    ways = [_way(worker, PLAIN), _way(worker, "drafted", draft_length=4)]
    measure(ways, TASKS, GREEDY, 1, Budget(60))
    result = rows(ways, TASKS, GREEDY, FACTS)
    failed = _row(result, "all", "ours", "drafted")
    assert failed["tokens_per_second"] is None and failed["unavailable"] == "no drafted4"
    assert _row(result, "all", "ours", PLAIN)["tokens_per_second"] == pytest.approx(50)


def test_a_worker_that_dies_does_not_end_the_measurement() -> None:
    dead, alive = FakeWorker("dead", {"plain": 0.02}), FakeWorker("alive", {"plain": 0.02})
    dead.dead = True
    ways = [_way(dead, PLAIN), _way(alive, PLAIN)]
    measure(ways, TASKS, GREEDY, 2, Budget(60))
    result = rows(ways, TASKS, GREEDY, FACTS)
    assert _row(result, "all", "dead", PLAIN)["unavailable"] == "it died"
    assert _row(result, "all", "alive", PLAIN)["repeats"] == 2


def test_the_fastest_setting_is_chosen() -> None:
    worker = FakeWorker("ours", {"drafted2": 0.03, "drafted4": 0.01, "drafted8": 0.02, "plain": 1})
    lengths = ({"draft_length": 2}, {"draft_length": 4}, {"draft_length": 8}, {"draft_length": 16})
    plain, drafted = tune(
        [(worker, Method(PLAIN)), (worker, Method("drafted", lengths))], TASKS, GREEDY, Budget(60)
    )
    assert (plain.setting, drafted.setting) == ({}, {"draft_length": 4})
    assert [pace for _, pace in drafted.tuning] == pytest.approx([1 / 0.03, 100, 50, 0])
    assert not any(request.get("method") == PLAIN for request in worker.asked)
    assert not drafted.runs  # tuning prompts do not count


@given(st.floats(0.5, 100.0), st.lists(st.floats(0.1, 10.0), min_size=1, max_size=30))
def test_a_budget_holds_when_no_step_is_longer_than_all_before(
    seconds: float, steps: list[float]
) -> None:
    now = 0.0
    budget = Budget(seconds, lambda: now)
    taken = 0
    for step, _ in zip(sorted(steps, reverse=True), budget.steps(), strict=False):
        now += step
        taken += 1
    assert taken >= 1
    assert now <= seconds or taken == 1


def test_a_trace_tells_the_first_round_from_the_rest() -> None:
    trace = Trace()
    trace.add([1, 2])
    trace.add([3])
    trace.extend(4)
    answer = trace.as_dict()
    assert (answer["tokens"], answer["decoded"], answer["rounds"]) == ([1, 2, 3, 4], 2, 2)
    assert 0 <= answer["decode_seconds"] <= answer["total_seconds"]
    with pytest.raises(RuntimeError, match="no token"):
        Trace().as_dict()


def test_a_missing_engine_says_how_to_get_it(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    contestant = Contestant("llama.cpp", "Q4_1", "llamacpp_worker", "pip install xllamacpp")
    with pytest.raises(WorkerError, match=r"not installed.*xllamacpp.*pip install"):
        Worker(contestant, {}, str(bare), tmp_path / "log")


def test_every_contestant_decodes_plainly_and_has_a_worker() -> None:
    for gguf in (None, "Q4_1"):
        for sampling in (False, True):
            everyone = contestants(
                draft_lengths=[4, "auto"], adapter="mine", gguf_type=gguf, sampling=sampling
            )
            plain = {each.name for each in everyone if each.methods[0].name == PLAIN}
            for each in everyone:
                assert each.name in plain
                assert (REPOSITORY / "benchmarks/peers" / f"{each.module}.py").is_file()
            names = [method.name for method in everyone[0].methods]
            assert names == [PLAIN, *["omnidraft"] * 2, *["omnidraft adapted"] * 2]


def test_shipped_prompts_are_disjoint_from_the_tuning_prompts() -> None:
    folder = REPOSITORY / "benchmarks" / "peers"
    tuning = {entry.prompt for entry in read_prompts(folder / "tuning.jsonl")}
    for name in ("prompts.jsonl", "hostile.jsonl"):
        assert not tuning & {entry.prompt for entry in read_prompts(folder / name)}


def test_picked_prompts_alternate_and_leave_out_the_tuning_prompts() -> None:
    prompts = [Prompt("a", "1"), Prompt("a", "2"), Prompt("a", "3"), Prompt("b", "4")]
    picked = prepare.pick(prompts, 2, [Prompt("a", "1")])
    assert [each.prompt for each in picked] == ["2", "4", "3"]
    with pytest.raises(OmniDraftError, match="tuning"):
        prepare.pick(prompts[:1], 1, prompts)


class _Words:
    has_chat_template = False

    def encode(self, text: str) -> list[int]:
        return list(range(len(text.split())))


def test_prompts_are_padded_to_the_context_that_is_asked_for() -> None:
    words: Any = _Words()
    (task,) = prepare.tasks([Prompt("a", "the question")], words, 200)
    assert len(task.tokens) == 200 and task.prompt.endswith("the question")
    with pytest.raises(OmniDraftError, match="padded"):
        prepare.tasks([Prompt("a", "the question")], words, 1_000_000)


def test_the_drafter_is_written_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from omnidraft.export.checkpoint import open_checkpoint

    monkeypatch.setenv("OMNIDRAFT_CACHE", str(tmp_path))
    folder = prepare.float_drafter(default_drafter_folder())
    ours, plain = open_checkpoint(default_drafter_folder()), open_checkpoint(folder)
    assert plain.decoder == ours.decoder
    for name in ("embedding", "0.q", "2.down", "norm"):
        assert (plain.rows(name) == ours.rows(name)).all()
    assert prepare.float_drafter(folder) == folder


def test_rows_are_written_whole_and_shown(tmp_path: Path) -> None:
    worker = FakeWorker("ours", {"plain": 0.02})
    ways = [_way(worker, PLAIN), _way(worker, "broken")]
    measure(ways, TASKS, GREEDY, 1, Budget(60))
    result = rows(ways, TASKS, GREEDY, FACTS)
    path = tmp_path / "peers.json"
    record = report.Record("python -m benchmarks.peers", {"prompts.jsonl": "12ab"}, 0.5)
    report.write_json(record, result, ways, path)
    written = json.loads(path.read_text("utf-8"))
    assert written["rows"] == result
    assert written["command"] == record.command and written["prompts"] == record.prompts
    assert [len(turn["runs"]) for turn in written["turns"]] == [1, 1, 1]
    assert len({turn["runs"][0]["answer"] for turn in written["turns"]}) == 3
    assert list(tmp_path.iterdir()) == [path]
    console = Console(record=True, width=80)
    report.show(result, console)
    shown = console.export_text()
    assert "50.0" in shown and "no broken" in shown and "3/3" in shown
    with pytest.raises(OmniDraftError, match="No file can be written"):
        report.write_json(record, result, ways, tmp_path / "nowhere" / "peers.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draft-length", "many"], "expected a number"),
        (["--python", "transformers=/no/python"], "expected ENGINE=PATH"),
        (["--prompts", "/no/such/file"], "cannot be read"),
    ],
)
def test_bad_input_ends_with_a_sentence(arguments: list[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
