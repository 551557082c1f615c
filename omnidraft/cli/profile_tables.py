"""Tables that profiles of this machine and of a phone share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from omnidraft.runtime.profiling.summary import PassSummary


def new_table(*headings: str, title: str = "") -> Table:
    """The first column to the left, numbers to the right."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index else "left", no_wrap=True)
    return table


def passes_table(columns: Mapping[str, Sequence[PassSummary]]) -> Table:
    """What passes took by their size, in columns of their kinds."""
    table = new_table("tokens", *columns, title="passes, median milliseconds (how many)")
    cells = [{each.tokens: each for each in groups} for groups in columns.values()]
    for tokens in sorted(set().union(*cells)):
        found = [cell.get(tokens) for cell in cells]
        table.add_row(
            str(tokens), *(f"{p.p50_ms:.2f} ({p.count:,})" if p is not None else "" for p in found)
        )
    return table
