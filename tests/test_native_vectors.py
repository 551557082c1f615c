"""The recorded rounds that every language replays: see vectors/README.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from omnidraft._native import (
    Draft,
    Generator,
    History,
    NgramCache,
    SamplingParameters,
    Verification,
    Verifier,
    Vocabulary,
    VocabularyPair,
)

Block = dict[str, list[list[str]]]


def rounds() -> Iterator[Block]:
    block: Block = {}
    for text in (Path(__file__).parent / "vectors" / "rounds.txt").read_text().splitlines():
        word, *values = text.split(" ")
        if word == "end":
            yield block
            block = {}
        elif word and word != "#":
            block.setdefault(word, []).append(values)


def vocabulary(words: list[str]) -> Vocabulary:
    return Vocabulary([None if word == "-" else bytes.fromhex(word) for word in words])


def rows(lines: list[list[str]]) -> NDArray[np.float32]:
    return np.array(lines, dtype=np.float32)


@pytest.mark.parametrize("block", list(rounds()), ids=lambda block: block["round"][0][0])
def test_replay(block: Block) -> None:
    def expected(word: str) -> list[int]:
        return list(map(int, block[word][0]))

    pair = VocabularyPair(vocabulary(block["drafter"][0]), vocabulary(block["target"][0]))
    cache = NgramCache(pair)
    for token, uses, *drafts in block.get("ngram", []):
        for _ in range(int(uses)):
            cache.observe(int(token), list(map(int, drafts)))
    verification = Verification[block["verification"][0][0].upper()]
    temperature, top_k, *others = block["sampling"][0]
    sampling = SamplingParameters(float(temperature), int(top_k), *map(float, others))
    chance = Generator(expected("seed")[0])
    history = History(len(block["target"][0]))
    history.add(expected("history"))

    draft = Draft(cache, verification, sampling.temperature or 1.0)
    for values in block.get("given", []):
        draft.propose(list(map(int, values)))
    steps = [draft.step(row, chance) for row in rows(block.get("q", []))]
    proposal = draft.finish()
    assert [token for token in steps if token >= 0] == expected("drafts") == proposal.drafts
    assert proposal.tokens == expected("proposal")
    assert proposal.draft_counts == expected("counts")
    verdict = Verifier(cache).verify(proposal, rows(block["p"]), sampling, history, chance)
    assert verdict.tokens == expected("emitted")
    assert [origin.name.lower() for origin in verdict.origins] == block["origins"][0]


def test_the_file_is_complete() -> None:
    names = [block["verification"][0][0] for block in rounds()]
    assert {name: names.count(name) for name in names} == {"greedy": 24, "exact": 24, "paper": 24}
    assert sum("given" in block for block in rounds()) == 24
