"""What the commands share: one JSON object on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

errors = Console(stderr=True, highlight=False)

# Columns where nobody watches: wide enough that no table folds its names.
_WIDE = 200


class _Output(Console):
    def on_broken_pipe(self) -> None:
        # Rich would exit with 1 here; the command has a code for it.
        raise BrokenPipeError


def stdout(*, soft_wrap: bool = False) -> Console:
    """A console for stdout."""
    width = None if sys.stdout.isatty() else _WIDE
    return _Output(highlight=False, soft_wrap=soft_wrap, width=width)


def print_json(value: dict[str, Any]) -> None:
    """Write ``value`` as one line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=True) + "\n")
    sys.stdout.flush()


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar on stderr that leaves nothing behind; silent where nobody watches."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    ) as progress:
        yield progress


@contextmanager
def steps(description: str) -> Iterator[Callable[[str, float | None], None]]:
    """A progress bar for fetching and converting; yields what is told each step."""
    with progress_bar() as progress:
        bar = progress.add_task(description, total=None)

        def show(step: str, fraction: float | None) -> None:
            progress.update(bar, description=step, total=1 if fraction is not None else None)
            if fraction is not None:
                progress.update(bar, completed=fraction)

        yield show
