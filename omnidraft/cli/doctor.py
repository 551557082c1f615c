"""``omnidraft doctor``: what is installed, what works, and what to do about the rest."""

from __future__ import annotations

import sys

import typer
from rich.table import Table
from rich.text import Text

from omnidraft.cli import options as opt
from omnidraft.cli.output import print_json, print_table
from omnidraft.runtime.doctor import State, examine

_MARKS: dict[State, str] = {"ok": "✓", "optional": "–", "problem": "✗"}
_STYLES: dict[State, str] = {"ok": "green", "optional": "yellow", "problem": "red"}


def doctor(as_json: opt.AsJson = False) -> None:
    """Say what works here and what is missing.

    For what is missing it says what to do.
    """
    findings = examine()
    if as_json:
        print_json({"findings": [vars(finding) for finding in findings]})
    else:
        marks = (
            _MARKS if _can_print("".join(_MARKS.values())) else {state: state for state in _MARKS}
        )
        table = Table(box=None, show_header=False, pad_edge=False)
        for _ in ("mark", "subject", "detail"):
            table.add_column()
        for finding in findings:
            detail = Text(finding.detail)
            if finding.remedy:
                detail.append(f"\n→ {finding.remedy}", "bold")
            table.add_row(
                Text(marks[finding.state], _STYLES[finding.state]), finding.subject, detail
            )
        print_table(table)
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(1)


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return False
    return True
