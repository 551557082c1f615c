"""The first step: each teacher writes, until there are as many tokens as are wanted."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from omnidraft.distill.config import Config, Teacher, TextTeacher
from omnidraft.distill.sampling import open_sampler, text
from omnidraft.distill.sampling.prompts import digest_of, read_prompts
from omnidraft.distill.shards import (
    Document,
    Shard,
    count_shard,
    shard_path,
    shard_source,
    write_shard,
)
from omnidraft.runtime.errors import OmniDraftError

Tell = Callable[[int, int | None], None]
"""Is told how many tokens there are, and how many there are to be; None: it is not known."""

_TOLD = 1.0  # seconds between two words about it
# Seconds after which a shard is written, however small: a machine may fail without a word.
_KEPT = 600.0


def sample(
    teacher: Teacher,
    config: Config,
    folder: Path,
    sources: Path,
    there: Sequence[Path],
    *,
    rank: int = 0,
    processes: int = 1,
    tell: Tell = lambda done, wanted: None,
) -> None:
    """Write a teacher's shards until there are enough; what is there is kept, and so is what there
    is when it is stopped.

    Args:
        folder: of the teacher's shards.
        sources: that names in the configuration are relative to.
        there: the shards that the folder held before any process began to write.
        rank, processes: which share of what is missing is this process's.

    Raises:
        OmniDraftError: the teacher fails; or shards are there of another configuration.
    """
    prompts = []
    if not isinstance(teacher, TextTeacher):
        prompts = read_prompts(config.sampling.prompts, sources)
    source = json.dumps(_decided_by(teacher, config, sources, prompts), sort_keys=True)
    for path in there:
        if shard_source(path) != source:
            raise OmniDraftError(
                f"{path} was sampled by another configuration, from other prompts or other text, "
                "or is damaged. Choose another folder, or delete it."
            )
    counts = [count_shard(path) for path in there]
    done = sum(tokens for _, tokens in counts)
    complete = folder / "complete"
    if isinstance(teacher, TextTeacher):
        if rank or complete.exists():
            return
        wanted, number, step = None, len(there), 1
        seed = _seed(config, teacher, 0)
        skipped = sum(documents for documents, _ in counts)
    else:
        wanted = -(-max(0, teacher.tokens - done) // processes)
        number, step = _next(there) + rank, processes
        seed, skipped = _seed(config, teacher, number), 0
        if not wanted:
            return
    sampler = open_sampler(teacher, config, sources, prompts)
    documents = islice(sampler.documents(seed), skipped, None)
    part: list[Document] = []
    mine = held = 0
    told = begun = time.monotonic()

    def keep() -> None:
        nonlocal number, held, begun
        if part:
            write_shard(shard_path(folder, number), _compact(sampler.surfaces, part), source)
            number += step
        part.clear()
        held, begun = 0, time.monotonic()

    whole = None if wanted is None else done + wanted
    tell(done, whole)
    try:
        for document in documents:
            part.append(document)
            held += len(document.tokens)
            mine += len(document.tokens)
            now = time.monotonic()
            if held >= config.sampling.shard_tokens or now - begun >= _KEPT:
                keep()
            if now - told >= _TOLD:
                told = now
                tell(done + mine, whole)
            if wanted is not None and mine >= wanted:
                break
    finally:
        keep()  # also of what is interrupted, or fails
    tell(done + mine, whole)
    if wanted is None:
        folder.mkdir(parents=True, exist_ok=True)
        complete.touch()


def _decided_by(
    teacher: Teacher, config: Config, sources: Path, prompts: Sequence[str]
) -> dict[str, object]:
    """What decides which text is sampled."""
    decided = config.sampling.model_dump(exclude={"prompts"})
    decided["teacher"] = teacher.model_dump(exclude={"weight", "tokens", "licence", "repository"})
    if isinstance(teacher, TextTeacher):
        decided["text"] = text.digest_of(teacher, sources)
    if prompts:
        decided["prompts"] = digest_of(prompts)
    return decided


def _compact(surfaces: list[bytes | None], documents: list[Document]) -> Shard:
    """A shard that holds the surfaces that occur in it, and no others."""
    occurs = np.zeros(len(surfaces), np.bool_)
    for each in documents:
        occurs[each.tokens] = True
        occurs[each.top] = True
    used = np.flatnonzero(occurs)
    place = np.zeros(len(surfaces), np.int32)
    place[used] = np.arange(len(used))
    return Shard(
        [surfaces[token] for token in used],
        [replace(each, tokens=place[each.tokens], top=place[each.top]) for each in documents],
    )


def _next(there: Sequence[Path]) -> int:
    return 1 + max((int(path.stem.removeprefix("part-")) for path in there), default=-1)


def _seed(config: Config, teacher: Teacher, number: int) -> int:
    """Of what is written from a shard on."""
    said = f"{config.seed} {teacher.name} {number}"
    return int.from_bytes(hashlib.sha256(said.encode()).digest()[:4], "little") >> 1
