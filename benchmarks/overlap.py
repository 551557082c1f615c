"""How much of each prompt stands in sampled text: ``python -m benchmarks.overlap``.

A prompt that a drafter has learned by heart measures nothing. For each prompt this counts its
distinct runs of WORDS words, and how many of them stand in the shards of ``omnidraft distill``.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer

from omnidraft.distill.shards import read_shard

WORDS = 8
Run = tuple[str, ...]


def runs(text: str) -> set[Run]:
    """Every WORDS words of a text that follow each other, in small letters."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + WORDS]) for i in range(len(words) - WORDS + 1)}


def _found(path: Path, wanted: set[Run]) -> set[Run]:
    """Which of the runs stand in a shard."""
    shard = read_shard(path)
    found: set[Run] = set()
    for document in shard.documents:
        text = b"".join(shard.surfaces[token] or b"\n" for token in document.tokens)
        found |= wanted & runs(text.decode("utf-8", "replace"))
    return found


def main(
    prompts: Annotated[Path, typer.Argument(help="JSON lines with `prompt`")],
    shards: Annotated[Path, typer.Argument(help="folder in which shards are looked for")],
    output: Annotated[Path, typer.Option(help="JSON lines: `runs`, and `found` of them")],
    processes: int = 2,
) -> None:
    """Count for each prompt how many of its runs of 8 words stand in the shards."""
    texts = [json.loads(line)["prompt"] for line in prompts.read_text("utf-8").splitlines()]
    each = [runs(text) for text in texts]
    wanted = set[Run]().union(*each)
    paths = sorted(shards.rglob("part-*.parquet"))
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        found = set[Run]().union(*pool.map(_found, paths, [wanted] * len(paths)))
    with output.open("w", encoding="utf-8") as file:
        for own in each:
            file.write(json.dumps({"runs": len(own), "found": len(own & found)}) + "\n")
    touched = sum(1 for own in each if own & found)
    print(
        f"{touched} of {len(texts)} prompts share {WORDS} words in a row with {len(paths)} shards"
    )


if __name__ == "__main__":
    typer.run(main)
