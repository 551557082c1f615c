"""``omnidraft doctor``: what is installed, what works, and what to do about the rest."""

from __future__ import annotations

import typer
from rich.table import Table
from rich.text import Text

from omnidraft.cli import options as opt
from omnidraft.cli.output import print_json, stdout
from omnidraft.runtime.doctor import examine


def doctor(as_json: opt.AsJson = False) -> None:
    """Say what works here and what is missing.

    For what is missing it says what to do.
    """
    findings = examine()
    if as_json:
        print_json({"findings": [vars(finding) for finding in findings]})
    else:
        marks = {"ok": ("✓", "green"), "optional": ("–", "yellow"), "problem": ("✗", "red")}
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(width=1)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for finding in findings:
            detail = Text(finding.detail)
            if finding.remedy:
                detail.append(f"\n→ {finding.remedy}", "bold")
            table.add_row(Text(*marks[finding.state]), finding.subject, detail)
        stdout().print(table)
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(1)
