"""``omnidraft adapt``: the drafter learns a target and a task from a stream of prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from omnidraft.cli import options as opt
from omnidraft.cli.interruption import Interrupted
from omnidraft.cli.learning_run import LearningRun, check_plotting, draw
from omnidraft.cli.loading import open_models
from omnidraft.cli.output import count, errors, print_json, stdout, steps
from omnidraft.cli.prompt import read_prompts
from omnidraft.runtime.bench import Prompt, Report, compare, fitting
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.learning.objective import LossName, Objective
from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.models.catalogue import DEFAULT_DRAFTER, DEFAULT_QUANTIZATION
from omnidraft.runtime.options import (
    DEFAULT_DRAFT_CONFIDENCE,
    FIXED_DRAFT_LENGTH,
    GenerationOptions,
)
from omnidraft.runtime.session import Session

if TYPE_CHECKING:
    from omnidraft.runtime.learning.learner import AdapterChoice

HeadTraining = Literal["none", "joint", "interleaved"]


def adapt(
    prompts: opt.PromptFile,
    target: opt.Target,
    adapter: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Learn into this adapter; a new one begins where there is none.",
            show_default=False,
        ),
    ],
    drafter: opt.Drafter = DEFAULT_DRAFTER,
    loss: Annotated[
        LossName | None,
        typer.Option(
            **opt.one_of(LossName), help="What is minimised.", show_default="the adapter's, else ce"
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
            help="End a draft where a rejection is likelier than this.",
        ),
    ] = 1 - DEFAULT_DRAFT_CONFIDENCE,
    limit: opt.Limit = None,
    test: Annotated[
        Path | None,
        typer.Option(
            metavar="PROMPTS.jsonl",
            help="Compare before and after on these prompts.",
            show_default=False,
        ),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(**opt.whole(1, 1024), help="Rank of the LoRA.", show_default="32"),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            **opt.number(0), help="Learning rate of AdamW.", show_default="the loss's own"
        ),
    ] = None,
    interval: Annotated[
        int, typer.Option(**opt.whole(1), help="Update the weights after so many prompts.")
    ] = 4,
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
    threads: opt.Threads = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Write the curves here.", show_default=False),
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
        check_plotting(plot)
    if str(prompts) == str(test) == "-":
        raise OmniDraftError("stdin is read once: give the prompts or those of --test as a file")
    stream = read_prompts(prompts, limit)
    tests = read_prompts(test) if test is not None else []
    from omnidraft.runtime.learning.learner import AdapterChoice
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
        target, drafter, quantization, engine, threads, learnable=True, quiet=as_json
    )
    stream = fitting(Session(target_model), stream, raw=raw)
    tests = fitting(Session(target_model), tests, raw=raw) if tests else []
    choice = AdapterChoice(store, adapter, learning, background=learn_budget < 1)
    assert drafter_model is not None
    session = Session(target_model, drafter_model, adapter=choice)
    before = None
    if tests:
        known = AdapterChoice(store, adapter) if _exists(store, adapter) else None
        before = _measure(target_model, drafter_model, known, tests, options, "before", as_json)
    run = LearningRun(session, len(stream))
    interruption = None
    try:
        run.learn(stream, options, quiet=as_json)
        run.drain(quiet=as_json)
    except Interrupted as error:
        interruption = error
    finally:
        run.learner.close()
    after = None
    if tests and interruption is None:
        after = _measure(
            target_model,
            drafter_model,
            AdapterChoice(store, adapter),
            tests,
            options,
            "after",
            as_json,
        )
    if interruption is not None and not run.curve:
        errors.print(
            f"\nNo prompt was answered: nothing was learned yet. The adapter {adapter} "
            + ("stays as it was." if _exists(store, adapter) else "has not begun."),
            soft_wrap=True,
        )
        raise interruption
    report = run.as_dict()
    if before is not None and after is not None:
        report |= {"before": before.overall.as_dict(), "after": after.overall.as_dict()}
    if as_json:
        print_json(report)
    else:
        _print(adapter, report)
    if plot is not None and run.curve:
        draw(plot, run)
    if interruption is not None:
        errors.print(
            f"\n{len(run.curve)} of {count(len(stream), 'prompt')} were answered. What was learned "
            f"is kept in the adapter {adapter}; the same command goes on from there."
        )
        raise interruption


def _exists(store: Any, name: str) -> bool:
    return any(entry.name == name for entry in store.list())


def _measure(
    target: LoadedModel,
    drafter: LoadedModel,
    adapter: AdapterChoice | None,
    prompts: list[Prompt],
    options: GenerationOptions,
    when: str,
    quiet: bool,
) -> Report:
    step = f"testing {when}"
    with steps(step, quiet=quiet) as show:
        return compare(
            Session(target, drafter, adapter=adapter),
            prompts,
            options,
            lambda report: show(step, report.overall.prompts / len(prompts)),
        )


def _print(name: str, report: dict[str, Any]) -> None:
    console = stdout()
    console.print(
        f"{name}: {count(report['updates'], 'update')} from {count(report['prompts'], 'prompt')}, "
        f"{report['promotions']} came into use, {report['rollbacks']} were rolled back; "
        f"{report['seconds_learning']:.1f} s of learning",
        soft_wrap=True,
    )
    if (head := report["head"]) is not None:
        state = "decides" if head["in_use"] else "does not decide yet"
        text = f"The acceptance head {state}; {count(head['updates'], 'update')}"
        if head["bce"] is not None:
            text += (
                f", cross-entropy on new answers {head['bce']:.4f}, "
                f"of the drafter's confidence {head['confidence_bce']:.4f}"
            )
        console.print(text, soft_wrap=True)
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
