"""Which quantization of a target is fastest: all of them side by side, prompt by prompt.

    python benchmarks/precisions.py PROMPTS.jsonl --target smollm2-135m [--limit 50] [--json FILE]

Every prompt is answered plainly and speculatively by each precision in turn, the order rotating,
so that a machine whose speed changes changes all of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import omnidraft
from omnidraft.export.conversion import Quantization
from omnidraft.runtime.bench import read_prompts
from omnidraft.runtime.models import load_model
from omnidraft.runtime.models.load import drafter_threads
from omnidraft.runtime.statistics import Statistics


def main(
    prompts: Path,
    target: str = "smollm2-135m",
    drafter: str = "default",
    limit: Annotated[int, typer.Option(min=1)] = 50,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure and print."""
    precisions: list[Quantization] = ["8bit", "4bit"]
    draft_model = load_model(drafter, threads=drafter_threads(threads))
    sessions = {
        precision: omnidraft.Session(
            load_model(target, quantization=precision, threads=threads), draft_model
        )
        for precision in precisions
    }
    ways = {
        f"{precision} {way}": (
            session,
            omnidraft.GenerationOptions(max_new_tokens=max_new_tokens, draft_length=length),
        )
        for precision, session in sessions.items()
        for way, length in (("plain", 0), ("speculative", 4))
    }
    sums = {way: Statistics() for way in ways}
    order = list(ways)
    entries = read_prompts(prompts, limit)
    for way in order:
        ways[way][0].generate(entries[0].prompt, ways[way][1])
    for entry in track(entries, console=Console(stderr=True), transient=True):
        for way in order:
            session, options = ways[way]
            sums[way] += session.generate(entry.prompt, options).statistics
        order = order[1:] + order[:1]
    table = Table(box=None)
    for heading in ("", "tokens/round", "tokens/s"):
        table.add_column(heading, justify="right" if heading else "left")
    for way, total in sums.items():
        table.add_row(way, f"{total.block_efficiency:.2f}", f"{total.tokens_per_second:.1f}")
    Console().print(table)
    if json_file:
        figures = {
            way: {
                "block_efficiency": total.block_efficiency,
                "tokens_per_second": total.tokens_per_second,
            }
            for way, total in sums.items()
        }
        json_file.write_text(
            json.dumps({"target": target, "prompts": len(entries), **figures}, indent=2) + "\n"
        )


if __name__ == "__main__":
    typer.run(main)
