"""``omnidraft adapt``: the drafter learns a target and a task from a stream of prompts."""

from __future__ import annotations

import copy
import sys
from collections import deque
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from omnidraft.cli import options as opt
from omnidraft.cli.loading import open_models
from omnidraft.cli.output import errors, print_json, progress_bar, stdout, steps
from omnidraft.runtime.bench import Prompt, Report, compare, prompt_named, read_prompts
from omnidraft.runtime.errors import MissingDependencyError
from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.models.catalogue import DEFAULT_DRAFTER, DEFAULT_QUANTIZATION
from omnidraft.runtime.options import (
    DEFAULT_DRAFT_CONFIDENCE,
    FIXED_DRAFT_LENGTH,
    GenerationOptions,
)
from omnidraft.runtime.session import Session
from omnidraft.runtime.statistics import Statistics
from omnidraft.runtime.storage.files import check_place, whole_file

if TYPE_CHECKING:
    from omnidraft.runtime.learning.learner import AdapterChoice
    from omnidraft.runtime.learning.trial import Progress

# Prompts that a point of a curve is the mean of.
_SMOOTH = 8
_BARS = "▁▂▃▄▅▆▇█"


Loss = Literal["ce", "hybrid", "alm"]
HeadTraining = Literal["none", "joint", "interleaved"]


def adapt(
    prompts: opt.PromptFile,
    target: opt.Target,
    adapter: Annotated[
        str, typer.Option(help="Learn into this adapter; a new one begins.", show_default=False)
    ],
    drafter: opt.Drafter = DEFAULT_DRAFTER,
    loss: Annotated[
        Loss | None,
        typer.Option(
            **opt.one_of(Loss), help="What is minimised.", show_default="the adapter's, else ce"
        ),
    ] = None,
    head: Annotated[
        HeadTraining | None,
        typer.Option(
            **opt.one_of(HeadTraining),
            help="Train an acceptance head, which then decides when a draft ends: with each "
            "update of the drafter, or several times from a replay buffer.",
            show_default="as so far, else none",
        ),
    ] = None,
    threshold: Annotated[
        float,
        typer.Option(
            **opt.number(0, 1),
            help="Draft until a rejection is likelier than this: 1 - confidence.",
        ),
    ] = 1 - DEFAULT_DRAFT_CONFIDENCE,
    limit: opt.Limit = None,
    test: Annotated[
        Path | None,
        typer.Option(help="Compare before and after on these prompts.", show_default=False),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(**opt.whole(1, 1024), help="Of the LoRA.", show_default="32"),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(**opt.number(0), help="AdamW's.", show_default="the loss's own"),
    ] = None,
    interval: Annotated[int, typer.Option(**opt.whole(1), help="Prompts for an update.")] = 4,
    learn_budget: Annotated[
        float,
        typer.Option(
            **opt.number(0, 1),
            help="Share of the time that may go into learning, beside the answers.",
        ),
    ] = 1.0,
    max_new_tokens: opt.MaxNewTokens = 128,
    draft_length: Annotated[
        int, typer.Option(**opt.whole(1, 32), help="Draft tokens per round.")
    ] = FIXED_DRAFT_LENGTH,
    raw: opt.Raw = False,
    quantization: opt.Weights = DEFAULT_QUANTIZATION,
    engine: opt.RunBy = None,
    threads: opt.Threads = 2,
    plot: Annotated[
        Path | None,
        typer.Option(help="Write the curves here, a PNG file.", show_default=False),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Answer every prompt, and learn from each.

    What is learned is saved after every update, so Ctrl-C loses little. With a budget of 1 learning
    takes its time between the answers; with less it runs beside them.

    \b
    Examples:
      omnidraft adapt prompts.jsonl --target gemma3-270m --adapter work
      omnidraft adapt prompts.jsonl --target gemma3-270m --adapter work \\
        --test others.jsonl --plot curves.png
      omnidraft generate "…" --target gemma3-270m --adapter work
    """
    if plot is not None:
        _check_plotting(plot)
    stream = read_prompts(prompts, limit)
    tests = read_prompts(test) if test is not None else []
    from omnidraft.runtime.learning.learner import AdapterChoice
    from omnidraft.runtime.learning.objective import Objective
    from omnidraft.runtime.learning.store import AdapterStore, adapters_folder
    from omnidraft.runtime.learning.trainer import LearningOptions

    learning = LearningOptions(
        Objective(loss) if loss else None,
        rank,
        learning_rate,
        interval=interval,
        budget=learn_budget,
        head=head,
    )
    store = AdapterStore(adapters_folder())
    store.check_writable(adapter)
    options = GenerationOptions(
        max_new_tokens=max_new_tokens,
        draft_length=draft_length,
        draft_confidence=1 - threshold,
        raw=raw,
    )
    target_model, drafter_model = open_models(
        target, drafter, quantization, engine, threads, learnable=True
    )
    choice = AdapterChoice(store, adapter, learning, background=learn_budget < 1)
    assert drafter_model is not None
    session = Session(target_model, drafter_model, adapter=choice)
    before = None
    if tests:
        known = AdapterChoice(store, adapter) if _exists(store, adapter) else None
        before = _measure(target_model, drafter_model, known, tests, options, "before")
    run = _Run(session, len(stream))
    try:
        run.learn(stream, options, quiet=as_json)
        run.drain()
    finally:
        run.learner.close()
    after = None
    if tests:
        after = _measure(
            target_model, drafter_model, AdapterChoice(store, adapter), tests, options, "after"
        )
    report = run.as_dict()
    if before is not None and after is not None:
        report |= {"before": before.overall.as_dict(), "after": after.overall.as_dict()}
    if as_json:
        print_json(report)
    else:
        _print(adapter, report)
    if plot is not None:
        _draw(plot, run)


class _Run:
    """Answers a stream of prompts with a session that learns, and keeps its curves."""

    def __init__(self, session: Session, total: int) -> None:
        assert session.learner is not None and session.learner.trainer is not None
        self.session = session
        self.learner = session.learner
        self.trainer = session.learner.trainer
        self.total = total
        self.curve: list[dict[str, float]] = []
        self._recent: deque[Statistics] = deque(maxlen=_SMOOTH)
        # Whoever learns on purpose does not want to hear that it once was of no use.
        self.trainer.resume_learning()
        self._begin = self._progress()

    def learn(self, prompts: list[Prompt], options: GenerationOptions, *, quiet: bool) -> None:
        shown = errors.is_terminal and not quiet
        display = Live(console=errors, transient=True, auto_refresh=False) if shown else None
        with display or nullcontext():
            for number, prompt in enumerate(prompts, 1):
                with prompt_named(number):
                    answer = self.session.generate(prompt.prompt, options)
                if self.trainer.full:
                    self.trainer.drain()
                self._recent.append(answer.statistics)
                sums = Statistics()
                for statistics in self._recent:
                    sums += statistics
                now = self._progress()
                self.curve.append(
                    {
                        "block_efficiency": sums.block_efficiency,
                        "acceptance_rate": sums.acceptance_rate,
                        "tokens_per_second": sums.tokens_per_second,
                        "updates": now.updates - self._begin.updates,
                        "promotions": now.promotions - self._begin.promotions,
                    }
                )
                if display is not None:
                    display.update(self._render(), refresh=True)

    def drain(self) -> None:
        """Learn from what is waiting, and show how much that is."""
        with steps("learning") as show:
            while waiting := self.trainer.waiting:
                show(f"learning from {waiting} answers", None)
                self.trainer.drain(timeout=1.0)

    def as_dict(self) -> dict[str, Any]:
        now, head = self._progress(), self.trainer.head_state
        return {
            "prompts": now.prompts - self._begin.prompts,
            "updates": now.updates - self._begin.updates,
            "promotions": now.promotions - self._begin.promotions,
            "rollbacks": now.rollbacks - self._begin.rollbacks,
            "withdrawals": now.withdrawals - self._begin.withdrawals,
            "stopped": now.stopped,
            "seconds_learning": now.seconds - self._begin.seconds,
            "peak_memory_bytes": _peak_memory(),
            "head": head[2].as_dict() if head else None,
            "curve": self.curve,
        }

    def _progress(self) -> Progress:
        return copy.copy(self.trainer.progress)

    def _render(self) -> RenderableType:
        last, now, begin = self.curve[-1], self._progress(), self._begin
        table = Table(box=None, show_header=False, pad_edge=False)
        columns: tuple[JustifyMethod, ...] = ("left", "right", "left", "left")
        for column in columns:
            table.add_column(justify=column, no_wrap=True)
        for name, key, form in (
            ("tokens a round", "block_efficiency", "{:.2f}"),
            ("accepted", "acceptance_rate", "{:.0%}"),
            ("tokens a second", "tokens_per_second", "{:.1f}"),
        ):
            values = [point[key] for point in self.curve]
            # The bars show differences only: how small these are, the range says.
            span = f"{form.format(min(values))} … {form.format(max(values))}"
            table.add_row(
                name, form.format(last[key]), Text(_sparkline(values), "cyan"), Text(span, "dim")
            )
        state = f"{now.updates - begin.updates} updates"
        if now.stopped:
            state = "stopped, nothing more to gain"
        return Group(
            Text(
                f"{len(self.curve)}/{self.total} prompts, {state}, "
                f"{now.promotions - begin.promotions} came into use, "
                f"{now.rollbacks - begin.rollbacks} rolled back; means of {_SMOOTH}",
                "bold",
            ),
            table,
        )


def _exists(store: Any, name: str) -> bool:
    return any(entry.name == name for entry in store.list())


def _measure(
    target: LoadedModel,
    drafter: LoadedModel,
    adapter: AdapterChoice | None,
    prompts: list[Prompt],
    options: GenerationOptions,
    when: str,
) -> Report:
    with progress_bar() as progress:
        bar = progress.add_task(f"testing {when}", total=len(prompts))
        return compare(
            Session(target, drafter, adapter=adapter),
            prompts,
            options,
            lambda report: progress.update(bar, completed=report.overall.prompts),
        )


def _sparkline(values: list[float], width: int = 40) -> str:
    """Bars from the smallest to the largest value, the newest at the right."""
    step = max(1, -(-len(values) // width))
    means = [
        sum(part) / len(part) for i in range(0, len(values), step) if (part := values[i : i + step])
    ]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


def _peak_memory() -> int:
    """The largest resident memory of this process so far, bytes."""
    import resource  # not on Windows, where all else works

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _check_plotting(path: Path) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "--plot needs matplotlib: pip install 'omnidraft[plot]', or leave --plot out."
        ) from error
    check_place(path)


def _draw(path: Path, run: _Run) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 8), layout="constrained")
    panels = figure.subplots(3, sharex=True)
    prompts = range(1, len(run.curve) + 1)
    updates = [
        index + 1
        for index in range(1, len(run.curve))
        if run.curve[index]["promotions"] > run.curve[index - 1]["promotions"]
    ]
    for axes, (key, label) in zip(
        panels,
        (
            ("acceptance_rate", "acceptance rate"),
            ("block_efficiency", "target tokens a round"),
            ("tokens_per_second", "tokens a second"),
        ),
        strict=True,
    ):
        axes.plot(prompts, [point[key] for point in run.curve], marker=".")
        axes.set_ylabel(label)
        # From 0: otherwise chance differences between prompts look like learning.
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        for index, prompt in enumerate(updates):
            name = None if index else "what was learned comes into use"
            axes.axvline(prompt, color="grey", linewidth=0.8, label=name)
    if updates:
        panels[0].legend(loc="lower right")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    panels[-1].set_xlabel(f"prompts (means of the last {_SMOOTH})")
    with whole_file(path) as file:
        figure.savefig(file, format="png")


def _print(name: str, report: dict[str, Any]) -> None:
    console = stdout()
    console.print(
        f"{name}: {report['updates']} updates from {report['prompts']} prompts, "
        f"{report['promotions']} came into use, {report['rollbacks']} were rolled back; "
        f"{report['seconds_learning']:.1f} s of learning",
        markup=False,
        soft_wrap=True,
    )
    if (head := report["head"]) is not None:
        state = "decides" if head["in_use"] else "does not decide yet"
        text = f"The acceptance head {state}; {head['updates']} updates"
        if head["bce"] is not None:
            text += (
                f", cross-entropy on new answers {head['bce']:.4f}, "
                f"of the drafter's confidence {head['confidence_bce']:.4f}"
            )
        console.print(text, markup=False, soft_wrap=True)
    if report["stopped"]:
        console.print("Learning has stopped: it did not raise acceptance any more.")
    if report["withdrawals"]:
        console.print("What had been learned before was of no use here any more: it is out of use.")
    if "before" in report:
        table = Table(box=None, pad_edge=False)
        for heading in ("", "tok/round", "accepted", "speedup", "identical"):
            table.add_column(heading, justify="right" if heading else "left")
        for when in ("before", "after"):
            sums = report[when]
            table.add_row(
                when,
                f"{sums['block_efficiency']:.2f}",
                f"{sums['acceptance_rate']:.0%}",
                f"{sums['speedup']:.2f}×",
                f"{sums['identical']}/{sums['prompts']}",
            )
        console.print(table)
