"""The experiments. Each yields its result again after every part of it that is done."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import numpy as np

from benchmarks.adaptation.lab import AblatedLoss, Answered, Lab, figures, footprint, gain, total
from omnidraft._native import Eviction
from omnidraft.runtime.bench import Prompt
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.learning.trainer import DEFAULT_RANK
from omnidraft.runtime.session import Session

Experiment = Literal[
    "ablation", "ranks", "task-drift", "target-drift", "eviction", "curve", "cache"
]
EXPERIMENTS: Final[tuple[Experiment, ...]] = get_args(Experiment)
TESTED: Final[tuple[Experiment, ...]] = ("ablation", "ranks", "curve")
DRIFTS: Final[tuple[Experiment, ...]] = ("task-drift", "target-drift")

REPLAYED: Final = (
    "Plain greedy answers of the target that were recorded once are replayed: the decoder runs "
    "unchanged, on rows that are 1 at the recorded token. Only runs that learn by another loss "
    "than cross-entropy answer the stream with the real target: their losses are made of its "
    "distributions, also after rejected tokens, which no recording holds."
)
_BEFORE_AND_AFTER: Final = (
    "before",
    "after",
    "gain",
    "95 %",
    "accepted before",
    "accepted after",
)
# Prompts that a point of a curve is the mean of.
SMOOTH: Final = 8
PAPERS_CACHES: Final = ((5_569, 1.372), (2_238, 0.501), (20_339, 4.569), (17_013, 3.924))
"""N-grams, and MB they take in OmniDraft's paper, arXiv 2507.02659."""

# name, loss (None: no learning), whether there is an n-gram cache
_ABLATION: Final[tuple[tuple[str, AblatedLoss | None, bool], ...]] = (
    ("no cache", None, False),
    ("cache", None, True),
    ("L_DM", "dm", False),
    ("L_DM + cache", "dm", True),
    ("hybrid + cache", "hybrid", True),
    ("ALM + cache", "alm", True),
    ("cross-entropy + cache", "ce", True),
)


@dataclass
class Plot:
    """One panel: lines, or bars where x holds names."""

    x_label: str
    y_label: str
    lines: dict[str, tuple[Sequence[float] | Sequence[str], Sequence[float]]] = field(
        default_factory=dict
    )
    marks: Sequence[float] = ()


@dataclass
class Result:
    """Of an experiment, so far: its figures as a JSON object, a table and a plot."""

    figures: dict[str, Any]
    headings: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    plot: Plot = field(default_factory=lambda: Plot("", ""))


@dataclass(frozen=True)
class Plan:
    """What to run on.

    Args:
        labs: opens the lab of a target, by its place on the command line.
        stream: prompts to learn from, in order; ``phase`` of them in each phase of a drift.
        test: prompts that are not among them.
        other: another task's.
        every: prompts between two points of a curve.
        ranks: of LoRA, and ``capacities``, in n-grams, to try.
    """

    labs: Callable[[int], Lab]
    stream: Sequence[Prompt]
    test: Sequence[Prompt] = ()
    other: Sequence[Prompt] = ()
    phase: int = 0
    every: int = 25
    ranks: Sequence[int] = (8, 16, 32, 64)
    capacities: Sequence[int] = (8, 16, 32, 64, 128, 256)


def run(experiment: Experiment, plan: Plan) -> Iterator[Result]:
    """Yield an experiment's result, longer each time.

    Raises:
        OmniDraftError: prompts that it needs are missing.
    """
    if experiment in TESTED and not plan.test:
        raise OmniDraftError(f"{experiment} is tested on other prompts: give them as --test FILE")
    if experiment == "task-drift" and not plan.other:
        raise OmniDraftError("task-drift needs prompts of another task: give them as --other FILE")
    if experiment in DRIFTS and len(plan.stream) <= plan.phase:
        raise OmniDraftError(
            f"{experiment} comes back to the first phase with further prompts of the stream: it "
            f"needs more than the {plan.phase} of one phase, but there are {len(plan.stream)}"
        )
    return _RUNS[experiment](plan)


# --- learned weights ------------------------------------------------------------------------------


def _ablation(plan: Plan) -> Iterator[Result]:
    lab = plan.labs(0)
    lab.record(plan.stream, plan.test)
    result = Result(
        {"variants": []},
        (
            "",
            *_BEFORE_AND_AFTER,
            "in use",
            "n-grams",
            "B each",
            "hits",
        ),
        plot=Plot("", "target tokens a round"),
    )
    lines: dict[str, tuple[list[str], list[float]]] = {"before": ([], []), "after": ([], [])}
    result.plot.lines.update(lines)
    before = {
        cached: lab.answer(
            lab.replaying(lab.cache() if cached else lab.no_cache()), plan.test, "before"
        )
        for cached in (False, True)
    }
    tested: dict[str, list[Answered]] = {}
    for name, loss, cached in _ABLATION:
        cache = lab.cache() if cached else lab.no_cache()
        adapter = None
        if loss is None:
            session = lab.replaying(cache)
        else:
            adapter = f"{loss}-{'cached' if cached else 'alone'}"
            session = lab.learning(adapter, lab.setting.with_loss(loss), cache)
        stream = lab.answer(session, plan.stream, name)
        session.save()
        seen = lab.copy(cache) if cached else lab.no_cache()
        after = lab.answer(lab.replaying(seen, adapter), plan.test, f"{name}: test")
        tested[name] = after
        variant = {
            "variant": name,
            "loss": loss,
            "cache": cached,
            "before": figures(before[cached], cached=cached),
            "after": figures(after, cached=cached),
            **gain(before[cached], after),
            "stream": figures(stream, cached=cached),
            "ngrams": footprint(cache),
            **_progress(session),
        }
        result.figures["variants"].append(variant)
        result.rows.append(
            (
                name,
                *_before_and_after(variant),
                str(variant.get("promotions", "")),
                str(len(cache)) if cached else "",
                _number(variant["ngrams"]["bytes_per_entry"], 1),
                _percent(variant["after"]["hit_rate"]),
            )
        )
        for when, (names, values) in lines.items():
            names.append(name)
            values.append(variant[when]["block_efficiency"])
        if name == "hybrid + cache":
            result.figures["hybrid_over"] = {
                other: gain(tested[other], after) for other in ("cache", "L_DM", "L_DM + cache")
            }
        yield result


def _ranks(plan: Plan) -> Iterator[Result]:
    lab = plan.labs(0)
    lab.record(plan.stream, plan.test)
    before = lab.answer(lab.replaying(lab.cache()), plan.test, "before")
    result = Result(
        {"ranks": []},
        ("rank", "LoRA bytes", *_BEFORE_AND_AFTER, "in use"),
        plot=Plot("rank", "target tokens a round"),
    )
    lines: dict[str, tuple[list[float], list[float]]] = {"before": ([], []), "after": ([], [])}
    result.plot.lines.update(lines)
    for rank in plan.ranks:
        name = f"rank-{rank}"
        session = lab.learning(name, dataclasses.replace(lab.setting.learning, rank=rank))
        stream = lab.answer(session, plan.stream, f"rank {rank}")
        session.save()
        lora = lab.setting.store.read(name).lora
        after = lab.answer(lab.replaying(None, name), plan.test, f"rank {rank}: test")
        figures_of_rank = {
            "rank": rank,
            "lora_bytes": sum(values.nbytes for values in lora.values()),
            "before": figures(before),
            "after": figures(after),
            **gain(before, after),
            "stream": figures(stream),
            **_progress(session),
        }
        result.figures["ranks"].append(figures_of_rank)
        result.rows.append(
            (
                str(rank),
                f"{figures_of_rank['lora_bytes']:,}",
                *_before_and_after(figures_of_rank),
                str(figures_of_rank["promotions"]),
            )
        )
        for when, (ranks, efficiencies) in lines.items():
            ranks.append(rank)
            efficiencies.append(figures_of_rank[when]["block_efficiency"])
        yield result


def _curve(plan: Plan) -> Iterator[Result]:
    lab = plan.labs(0)
    lab.record(plan.stream, plan.test)
    loss = lab.setting.learning.objective.loss
    result = Result(
        {"points": []},
        ("prompts", "cache only", f"{loss} + cache", "gain", "95 %", "accepted", "in use"),
        plot=Plot("prompts seen", "target tokens a round, on the test prompts"),
    )
    cache = lab.cache()
    watching, learning = lab.replaying(cache), lab.learning("curve", lab.setting.learning)
    learning.save()
    lines: dict[str, tuple[list[float], list[float]]] = {
        name: ([], []) for name in result.headings[1:3]
    }
    result.plot.lines.update(lines)
    seen = 0
    while True:
        what = f"test after {seen} prompts"
        only = lab.answer(lab.replaying(lab.copy(cache)), plan.test, what)
        learned = lab.answer(lab.replaying(None, "curve"), plan.test, what)
        point = {
            "prompts": seen,
            "cache_only": figures(only),
            "learned": figures(learned),
            **gain(only, learned),
            **_progress(learning),
        }
        result.figures["points"].append(point)
        result.rows.append(
            (
                str(seen),
                f"{point['cache_only']['block_efficiency']:.3f}",
                f"{point['learned']['block_efficiency']:.3f}",
                *_gain(point),
                f"{point['learned']['acceptance_rate']:.1%}",
                str(point["promotions"]),
            )
        )
        for (xs, ys), runs in zip(lines.values(), (only, learned), strict=True):
            xs.append(seen)
            ys.append(total(runs).block_efficiency)
        yield result
        part = plan.stream[seen : seen + plan.every]
        if not part:
            return
        seen += len(part)
        lab.answer(watching, part, "cache only")
        lab.answer(learning, part, "learning")
        learning.save()


# --- drift ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Phase:
    """Part of a drift: prompts, all answered in one lab."""

    number: int
    name: str
    lab: Lab
    prompts: Sequence[Prompt]


@dataclass(frozen=True)
class _Way:
    """A way to go through all phases; ``open`` gives the session of each."""

    name: str
    cached: bool
    open: Callable[[_Phase], Session]


def _task_drift(plan: Plan) -> Iterator[Result]:
    lab = plan.labs(0)
    task, other = plan.stream[0].task, plan.other[0].task
    phases = [
        _Phase(0, task, lab, plan.stream[: plan.phase]),
        _Phase(1, other, lab, plan.other[: plan.phase]),
        _Phase(2, f"{task} again", lab, plan.stream[plan.phase : 2 * plan.phase]),
    ]
    learning = lab.setting.learning
    loss = learning.objective.loss

    def one(name: str, cached: bool, session: Session) -> _Way:
        return _Way(name, cached, lambda phase: session)

    return _drift(
        phases,
        [
            one("unadapted, no cache", False, lab.replaying(lab.no_cache())),
            one(f"{loss}, no cache", False, lab.learning("without", learning, lab.no_cache())),
            one(f"{loss} + cache", True, lab.learning("with", learning)),
        ],
    )


def _target_drift(plan: Plan) -> Iterator[Result]:
    one, two = plan.labs(0), plan.labs(1)
    first, again = plan.stream[: plan.phase], plan.stream[plan.phase : 2 * plan.phase]
    phases = [
        _Phase(0, one.target.name, one, first),
        _Phase(1, two.target.name, two, first),
        _Phase(2, f"{one.target.name} again", one, again),
    ]

    def unadapted(phase: _Phase) -> Session:
        return phase.lab.replaying(phase.lab.cache())

    def anew(phase: _Phase) -> Session:
        return phase.lab.learning(f"anew-{phase.number}", phase.lab.setting.learning)

    def adapter(phase: _Phase) -> Session:
        name = "first" if phase.lab is one else "second"
        return phase.lab.learning(name, phase.lab.setting.learning)

    # Each phase opens a session: what lasts is what an adapter keeps on disk.
    return _drift(
        phases,
        [
            _Way("unadapted", True, unadapted),
            _Way("begun anew", True, anew),
            _Way("its adapter", True, adapter),
        ],
    )


def _drift(phases: Sequence[_Phase], ways: Sequence[_Way]) -> Iterator[Result]:
    """Go through the phases, one way after another."""
    for phase in phases:
        phase.lab.record(phase.prompts)
    window = 2 * SMOOTH
    result = Result(
        {
            "phases": [{"name": p.name, "prompts": len(p.prompts)} for p in phases],
            "window": window,
            "smoothed": SMOOTH,
            "ways": [],
        },
        ("", "phase", "tok/round", "accepted", f"first {window}", f"last {window}", "in use"),
        plot=Plot(f"prompts (means of {SMOOTH})", "target tokens a round"),
    )
    ends = np.cumsum([len(phase.prompts) for phase in phases])
    result.plot.marks = [float(end) + 0.5 for end in ends[:-1]]
    for way in ways:
        parts: list[dict[str, Any]] = []
        curve: list[dict[str, float]] = []
        for phase in phases:
            session = way.open(phase)
            runs = phase.lab.answer(session, phase.prompts, f"{way.name}: {phase.name}")
            session.save()
            assert session.cache is not None
            part = {
                "phase": phase.name,
                **figures(runs, cached=way.cached),
                "first": figures(runs[:window], cached=way.cached),
                "last": figures(runs[-window:], cached=way.cached),
                "ngrams": footprint(session.cache),
                **_progress(session),
            }
            parts.append(part)
            curve += _smoothed(runs)
            result.rows.append(
                (
                    way.name,
                    phase.name,
                    f"{part['block_efficiency']:.3f}",
                    f"{part['acceptance_rate']:.1%}",
                    f"{part['first']['block_efficiency']:.3f}",
                    f"{part['last']['block_efficiency']:.3f}",
                    str(part.get("promotions", "")),
                )
            )
        result.figures["ways"].append({"way": way.name, "phases": parts, "curve": curve})
        result.plot.lines[way.name] = (
            range(1, len(curve) + 1),
            [point["block_efficiency"] for point in curve],
        )
        yield result


def _smoothed(runs: Sequence[Answered]) -> list[dict[str, float]]:
    """A point for each prompt: the sums of it and those shortly before, in the same phase."""
    points = []
    for end in range(1, len(runs) + 1):
        sums = total(runs[max(0, end - SMOOTH) : end])
        points.append(
            {
                "block_efficiency": sums.block_efficiency,
                "acceptance_rate": sums.acceptance_rate,
            }
        )
    return points


# --- the n-gram cache -----------------------------------------------------------------------------


def _eviction(plan: Plan) -> Iterator[Result]:
    lab = plan.labs(0)
    lab.record(plan.stream)
    unbounded = lab.cache()
    runs = lab.answer(lab.replaying(unbounded), plan.stream, "unbounded")
    result = Result(
        {"unbounded": {**figures(runs), "ngrams": footprint(unbounded)}, "bounded": []},
        ("n-grams", "evicting", "hits", "tok/round", "accepted", "evictions", "bytes"),
        plot=Plot("n-grams kept", "hit rate"),
    )
    result.rows.append(_evicted("unbounded", "", result.figures["unbounded"]))
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for capacity in plan.capacities:
        for eviction in (Eviction.LRU, Eviction.LFU):
            cache = lab.cache(capacity, eviction)
            what = f"{eviction.name}, {capacity} n-grams"
            measured = {
                "capacity": capacity,
                "eviction": eviction.name,
                **figures(lab.answer(lab.replaying(cache), plan.stream, what)),
                "ngrams": footprint(cache),
            }
            result.figures["bounded"].append(measured)
            result.rows.append(_evicted(str(capacity), eviction.name, measured))
            if measured["hit_rate"] is not None:
                xs, ys = lines.setdefault(eviction.name, ([], []))
                xs.append(capacity)
                ys.append(measured["hit_rate"])
            result.plot.lines.update(lines)
            yield result


def _evicted(capacity: str, eviction: str, measured: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        capacity,
        eviction,
        _percent(measured["hit_rate"]),
        f"{measured['block_efficiency']:.3f}",
        f"{measured['acceptance_rate']:.1%}",
        str(measured["ngrams"]["evictions"]),
        f"{measured['ngrams']['bytes']:,}",
    )


def _cache(plan: Plan) -> Iterator[Result]:
    lab = plan.labs(0)
    lab.record(plan.stream)
    papers = [
        {"entries": entries, "bytes": round(1e6 * size), "bytes_per_entry": 1e6 * size / entries}
        for entries, size in PAPERS_CACHES
    ]
    result = Result(
        {"points": [], "paper": papers},
        ("", "n-grams", "bytes", "B each", "hit rate", "merged", "tok/round"),
        plot=Plot("prompts seen", "n-grams"),
    )
    result.rows = [
        (
            "OmniDraft's paper",
            f"{paper['entries']:,}",
            f"{paper['bytes']:,}",
            _number(paper["bytes_per_entry"], 1),
            *("",) * 3,
        )
        for paper in papers
    ]
    cache = lab.cache()
    session = lab.replaying(cache)
    line: tuple[list[float], list[float]] = ([], [])
    result.plot.lines["n-grams"] = line
    for begin in range(0, len(plan.stream), plan.every):
        runs = lab.answer(session, plan.stream[begin : begin + plan.every], "growing the cache")
        point = {
            "seen": begin + len(runs),
            **figures(runs),
            "ngrams": footprint(cache),
        }
        result.figures["points"].append(point)
        result.rows.append(
            (
                f"after {point['seen']} prompts",
                f"{len(cache):,}",
                f"{cache.memory_bytes:,}",
                _number(point["ngrams"]["bytes_per_entry"], 1),
                _percent(point["hit_rate"]),
                _percent(point["merged_share"]),
                f"{point['block_efficiency']:.3f}",
            )
        )
        line[0].append(point["seen"])
        line[1].append(len(cache))
        yield result


_RUNS: Final[Mapping[Experiment, Callable[[Plan], Iterator[Result]]]] = {
    "ablation": _ablation,
    "ranks": _ranks,
    "task-drift": _task_drift,
    "target-drift": _target_drift,
    "eviction": _eviction,
    "curve": _curve,
    "cache": _cache,
}


# --- shown ----------------------------------------------------------------------------------------


def _progress(session: Session) -> dict[str, Any]:
    """What learning did, where there was any. Updates that came into use are promotions."""
    if session.learner is None or session.learner.trainer is None:
        return {}
    progress = session.learner.trainer.progress
    return {
        "rank": session.learner.trainer.options.rank or DEFAULT_RANK,
        "updates": progress.updates,
        "promotions": progress.promotions,
        "rollbacks": progress.rollbacks,
        "withdrawals": progress.withdrawals,
        "stopped": progress.stopped,
    }


def _before_and_after(run: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{run['before']['block_efficiency']:.3f}",
        f"{run['after']['block_efficiency']:.3f}",
        *_gain(run),
        f"{run['before']['acceptance_rate']:.1%}",
        f"{run['after']['acceptance_rate']:.1%}",
    )


def _gain(run: Mapping[str, Any]) -> tuple[str, str]:
    low, high = run["gain_interval"]
    return f"{run['gain'] - 1:+.1%}", f"{low - 1:+.1%} … {high - 1:+.1%}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
