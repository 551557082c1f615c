"""The ``omnidraft`` command."""

from __future__ import annotations

import io
import os
import sys
import warnings
from typing import Annotated

import typer
from rich.text import Text

from omnidraft import __version__
from omnidraft.cli.adapt import adapt
from omnidraft.cli.adapters import adapters_app
from omnidraft.cli.bench import bench
from omnidraft.cli.doctor import doctor
from omnidraft.cli.export import export
from omnidraft.cli.generate import generate
from omnidraft.cli.inspect import inspect
from omnidraft.cli.interruption import Interrupted, raise_on_signals
from omnidraft.cli.models import models_app
from omnidraft.cli.output import errors
from omnidraft.cli.profile import profile
from omnidraft.runtime.errors import OmniDraftError


def _version(asked: bool) -> None:
    if asked:
        print(f"omnidraft {__version__}")
        raise typer.Exit


app = typer.Typer(
    help="One small draft model makes any local language model answer faster, losslessly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Rich's tables break words where a column is too narrow for them.
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
)


@app.callback()
def omnidraft(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


for command in (generate, bench, adapt, profile, export, inspect, doctor):
    app.command()(command)
app.add_typer(models_app, name="models")
app.add_typer(adapters_app, name="adapters")


def main() -> None:
    """Run the command. What a user can mend ends with a message and exit code 2."""
    warnings.showwarning = lambda message, *_, **__: errors.print(
        Text(f"warning: {message}", "yellow"), soft_wrap=True
    )
    raise_on_signals()
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding lacks is no reason to end an answer.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except OmniDraftError as error:
        errors.print(Text(f"error: {error}", "red"), soft_wrap=True)
        sys.exit(2)
    except Interrupted as interruption:
        errors.print("\ninterrupted")
        sys.exit(128 + interruption.signum)
    except BrokenPipeError:
        # Whoever read our output has gone.
        _forget_output()
        sys.exit(141)
    except MemoryError:
        errors.print("error: there is not enough memory. End other programs.", style="red")
        sys.exit(2)
    except OSError as error:
        # No permission, a name that is too long, nowhere to print to.
        errors.print(Text(f"error: {error}", "red"), soft_wrap=True)
        _forget_output()
        sys.exit(2)


def _forget_output() -> None:
    """Keep Python from complaining at exit about output that cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
