"""Trees of tokens against chains, side by side: tokens a round, and tokens per second.

    python benchmarks/trees.py PROMPTS.jsonl … --target smollm2-135m --json trees.json

Every way answers every prompt in turn, in an order that changes; of the times the median counts.
By cost: as many tokens as pay for themselves. With a temperature all ways have the same seed, and
so are to give the same tokens.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from omnidraft import GenerationOptions, SamplingParameters, Session
from omnidraft.cli.loading import open_models
from omnidraft.runtime.bench import Prompt, read_prompts
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.decoding.lease import Lease
from omnidraft.runtime.processor import processor_name
from omnidraft.runtime.storage.files import whole_file


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
        runs: by prompt; each tokens, rounds, seconds of decoding and of all, hash of the tokens.
    """

    name: str
    session: Session
    options: GenerationOptions
    runs: dict[int, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def answer(self, index: int, prompt: Prompt) -> None:
        self.session.forget()
        started = perf_counter()
        answer = self.session.generate(prompt.prompt, self.options)
        seconds = perf_counter() - started
        self.runs[index].append(
            {
                "tokens": answer.stats.target_tokens,
                "rounds": answer.stats.rounds,
                "proposed": answer.stats.proposed,
                "decode_seconds": round(answer.stats.seconds, 6),
                "total_seconds": round(seconds, 6),
                "answer": sha256(json.dumps(answer.token_ids).encode()).hexdigest()[:12],
            }
        )

    def pace(self, seconds: str) -> float:
        """Tokens per second over prompts, of each the median turn."""
        taken = sum(statistics.median(run[seconds] for run in runs) for runs in self.runs.values())
        return sum(runs[0]["tokens"] for runs in self.runs.values()) / taken

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


def main(
    prompts: list[Path],
    target: str = "smollm2-135m",
    quantization: str = "auto",
    per_task: Annotated[int, typer.Option(min=1, help="prompts of each file")] = 3,
    max_new_tokens: Annotated[int, typer.Option(min=2)] = 96,
    repeat: Annotated[int, typer.Option(min=1)] = 3,
    temperature: Annotated[float, typer.Option(min=0.0, max=10.0)] = 0.0,
    raw: Annotated[bool, typer.Option("--raw", help="continue the text")] = False,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure, print a table, and write every turn."""
    load = os.getloadavg()[0]
    asked = [entry for file in prompts for entry in read_prompts(file)[:per_task]]
    models = open_models(target, "default", quantization, None, threads)  # type: ignore[arg-type]
    options = GenerationOptions(
        max_new_tokens,
        SamplingParameters(temperature=temperature),
        seed=1 if temperature else None,
        raw=raw,
    )
    ways = [
        Way("plain", Session(*models), replace(options, draft_length=0)),
        Way("chain by cost", ChainSession(*models), options),
        Way("tree by cost", Session(*models), options),
        *(
            Way(f"chain of {n}", Session(*models), replace(options, draft_length=n, **sure))
            for n in (5, 8)
            for sure in ({"draft_confidence": 0.0},)
        ),
        *(Way(f"tree of {n}", Session(*models), replace(options, tree=n)) for n in (8, 12, 16)),
    ]
    order = random.Random(0)
    for _ in range(repeat):
        for index, prompt in enumerate(asked):
            for way in order.sample(ways, len(ways)):
                way.answer(index, prompt)
    rows = [way.row(ways[0]) for way in ways]
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
    Console().print(table)
    if json_file:
        record = {
            "command": shlex.join(["python", "benchmarks/trees.py", *sys.argv[1:]]),
            "prompts": {file.name: sha256(file.read_bytes()).hexdigest() for file in prompts},
            "machine": f"{processor_name()}, {os.cpu_count()} processors",
            "load_at_start": load,
            "load_at_end": os.getloadavg()[0],
            "rows": rows,
            "turns": {way.name: way.runs for way in ways},
        }
        with whole_file(json_file) as file:
            file.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
