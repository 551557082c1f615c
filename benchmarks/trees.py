"""Trees of tokens against chains, side by side: tokens a round, and tokens per second.

    python benchmarks/trees.py PROMPTS.jsonl … --target smollm2-135m --json trees.json

Every way answers every prompt in turn, in an order that changes; of the times the median counts.
By cost: as many tokens as pay for themselves. With a temperature all ways have the same seed, and
so are to give the same tokens. A second table tells by task where the time of a round goes with
trees by cost: in passes of the target, in the drafter, and in all else.

With --pace FILE, which `forward_cost.py` wrote of one larger model, a pass of the target lasts as
long as one of that model: what its drafts would bring if they were accepted as often.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from omnidraft import GenerationOptions, SamplingParameters, Session
from omnidraft._native import CostCurve
from omnidraft.cli.loading import open_models
from omnidraft.runtime.bench import Prompt, read_prompts
from omnidraft.runtime.decoding.costs import SIZES, Costs, load_costs
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.decoding.lease import Lease
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.processor import processor_name
from omnidraft.runtime.storage.files import whole_file

PLAIN = "plain"
BY_COST = "tree by cost"
Result = TypeVar("Result")


class Passes:
    """How often a model was run."""

    def __init__(self, model: CausalModel) -> None:
        self.count = 0
        for name in ("forward", "forward_tree"):
            if method := getattr(model, name, None):
                setattr(model, name, self._counted(method))

    def _counted(self, method: Callable[..., Result]) -> Callable[..., Result]:
        def run(*arguments: Any, **options: Any) -> Result:
            self.count += 1
            return method(*arguments, **options)

        return run


def paced_by(file: Path) -> dict[int, float]:
    """Seconds of passes over so many tokens of a chain, behind the shortest context."""
    passes = json.loads(file.read_text("utf-8"))["passes"]
    chains = [each for each in passes if each["pass"] == "chain"]
    shortest = min(each["context"] for each in chains)
    (times,) = (each["milliseconds"] for each in chains if each["context"] == shortest)
    return {int(n): milliseconds / 1e3 for n, milliseconds in times.items()}


class Pace:
    """Makes passes of a model last as long as ``seconds`` says, where they are not longer.

    Attributes:
        passes, late: how many there were, and how many were longer.
    """

    def __init__(self, model: CausalModel, seconds: dict[int, float]) -> None:
        self.passes = self.late = 0
        self._curve = CostCurve(seconds)
        for name in ("forward", "forward_tree"):
            setattr(model, name, self._paced(getattr(model, name)))

    def _paced(self, method: Callable[..., Result]) -> Callable[..., Result]:
        def run(tokens: Any, *arguments: Any, **options: Any) -> Result:
            until = perf_counter() + self._curve.seconds(len(tokens))
            result = method(tokens, *arguments, **options)
            self.passes += 1
            self.late += perf_counter() > until
            while perf_counter() < until:
                pass
            return result

        return run


class ChainSession(Session):
    """A session that drafts chains where another would draft trees."""

    def _decoder(self, options: GenerationOptions, lease: Lease) -> SpeculativeDecoder:
        decoder = super()._decoder(options, lease)
        assert decoder._drafting is not None
        decoder._drafting = replace(decoder._drafting, tree=False)
        return decoder


@dataclass
class Way:
    """A way to decode, and what it took.

    Attributes:
        runs: by prompt; each tokens, rounds, passes of the drafter, those that read the prompt
            included, seconds of decoding, of its parts and of all, hash of the tokens.
    """

    name: str
    session: Session
    options: GenerationOptions
    runs: dict[int, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def answer(self, index: int, prompt: Prompt, passes: Passes) -> None:
        self.session.forget()
        passes.count = 0
        started = perf_counter()
        answer = self.session.generate(prompt.prompt, self.options)
        seconds = perf_counter() - started
        self.runs[index].append(
            {
                "tokens": answer.stats.target_tokens,
                "rounds": answer.stats.rounds,
                "proposed": answer.stats.proposed,
                "draft_passes": passes.count,
                "decode_seconds": round(answer.stats.seconds, 6),
                "target_seconds": round(answer.stats.target_seconds, 6),
                "draft_seconds": round(answer.stats.draft_seconds, 6),
                "total_seconds": round(seconds, 6),
                "answer": sha256(json.dumps(answer.token_ids).encode()).hexdigest()[:12],
            }
        )

    def taken(self, what: str, prompts: list[int] | None = None) -> float:
        """A sum over prompts, of each the median turn."""
        chosen = self.runs if prompts is None else prompts
        return sum(statistics.median(run[what] for run in self.runs[each]) for each in chosen)

    def pace(self, seconds: str) -> float:
        """Tokens per second."""
        return sum(runs[0]["tokens"] for runs in self.runs.values()) / self.taken(seconds)

    def row(self, plain: Way) -> dict[str, Any]:
        runs = [run for runs in self.runs.values() for run in runs]
        rounds = sum(run["rounds"] for run in runs)
        same = sum(
            all(run["answer"] == plain.runs[index][0]["answer"] for run in runs)
            for index, runs in self.runs.items()
        )
        return {
            "way": self.name,
            "tokens_per_round": sum(run["tokens"] for run in runs) / rounds,
            "proposed_per_round": sum(run["proposed"] for run in runs) / rounds,
            "tokens_per_second": self.pace("decode_seconds"),
            "speedup": self.pace("decode_seconds") / plain.pace("decode_seconds"),
            "whole_answer_speedup": self.pace("total_seconds") / plain.pace("total_seconds"),
            "identical": same,
            "prompts": len(self.runs),
        }


def round_of(task: str, members: list[int], plain: Way, drafted: Way) -> dict[str, Any]:
    """What a round takes for the prompts of a task, beside a round of plain decoding."""
    rounds, plain_rounds = drafted.taken("rounds", members), plain.taken("rounds", members)
    round_ms = {
        part: 1e3 * drafted.taken(f"{part}_seconds", members) / rounds
        for part in ("decode", "target", "draft")
    }
    tokens = drafted.taken("tokens", members)
    pace = tokens / drafted.taken("decode_seconds", members)
    plain_pace = plain.taken("tokens", members) / plain.taken("decode_seconds", members)
    return {
        "task": task,
        "speedup": pace / plain_pace,
        "tokens_per_round": tokens / rounds,
        "proposed_per_round": drafted.taken("proposed", members) / rounds,
        "draft_passes_per_round": drafted.taken("draft_passes", members) / rounds,
        "round_ms": round_ms["decode"],
        "plain_target_ms": 1e3 * plain.taken("target_seconds", members) / plain_rounds,
        "target_ms": round_ms["target"],
        "draft_ms": round_ms["draft"],
        "rest_ms": round_ms["decode"] - round_ms["target"] - round_ms["draft"],
    }


def show_rounds(rows: list[dict[str, Any]], console: Console) -> None:
    """Passes are the drafter's; pass is the target's, plain its pass in plain decoding, in ms."""
    table = Table(box=None, title=f"a round of {BY_COST}")
    table.add_column("task")
    for name in ("×plain", "tokens", "proposed", "passes", "ms", "pass", "plain"):
        table.add_column(name, justify="right")
    for name in ("target", "drafter", "rest"):
        table.add_column(name, justify="right")
    for row in rows:
        shares = [
            f"{row[f'{part}_ms'] / row['round_ms']:.0%}" for part in ("target", "draft", "rest")
        ]
        table.add_row(
            row["task"],
            f"{row['speedup']:.2f}",
            f"{row['tokens_per_round']:.2f}",
            f"{row['proposed_per_round']:.2f}",
            f"{row['draft_passes_per_round']:.2f}",
            f"{row['round_ms']:.2f}",
            f"{row['target_ms']:.2f}",
            f"{row['plain_target_ms']:.2f}",
            *shares,
        )
    console.print(table)


def main(
    prompts: list[Path],
    target: str = "smollm2-135m",
    quantization: str = "auto",
    engine: Annotated[str | None, typer.Option(help="the target's")] = None,
    per_task: Annotated[int, typer.Option(min=1, help="prompts of each task")] = 3,
    max_new_tokens: Annotated[int, typer.Option(min=2)] = 96,
    repeat: Annotated[int, typer.Option(min=1)] = 3,
    temperature: Annotated[float, typer.Option(min=0.0, max=10.0)] = 0.0,
    raw: Annotated[bool, typer.Option("--raw", help="continue the text")] = False,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    pace_file: Annotated[Path | None, typer.Option("--pace")] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure, print a table, and write every turn."""
    load = os.getloadavg()[0]
    entries = [entry for file in prompts for entry in read_prompts(file)]
    by_task = {entry.task: [e for e in entries if e.task == entry.task] for entry in entries}
    asked = [entry for members in by_task.values() for entry in members[:per_task]]
    models = open_models(target, "default", quantization, engine, threads)  # type: ignore[arg-type]
    assert models[1] is not None
    passes = Passes(models[1].model)
    options = GenerationOptions(
        max_new_tokens,
        SamplingParameters(temperature=temperature),
        seed=1 if temperature else None,
        raw=raw,
    )
    ways = [
        Way(PLAIN, Session(*models), replace(options, draft_length=0)),
        Way("chain by cost", ChainSession(*models), options),
        Way(BY_COST, Session(*models), options),
        *(
            Way(f"chain of {n}", Session(*models), replace(options, draft_length=n, **sure))
            for n in (5, 8)
            for sure in ({"draft_confidence": 0.0},)
        ),
        *(Way(f"tree of {n}", Session(*models), replace(options, tree=n)) for n in (8, 12, 16)),
    ]
    seconds = paced_by(pace_file) if pace_file else None
    for way in ways:
        pairing = way.session._pairing
        assert pairing is not None
        # Of its own, and known before the first answer.
        pairing.costs = load_costs(models[0], models[1])
        if seconds:
            drafter = pairing.costs.drafter
            draft_seconds = {size: drafter.seconds(size) for size in SIZES}
            curves = {Costs.BANDS[0]: CostCurve(seconds)}
            pairing.costs = Costs(curves, CostCurve(draft_seconds))
    paced = Pace(models[0].model, seconds) if seconds else None
    order = random.Random(0)
    for _ in range(repeat):
        for index, prompt in enumerate(asked):
            for way in order.sample(ways, len(ways)):
                way.answer(index, prompt, passes)
    rows = [way.row(ways[0]) for way in ways]
    (by_cost,) = (way for way in ways if way.name == BY_COST)
    rounds = [
        round_of(task, [i for i, each in enumerate(asked) if each.task == task], ways[0], by_cost)
        for task in by_task
    ]
    table = Table(box=None, title=f"{target} ({quantization}), {len(asked)} prompts")
    for name in ("way", "a round", "proposed", "tokens/s", "×plain", "×plain, whole", "same"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for row in rows:
        table.add_row(
            row["way"],
            f"{row['tokens_per_round']:.2f}",
            f"{row['proposed_per_round']:.2f}",
            f"{row['tokens_per_second']:.0f}",
            f"{row['speedup']:.2f}",
            f"{row['whole_answer_speedup']:.2f}",
            f"{row['identical']}/{row['prompts']}",
        )
    console = Console()
    console.print(table)
    show_rounds(rounds, console)
    if json_file:
        record = {
            "command": shlex.join(["python", "benchmarks/trees.py", *sys.argv[1:]]),
            "prompts": {file.name: sha256(file.read_bytes()).hexdigest() for file in prompts},
            "machine": f"{processor_name()}, {os.cpu_count()} processors{_card(engine)}",
            "load_at_start": load,
            "load_at_end": os.getloadavg()[0],
            "late_passes": f"{paced.late} of {paced.passes}" if paced else None,
            "rows": rows,
            "rounds": rounds,
            "turns": {way.name: way.runs for way in ways},
        }
        with whole_file(json_file) as file:
            file.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def _card(engine: str | None) -> str:
    """The GPU, where the target is on one."""
    if engine != "transformers":
        return ""
    import torch

    return f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""


if __name__ == "__main__":
    typer.run(main)
