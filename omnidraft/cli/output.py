"""How the commands speak: results on stdout, one JSON object if asked; progress on stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table


def discard(stream: TextIO) -> None:
    """Throw away what a stream cannot write, lest Python complain about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# Pictures of control characters: a terminal would obey these, with which others' text could set
# its title, hide lines or worse.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_PICTURES |= {127: 0x2421} | dict.fromkeys(range(128, 160), 0xFFFD)


def harmless(text: str) -> str:
    """A text that others wrote, as a terminal may show it."""
    return text.translate(_PICTURES)


class _Errors(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        shown = (harmless(each) if isinstance(each, str) else each for each in objects)
        try:
            super().print(*shown, **options)
        except OSError:
            # An answer is none the worse for a message that nobody could read.
            discard(sys.stderr)


# Names, paths and texts are printed as they are: nothing in them is markup.
errors = _Errors(stderr=True, highlight=False, markup=False, emoji=False)


def print_error(message: str) -> None:
    errors.print(f"error: {with_options(message)}", style="red", soft_wrap=True)


def with_options(message: str) -> str:
    """A message of the runtime, which names arguments of Python: raw=True is --raw here."""
    return re.sub(r"\b(context|drafter|engine|raw)=(?:…|True\b)", r"--\1", message).replace(
        'quantization="4bit"', "--quantization 4bit"
    )


# Columns where nobody watches: wide enough that no table folds its names.
_WIDE = 200
# Columns that a name has at least; it is folded to them.
_NARROWEST = 8


class _Output(Console):
    def on_broken_pipe(self) -> None:
        # Rich would exit with 1 here; the command has a code for it.
        raise BrokenPipeError


def stdout(*, soft_wrap: bool = False) -> Console:
    """A console for stdout."""
    width = None if sys.stdout.isatty() else _WIDE
    return _Output(highlight=False, markup=False, emoji=False, soft_wrap=soft_wrap, width=width)


def print_table(table: Table) -> None:
    """Print a table to stdout, as wide as the terminal. Names fold; numbers, on the right, do not.

    Where the numbers alone are too wide the lines are longer than the terminal, and cut nowhere.
    """
    least = 0
    for column in table.columns:
        widest = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
        if column.justify == "right":
            column.no_wrap, column.min_width = True, widest
        else:
            column.no_wrap, column.overflow = False, "fold"
            column.min_width = min(widest, _NARROWEST)
        least += column.min_width + sum(table.padding[1::2])
    console = stdout()
    console.width = max(console.width, least)
    console.print(table)


def count(number: int, noun: str) -> str:
    """So many of them: 1 token, 2 tokens."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_json(value: dict[str, Any]) -> None:
    """Write ``value`` as one line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=True) + "\n")
    sys.stdout.flush()


class Show(Protocol):
    """Told what is being done."""

    def __call__(self, step: str, fraction: float | None, detail: str = "") -> None:
        """
        Args:
            fraction: of this step that is done; None where that is unknown.
            detail: what has come of it so far.
        """


@contextmanager
def steps(description: str, *, quiet: bool = False) -> Iterator[Show]:
    """Show on stderr what takes time: a bar in a terminal, which goes when it is done, else lines.

    Args:
        description: shown in a terminal until the first step is told.
        quiet: no lines where there is no terminal.
    """
    if not errors.is_terminal:
        yield _silent if quiet else _Lines()
        return
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
    ) as progress:
        yield _Bar(progress, description)


class _Bar:
    """A bar and an estimate of the time left.

    Both start anew with each step, unless its fraction goes on from where the last one ended: then
    the steps are parts of one whole.
    """

    def __init__(self, progress: Progress, description: str) -> None:
        self._progress = progress
        self._step = description
        self._fraction = 0.0
        self._bar = progress.add_task(description, total=None)

    def __call__(self, step: str, fraction: float | None, detail: str = "") -> None:
        total = None if fraction is None else 1.0
        goes_on = fraction is not None and 0 < self._fraction <= fraction
        if step != self._step and not goes_on:
            self._progress.reset(self._bar, total=total)
        self._step, self._fraction = step, fraction or 0.0
        self._progress.update(
            self._bar,
            description=f"{step}: {detail}" if detail else step,
            total=total,
            completed=fraction or 0.0,
        )


class _Lines:
    """A line for each step, and one for each tenth of it."""

    def __init__(self) -> None:
        self._step = ""
        self._tenths = 0

    def __call__(self, step: str, fraction: float | None, detail: str = "") -> None:
        tenths = int((fraction or 0.0) * 10)
        begins = step != self._step
        if not begins and tenths <= self._tenths:
            return
        self._step, self._tenths = step, tenths
        line = step if begins and not tenths else f"{step}: {tenths}0 %"
        errors.print(f"{line}, {detail}" if detail else line, soft_wrap=True)


def _silent(step: str, fraction: float | None, detail: str = "") -> None:
    pass
