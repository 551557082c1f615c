"""What learning brings: experiments on streams of prompts.

    python -m benchmarks.adaptation EXPERIMENT --stream FILE [--test FILE] --target NAME
        [--limit 200] [--test-limit 100] [--json FILE] [--plot FILE] [--help]

- ablation: no n-gram cache, the cache only, L_DM, L_DM with it, the hybrid loss, ALM;
- ranks: of the LoRA;
- task-drift: the stream, --other, the stream again, with and without the n-gram cache;
- target-drift: a target, a second one (--target twice), the first again, switching adapters;
- eviction: LRU against LFU where the n-gram cache is small;
- curve: block efficiency on the test prompts against prompts learned from;
- cache: the n-gram cache as it grows, beside the paper's.

Greedy decoding; block efficiency is target tokens a round. The target's plain answers are recorded
once, in OMNIDRAFT_CACHE, and shared by all experiments; the drafter's work is then replayed against
them wherever no weights are learned (see ``replay``). Test prompts that are in the stream are left
out, so that both may be one file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.adaptation import experiments
from benchmarks.adaptation.experiments import DRIFTS, TESTED, Experiment, Plan, Plot, Result
from benchmarks.adaptation.lab import Lab, Setting
from omnidraft.export.conversion import Quantization
from omnidraft.runtime.bench import Prompt, read_prompts
from omnidraft.runtime.errors import MissingDependencyError, OmniDraftError
from omnidraft.runtime.learning.objective import LEARNING_RATES, LossName, Objective
from omnidraft.runtime.learning.store import AdapterStore
from omnidraft.runtime.learning.trainer import LearningOptions
from omnidraft.runtime.models import load_model
from omnidraft.runtime.models.cache import cache_folder
from omnidraft.runtime.models.catalogue import DEFAULT_QUANTIZATION
from omnidraft.runtime.options import DEFAULT_DRAFT_CONFIDENCE, GenerationOptions
from omnidraft.runtime.storage.files import check_place, whole_file

_errors = Console(stderr=True, highlight=False)
_DEFAULTS = LearningOptions()


def main(
    experiment: Experiment,
    stream: Annotated[Path, typer.Option(help="prompts to learn from")],
    test: Annotated[Path | None, typer.Option(help="prompts to test on")] = None,
    other: Annotated[Path | None, typer.Option(help="another task's prompts")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="twice for target-drift", show_default="smollm2-135m")
    ] = None,
    drafter: str = "default",
    limit: Annotated[
        int | None, typer.Option(min=1, help="prompts of the stream; of a phase, for a drift")
    ] = None,
    test_limit: Annotated[int | None, typer.Option(min=1)] = None,
    loss: Annotated[LossName, typer.Option(help="where an experiment has one")] = "ce",
    rank: Annotated[
        list[int] | None, typer.Option(min=1, max=1024, show_default="32; ranks: 8 16 32 64")
    ] = None,
    capacity: Annotated[
        list[int] | None, typer.Option(min=1, help="n-grams", show_default="8 16 … 256")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="prompts between points of a curve")] = 25,
    learning_rate: Annotated[
        float | None, typer.Option(min=0.0, show_default="the loss's own")
    ] = None,
    interval: Annotated[int, typer.Option(min=1)] = _DEFAULTS.interval,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    draft_length: Annotated[int, typer.Option(min=1, max=32)] = 4,
    draft_confidence: Annotated[float, typer.Option(min=0, max=1)] = DEFAULT_DRAFT_CONFIDENCE,
    raw: Annotated[bool, typer.Option("--raw", help="no chat template")] = False,
    quantization: Quantization = DEFAULT_QUANTIZATION,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
    plot: Path | None = None,
) -> None:
    """Run an experiment, and write what it has shown so far after every part of it."""
    targets = target or ["smollm2-135m"]
    _check_files(json_file, plot)
    if len(targets) != (2 if experiment == "target-drift" else 1):
        wanted = "two targets: give --target twice"
        if experiment != "target-drift":
            wanted = "one target: give --target once"
        raise OmniDraftError(f"{experiment} takes {wanted}")
    if experiment != "ranks" and rank and len(rank) > 1:
        raise OmniDraftError(f"{experiment} takes one --rank")
    entries = read_prompts(stream, 2 * limit if experiment in DRIFTS and limit else limit)
    phase = limit or len(entries) // 2
    tests = []
    if test is not None and experiment in TESTED:
        tests = _others(test, {entry.prompt for entry in entries}, test_limit)
    objective = Objective(loss)
    generation = GenerationOptions(
        max_new_tokens=max_new_tokens,
        draft_length=draft_length,
        draft_confidence=draft_confidence,
        raw=raw,
    )
    learning = LearningOptions(
        objective, rank[0] if rank else None, learning_rate, interval=interval
    )
    with tempfile.TemporaryDirectory() as folder, _progress_bar() as progress:
        bar = progress.add_task("loading", total=None)

        def tick(what: str, done: int, count: int) -> None:
            progress.update(bar, description=what, completed=done, total=count)

        setting = Setting(
            AdapterStore(Path(folder)), cache_folder() / "answers", drafter, generation, learning
        )

        @cache
        def lab(index: int) -> Lab:
            name = targets[index]
            loaded = load_model(name, quantization=quantization, threads=threads)
            return Lab(loaded, setting, tick, threads)

        plan = Plan(
            lab,
            entries,
            tests,
            read_prompts(other, phase) if other else [],
            phase,
            every,
            rank or Plan.ranks,
            capacity or Plan.capacities,
        )
        facts: dict[str, Any] = {
            "experiment": experiment,
            "targets": targets,
            "drafter": drafter,
            "precision": quantization,
            "stream": [stream.name, len(entries)],
            "test": [test.name, len(tests)] if test and tests else None,
            "other": [other.name, len(plan.other)] if other else None,
            "max_new_tokens": max_new_tokens,
            "draft_length": draft_length,
            "draft_confidence": draft_confidence,
            "raw": raw,
            "loss": loss,
            "learning_rate": learning_rate or LEARNING_RATES,
            "interval": interval,
            "replayed": experiments.REPLAYED,
        }
        result = None
        for result in experiments.run(experiment, plan):
            facts["batch_invariant"] = [lab(i).target.batch_invariant for i in range(len(targets))]
            _write(json_file, {**facts, "complete": False, **result.figures})
            if plot is not None:
                _draw(plot, result.plot)
    assert result is not None
    _write(json_file, {**facts, "complete": True, **result.figures})
    _show(result)


def _others(path: Path, known: set[str], limit: int | None) -> list[Prompt]:
    """Prompts that are not known."""
    others = [entry for entry in read_prompts(path) if entry.prompt not in known]
    if not others:
        raise OmniDraftError(f"every prompt of {path} is in the stream: there is nothing to test")
    return others[:limit]


def _check_files(json_file: Path | None, plot: Path | None) -> None:
    """Before hours of measuring, not after."""
    for path in (json_file, plot):
        if path is not None:
            check_place(path)
    if plot is not None:
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(
                "--plot needs matplotlib: pip install 'omnidraft[plot]', or leave --plot out"
            ) from error


def _progress_bar() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=_errors,
        transient=True,
        disable=not _errors.is_terminal,
    )


def _write(path: Path | None, report: dict[str, Any]) -> None:
    if path is None:
        return
    with whole_file(path) as file:
        file.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


def _show(result: Result) -> None:
    table = Table(box=None, pad_edge=False)
    for index, heading in enumerate(result.headings):
        table.add_column(heading, justify="right" if index else "left")
    for row in result.rows:
        table.add_row(*row)
    # No wider than it has to be, and never folded.
    Console(highlight=False, width=200).print(table)


def _draw(path: Path, plot: Plot) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    bars = any(isinstance(x, str) for xs, _ in plot.lines.values() for x in xs)
    for index, (name, (xs, ys)) in enumerate(plot.lines.items()):
        if bars:
            width = 0.8 / len(plot.lines)
            axes.bar([i + index * width for i in range(len(xs))], ys, width, label=name)
            axes.set_xticks([i + 0.4 - width / 2 for i in range(len(xs))], xs, rotation=15)
        else:
            axes.plot(xs, ys, marker="o" if len(xs) < 40 else None, label=name)
    for mark in plot.marks:
        axes.axvline(mark, color="grey", linewidth=0.8)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(alpha=0.3)
    if len(plot.lines) > 1:
        figure.legend(loc="outside upper center", ncols=len(plot.lines))
    with whole_file(path) as file:
        figure.savefig(file, format="png", dpi=120)


if __name__ == "__main__":
    try:
        typer.run(main)
    except OmniDraftError as error:
        _errors.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
