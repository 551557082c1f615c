"""Drafters side by side on one target's answers: ``python -m benchmarks.drafters``.

The target answers each prompt plainly, once, and that is recorded. Each drafter's work is then
replayed against the recording: the decoder runs unchanged. So many drafters cost little more than
one, but nothing is said about speed, nor about whether answers are plain decoding's: that is for
``omnidraft bench``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.adaptation.lab import Answered, gain, total
from benchmarks.adaptation.replay import Answers, ReplayModel
from omnidraft.runtime.bench import read_prompts
from omnidraft.runtime.models import load_model
from omnidraft.runtime.models.cache import cache_folder
from omnidraft.runtime.options import GenerationOptions
from omnidraft.runtime.session import Session
from omnidraft.runtime.storage.files import whole_file


def main(
    prompts: Annotated[Path, typer.Argument(help="JSON lines with `task` and `prompt`")],
    target: Annotated[str, typer.Option()],
    drafter: Annotated[list[str], typer.Option(help="the first is compared with")],
    limit: Annotated[int | None, typer.Option(min=1)] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    draft_length: Annotated[int, typer.Option(min=1, max=32)] = 4,
    draft_confidence: Annotated[float, typer.Option(min=0, max=1)] = 0.0,
    raw: Annotated[bool, typer.Option("--raw", help="no chat template")] = False,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Tokens a round of each drafter, by task; each one's n-gram cache is empty at the start."""
    say = Console(stderr=True, highlight=False).print
    entries = read_prompts(prompts, limit)
    generation = GenerationOptions(
        max_new_tokens=max_new_tokens,
        draft_length=draft_length,
        draft_confidence=draft_confidence,
        raw=raw,
    )
    loaded = load_model(target, threads=threads)
    answers = Answers(loaded, generation, cache_folder() / "answers")
    say(f"{target} answers plainly")
    answers.record(entries)
    replay = ReplayModel(loaded.model.vocab_size, loaded.model.max_length)
    replayed = replace(loaded, model=replay)
    results: list[dict[str, Any]] = []
    first: list[Answered] = []
    for name in drafter:
        say(f"{name} drafts")
        session = Session(replayed, load_model(name, threads=threads))
        runs = []
        for entry in entries:
            known = answers.get(entry)
            assert known is not None
            replay.play(session.encode(entry.prompt, raw=raw), known)
            answer = session.generate(entry.prompt, generation)
            runs.append(Answered(answer.statistics, 0, 0, answer.token_ids == known))
        first = first or runs
        by_task = {
            task: total(
                run for entry, run in zip(entries, runs, strict=True) if entry.task == task
            ).block_efficiency
            for task in sorted({entry.task for entry in entries})
        }
        figures = {"drafter": name, "block_efficiency": total(runs).block_efficiency}
        results.append(figures | gain(first, runs) | {"tasks": by_task})
        print(json.dumps(results[-1]))
    if json_file is not None:
        command = " ".join(["python -m benchmarks.drafters", *sys.argv[1:]])
        facts = {"command": command, "prompts": len(entries), "target": target}
        with whole_file(json_file) as file:
            file.write_text(json.dumps(facts | {"drafters": results}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
