"""Show the rows: a table, a JSON file, a plot."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.measure import Run, Way
from omnidraft.runtime.errors import MissingDependencyError
from omnidraft.runtime.storage.files import whole_file

Row = Mapping[str, Any]


def show(rows: Sequence[Row], console: Console) -> None:
    """One table a task, fastest first; then how prompts are read, versions and settings, and what
    could not be measured and why.

    Columns: draft length k, tokens for each pass of the target, speed beside plain decoding of the
    same engine and of the fastest one, prompts whose greedy answer is that of plain decoding. Of
    prompts: the milliseconds to the first token, and tokens of the prompt over that time.
    """
    for task in dict.fromkeys(row["task"] for row in rows if row["tokens_per_second"]):
        part = [row for row in rows if row["task"] == task and row["tokens_per_second"]]
        first = part[0]
        title = f"{task}: {first['target']}, {first['prompts']} prompts"
        table = Table(box=None, title=title, padding=(0, 1, 0, 0))
        for heading in ("engine", "method"):
            table.add_column(heading, no_wrap=True)
        for heading in ("k", "tokens/s", "a round", "×own", "×best", "same"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in sorted(part, key=lambda row: -row["tokens_per_second"]):
            same = row["identical_prompts"]
            table.add_row(
                f"{row['engine']} {row['precision']}",
                row["method"],
                str(row["draft_length"] or ""),
                f"{row['tokens_per_second']:.1f}",
                f"{row['block_efficiency']:.2f}",
                _ratio(row["speedup_over_own_plain"]),
                _ratio(row["speedup_over_fastest_plain"]),
                "–" if same is None else f"{same}/{row['prompts']}",
            )
        console.print(table)
    _show_prompts([row for row in rows if row.get("long_prompts")], console)
    for line in dict.fromkeys(
        f"{row['engine']} {row['version']}, {row['precision']}: {row['method']}"
        + "".join(f", {key} {value}" for key, value in row["setting"].items())
        for row in rows
        if row["tokens_per_second"]
    ):
        console.print(line, style="dim", highlight=False, soft_wrap=True)
    for line in dict.fromkeys(
        f"{row['engine']} {row['precision']}, {row['method']}: {row['unavailable']}"
        for row in rows
        if row["unavailable"]
    ):
        console.print(f"[yellow]not measured[/yellow] {line}", soft_wrap=True)


def _show_prompts(rows: Sequence[Row], console: Console) -> None:
    table = Table(box=None, title="prompts: tokens, time to the first token", padding=(0, 1, 0, 0))
    for heading in ("engine", "method"):
        table.add_column(heading, no_wrap=True)
    for kind in ("short", "long"):
        for heading in (kind, "ms", "tokens/s"):
            table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = []
        for found in (row, row["long_prompts"]):
            if found["first_token_seconds"]:
                cells += [
                    f"{found['prompt_tokens']:.0f}",
                    f"{1e3 * found['first_token_seconds']:.0f}",
                    f"{found['prompt_tokens_per_second']:.0f}",
                ]
            else:
                cells += ["–"] * 3
        table.add_row(f"{row['engine']} {row['precision']}", row["method"], *cells)
    if rows:
        console.print(table)


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


@dataclass(frozen=True)
class Record:
    """What a raw file says beside the rows.

    Attributes:
        prompts: sha256 of the prompt files, by name.
        load_at_start: of one minute, as the system counts it.
    """

    command: str
    prompts: Mapping[str, str]
    load_at_start: float


def write_json(record: Record, rows: Sequence[Row], ways: Sequence[Way], path: Path) -> None:
    """Write the record, the rows and every turn, whole or not at all.

    Of an answer's tokens a turn has a hash: equal answers have equal ones.

    Raises:
        OmniDraftError: the file cannot be written.
    """
    turns = [
        {
            "engine": way.worker.contestant.name,
            "method": way.method.name,
            "setting": way.setting,
            "prompt": prompt,
            "long": long,
            "runs": [_turn(run) for run in runs],
        }
        for way in ways
        for long, found in ((False, way.runs), (True, way.readings))
        for prompt, runs in sorted(found.items())
    ]
    content = {
        **asdict(record),
        "load_at_end": os.getloadavg()[0],
        "rows": list(rows),
        "turns": turns,
    }
    with whole_file(path) as file:
        file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _turn(run: Run) -> dict[str, Any]:
    answer = sha256(json.dumps(run.tokens).encode()).hexdigest()[:12]
    return {
        "decoded": run.decoded,
        "decode_seconds": round(run.decode_seconds, 6),
        "first_seconds": round(run.first_seconds, 6),
        "total_seconds": round(run.total_seconds, 6),
        "rounds": run.rounds,
        "tokens": len(run.tokens),
        "answer": answer,
    }


def require_matplotlib() -> None:
    """Raise MissingDependencyError before hours of measuring, not after."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("--plot needs matplotlib: pip install matplotlib") from error


def plot(rows: Sequence[Row], path: Path) -> None:
    """Bars of tokens per second, one panel a task.

    Raises:
        OmniDraftError: the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = [row for row in rows if row["tokens_per_second"]]
    tasks = list(dict.fromkeys(row["task"] for row in measured))
    if not tasks:
        return
    names = list(dict.fromkeys(_name(row) for row in measured))
    figure, panels = pyplot.subplots(
        1,
        len(tasks),
        figsize=(4 + 3 * len(tasks), 1 + 0.3 * len(names)),
        sharey=True,
        squeeze=False,
    )
    for panel, task in zip(panels[0], tasks, strict=True):
        paces = {_name(row): row["tokens_per_second"] for row in measured if row["task"] == task}
        ours = [name.startswith("omnidraft") and ", plain" not in name for name in names]
        colours = ["tab:green" if each else "tab:gray" for each in ours]
        panel.barh(names, [paces.get(name, 0.0) for name in names], color=colours)
        panel.set_title(task)
        panel.set_xlabel("tokens/s")
    panels[0][0].invert_yaxis()
    figure.tight_layout()
    try:
        with whole_file(path) as file:
            figure.savefig(file, format="png", dpi=120)
    finally:
        pyplot.close(figure)


def _name(row: Row) -> str:
    length = f" {row['draft_length']}" if row["draft_length"] else ""
    return f"{row['engine']} {row['precision']}, {row['method']}{length}"
