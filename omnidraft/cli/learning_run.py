"""A stream of prompts that a session answers and learns from, and the curves of it."""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from omnidraft.cli.output import count, errors, steps
from omnidraft.runtime.bench import Prompt
from omnidraft.runtime.errors import MissingDependencyError
from omnidraft.runtime.options import GenerationOptions
from omnidraft.runtime.session import Session
from omnidraft.runtime.statistics import Statistics
from omnidraft.runtime.storage.files import check_place, whole_file

if TYPE_CHECKING:
    from omnidraft.runtime.learning.trial import Progress

# Prompts that a point of a curve is the mean of.
_SMOOTH = 8
_BARS = "▁▂▃▄▅▆▇█"


class LearningRun:
    """Answers a stream of prompts with a session that learns, and keeps its curves."""

    def __init__(self, session: Session, total: int) -> None:
        assert session.learner is not None and session.learner.trainer is not None
        self.session = session
        self.learner = session.learner
        self.trainer = session.learner.trainer
        self.total = total
        self.curve: list[dict[str, float]] = []
        self._recent: deque[Statistics] = deque(maxlen=_SMOOTH)
        # Who asks to learn means it, also where learning had stopped because it did not help.
        self.trainer.resume_learning()
        self._begin = self._progress()

    def learn(self, prompts: list[Prompt], options: GenerationOptions, *, quiet: bool) -> None:
        with self._display(quiet) as show:
            for prompt in prompts:
                answer = self.session.generate(prompt.prompt, options)
                if self.trainer.full:
                    self.trainer.drain()
                self._recent.append(answer.stats)
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
                show()

    @contextmanager
    def _display(self, quiet: bool) -> Iterator[Callable[[], None]]:
        """Curves in a terminal, else lines."""
        if errors.is_terminal and not quiet:
            with Live(console=errors, transient=True, auto_refresh=False) as live:
                yield lambda: live.update(self._render(), refresh=True)
            return
        with steps("answering", quiet=quiet) as show:
            yield lambda: show("answering", len(self.curve) / self.total, self._so_far())

    def drain(self, *, quiet: bool) -> None:
        """Learn from what is waiting, and show how much that is."""
        with steps("learning", quiet=quiet) as show:
            while waiting := self.trainer.waiting:
                show("learning", None, f"from {count(waiting, 'answer')}")
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

    def _so_far(self) -> str:
        now, begin = self._progress(), self._begin
        state = count(now.updates - begin.updates, "update")
        if now.stopped:
            state = "stopped, nothing more to gain"
        return (
            f"{len(self.curve)} of {count(self.total, 'prompt')}, {state}, "
            f"{now.promotions - begin.promotions} came into use, "
            f"{now.rollbacks - begin.rollbacks} rolled back"
        )

    def _render(self) -> RenderableType:
        last = self.curve[-1]
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
            # Bars show differences only. The range beside them says how small these are.
            span = f"{form.format(min(values))} … {form.format(max(values))}"
            table.add_row(
                name, form.format(last[key]), Text(_sparkline(values), "cyan"), Text(span, "dim")
            )
        return Group(Text(f"{self._so_far()}; means of {_SMOOTH}", "bold"), table)


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


def check_plotting(path: Path) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "--plot needs matplotlib: pip install 'omnidraft[plot]', or leave --plot out."
        ) from error
    check_place(path)


def draw(path: Path, run: LearningRun) -> None:
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
