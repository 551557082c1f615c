"""``omnidraft serve``: models behind OpenAI's interface."""

from __future__ import annotations

import ipaddress
import logging
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from omnidraft import Session
from omnidraft.cli import options as opt
from omnidraft.cli.interruption import Interrupted
from omnidraft.cli.loading import keep_what_was_learned
from omnidraft.cli.output import errors, steps
from omnidraft.opening import adapter_choice, find_pair, open_pair
from omnidraft.runtime.decoding.kept_texts import KeptTexts
from omnidraft.runtime.errors import MissingDependencyError, OptionError
from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.models.catalogue import DEFAULT_DRAFTER, DEFAULT_QUANTIZATION
from omnidraft.runtime.models.progress import Progress
from omnidraft.runtime.options import DEFAULT_DRAFT_LENGTH, read_draft_length
from omnidraft.runtime.session import default_ngram_folder
from omnidraft.runtime.storage.weights import weights_bytes

if TYPE_CHECKING:
    from omnidraft.runtime.learning.learner import AdapterChoice

_KEY_VARIABLE = "OMNIDRAFT_API_KEY"


def serve(
    target: Annotated[
        list[str],
        typer.Option(
            metavar="MODEL",
            help="Model name, folder, GGUF file or Hugging Face id. May be repeated.",
            show_default=False,
        ),
    ],
    drafter: opt.Drafter = DEFAULT_DRAFTER,
    no_draft: opt.NoDraft = False,
    draft_length: opt.DraftLength = str(DEFAULT_DRAFT_LENGTH),
    adapter: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Serve MODEL:NAME too, which drafts with this adapter. May be repeated.",
        ),
    ] = [],  # noqa: B006  Typer makes a list of its own for each call.
    learn: Annotated[
        bool, typer.Option("--learn", help="The adapters go on learning, and are kept.")
    ] = False,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to serve on.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int, typer.Option(**opt.whole(0, 65535), help="Port to serve on; 0: a free one.")
    ] = 8017,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Requests must show this key. Better by the variable: others can read commands.",
            envvar=_KEY_VARIABLE,
            show_default=False,
        ),
    ] = None,
    allow_host: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="A name of this machine by which it may be called."),
    ] = [],  # noqa: B006
    temperature: Annotated[
        float,
        typer.Option(**opt.number(0), help="Of requests that give none; 1 is OpenAI's default."),
    ] = 1.0,
    queue: Annotated[int, typer.Option(**opt.whole(1), help="Requests that may wait.")] = 32,
    at_once: Annotated[
        int,
        typer.Option(
            **opt.whole(1), help="Requests that are answered in turns; 1: one after the other."
        ),
    ] = 4,
    time_limit: Annotated[
        float,
        typer.Option(
            **opt.number(0), help="Seconds of its own turns after which an answer is cut."
        ),
    ] = 600.0,
    max_body: Annotated[
        int, typer.Option(**opt.whole(1), help="Bytes that a request may have.")
    ] = 4_000_000,
    keep_memory: Annotated[
        int,
        typer.Option(
            **opt.whole(0),
            help="Megabytes for the KV caches of conversations of a target, beside the last one.",
        ),
    ] = 512,
    model_memory: Annotated[
        int | None,
        typer.Option(
            **opt.whole(1),
            help="Megabytes for the models that are open: others are opened when they are asked. "
            "Without it all are, from the start.",
            show_default=False,
        ),
    ] = None,
    quantization: opt.Weights = DEFAULT_QUANTIZATION,
    engine: opt.RunBy = None,
    threads: opt.Threads = None,
    context: opt.Context = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not log requests.")] = False,
) -> None:
    """Serve models behind OpenAI's interface.

    Answers are those of plain decoding, one at a time; the clients take turns. It serves this
    machine only; to serve on another address needs a key. Logs hold nothing of what is said. Ctrl-C
    ends it.

    \b
    Examples:
      omnidraft serve --target smollm2-135m
      omnidraft serve --target smollm2-135m --target ./other.gguf --port 8080
      OMNIDRAFT_API_KEY=... omnidraft serve --target smollm2-135m --host 0.0.0.0
    """
    try:
        import llguidance  # noqa: F401
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"omnidraft serve needs {error.name}: pip install 'omnidraft[serve]'"
        ) from error
    from omnidraft.serve import server
    from omnidraft.serve.app import ServeOptions
    from omnidraft.serve.models import Described, Models, Target
    from omnidraft.serve.requests import Defaults

    _check_key(api_key, host)
    length = 0 if no_draft else read_draft_length(draft_length)
    served = ServeOptions(
        Defaults(temperature=temperature, draft_length=length),
        api_key,
        allow_host,
        queue,
        at_once,
        time_limit=time_limit,
        max_body=max_body,
    )
    names = _names(target)
    adapters = _adapters(adapter, names)
    if adapters and not length:
        raise OptionError("plain decoding has no use for --adapter: leave it out, or draft")
    if learn and not adapters:
        raise OptionError("--learn needs the name of an adapter to learn: --adapter")
    # Before models are loaded, which takes a while: a port that is in use is told at once.
    with server.bind(host, port) as bound:
        address, number = bound.getsockname()[:2]
        targets = []
        drafts = drafter if length else None
        with steps("loading") as show:
            for name, place in names.items():
                described = {name: Described(name, drafts)}
                choices = {}
                for each in (each for of, each in adapters if of == name):
                    described[f"{name}:{each}"] = Described(name, drafts, each, learn)
                    choices[f"{name}:{each}"] = adapter_choice(each, learn)
                # What is missing is told now, and what takes long is done.
                found = find_pair(
                    place, drafts, quantization, engine, learnable=bool(choices), progress=show
                )
                opener = partial(
                    _sessions,
                    name,
                    choices,
                    keep_memory * 1_000_000,
                    partial(
                        open_pair,
                        place,
                        drafts,
                        quantization,
                        engine,
                        threads,
                        context=context,
                        learnable=bool(choices),
                    ),
                )
                targets.append(Target(described, sum(map(weights_bytes, found)), opener))
            budget = None if model_memory is None else model_memory * 1_000_000
            models = Models(targets, budget, partial(keep_what_was_learned, learn=learn))
            for name in names if budget is None else [next(iter(names))]:
                models.open(name, show)
        if not quiet:
            _log_requests()
        shown = f"[{address}]" if ":" in address else address

        def ready() -> None:
            place = f"http://{shown}:{number}"
            _say(
                f"{', '.join(models.described)} at {place}/v1, a page at {place}/; Ctrl-C ends it."
            )

        try:
            server.serve(models, served, bound, ready)
        except Interrupted:
            _say("stopped")  # as it should
        finally:
            models.close()


def _sessions(
    name: str,
    choices: Mapping[str, AdapterChoice],
    kept_bytes: int,
    open_models: Callable[..., tuple[LoadedModel, LoadedModel | None]],
    progress: Progress,
) -> dict[str, Session]:
    """Open a target: its session, and those with adapters."""
    target, drafter = open_models(progress=progress)
    kept = KeptTexts(target.model, kept_bytes)
    plain = Session(target, drafter, ngram_folder=default_ngram_folder(), kept=kept)
    return {name: plain} | {
        full: Session(target, drafter, adapter=choice, kept=kept)
        for full, choice in choices.items()
    }


def _names(targets: list[str]) -> dict[str, str]:
    """By what name each target is asked for: its own, of a file or folder the last part."""
    names: dict[str, str] = {}
    for target in targets:
        path = Path(target)
        name = target
        if path.exists() or path.is_absolute() or target.startswith((".", "~")):
            path = path.expanduser().resolve()
            name = path.stem if path.suffix == ".gguf" else path.name
        if name in names:
            raise OptionError(f"two targets go by the name {name}; rename one of them")
        names[name] = target
    return names


def _adapters(adapters: list[str], names: dict[str, str]) -> list[tuple[str, str]]:
    """Of each adapter the target's name, and its own."""
    found = []
    for adapter in dict.fromkeys(adapters):
        of, _, name = adapter.rpartition(":")
        if not of and len(names) == 1:
            of = next(iter(names))
        if of not in names:
            raise OptionError(
                f"--adapter {adapter} must say of which target it is: MODEL:NAME, MODEL one of "
                f"{', '.join(names)}"
            )
        found.append((of, name))
    return found


def _check_key(key: str | None, host: str) -> None:
    if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key != ""):
        raise OptionError("the API key must be ASCII characters without spaces around them")
    if key is not None:
        return
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = host == "localhost"
    if not here:
        raise OptionError(
            f"--host {host} lets other machines use the models: set {_KEY_VARIABLE} to a key that "
            "they must show, or serve on 127.0.0.1"
        )


def _log_requests() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log = logging.getLogger("omnidraft.serve")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def _say(text: str) -> None:
    errors.print(Text(text), soft_wrap=True)
