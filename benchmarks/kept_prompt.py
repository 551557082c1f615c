"""What it brings that a prompt is read from where it parts from the last one.

    python benchmarks/kept_prompt.py --target smollm2-135m [--json FILE]

Two questions about one long text: the second with what the KV caches hold of it, and with empty
ones. Both must give the same tokens. Figures are medians of several turns.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Annotated

import typer

import omnidraft
from omnidraft.runtime.models import load_model

TEXT = Path(__file__).parent / "peers/context.txt"
QUESTIONS = ("What is this text about?", "Which words are used most?")


def main(
    target: str = "smollm2-135m",
    length: Annotated[int, typer.Option(min=1, help="Tokens of the text.")] = 1500,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 32,
    turns: Annotated[int, typer.Option(min=1)] = 5,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure and print."""
    session = omnidraft.Session(load_model(target), load_model("default", drafts=True))
    options = omnidraft.GenerationOptions(max_new_tokens)
    tokenizer = session.target.tokenizer
    text = tokenizer.decode(tokenizer.encode(TEXT.read_text("utf-8"), add_bos=False)[:length])
    first, second = (f"{text}\n\n{question}" for question in QUESTIONS)
    runs: dict[str, list[omnidraft.Statistics]] = {"kept": [], "empty": []}
    for _ in range(turns):
        session.forget()
        session.generate(first, options)
        kept = session.generate(second, options)
        session.forget()
        empty = session.generate(second, options)
        if kept.token_ids != empty.token_ids:
            raise SystemExit("the answers differ")
        runs["kept"].append(kept.statistics)
        runs["empty"].append(empty.statistics)
    figures = {
        way: {
            "prompt_seconds": statistics.median(s.prompt_seconds for s in each),
            "whole_seconds": statistics.median(s.prompt_seconds + s.seconds for s in each),
            "prompt_tokens": each[0].prompt_tokens,
            "prompt_kept": each[0].prompt_kept,
            "turns": [[s.prompt_seconds, s.seconds] for s in each],
        }
        for way, each in runs.items()
    }
    for way, each in figures.items():
        print(
            f"{way}: {each['prompt_kept']} of {each['prompt_tokens']} tokens kept, prompt "
            f"{each['prompt_seconds']:.3f} s, whole answer {each['whole_seconds']:.2f} s"
        )
    if json_file:
        settings = {
            "target": target,
            "length": length,
            "max_new_tokens": max_new_tokens,
            "turns": turns,
            "load": os.getloadavg()[0],
        }
        json_file.write_text(json.dumps({**settings, **figures}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
