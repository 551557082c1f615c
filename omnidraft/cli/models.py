"""``omnidraft models``: fetched, listed, found and removed."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from omnidraft.cli import options as opt
from omnidraft.cli.help import Command
from omnidraft.cli.output import errors, print_json, print_table, stdout, steps
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models.catalogue import DEFAULT_QUANTIZATION, Quantization
from omnidraft.runtime.models.listing import ListedModel, list_models, remove_model, remove_unused
from omnidraft.runtime.models.resolve import model_path
from omnidraft.runtime.models.resolve import pull as fetch

models_app = typer.Typer(
    help="Fetch, list, find and remove models.", no_args_is_help=True, rich_markup_mode=None
)


# Columns from which on there is room to describe a model.
_DESCRIBED = 72


@models_app.command("list", cls=Command)
def list_(as_json: opt.AsJson = False) -> None:
    """List models, known and in the cache."""
    listed = list_models()
    if as_json:
        print_json({"models": [_as_dict(model) for model in listed]})
        return
    table = Table(box=None, pad_edge=False)
    described = stdout().width >= _DESCRIBED
    headings = ("model", "weights", "size", "state", "licence")
    for heading in (*headings, "") if described else headings:
        table.add_column(heading, justify="right" if heading == "size" else "left")
    for model in listed:
        size = _megabytes(model.size) if model.path else "–"
        state: str = model.state
        if state == "ready" and not model.again:
            state += ", source gone"
        # A path in brackets is no markup.
        cells = (model.name, model.weights or model.quantization or "–", size, state, model.licence)
        table.add_row(*map(Text, (*cells, model.description) if described else cells))
    print_table(table)
    if unused := sum(model.size for model in listed if model.unused):
        errors.print(f"{_megabytes(unused)} are of no use: omnidraft models rm --unused")


@models_app.command(cls=Command)
def pull(
    name: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="Model name, GGUF file, folder or Hugging Face id."),
    ],
    quantization: opt.Weights = DEFAULT_QUANTIZATION,
) -> None:
    """Fetch a model into the cache.

    It is converted there. One that is there is checked, and mended where it is damaged.

    \b
    Examples:
      omnidraft models pull smollm2-135m
      omnidraft models pull Qwen/Qwen2.5-0.5B-Instruct --quantization 4bit
    """
    with steps(f"pulling {name}") as show:
        folder = fetch(name, quantization, progress=show)
    print(folder)


@models_app.command(cls=Command)
def path(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="Model name, as `list` shows it.")],
    quantization: opt.Weights = DEFAULT_QUANTIZATION,
) -> None:
    """Print where a fetched model lies."""
    print(model_path(name, quantization))


@models_app.command(cls=Command)
def rm(
    name: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Model name, as `list` shows it.", show_default=False),
    ] = None,
    quantization: Annotated[
        Quantization | None,
        typer.Option(**opt.one_of(Quantization), help="Only these weights.", show_default="all"),
    ] = None,
    unused: Annotated[
        bool,
        typer.Option("--unused", help="All that are damaged, outdated, or made of what is gone."),
    ] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Remove models from the cache.

    What a model was made from stays where it is. Adapters and what they learned stay, too.

    \b
    Examples:
      omnidraft models rm gemma3-270m
      omnidraft models rm --unused
    """
    if unused == (name is not None) or (unused and quantization is not None):
        raise OmniDraftError("give the name of a model to remove, or --unused")
    removed = remove_unused() if name is None else remove_model(name, quantization)
    if as_json:
        print_json({"removed": [_as_dict(model) for model in removed]})
        return
    for model in removed:
        weights = f" ({model.quantization})" if model.quantization else ""
        print(f"removed {model.name}{weights}, {_megabytes(model.size)}")
    if not removed:
        print("nothing is unused")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.{0 if size >= 1e7 else 2}f} MB"


def _as_dict(model: ListedModel) -> dict[str, Any]:
    return {**vars(model), "path": model.path and str(model.path)}
