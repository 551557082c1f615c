"""What the runtime costs beside the two models: Python, start-up, memory.

    python benchmarks/overheads.py --target smollm2-135m [--json FILE]

Prints a table of budget and measurement. Each figure is the median of several runs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import omnidraft
from omnidraft.runtime.models import load_model

FIRST_DRAFT = """
import time
started = time.perf_counter()
import omnidraft
from omnidraft.runtime.models import load_model
drafter = load_model("default", threads=2)
drafter.model.forward([1, 15043], rows=1)
print(time.perf_counter() - started)
"""

PROMPT = "Write a short story about a lighthouse keeper who finds a message in a bottle."


def resident_bytes() -> int:
    """Resident memory of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def first_draft_seconds(runs: int) -> float:
    """From a fresh interpreter to the first logits of the default drafter."""
    times = []
    for _ in range(runs + 1):
        done = subprocess.run(
            [sys.executable, "-c", FIRST_DRAFT], capture_output=True, text=True, check=True
        )
        times.append(float(done.stdout))
    return statistics.median(times[1:])  # the first warms the disk


def main(
    target: str = "smollm2-135m",
    runs: Annotated[int, typer.Option(min=1)] = 5,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure and print."""
    before = resident_bytes()
    target_model = load_model(target)
    drafter_model = load_model("default", threads=2)
    for model in (target_model.model, drafter_model.model):
        model.forward([0])  # weights that are mapped are resident from their first use on
        model.truncate(0)
    loaded = resident_bytes()
    session = omnidraft.Session(target_model, drafter_model)
    options = omnidraft.GenerationOptions(max_new_tokens=128)
    stats = [session.generate(PROMPT, options).statistics for _ in range(runs)]
    beside = before + resident_bytes() - loaded
    ms = [
        {
            "python_ms_per_round": 1e3 * s.python_seconds / s.rounds,
            "native_ms_per_round": 1e3 * s.native_seconds / s.rounds,
            "draft_ms_per_round": 1e3 * s.draft_seconds / s.rounds,
            "target_ms_per_round": 1e3 * s.target_seconds / s.rounds,
        }
        for s in stats
    ]
    figures = {
        **{name: statistics.median(run[name] for run in ms) for name in ms[0]},
        "first_draft_seconds": first_draft_seconds(runs),
        "resident_mb_beside_models": beside / 1e6,
    }
    budgets = {
        "python_ms_per_round": 0.2,
        "first_draft_seconds": 1.5,
        "resident_mb_beside_models": 150,
    }
    table = Table(box=None)
    for heading in ("", "measured", "at most"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, value in figures.items():
        table.add_row(name, f"{value:.3f}", str(budgets.get(name, "")))
    Console().print(table)
    if json_file:
        json_file.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
