"""What a request waits longer for its first token because the drafter learns.

    python benchmarks/learning_latency.py [--target smollm2-135m] [--repeats 20] [--json FILE]

Three kinds of request, to sessions that share the target:

- fixed: with an adapter that does not learn;
- learned: with one that learns on its thread, and has learned from all earlier answers;
- learning: the same, shortly after an answer that it is still learning from.

Every repeat makes one request of each kind, in another order, with the same prompts: an answer, a
pause, and the request that is timed. Ratios are to "fixed": the median over repeats of each
repeat's quotient, and the quotient of the smallest times. "under way" is the share of requests that
found something still to be learned. Tokens a second are those of the rest of that answer, beside
which learning goes on.
"""

from __future__ import annotations

import json
import platform
import random
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import onnxruntime as ort
import typer
from rich.console import Console
from rich.table import Table

from omnidraft import GenerationOptions, Session
from omnidraft.export.learnable import learnable_drafter
from omnidraft.runtime.bench import read_prompts
from omnidraft.runtime.learning.learner import AdapterChoice
from omnidraft.runtime.learning.store import AdapterStore
from omnidraft.runtime.learning.trainer import LearningOptions
from omnidraft.runtime.models import LoadedModel, load_model
from omnidraft.runtime.models.load import drafter_threads
from omnidraft.runtime.processor import processor_name, usable_cores

PROMPTS = Path(__file__).resolve().parents[1] / "demo" / "prompts.jsonl"
KINDS = ("fixed", "learned", "learning")
# Repeats before those that are timed: costs are measured, memory is taken.
WARM_UP = 2


@dataclass(frozen=True)
class Request:
    """What one request showed.

    Attributes:
        first_token: seconds until it came.
        rate: tokens a second from then on.
        under_way: something was still to be learned when it was made.
    """

    first_token: float
    rate: float
    under_way: bool


class Client:
    """Makes requests of a session, one after another."""

    def __init__(self, session: Session, options: GenerationOptions) -> None:
        self.session = session
        self._options = options

    def answer(self, prompt: str) -> None:
        self.session.generate(prompt, self._options)

    def learn(self) -> None:
        """Wait until nothing is left to learn."""
        if self.session.learner and self.session.learner.trainer:
            self.session.learner.trainer.drain()

    def request(self, prompt: str) -> Request:
        learner = self.session.learner
        trainer = learner.trainer if learner else None
        under_way = trainer is not None and trainer.waiting > 0
        pieces = self.session.stream(prompt, self._options)
        begin = time.perf_counter()
        next(pieces)
        first = time.perf_counter()
        count = sum(piece.token is not None for piece in pieces)
        end = time.perf_counter()
        return Request(first - begin, count / (end - first), under_way)


def measure(
    clients: dict[str, Client], prompts: list[str], repeats: int, pause: float
) -> dict[str, list[Request]]:
    """Requests of every kind, in the order of the repeats."""
    rng = random.Random(0)
    found: dict[str, list[Request]] = {kind: [] for kind in KINDS}
    for repeat in range(WARM_UP + repeats):
        before, asked = (prompts[(2 * repeat + i) % len(prompts)] for i in range(2))
        # Requests come at any moment of an update.
        waited = rng.uniform(0, pause)
        for kind in rng.sample(KINDS, len(KINDS)):
            client = clients[kind]
            client.answer(before)
            if kind == "learned":
                client.learn()
            time.sleep(waited)
            request = client.request(asked)
            client.learn()
            if repeat >= WARM_UP:
                found[kind].append(request)
    return found


def summary(found: dict[str, list[Request]]) -> dict[str, Any]:
    """Of each kind, medians and ratios, as the module's description has them."""
    fixed = [request.first_token for request in found["fixed"]]
    figures = {}
    for kind, requests in found.items():
        times = [request.first_token for request in requests]
        figures[kind] = {
            "first_token_ms": 1e3 * statistics.median(times),
            "minimum_ms": 1e3 * min(times),
            "ratio": statistics.median(t / f for t, f in zip(times, fixed, strict=True)),
            "minimum_ratio": min(times) / min(fixed),
            "under_way": statistics.mean(request.under_way for request in requests),
            "tokens_per_second": statistics.median(request.rate for request in requests),
            "requests": [asdict(request) for request in requests],
        }
    return figures


def main(
    target: str = "smollm2-135m",
    prompts: Annotated[Path, typer.Option(help="JSON lines of {prompt}.")] = PROMPTS,
    repeats: Annotated[int, typer.Option(min=1)] = 20,
    pause: Annotated[
        float, typer.Option(min=0, help="Longest time between answer and request, seconds.")
    ] = 0.2,
    max_new_tokens: Annotated[int, typer.Option(min=2)] = 64,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure and print."""
    texts = [entry.prompt for entry in read_prompts(prompts)]
    loaded = load_model(target, threads=threads)
    bundle = str(learnable_drafter("default"))
    options = GenerationOptions(max_new_tokens)
    with tempfile.TemporaryDirectory() as folder:
        store = AdapterStore(Path(folder))

        def client(name: str, learning: LearningOptions | None) -> Client:
            # An adapter stays in the drafter that it was set in.
            drafter: LoadedModel = load_model(bundle, threads=drafter_threads(threads))
            choice = AdapterChoice(store, name, learning, background=learning is not None)
            return Client(Session(loaded, drafter, adapter=choice), options)

        begun = client("fixed", LearningOptions(budget=0))
        begun.session.save()
        learning = client("learning", LearningOptions())
        clients = {"fixed": client("fixed", None), "learned": learning, "learning": learning}
        figures = summary(measure(clients, texts, repeats, pause))
        assert learning.session.learner is not None
        learning.session.learner.close()

    table = Table(box=None, pad_edge=False)
    for heading in ("", "first token", "ratio", "of minima", "under way", "tok/s after it"):
        table.add_column(heading, justify="right" if heading else "left")
    for kind, row in figures.items():
        table.add_row(
            kind,
            f"{row['first_token_ms']:.1f} ms",
            f"{row['ratio']:.3f}",
            f"{row['minimum_ratio']:.3f}",
            f"{row['under_way']:.0%}",
            f"{row['tokens_per_second']:.1f}",
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{processor_name()}, {usable_cores()} cores", markup=False, soft_wrap=True)
    if json_file:
        report = {
            "machine": {
                "processor": processor_name(),
                "usable_cores": usable_cores(),
                "system": platform.platform(),
                "onnxruntime": ort.__version__,
            },
            "target": target,
            "threads": threads,
            "repeats": repeats,
            "pause": pause,
            "max_new_tokens": max_new_tokens,
            "kinds": figures,
        }
        json_file.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
