"""OmniDraft beside its peers, on the same weights, prompts, threads and machine.

    python -m benchmarks.peers --json peers.json [--plot peers.png] [--prompts FILE …] [--help]

Every way to decode answers every prompt in turn, the order rotating, several times; of the times
the median counts. Tokens per second are of decoding, after the first round, which has to read the
prompt; ``total_tokens_per_second`` counts everything. Time to the first token, and the tokens of
the prompt over it, are told of these prompts and of some that are padded to --long-prompts tokens
and answered with a few tokens. A method with settings to choose first tries
them on prompts that are not measured (tuning.jsonl). Engines that are not installed are listed
with how to get them; they may live in environments of their own (--python ENGINE=PATH).
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks.peers import prepare, report
from benchmarks.peers.measure import Budget, Generation, measure, rows, tune
from benchmarks.peers.plan import Contestant, Method, contestants
from benchmarks.peers.processes import Worker, WorkerError
from omnidraft.runtime.bench import read_prompts
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models.resolve import resolve_checkpoint
from omnidraft.runtime.processor import processor_name
from omnidraft.runtime.storage.files import check_place
from omnidraft.runtime.text.tokenizer import Tokenizer

HERE = Path(__file__).parent
TUNING = HERE / "tuning.jsonl"
# Tokens that drafting may want beyond the answer.
MARGIN = 64
# The time that a prompt takes hardly depends on what it says.
LONG_PROMPTS = 2
LONG_PROMPT_TOKENS = 4


def main(
    prompts: Annotated[list[Path] | None, typer.Option(help="prompt files")] = None,
    target: str = "smollm2-135m",
    drafter: str = "default",
    per_task: Annotated[int, typer.Option(min=1, help="prompts of each task")] = 4,
    context: Annotated[
        int | None, typer.Option(min=16, help="pad prompts to so many tokens")
    ] = None,
    long_prompts: Annotated[
        int,
        typer.Option(min=0, help="tokens of the prompts that only reading is timed of; 0: none"),
    ] = 1000,
    temperature: Annotated[float, typer.Option(min=0.0, max=10.0)] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(min=2)] = 128,
    repeat: Annotated[int, typer.Option(min=1)] = 5,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    draft_length: Annotated[
        list[str] | None, typer.Option(help="OmniDraft's, each measured: a number or auto")
    ] = None,
    adapter: Annotated[
        str | None, typer.Option(help="measure OmniDraft with this adapter too")
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="only engines whose name begins so")
    ] = None,
    python: Annotated[
        list[str] | None, typer.Option(help="ENGINE=PATH: an engine's own interpreter")
    ] = None,
    tuning: Annotated[Path, typer.Option(help="prompts on which peers are tuned")] = TUNING,
    budget_minutes: Annotated[
        float, typer.Option(min=0.1, help="at most; quarters of it for tuning, long prompts")
    ] = 60.0,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
    plot: Path | None = None,
) -> None:
    """Measure, print, and write what was measured so far after every prompt."""
    budget = Budget(60 * budget_minutes)
    for path in (json_file, plot):
        if path:
            check_place(path)
    if plot:
        report.require_matplotlib()
    lengths = [_length(each) for each in draft_length or ["4"]]
    interpreters = dict(_interpreter(each) for each in python or [])
    tuning_prompts = read_prompts(tuning)
    entries = [e for file in prompts or [HERE / "prompts.jsonl"] for e in read_prompts(file)]
    checkpoint = resolve_checkpoint(target)
    tokenizer = Tokenizer.load(checkpoint)
    picked = prepare.pick(entries, per_task, tuning_prompts)
    tasks = prepare.tasks(picked, tokenizer, context)
    long_tasks = prepare.tasks(
        picked[: LONG_PROMPTS if long_prompts else 0], tokenizer, long_prompts
    )
    tuning_tasks = prepare.tasks(tuning_prompts, tokenizer, context)
    generation = Generation(max_new_tokens, temperature, sorted(tokenizer.eos_ids))
    longest = max(len(task.tokens) for task in tasks + tuning_tasks + long_tasks)
    own_type = prepare.gguf_type(checkpoint)
    everyone = contestants(
        draft_lengths=lengths, adapter=adapter, gguf_type=own_type, sampling=temperature > 0
    )
    known = sorted({each.engine for each in everyone})
    if unknown := sorted(set(interpreters) - set(known)):
        raise OmniDraftError(
            f"--python {unknown[0]}=…: no such engine; there are {', '.join(known)}"
        )
    wanted = tuple(engine or [""])
    chosen = [each for each in everyone if each.name.startswith(wanted)]
    if not chosen:
        names = ", ".join(each.name for each in everyone)
        raise OmniDraftError(f"--engine {' '.join(wanted)} names none of: {names}")
    float_drafter = prepare.float_drafter(resolve_checkpoint(drafter))
    kinds = [each.precision for each in chosen if each.engine == "llama.cpp"]
    settings = {
        "target": target,
        "drafter": drafter,
        "adapter": adapter,
        "threads": threads,
        "checkpoint": str(checkpoint),
        "drafter_checkpoint": str(float_drafter),
        "ggufs": prepare.gguf_files(checkpoint, float_drafter, kinds) if kinds else {},
        "genai_folder": str(prepare.peers_folder(checkpoint) / "genai-int4"),
        "max_length": longest + max_new_tokens + MARGIN,
    }
    facts = {
        "target": target,
        "drafter": drafter,
        "context": context,
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
        "threads": threads,
        "machine": _machine(),
    }
    files = [*(prompts or [HERE / "prompts.jsonl"]), tuning]
    record = report.Record(
        command=_command(sys.argv[1:]),
        prompts={file.name: sha256(file.read_bytes()).hexdigest() for file in files},
        load_at_start=os.getloadavg()[0],
    )
    errors = Console(stderr=True)
    methods: list[tuple[Worker, Method]] = []
    absent: list[dict[str, Any]] = []
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bars = stack.enter_context(Progress(console=errors, transient=True))
        bar = bars.add_task("", total=None)

        def say(text: str, done: int = 0, total: int | None = None) -> None:
            bars.update(bar, description=text, completed=done, total=total)
            if not errors.is_terminal:
                errors.print(f"{text} {done}/{total}" if total else text)

        for contestant in chosen:
            say(f"opening {contestant.name}")
            log = logs / f"{len(methods)}-{len(absent)}.log"
            interpreter = interpreters.get(contestant.engine, sys.executable)
            try:
                worker = stack.enter_context(Worker(contestant, settings, interpreter, log))
            except WorkerError as error:
                if contestant.engine == "omnidraft":
                    raise OmniDraftError(f"{contestant.name} cannot be opened: {error}") from error
                absent += [
                    _absent(contestant, each, each.unavailable or str(error))
                    for each in contestant.methods
                ]
                continue
            methods += [(worker, each) for each in contestant.methods if not each.unavailable]
            absent += [
                _absent(contestant, each, each.unavailable)
                for each in contestant.methods
                if each.unavailable
            ]
        if not methods:
            reasons = "; ".join(dict.fromkeys(each["unavailable"] for each in absent))
            raise OmniDraftError(f"no engine can be measured: {reasons}")
        ways = tune(
            methods, tuning_tasks, generation, Budget(15 * budget_minutes), partial(say, "tuning")
        )

        def result() -> list[dict[str, Any]]:
            measured = rows(ways, tasks, generation, facts, long_tasks)
            return measured + [each | facts for each in absent]

        def step(done: int, total: int) -> None:
            say("measuring", done, total)
            if json_file:
                report.write_json(record, result(), ways, json_file)

        if long_tasks:
            reading = replace(generation, max_new_tokens=LONG_PROMPT_TOKENS)
            timed = [replace(way, runs=way.readings) for way in ways]
            quarter = Budget(15 * budget_minutes)
            measure(timed, long_tasks, reading, repeat, quarter, partial(say, "long prompts"))
            for way, found in zip(ways, timed, strict=True):
                way.failure = found.failure
        measure(ways, tasks, generation, repeat, budget, step)
        final = result()
    report.show(final, Console())
    if json_file:
        report.write_json(record, final, ways, json_file)
    if plot:
        report.plot(final, plot)


def _command(arguments: Sequence[str]) -> str:
    """The command line, as it can be repeated elsewhere: where interpreters lie is left out."""
    said = [re.sub("^([^=]*)=.*python[^/]*$", r"\1=PYTHON", each) for each in arguments]
    return shlex.join(["python", "-m", "benchmarks.peers", *said])


def _length(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or len(text) > 2 or not 1 <= int(text) <= 32:
        raise OmniDraftError(f"--draft-length {text}: expected a number from 1 to 32, or auto")
    return int(text)


def _interpreter(text: str) -> tuple[str, str]:
    engine, _, path = text.partition("=")
    if not Path(path).is_file():
        raise OmniDraftError(f"--python {text}: expected ENGINE=PATH of a Python interpreter")
    return engine, path


def _absent(contestant: Contestant, method: Method, reason: str) -> dict[str, Any]:
    """A row for what is not measured, with the same keys as others where they matter."""
    keys = ("version", "task", "tokens_per_second", "identical", "identical_prompts")
    speedups = ("speedup_over_own_plain", "speedup_over_fastest_plain")
    return {
        "engine": contestant.engine,
        "method": method.name,
        "precision": contestant.precision,
        "unavailable": reason,
        **dict.fromkeys((*keys, *speedups)),
    }


def _machine() -> str:
    return f"{processor_name()}, {os.cpu_count()} processors, {platform.system()}"


if __name__ == "__main__":
    try:
        typer.run(main)
    except OmniDraftError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
