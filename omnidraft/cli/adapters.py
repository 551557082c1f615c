"""``omnidraft adapters``: what drafters have learned, listed, shown, copied and deleted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.prompt import Confirm
from rich.table import Table
from rich.text import Text

from omnidraft.cli import options as opt
from omnidraft.cli.help import Command
from omnidraft.cli.output import count, errors, print_json, print_table, stdout
from omnidraft.runtime.errors import OmniDraftError

if TYPE_CHECKING:
    from omnidraft.runtime.learning.adapter import Adapter, Arrays, Metadata
    from omnidraft.runtime.learning.store import AdapterStore, StoredAdapter

adapters_app = typer.Typer(
    help="Look after what drafters have learned.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Format = Literal["omnidraft", "onnx-adapter"]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The adapter's name.", show_default=False)
]


@adapters_app.command("list", cls=Command)
def list_(as_json: opt.AsJson = False) -> None:
    """List the adapters, the last used one first."""
    store = _store()
    entries = store.list()
    if as_json:
        print_json(
            {"folder": str(store.folder), "adapters": [_entry_as_dict(entry) for entry in entries]}
        )
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("adapter", "drafter", "target", "prompts", "updates", "rank", "size", "used"):
        right = heading in ("prompts", "updates", "rank", "size")
        table.add_column(heading, justify="right" if right else "left")
    for entry in entries:
        facts: list[str | Text] = [Text("unreadable", "red"), "–", "", "", ""]
        if entry.metadata is not None:
            m = entry.metadata
            counts = (f"{m.prompts:,}", f"{m.updates:,}", str(m.rank or "–"))
            facts = [m.drafter.name, m.target.name, *counts]
        used = f"{entry.used.astimezone():%Y-%m-%d %H:%M}"
        table.add_row(entry.name, *facts, f"{entry.size / 1e6:.2f} MB", used)
    console = stdout()
    print_table(table)
    total = sum(entry.size for entry in entries)
    console.print(
        f"{len(entries)} in {store.folder}, {total / 1e6:.1f} of {store.max_bytes / 1e6:.0f} MB",
        soft_wrap=True,
    )
    for entry in entries:
        if entry.problem:
            console.print(f"{entry.name}: {entry.problem}", style="red", soft_wrap=True)


@adapters_app.command(cls=Command)
def show(name: Name, as_json: opt.AsJson = False) -> None:
    """Show an adapter, and check it.

    Shown is whose it is and what it holds; all of it is compared with its checksums. --json also
    tells the learner's state.
    """
    store = _store()
    adapter = store.read(name)
    if as_json:
        print_json({"name": name, **_adapter_as_dict(adapter)})
        return
    m = adapter.metadata
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    rows = {
        "adapter": name,
        "drafter": f"{m.drafter.name}, sha256 {m.drafter.sha256}",
        "target": f"{m.target.name}, sha256 {m.target.sha256}",
        "created": f"{m.created.astimezone():%Y-%m-%d %H:%M:%S}",
        "updated": f"{m.updated.astimezone():%Y-%m-%d %H:%M:%S}",
        "learned": _learned(m),
        "weights": _weights(adapter),
        "n-grams": _megabytes(len(adapter.ngrams)) if adapter.ngrams else "none",
        "head": _head(adapter),
        "optimizer": (
            f"{_megabytes(_size(adapter.optimizer))}, to go on learning from"
            if adapter.optimizer
            else "none"
        ),
    }
    for title, text in rows.items():
        table.add_row(title, text)
    print_table(table)


@adapters_app.command(cls=Command)
def export(
    name: Name,
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write; replaced if it is there.")
    ],
    format: Annotated[
        Format,
        typer.Option(**opt.one_of(Format), help="onnx-adapter: the LoRA alone, for ONNX Runtime."),
    ] = "omnidraft",
    as_json: opt.AsJson = False,
) -> None:
    """Write an adapter to one file.

    `omnidraft adapters import` reads it on another machine.

    \b
    Example:
      omnidraft adapters export work work.adapter
    """
    _store().export(name, path, format)
    if as_json:
        print_json({"name": name, "path": str(path), "size_bytes": path.stat().st_size})
    else:
        print(path)


@adapters_app.command("import", cls=Command)
def import_(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `export` wrote.")],
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Keep it under this name.", show_default="the one it had"
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of an adapter of this name.")
    ] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Keep an adapter that was exported.

    All of it is checked first.

    \b
    Example:
      omnidraft adapters import work.adapter --name home
    """
    name = _exported_name(path) if name is None else name
    evicted = _store().import_(path, name, replace=replace)
    if as_json:
        print_json({"name": name, "evicted": evicted})
        return
    print(name)
    if evicted:
        errors.print(f"removed to make room: {', '.join(evicted)}", style="yellow")


@adapters_app.command(cls=Command)
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Delete an adapter for good."""
    store = _store()
    store.check(name)
    if not yes:
        try:
            question = Text(f"Delete {name} and all it has learned?")
            confirmed = Confirm.ask(question, console=errors)
        except EOFError as error:
            errors.print()
            raise OmniDraftError("Nobody confirmed: nothing was deleted. Pass --yes.") from error
        if not confirmed:
            raise OmniDraftError("Not confirmed: nothing was deleted.")
    store.delete(name)
    if as_json:
        print_json({"deleted": name})


def _exported_name(path: Path) -> str:
    from omnidraft.runtime.learning.adapter_file import exported_name

    return exported_name(path)


def _store() -> AdapterStore:
    # Imported here: it takes longer than all else that every command starts with.
    from omnidraft.runtime.learning.store import AdapterStore, adapters_folder

    return AdapterStore(adapters_folder())


def _entry_as_dict(entry: StoredAdapter) -> dict[str, Any]:
    return {
        "name": entry.name,
        "path": str(entry.path),
        "size_bytes": entry.size,
        "used": entry.used.isoformat(),
        "metadata": entry.metadata and entry.metadata.model_dump(mode="json"),
        "problem": entry.problem or None,
    }


def _adapter_as_dict(adapter: Adapter) -> dict[str, Any]:
    return {
        "metadata": adapter.metadata.model_dump(mode="json"),
        "lora": {key: list(values.shape) for key, values in adapter.lora.items()},
        "ngrams_bytes": len(adapter.ngrams),
        "head": {key: list(values.shape) for key, values in adapter.head.items()},
        "optimizer": {key: list(values.shape) for key, values in adapter.optimizer.items()},
    }


def _learned(metadata: Metadata) -> str:
    text = f"{count(metadata.updates, 'update')} from {count(metadata.prompts, 'prompt')}"
    figures = metadata.figures.get("learning")
    if not isinstance(figures, dict):
        return text
    parts = [
        f"{number:,} {what}"
        for key, what in (
            ("promotions", "came into use"),
            ("rollbacks", "rolled back"),
            ("withdrawals", "withdrawn"),
        )
        if isinstance(number := figures.get(key), int) and (number or key == "promotions")
    ]
    if figures.get("stopped") is True:
        parts.append("stopped, nothing more to gain")
    return "; ".join([text, ", ".join(parts)]) if parts else text


def _weights(adapter: Adapter) -> str:
    if adapter.lora:
        return f"a LoRA of rank {adapter.rank}, {_megabytes(_size(adapter.lora))}"
    if adapter.optimizer:
        return "none in use yet: what is being learned has not proved better"
    return "none yet"


def _head(adapter: Adapter) -> str:
    if not adapter.head:
        return "none"
    text = _megabytes(_size(adapter.head))
    figures = adapter.metadata.figures.get("head")
    if not isinstance(figures, dict):
        return text
    state = "decides" if figures.get("in_use") is True else "does not decide yet"
    updates = figures.get("updates")
    return f"{text}, {state}" + (
        f"; {count(updates, 'update')}" if isinstance(updates, int) else ""
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB"


def _size(arrays: Arrays) -> int:
    return sum(values.nbytes for values in arrays.values())
