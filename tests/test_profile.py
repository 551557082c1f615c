"""Profiles: what they hold, what recording changes (nothing), simulated devices, the report."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from time import perf_counter
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tiny import write_drafter, write_target
from toy import ToyModel, ToyTree, plain_greedy, toy_pair

import omnidraft
from omnidraft._native import Fixed, Lookup, Policy
from omnidraft.cli.app import app
from omnidraft.cli.interruption import Interrupted
from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.export.pipeline import export
from omnidraft.export.recipes import Options
from omnidraft.runtime.decoding.costs import load_costs
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.engines import model as engines
from omnidraft.runtime.engines.model import (
    CausalModel,
    ScoresTrees,
    held_of,
    tree_scorer,
    use_adapter,
)
from omnidraft.runtime.errors import ContextOverflowError, OmniDraftError
from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.models.resolve import resolve_checkpoint
from omnidraft.runtime.profiling.devices import (
    DeviceProfile,
    DrafterGraph,
    PassLatency,
    for_drafter,
    load_device,
    pass_seconds,
    shipped_devices,
)
from omnidraft.runtime.profiling.drafter_graph import drafter_graph, graph_of
from omnidraft.runtime.profiling.energy import open_meter
from omnidraft.runtime.profiling.html import render_html
from omnidraft.runtime.profiling.machine import describe_machine
from omnidraft.runtime.profiling.measurement import Measurement, round_kinds
from omnidraft.runtime.profiling.memory import (
    MemoryCap,
    MemoryCapError,
    peak_bytes,
    reset_peak,
    resident_bytes,
)
from omnidraft.runtime.profiling.plots import bars, lines, stacks
from omnidraft.runtime.profiling.recording import RecordedModel
from omnidraft.runtime.profiling.report import Profile, RoundKind
from omnidraft.runtime.profiling.summary import PassKind, summarize, summarize_passes
from omnidraft.runtime.storage.bundle import Geometry
from omnidraft.runtime.storage.weights import weights_bytes

PROMPTS = ["What is the answer?", "The quick brown fox", "def add(a, b):"]
linux = pytest.mark.skipif(resident_bytes() is None, reason="memory is read from Linux's /proc")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A cache folder, a target, a drafter and prompts."""
    root = tmp_path_factory.mktemp("profile")
    prompts = root / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    return {
        "root": str(root),
        "cache": str(root / "cache"),
        "target": str(write_target(root / "target", context=512)),
        "drafter": str(write_drafter(root / "drafter", seed=1)),
        "prompts": str(prompts),
    }


def run(world: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "omnidraft", "profile", world["prompts"]),
            *("--target", world["target"], "--drafter", world["drafter"]),
            # A length by cost would not draft here: the drafter is as large as the target.
            *("--max-new-tokens", "24", "--repeat", "2", "--draft-length", "4", *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMNIDRAFT_CACHE": world["cache"], "COLUMNS": "100"},
    )


@pytest.fixture(scope="module")
def profiled(world: dict[str, str]) -> tuple[dict, str]:
    """The JSON and the HTML of a run."""
    html = Path(world["root"]) / "report.html"
    done = run(world, "--json", "--html", str(html))
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and done.stdout.count("\n") == 1
    return json.loads(done.stdout), html.read_text("utf-8")


# What a profile holds


def test_json_has_the_documented_keys(profiled: tuple[dict, str]) -> None:
    values = profiled[0]
    assert Profile.model_validate(values).model_dump(mode="json") == values
    assert values["schema_version"] == 2
    # Those that others may rely on: to be changed with the schema version only.
    assert set(values) >= {
        *("target", "drafter", "machine", "settings", "simulation", "load", "plain"),
        *("speculative", "speedup", "memory", "energy", "batch_invariant", "created"),
    }
    for mode in (values["plain"], values["speculative"]):
        assert set(mode["token"]) == {
            *("count", "mean_ms", "min_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms"),
        }
        assert set(mode) >= {
            *("tokens", "rounds", "tokens_per_second", "block_efficiency", "acceptance_rate"),
            *("time_per_token", "prompt", "first_token", "token", "round", "native", "python"),
            *("target_passes", "draft_passes", "draft_prompt", "rounds_by_kind", "nodes_per_round"),
        }
        assert set(mode["rounds_by_kind"]) == {"plain", "chain", "tree", "lookup"}
        for group in mode["target_passes"] + mode["draft_passes"]:
            assert set(group) == {*mode["token"], "kind", "tokens"}


def test_counts_agree_with_each_other(profiled: tuple[dict, str]) -> None:
    values = profiled[0]
    answers = len(PROMPTS) * 2
    assert values["settings"]["prompts"] == len(PROMPTS) and values["settings"]["repeats"] == 2
    for mode in (values["plain"], values["speculative"]):
        assert mode["token"]["count"] == mode["tokens"]
        assert mode["round"]["count"] == mode["native"]["count"] == mode["rounds"]
        assert mode["block_efficiency"] == mode["tokens"] / mode["rounds"]
        assert mode["prompt"]["count"] == mode["first_token"]["count"] == answers
        # Passes that read the prompt are not among them.
        assert sum(group["count"] for group in mode["target_passes"]) == mode["rounds"]
        assert sum(mode["rounds_by_kind"].values()) == mode["rounds"]
        nodes = sum(group["count"] * (group["tokens"] - 1) for group in mode["target_passes"])
        assert mode["nodes_per_round"] == nodes / mode["rounds"]
        assert len(mode["tokens_per_second_of_repeats"]) == 2
        assert mode["tokens_per_second"] == pytest.approx(
            statistics.median(mode["tokens_per_second_of_repeats"])
        )
        # Tokens of a round share its time, so both add up to the same.
        assert mode["token"]["mean_ms"] * mode["tokens"] == pytest.approx(
            mode["round"]["mean_ms"] * mode["rounds"]
        )
    plain, speculative = values["plain"], values["speculative"]
    assert plain["rounds"] == plain["tokens"] == speculative["tokens"]
    assert [group["tokens"] for group in plain["target_passes"]] == [1]
    assert plain["rounds_by_kind"]["plain"] == plain["rounds"] and plain["nodes_per_round"] == 0
    assert speculative["rounds_by_kind"]["chain"] and not speculative["rounds_by_kind"]["tree"]
    assert plain["draft_passes"] == [] and plain["draft_prompt"] is None
    assert plain["acceptance_rate"] == 0 and plain["time_per_token"]["draft_ms"] == 0
    assert speculative["draft_prompt"]["count"] == answers
    assert values["speedup"]["identical"] == len(PROMPTS)
    ratios = [
        b / a
        for a, b in zip(
            plain["tokens_per_second_of_repeats"],
            speculative["tokens_per_second_of_repeats"],
            strict=True,
        )
    ]
    assert values["speedup"]["repeats"] == pytest.approx(ratios)
    assert values["speedup"]["median"] == pytest.approx(statistics.median(ratios))


@linux
def test_memory_adds_up(profiled: tuple[dict, str], world: dict[str, str]) -> None:
    memory = profiled[0]["memory"]
    parts = [memory["target_weights"], memory["drafter_weights"], memory["ngram_cache"]]
    parts += [memory["target_kv"]["touched"], memory["drafter_kv"]["touched"]]
    assert memory["runtime"] == memory["resident"] - sum(parts)
    assert memory["peak"] >= max(memory["before_load"], memory["after_pairing"])
    # Two layers of two key heads of 16, keys and values, two bytes each.
    each = 2 * 2 * 2 * 16 * 2
    for cache, longest in ((memory["target_kv"], 512), (memory["drafter_kv"], 512)):
        assert cache["allocated"] == each * longest
        assert cache["touched"] % each == 0 and 0 < cache["touched"] <= cache["allocated"]
    assert memory["target_weights"] == sum(
        file.stat().st_size for file in Path(world["cache"], "models").glob("target-*/model.onnx*")
    )


def test_machine_and_load(profiled: tuple[dict, str]) -> None:
    values = profiled[0]
    machine = describe_machine()
    volatile = {"mhz"}
    assert values["machine"] == machine.model_dump() | {
        key: values["machine"][key] for key in volatile
    }
    assert machine.processor and machine.versions["onnxruntime"]
    assert all(milliseconds > 0 for milliseconds in values["load"].values())


def test_the_table_shows_both_ways(world: dict[str, str]) -> None:
    done = run(world, "--limit", "1", "--draft-length", "auto")
    assert done.returncode == 0, done.stderr
    for word in ("speedup", "1 of 1 answer identical", "target trees", "weights", "nodes each"):
        assert word in done.stdout
    assert not re.search(r"…", done.stdout)


@pytest.mark.parametrize("answers", [1, 5])
def test_an_interruption_leaves_the_repeats_that_are_complete(
    world: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answers: int,
) -> None:
    """Of one prompt, which a repeat answers twice."""
    answer, calls = Measurement.answer, 0

    def interrupted(self: Measurement, *arguments: Any) -> list[int]:
        nonlocal calls
        if calls == answers:
            raise Interrupted(2)
        calls += 1
        return answer(self, *arguments)

    monkeypatch.setattr(Measurement, "answer", interrupted)
    monkeypatch.setenv("OMNIDRAFT_CACHE", world["cache"])
    html = tmp_path / "report.html"
    arguments = ["profile", world["prompts"], "--target", world["target"], "--limit", "1"]
    arguments += ["--drafter", world["drafter"], "--max-new-tokens", "8", "--repeat", "3"]
    with pytest.raises(Interrupted):
        app([*arguments, "--json", "--html", str(html)], standalone_mode=False)
    said = capsys.readouterr()
    if answers == 1:
        assert said.out == "" and not html.exists()
        return
    report = json.loads(said.out)
    assert report["settings"]["repeats"] == len(report["speedup"]["repeats"]) == 2
    tokens = report["plain"]["tokens"]
    assert tokens == report["speculative"]["tokens"] == report["plain"]["token"]["count"] == 16
    assert "first 2 of 3 repeats" in said.err and html.exists()


@pytest.mark.parametrize("drafting", [["--tree", "6"], ["--draft-length", "3"], []])
def test_answers_are_those_without_a_profile(
    world: dict[str, str], monkeypatch: pytest.MonkeyPatch, drafting: list[str]
) -> None:
    answer, answers = Measurement.answer, []

    def noted(self: Measurement, *arguments: Any) -> list[int]:
        answers.append(answer(self, *arguments))
        return answers[-1]

    monkeypatch.setattr(Measurement, "answer", noted)
    monkeypatch.setenv("OMNIDRAFT_CACHE", world["cache"])
    arguments = ["--target", world["target"], "--drafter", world["drafter"], *drafting, "--json"]
    arguments += ["--max-new-tokens", "16", "--repeat", "1"]
    app(["profile", world["prompts"], *arguments], standalone_mode=False)
    with omnidraft.load(world["target"], drafter=world["drafter"]) as model:
        alone = [model.generate(text, max_new_tokens=16).token_ids for text in PROMPTS]
    assert answers == [tokens for tokens in alone for _ in range(2)]


def test_built_in_prompts(world: dict[str, str]) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "omnidraft", "profile", "--target", world["target"]),
            *("--drafter", world["drafter"], "--max-new-tokens", "2", "--repeat", "1"),
            *("--limit", "2", "--json"),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMNIDRAFT_CACHE": world["cache"]},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["settings"]["prompts"] == 2


# Figures


def test_percentiles_of_known_data() -> None:
    found = summarize([i / 1e3 for i in range(100, -1, -1)])
    assert found is not None
    assert found.count == 101 and found.mean_ms == pytest.approx(50)
    assert (found.min_ms, found.max_ms) == (0, pytest.approx(100))
    assert (found.p50_ms, found.p95_ms, found.p99_ms) == pytest.approx((50, 95, 99))
    assert summarize([]) is None


@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=300))
def test_percentiles_are_the_interpolated_ones(seconds: list[float]) -> None:
    found = summarize(seconds)
    assert found is not None
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    for ms, cut in ((found.p50_ms, 49), (found.p95_ms, 94), (found.p99_ms, 98)):
        assert ms == pytest.approx(cuts[cut] * 1e3, rel=1e-9, abs=1e-9)
    assert found.mean_ms == pytest.approx(statistics.fmean(seconds) * 1e3)


KINDS: st.SearchStrategy[PassKind] = st.sampled_from(["chain", "tree"])


@given(st.lists(st.tuples(KINDS, st.integers(1, 8), st.floats(0, 1)), max_size=60))
def test_passes_are_grouped_by_their_kind_and_size(
    passes: list[tuple[PassKind, int, float]],
) -> None:
    groups = summarize_passes(passes)
    found = [(group.kind, group.tokens) for group in groups]
    assert found == sorted({(kind, tokens) for kind, tokens, _ in passes})
    for group in groups:
        times = [seconds for *which, seconds in passes if which == [group.kind, group.tokens]]
        assert group.count == len(times)
        assert group.max_ms == pytest.approx(max(times) * 1e3)


# Recording


@given(
    seed=st.integers(0, 30),
    length=st.integers(1, 6),
    tree=st.booleans(),
    simulated=st.booleans(),
    count=st.integers(1, 40),
)
def test_recording_changes_no_token(
    seed: int, length: int, tree: bool, simulated: bool, count: int
) -> None:
    kind = ToyTree if tree else ToyModel
    pair = toy_pair(seed)
    latencies = [PassLatency(context=64, tokens=2, milliseconds=0)] if simulated else []

    def decode(recorded: bool) -> tuple[list, list[CausalModel]]:
        drafting = toy_pair(seed).drafting(seed=3, length=length)
        # Static graphs, whose times a table gives, score no trees.
        drafter = (ToyModel if simulated else kind)(len(pair.drafter), 3)
        models: list[CausalModel] = [kind(len(pair.target), seed), drafter]
        if recorded:
            models = [RecordedModel(models[0]), RecordedModel(models[1], latencies=latencies)]
        drafting = replace(drafting, model=models[1], tree=tree)
        decoder = SpeculativeDecoder(models[0], drafting)
        return list(decoder.generate([1, 2, 3], count)), models

    plain, models = decode(False)
    recorded, wrapped = decode(True)
    assert recorded == plain
    for model, wrapper in zip(models, wrapped, strict=True):
        assert isinstance(model, ToyModel) and isinstance(wrapper, RecordedModel)
        assert [each.tokens for each in wrapper.passes] == model.passes
        assert wrapper.length == model.length and wrapper.vocab_size == model.vocab_size
        assert wrapper.longest >= wrapper.length
        assert tree or all(each.kind == "chain" for each in wrapper.passes)


def test_a_recorded_model_states_what_protocols_ask_for() -> None:
    """What only ``__getattr__`` finds, ``isinstance`` finds until Python 3.11 and not later."""
    protocols = [each for each in vars(engines).values() if getattr(each, "_is_protocol", False)]
    assert {CausalModel, ScoresTrees} <= set(protocols)
    for protocol in protocols:
        asked = {name for name in vars(protocol) if not name.startswith("_")}
        assert asked <= set(dir(RecordedModel)), protocol


@pytest.mark.parametrize("model", [ToyTree(5), ToyTree(5, scores_trees=False), ToyModel(5)])
def test_a_recorded_model_scores_trees_as_its_model_does(model: ToyModel) -> None:
    recorded = RecordedModel(model)
    assert (tree_scorer(recorded) is None) == (tree_scorer(model) is None)
    assert held_of(recorded, [1]) == 0
    assert recorded.copy_cache() is None, "as this model's can't be copied"
    use_adapter(recorded, None)
    table = [PassLatency(context=8, tokens=8, milliseconds=0)]
    simulated = RecordedModel(model, latencies=table)
    assert tree_scorer(simulated) is None, "a table is of static graphs"
    with pytest.raises(OmniDraftError, match="scores no trees"):
        simulated.forward_tree([1], [-1])


def test_passes_over_trees_are_recorded() -> None:
    model = ToyTree(5)
    recorded = RecordedModel(model, max_length=6)
    recorded.forward([1, 2])
    rows = recorded.forward_tree([3, 4, 2], [1, 1, 2])
    assert np.array_equal(rows[2], model.logits([1, 2, 3, 2]))
    with pytest.raises(ContextOverflowError):
        recorded.forward_tree([1, 1], [4, 4])
    recorded.keep([2, 4])
    assert model.tokens == [1, 2, 3, 2]
    assert [(p.kind, p.context, p.tokens) for p in recorded.passes] == [
        ("chain", 0, 2),
        ("tree", 2, 3),
    ]
    assert recorded.longest == 5


class LooksUp(Fixed):
    """Drafts nothing."""

    def found(self, match: int) -> float:
        return 0.9

    def layer(self, open_nodes: Sequence[float], gains: Sequence[float], limit: int) -> int:
        return 0


@pytest.mark.parametrize(
    ("policy", "tree", "expected"),
    [
        (Fixed(1), False, {"chain"}),
        (Fixed(6), True, {"tree"}),
        (Fixed(0), True, {"plain"}),
        (LooksUp(4), True, {"plain", "lookup"}),
        (LooksUp(4), False, {"plain", "lookup"}),
    ],
)
def test_kinds_of_rounds(policy: Policy, tree: bool, expected: set[RoundKind]) -> None:
    pair = toy_pair(1)
    target = RecordedModel(ToyTree(len(pair.target), 1, order=1))
    drafter = RecordedModel(ToyTree(len(pair.drafter), 1))
    lookup = Lookup(len(pair.target)) if isinstance(policy, LooksUp) else None
    drafting = replace(pair.drafting(), model=drafter, policy=policy, tree=tree, lookup=lookup)
    decoder = SpeculativeDecoder(target, drafting)
    tokens = [each.token for each in decoder.generate([1], 60)]
    assert tokens == plain_greedy(ToyModel(len(pair.target), 1, order=1), [1], 60)
    kinds = list(round_kinds(target.passes, drafter.passes))
    assert len(kinds) == decoder.statistics.rounds
    assert set(kinds[:-2]) == expected  # at its end an answer has little room


def test_a_recorded_model_shows_what_its_engine_offers_besides() -> None:
    model = ToyModel(5, seed=7)
    recorded = RecordedModel(model)
    assert recorded.seed == 7 and isinstance(recorded, CausalModel)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = recorded.no_such_thing
    recorded.forward([1, 2, 3])
    recorded.truncate(1)
    recorded.forward([4], rows=1)
    assert [(p.context, p.tokens) for p in recorded.passes] == [(0, 3), (1, 1)]
    recorded.clear()
    assert recorded.passes == [] and recorded.longest == 3


def test_a_simulated_pass_takes_the_time_of_the_table() -> None:
    slower = RecordedModel(
        ToyModel(5), latencies=[PassLatency(context=8, tokens=1, milliseconds=4)]
    )
    started = perf_counter()
    slower.forward([1, 2])
    assert perf_counter() - started >= 0.008
    assert slower.passes[0].seconds == 0.008
    faster = RecordedModel(
        ToyModel(5), latencies=[PassLatency(context=8, tokens=1, milliseconds=0)]
    )
    started = perf_counter()
    faster.forward([1, 2])
    assert 0 < faster.excess_seconds <= perf_counter() - started
    assert faster.passes[0].seconds == 0


def test_a_device_may_hold_shorter_sequences() -> None:
    model = RecordedModel(ToyModel(5), max_length=4)
    assert model.max_length == 4 and model.unlimited_length == 512
    model.forward([1, 2, 3])
    with pytest.raises(ContextOverflowError, match="exceed the context of 4"):
        model.forward([1, 2])
    assert model.length == 3


def test_costs_of_a_simulated_drafter_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are kept beside this machine's, and neither takes the other's place."""
    monkeypatch.setenv("OMNIDRAFT_CACHE", str(tmp_path))
    monkeypatch.setattr("omnidraft.runtime.decoding.costs.process_time", perf_counter)
    (tmp_path / "model").mkdir()

    def steps(model: CausalModel) -> float:
        target, drafter = (
            LoadedModel("toy", tmp_path / "model", each, None, True, "onnx", 1)  # type: ignore
            for each in (ToyModel(5), model)
        )
        return load_costs(target, drafter).drafter.seconds(1)

    real = steps(ToyModel(5))
    table = [PassLatency(context=512, tokens=8, milliseconds=9)]
    assert steps(RecordedModel(ToyModel(5), latencies=table)) >= 0.009 > real
    assert steps(RecordedModel(ToyModel(5))) == steps(ToyModel(5)) == real


@pytest.mark.parametrize(("used", "kept"), [(0.9, True), (0.4, False)])
def test_costs_of_a_busy_machine_are_measured_again(
    used: float, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIDRAFT_CACHE", str(tmp_path))
    monkeypatch.setattr(
        "omnidraft.runtime.decoding.costs.process_time", lambda: 2 * used * perf_counter()
    )
    (tmp_path / "model").mkdir()
    target, drafter = (
        LoadedModel("toy", tmp_path / "model", ToyModel(5), None, True, "onnx", 2)  # type: ignore
        for _ in range(2)
    )
    assert load_costs(target, drafter).drafter.seconds(1) > 0
    assert any(tmp_path.glob("costs/*.json")) == kept


# Devices


LATENCIES = st.lists(
    st.builds(
        PassLatency,
        context=st.integers(1, 6),
        tokens=st.integers(1, 6),
        milliseconds=st.integers(0, 9),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda entry: (entry.context, entry.tokens),
)


@given(LATENCIES, st.integers(1, 20), st.integers(1, 30))
def test_a_pass_runs_the_graphs_that_hold_it(
    table: list[PassLatency], tokens: int, length: int
) -> None:
    """One token after the other, as long as the graph chosen has room."""
    fitting = [entry.context for entry in table if entry.context >= length]
    context = min(fitting) if fitting else max(entry.context for entry in table)
    graphs = {e.tokens: e.milliseconds for e in table if e.context == context}
    total, left = 0.0, tokens
    while left:
        width = min((w for w in graphs if w >= left), default=max(graphs))
        total += graphs[width]
        left -= min(width, left)
    assert pass_seconds(table, tokens, length) == pytest.approx(total / 1e3)


GRAPHS = st.builds(
    DrafterGraph,
    weight_bytes=st.integers(1, 10**9),
    kv_bytes=st.integers(0, 10**5),
    products=st.integers(1, 10**9),
    kv_products=st.integers(0, 10**5),
)


@given(LATENCIES, GRAPHS, st.integers(1, 5), st.sampled_from(["read", "computed", "both"]))
def test_a_larger_drafter_costs_as_much_more_as_it_reads_or_computes(
    table: list[PassLatency], graph: DrafterGraph, times: int, grown: str
) -> None:
    device = DeviceProfile(name="NPU", drafter_latency=table, drafter_call=2.0, drafter_graph=graph)
    assert for_drafter(device, graph) == device
    changes = {}
    if grown != "computed":
        changes |= {n: times * getattr(graph, n) for n in ("weight_bytes", "kv_bytes")}
    if grown != "read":
        changes |= {n: times * getattr(graph, n) for n in ("products", "kv_products")}
    other = for_drafter(device, graph.model_copy(update=changes))
    for before, after in zip(table, other.drafter_latency, strict=True):
        own = max(0, before.milliseconds - 2.0)
        expected = min(before.milliseconds, 2.0) + times * own
        assert after.milliseconds == pytest.approx(expected)
        assert (after.context, after.tokens) == (before.context, before.tokens)
    # A table that is of any drafter stays what it is.
    anyones = device.model_copy(update={"drafter_graph": None})
    assert for_drafter(anyones, graph) == anyones


def test_the_shipped_table_is_the_default_drafters() -> None:
    device = load_device("snapdragon-8-gen-3")
    d = open_checkpoint(resolve_checkpoint("default")).decoder
    shape = Geometry(
        layers=d.layers,
        hidden_size=d.hidden_size,
        feed_forward_size=d.feed_forward_size,
        heads=d.heads,
        kv_heads=d.kv_heads,
        head_size=d.head_size,
        vocab_size=d.vocab_size,
        context_length=d.context_length,
    )
    default = for_drafter(device, graph_of(shape))
    assert default == device
    assert [entry.milliseconds for entry in default.drafter_latency] == [2.0, 2.0]
    # Twice as many layers, and a head over twice as many tokens.
    double = shape.model_copy(update={"layers": 2 * d.layers, "vocab_size": 2 * d.vocab_size})
    larger = for_drafter(device, graph_of(double)).drafter_latency
    assert [entry.milliseconds for entry in larger] == pytest.approx([0.9 + 2 * 1.1] * 2)


def test_shipped_devices_say_where_every_figure_is_from() -> None:
    assert {"snapdragon-8-gen-3", "raspberry-pi-5"} <= set(shipped_devices())
    for name in shipped_devices():
        device = load_device(name)
        stated = device.model_dump(exclude_defaults=True).keys() - {"name", "sources"}
        assert stated and stated <= device.sources.keys()


def test_device_files(tmp_path: Path) -> None:
    toml, as_json = tmp_path / "a.toml", tmp_path / "a.json"
    toml.write_text('name = "a"\nthreads = 3\nmemory_cap = "1.5 GiB"\n')
    as_json.write_text('{"name": "a", "threads": 3, "memory_cap": 1610612736}')
    expected = DeviceProfile(name="a", threads=3, memory_cap=3 * 2**29)
    assert load_device(str(toml)) == load_device(str(as_json)) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name = 'x'\nthreds = 2\n", r"threds is not known here.*Known keys: name, threads"),
        ("threads = 2\n", r"name is missing"),
        ("name = 'x'\nthreads = 0\n", r"threads must be greater than or equal to 1, not 0"),
        ("name = 'x'\nmemory_cap = 'much'\n", r"memory_cap: could not parse"),
        (
            "name = 'x'\ndrafter_latency = [{tokens = 1, milliseconds = 1}]",
            r"0\.context is missing",
        ),
        ("name = ", "cannot be read as TOML"),
        ("name = 'x'\n[sources]\nthreads = 4\n", r"sources\.threads"),
    ],
)
def test_what_is_wrong_with_a_device_file(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "device.toml"
    path.write_text(content)
    with pytest.raises(OmniDraftError, match=message):
        load_device(str(path))


def test_a_simulated_device_end_to_end(world: dict[str, str], tmp_path: Path) -> None:
    device = tmp_path / "npu.toml"
    device.write_text(
        'name = "NPU"\nthreads = 1\ndrafter_context = 64\n'
        "[[drafter_latency]]\ncontext = 64\ntokens = 1\nmilliseconds = 0.0\n"
        "[[drafter_latency]]\ncontext = 64\ntokens = 8\nmilliseconds = 3.0\n"
        '[sources]\ndrafter_latency = "made up for this test"\n'
    )
    done = run(world, "--device-profile", str(device), "--json")
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["settings"]["target_threads"] == 1
    assert values["simulation"]["device"]["name"] == "NPU"
    assert values["simulation"]["drafter_simulated"]
    assert values["simulation"]["subtracted_seconds"] > 0
    for group in values["speculative"]["draft_passes"]:
        expected = {1: 0.0}.get(group["tokens"], 3.0 * -(-group["tokens"] // 8))
        assert group["p50_ms"] == group["max_ms"] == pytest.approx(expected)
    assert values["speedup"]["identical"] == len(PROMPTS)


def test_the_drafters_size_sets_its_simulated_time(world: dict[str, str], tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    geometry = export(world["drafter"], bundle, options=Options("none")).geometry
    graph = graph_of(geometry)
    assert drafter_graph(bundle) == graph
    half = {name: value / 2 for name, value in graph.model_dump().items()}
    device = tmp_path / "npu.toml"
    device.write_text(
        'name = "NPU"\ndrafter_context = 64\ndrafter_call = 1.0\n'
        "drafter_latency = [{context = 64, tokens = 8, milliseconds = 3.0}]\n[drafter_graph]\n"
        + "".join(f"{name} = {value:.0f}\n" for name, value in half.items())
    )
    done = run(world | {"drafter": str(bundle)}, "--device-profile", str(device), "--json")
    assert done.returncode == 0, done.stderr
    simulated = json.loads(done.stdout)["simulation"]["device"]
    assert [entry["milliseconds"] for entry in simulated["drafter_latency"]] == [5.0]
    assert simulated["drafter_graph"] == graph.model_dump()


def test_a_tree_of_so_many_nodes(world: dict[str, str], tmp_path: Path) -> None:
    """Also on a device whose drafter scores none: it reads one path."""
    device = tmp_path / "npu.toml"
    device.write_text(
        'name = "NPU"\ndrafter_latency = [{context = 64, tokens = 8, milliseconds = 0.0}]'
    )
    for options in ([], ["--device-profile", str(device)]):
        done = run(world, "--draft-length", "auto", "--tree", "6", "--json", *options)
        assert done.returncode == 0, done.stderr
        values = json.loads(done.stdout)
        assert values["settings"]["tree"] == 6
        mode = values["speculative"]
        assert mode["rounds_by_kind"]["tree"] > mode["rounds"] / 2
        assert max(group["tokens"] for group in mode["target_passes"]) == 7
        assert {each["kind"] for each in mode["target_passes"]} >= {"tree"}
        kinds = {each["kind"] for each in mode["draft_passes"]}
        assert kinds == ({"chain"} if options else {"chain", "tree"})
        assert values["speedup"]["identical"] == len(PROMPTS)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        pytest.param(
            'name = "tiny"\nmemory_cap = "9 MB"\n',
            "tiny allows 9 MB of memory, but before loading the models this process has taken "
            r"\d+ MB and \d+ MB of weights are still to load",
            marks=linux,
        ),
        ('name = "short"\ntarget_context = 8\n', "context holds 8; shorten the prompt"),
        ('name = "x"\nmemory = 3\n', "memory is not known here"),
    ],
)
def test_a_device_that_is_too_small_or_wrong(
    world: dict[str, str], tmp_path: Path, device: str, message: str
) -> None:
    path = tmp_path / "device.toml"
    path.write_text(device)
    done = run(world, "--device-profile", str(path))
    assert done.returncode == 2 and done.stdout == ""
    assert re.search(message, re.sub(r"\s+", " ", done.stderr))
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device-profile", "nokia-3310"], "raspberry-pi-5, snapdragon-8-gen-3"),
        (["--html", "/no/such/folder/report.html"], "No file can be written"),
        (["--repeat", "0"], "--repeat"),
        (["--draft-length", "0"], "--draft-length from 1"),
        (["--tree", "4"], "tree and draft_length cannot both be given"),
        (["--tree", "65"], "from 1 to 64"),
    ],
)
def test_mistakes_end_with_exit_code_2(
    world: dict[str, str], arguments: list[str], message: str
) -> None:
    done = run(world, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert message in re.sub(r"\s+", " ", done.stderr)
    assert "Traceback" not in done.stderr


# Memory and energy


@linux
def test_a_cap_sees_memory_that_was_given_back() -> None:
    fresh = reset_peak()
    before = resident_bytes()
    assert before is not None
    cap = MemoryCap("a phone", before + 60_000_000, fresh)
    cap.check("before")
    with pytest.raises(MemoryCapError, match=r"a phone allows .* 100 MB of weights are still"):
        cap.check("before loading", about_to_load=100_000_000)
    taken = np.ones(120_000_000, np.uint8)
    with pytest.raises(MemoryCapError, match="but after loading this process has taken"):
        cap.check("after loading")
    del taken
    if fresh:
        peak = peak_bytes()
        assert peak is not None and peak >= before + 110_000_000
        with pytest.raises(MemoryCapError):
            cap.check("afterwards")


def test_weights_are_graphs_and_weights_but_no_training_step(tmp_path: Path) -> None:
    for name, size in {
        "model.onnx": 10,
        "model.onnx.data": 200,
        "tokenizer.json": 3000,
        "training.onnx": 40_000,
        "training.onnx.data": 500_000,
    }.items():
        (tmp_path / name).write_bytes(b"\0" * size)
    assert weights_bytes(tmp_path) == 210
    assert weights_bytes(tmp_path / "model.onnx.data") == 200


def sysfs(root: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        path = root / "class" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def test_energy_of_processor_packages(tmp_path: Path) -> None:
    files: dict[str, object] = {
        "powercap/intel-rapl:0/energy_uj": 9_000_000,
        "powercap/intel-rapl:0/max_energy_range_uj": 10_000_000,
        "powercap/intel-rapl:0:0/energy_uj": 5,  # a part of the package
        "powercap/intel-rapl:1/energy_uj": 0,
        "powercap/intel-rapl:1/max_energy_range_uj": 10_000_000,
    }
    meter = open_meter(sysfs(tmp_path, files))
    assert meter.source == "powercap" and "intel-rapl:0, intel-rapl:1" in meter.reason
    assert meter.joules() == 0
    sysfs(tmp_path, {"powercap/intel-rapl:0/energy_uj": 9_500_000})
    assert meter.joules() == pytest.approx(0.5)
    # The first counter starts again.
    sysfs(
        tmp_path,
        {"powercap/intel-rapl:0/energy_uj": 500_000, "powercap/intel-rapl:1/energy_uj": 2_000_000},
    )
    assert meter.joules() == pytest.approx(0.5 + 1.0 + 2.0)
    assert meter.joules() == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("before", "after", "joules"),
    [
        ({"energy_now": 50_000}, {"energy_now": 49_000}, 3.6),
        ({"charge_now": 10_000, "voltage_now": 4_000_000}, {"charge_now": 9_000}, 14.4),
    ],
)
def test_energy_of_a_battery(
    tmp_path: Path, before: dict[str, int], after: dict[str, int], joules: float
) -> None:
    place = "power_supply/BAT0"
    status = {f"{place}/type": "Battery", f"{place}/status": "Discharging"}
    sysfs(tmp_path, {**status, **{f"{place}/{name}": value for name, value in before.items()}})
    meter = open_meter(tmp_path)
    assert meter.source == "battery"
    sysfs(tmp_path, {f"{place}/{name}": value for name, value in after.items()})
    assert meter.joules() == pytest.approx(joules)
    sysfs(tmp_path, {f"{place}/status": "Charging"})
    assert open_meter(tmp_path).source is None


def test_no_energy_counters_are_said_to_be_missing(tmp_path: Path) -> None:
    meter = open_meter(tmp_path)
    assert meter.source is None and "no energy counters" in meter.reason and meter.joules() == 0


# The report


class Loaded(HTMLParser):
    """Collects what a page would load or run, and its open tags."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe", "object", "embed", "base"):
            self.fetched.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action") or name.startswith("on"):
                self.fetched.append(f"{name}={value}")
        if tag not in ("meta", "br", "hr", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parse(page: str) -> Loaded:
    parser = Loaded()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert not re.search(r"@import|url\(|https?://", page)
    return parser


def test_the_report_loads_nothing_and_is_well_formed(profiled: tuple[dict, str]) -> None:
    values, page = profiled
    parsed = parse(page)
    assert parsed.fetched == []
    assert f"{values['speedup']['median']:.2f}×" in parsed.text
    assert values["machine"]["processor"] in parsed.text
    plots = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(plots) == 7
    for plot in plots:
        assert ET.fromstring(plot).findtext("title")


def test_the_report_escapes_what_it_shows(profiled: tuple[dict, str]) -> None:
    profile = Profile.model_validate(profiled[0])
    name = "</title><script>alert(1)</script>"
    device = DeviceProfile(name=name, memory_cap=5_000_000, sources={"memory_cap": name})
    values = profile.model_dump() | {"target": name, "drafter": name}
    values["simulation"] = {
        "device": device.model_dump(),
        "drafter_simulated": True,
        "subtracted_seconds": 1.0,
    }
    parsed = parse(render_html(Profile.model_validate(values)))
    assert parsed.fetched == [] and name in parsed.text and "5.00 MB" in parsed.text


def test_the_plots_are_readable_on_a_page_of_500_pixels(profiled: tuple[dict, str]) -> None:
    # Letters of 12 pixels, of which a page of 500 leaves 468 for a plot.
    assert "font: 12px" in profiled[1] and "padding: 0 1rem" in profiled[1]
    for plot in re.findall(r"<svg.*?</svg>", profiled[1], re.DOTALL):
        svg = ET.fromstring(plot)
        width = float(svg.attrib["viewBox"].split()[2])
        assert width <= 468
        for text in svg.iter("text"):
            across, taken = float(text.attrib["x"]), 6.0 * len(text.text or "")
            begin = (
                across - taken * {"start": 0, "middle": 0.5, "end": 1}[text.attrib["text-anchor"]]
            )
            assert begin >= 0 and begin + taken <= width, text.text


def test_one_repeat_has_no_spread(profiled: tuple[dict, str]) -> None:
    values = json.loads(json.dumps(profiled[0]))
    values["settings"] |= {"repeats": 1, "prompts": 1}
    for mode in (values["plain"], values["speculative"]):
        mode["tokens_per_second_of_repeats"] = mode["tokens_per_second_of_repeats"][:1]
    values["speedup"]["repeats"] = values["speedup"]["repeats"][:1]
    page = render_html(Profile.model_validate(values))
    text = re.sub(r"\s+", " ", parse(page).text)
    assert "1 prompt, at most" in text and "once; plain and speculative take turns, greedy" in text
    assert "median" not in text and "speedup (" not in text
    assert page.count("<svg") == 6
    both = re.sub(r"\s+", " ", parse(profiled[1]).text)
    assert "2 times; plain" in both and "medians of the repeats" in both and "speedup (" in both


def test_the_report_does_without_what_a_machine_cannot_tell(profiled: tuple[dict, str]) -> None:
    values = json.loads(json.dumps(profiled[0]))
    for name in ("resident", "peak", "runtime", "target_kv", "drafter_kv", "after_target"):
        values["memory"][name] = None
    for name in ("mhz", "max_mhz", "memory_bytes", "usable_cores", "governor"):
        values["machine"][name] = None
    parse(render_html(Profile.model_validate(values)))
    values["energy"] |= {
        "source": "powercap",
        "plain_joules_per_token": 0.25,
        "speculative_joules_per_token": 0.125,
    }
    page = parse(render_html(Profile.model_validate(values)))
    assert "0.250 J a token plainly, 0.125 J speculatively" in page.text


def test_a_profile_refuses_unknown_keys(profiled: tuple[dict, str]) -> None:
    with pytest.raises(ValidationError):
        Profile.model_validate(profiled[0] | {"speed": 1})


VALUES = st.floats(0, 1e6) | st.just(0.0)


@given(st.dictionaries(st.text('ab<&"é', min_size=1, max_size=8), VALUES, min_size=1, max_size=6))
def test_bars_are_as_long_as_their_values(values: dict[str, float]) -> None:
    svg = ET.fromstring(bars({label: {"x": v} for label, v in values.items()}, "ms", "t"))
    lengths = [float(rect.attrib["width"]) for rect in svg.iter("rect")]
    largest = max(values.values())
    for length, value in zip(lengths, values.values(), strict=True):
        expected = max(lengths) * value / largest if largest else 0
        assert length == pytest.approx(expected, abs=0.2)
    width, height = (float(each) for each in svg.attrib["viewBox"].split()[2:])
    for rect in svg.iter("rect"):
        assert float(rect.attrib["x"]) + float(rect.attrib["width"]) <= width
        assert float(rect.attrib["y"]) + float(rect.attrib["height"]) <= height


@given(st.lists(st.tuples(st.integers(0, 500), VALUES), min_size=1, max_size=12))
def test_curves_stay_inside_their_axes(points: list[tuple[int, float]]) -> None:
    svg = ET.fromstring(lines({"a": sorted(points)}, "x", "y", "t"))
    width, height = (float(each) for each in svg.attrib["viewBox"].split()[2:])
    dots = list(svg.iter("circle"))
    assert len(dots) == len(points)
    for dot in dots:
        assert 0 <= float(dot.attrib["cx"]) <= width and 0 <= float(dot.attrib["cy"]) <= height


def test_stacks_lay_their_parts_end_to_end() -> None:
    svg = ET.fromstring(stacks({"r": {"a": 1.0, "b": -5.0, "c": 3.0}}, "MB", "t"))
    parts = [(float(r.attrib["x"]), float(r.attrib["width"])) for r in svg.iter("rect")]
    (x0, w0), (x1, w1), (x2, w2) = parts
    assert w1 == 0 and w2 == pytest.approx(3 * w0, abs=0.2)
    assert x1 == pytest.approx(x0 + w0, abs=0.2) and x2 == pytest.approx(x1, abs=0.2)


def test_the_command_line_does_not_load_the_profiler_at_its_start() -> None:
    code = "import sys, omnidraft.cli.app; print([m for m in sys.modules if 'profiling' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
