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
from omnidraft.cli.chat import chat
from omnidraft.cli.distill import distill
from omnidraft.cli.doctor import doctor
from omnidraft.cli.export import export
from omnidraft.cli.generate import generate
from omnidraft.cli.help import Command
from omnidraft.cli.inspect import inspect
from omnidraft.cli.interruption import Interrupted, raise_on_signals
from omnidraft.cli.models import models_app
from omnidraft.cli.output import discard, errors, print_error, with_options
from omnidraft.cli.profile import profile
from omnidraft.cli.serve import serve
from omnidraft.runtime.errors import OmniDraftError


def _version(asked: bool) -> None:
    if asked:
        print(f"omnidraft {__version__}")
        raise typer.Exit


app = typer.Typer(
    help="""One small draft model makes any local language model answer faster, losslessly.

    \b
    Examples:
      omnidraft generate "Why is the sky blue?" --target smollm2-135m
      omnidraft bench --help
    """,
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


for command in (generate, chat, serve, bench, adapt, profile, export, distill, inspect, doctor):
    app.command(cls=Command)(command)
app.add_typer(models_app, name="models")
app.add_typer(adapters_app, name="adapters")


def main() -> None:
    """Run the command. What a user can mend ends with a message and exit code 2."""
    warnings.showwarning = lambda message, *_, **__: errors.print(
        Text(f"warning: {with_options(str(message))}", "yellow"), soft_wrap=True
    )
    raise_on_signals()
    _fill_closed_descriptors()
    if sys.stdout is None:
        print_error("stdout is closed: there is nowhere to print to")
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding lacks is no reason to end an answer.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        _run()
    except OmniDraftError as error:
        print_error(str(error))
        sys.exit(2)
    except Interrupted as interruption:
        errors.print("\ninterrupted")
        sys.exit(128 + interruption.signum)
    except BrokenPipeError:
        # Whoever read our output has gone.
        discard(sys.stdout)
        sys.exit(141)
    except MemoryError:
        print_error("there is not enough memory. End other programs.")
        sys.exit(2)
    except OSError as error:
        # No permission, a name that is too long, nowhere to print to.
        print_error(_in_words(error))
        discard(sys.stdout)
        sys.exit(2)


def _run() -> None:
    try:
        app()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None  # of which Typer makes exit code 1
        sys.stdout.flush()  # at exit it could not be told that this fails
        raise


def _in_words(error: OSError) -> str:
    reason = error.strerror or str(error)
    # Only what is done with a stream that is open names no file.
    place = "the output cannot be written" if error.filename is None else error.filename
    return f"{place}: {reason}"


def _fill_closed_descriptors() -> None:
    """Keep a file that is opened from becoming the stdin, stdout or stderr that was closed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
