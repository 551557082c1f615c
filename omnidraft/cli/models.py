"""``omnidraft models``: fetched, listed and found."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from omnidraft.cli import options as opt
from omnidraft.cli.output import print_json, stdout, steps
from omnidraft.runtime.models.cache import list_models
from omnidraft.runtime.models.catalogue import DEFAULT_QUANTIZATION
from omnidraft.runtime.models.resolve import model_path
from omnidraft.runtime.models.resolve import pull as fetch

models_app = typer.Typer(
    help="Fetch, list and find models.", no_args_is_help=True, rich_markup_mode=None
)


@models_app.command("list")
def list_(as_json: opt.AsJson = False) -> None:
    """List models, known and in the cache."""
    listed = list_models()
    if as_json:
        print_json({"models": [{**vars(m), "path": m.path and str(m.path)} for m in listed]})
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("model", "weights", "size", "licence", ""):
        table.add_column(heading, justify="right" if heading == "size" else "left")
    for model in listed:
        size = f"{model.size / 1e6:.0f} MB" if model.path else "–"
        table.add_row(
            model.name, model.quantization or "not fetched", size, model.licence, model.description
        )
    stdout().print(table)


@models_app.command()
def pull(
    name: Annotated[str, typer.Argument(help="Model name, GGUF file, folder or Hugging Face id.")],
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


@models_app.command()
def path(
    name: Annotated[str, typer.Argument(help="Model name.")],
    quantization: opt.Weights = DEFAULT_QUANTIZATION,
) -> None:
    """Print where a fetched model lies."""
    print(model_path(name, quantization))
