"""``omnidraft distill``: a drafter from the text of teachers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from omnidraft.cli.output import print_table, stdout, steps
from omnidraft.runtime.errors import MissingDependencyError


def distill(
    configuration: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG", help="A TOML file: teachers, sizes, steps. See docs/distill.md."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Folder for all that is made; the drafter in drafter/."
        ),
    ],
) -> None:
    """Make a drafter from the writing of models.

    Samples teachers, trains a small Llama on their text, measures and writes it. Run again, it goes
    on where it was stopped. Several GPUs or machines share one folder.

    \b
    Examples:
      omnidraft distill my.toml --output made
      torchrun --nproc-per-node 8 -m omnidraft distill my.toml --output made
      omnidraft generate "Why is the sky blue?" --drafter made/drafter
    """
    try:
        import accelerate  # noqa: F401
        import pyarrow  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"omnidraft distill needs {error.name}: pip install 'omnidraft[distill]'"
        ) from error
    from omnidraft.distill.run import distill as make

    with steps("distilling") as show:
        result = make(configuration, output, show)
    table = Table("teacher", "answers", "tokens a round", "first choice right", "loss", box=None)
    before = {f"{name}, before": each for name, each in result.before.items()}
    for name, each in (result.figures | before).items():
        table.add_row(
            name,
            f"{each.answers:,}",
            f"{each.tokens_per_round:.3f}",
            f"{each.first_choice:.1%}",
            f"{each.loss:.3f}",
        )
    if result.figures:  # of many processes, one speaks
        print_table(table)
        stdout(soft_wrap=True).print(f"{result.folder} is the drafter.", highlight=False)
