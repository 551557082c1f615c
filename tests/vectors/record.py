"""Writes rounds.txt and uniform.txt; README.md says what is in them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from enumeration import Instance, random_instance

from omnidraft import _native
from omnidraft._native import SamplingParameters, Verification

SAMPLING = [
    SamplingParameters(temperature=1.0),
    SamplingParameters(temperature=0.7, top_p=0.9),
    SamplingParameters(temperature=1.3, top_k=4, repetition_penalty=1.3),
    SamplingParameters(temperature=0.9, top_k=6, top_p=0.95, min_p=0.02),
]
GREEDY = [SamplingParameters(), SamplingParameters(repetition_penalty=1.5)]


def line(word: str, values: Iterable[object]) -> str:
    return " ".join([word, *map(str, values)])


def logits(row: np.ndarray[tuple[int], np.dtype[np.float32]]) -> list[str]:
    return [np.format_float_positional(value, unique=True) for value in row]


def record(
    name: str, world: Instance, verification: Verification, budget: int, given: int = 0
) -> list[str]:
    """The lines of one round."""
    sampling = world.sampling
    lines = [f"round {name}"]
    for word, surfaces in (("drafter", world.drafter), ("target", world.target)):
        lines.append(line(word, [s.hex() if s is not None else "-" for s in surfaces]))
    ngrams = sorted(world.cache.ngrams(), key=lambda ngram: not ngram[3])  # primary ones first
    lines += [line("ngram", [token, uses, *drafts]) for token, drafts, uses, _ in ngrams]
    lines.append(f"verification {verification.name.lower()}")
    parameters = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    lines.append(line("sampling", [*parameters, sampling.repetition_penalty]))
    seed = 1000 + world.seed
    random = np.random.default_rng(world.seed)
    past = random.integers(0, len(world.target), 3).tolist()
    lines += [f"seed {seed}", line("history", past)]

    chance = _native.Generator(seed)
    draft = _native.Draft(world.cache, verification, sampling.temperature or 1.0)
    if given:
        world.given = tuple(random.integers(0, len(world.target), given).tolist())
        draft.propose(world.given)
        lines.append(line("given", world.given))
    drafts: tuple[int, ...] = ()
    for _ in range(budget):
        row = world.logits("q", drafts)
        lines.append(line("q", logits(row)))
        token = draft.step(row, chance)
        if token < 0:
            break
        drafts += (token,)
    proposal = draft.finish()
    assert proposal.drafts == list(drafts)
    tokens = tuple(proposal.tokens)
    lines += [line("drafts", drafts), line("proposal", tokens)]
    lines.append(line("counts", proposal.draft_counts))
    rows = np.stack([world.logits("p", tokens[:i]) for i in range(len(tokens) + 1)])
    lines += [line("p", logits(row)) for row in rows]
    history = _native.History(len(world.target))
    history.add(past)
    verdict = _native.Verifier(world.cache).verify(proposal, rows, sampling, history, chance)
    lines.append(line("emitted", verdict.tokens))
    lines.append(line("origins", [origin.name.lower() for origin in verdict.origins]))
    return [*lines, "end", ""]


def record_uniform() -> None:
    places = [0, 1, 2, 41, 2**32, 2**63, 2**64 - 1]
    lines = ["# Recorded by record.py; see README.md."]
    for seed in places:
        for position in places:
            # 53 bits: the very number.
            lines.append(f"{seed} {position} {int(_native.uniform_at(seed, position) * 2**53)}")
    Path(__file__).with_name("uniform.txt").write_text("\n".join([*lines, ""]))


def main() -> None:
    record_uniform()
    lines = ["# Recorded by record.py; see README.md."]
    seen: Counter[str] = Counter()

    def count(block: list[str]) -> None:
        seen.update(word for text in block if text.startswith("origins") for word in text.split())
        seen["none" if any(text == "drafts" for text in block) else "some"] += 1

    for verification in Verification:
        parameters = GREEDY if verification is Verification.GREEDY else SAMPLING
        for i in range(16):
            wanted = ("merged", "direct", "free", "corrected")[i // 4]
            for seed in range(1000 * i, 1000 * (i + 1)):
                letters = "ab" if i % 2 else "abc"
                world = random_instance(seed, parameters[i % len(parameters)], letters)
                if i % 5 == 4:
                    world.holes, world.spread = 0.3, 30.0
                name = f"{verification.name.lower()}-{i}"
                block = record(name, world, verification, 2 + i % 5)
                if any(text.startswith("origins") and wanted in text for text in block):
                    break
            lines += block
            count(block)
    for verification in Verification:
        parameters = GREEDY if verification is Verification.GREEDY else SAMPLING
        for i in range(8):
            wanted = ("lookup corrected", "lookup free", "lookup direct", "lookup merged")[i // 2]
            for seed in range(1000 * i, 1000 * (i + 1)):
                world = random_instance(seed, parameters[i % len(parameters)], "ab")
                budget = 0 if i < 4 else 2 + i % 2
                block = record(
                    f"{verification.name.lower()}-given-{i}", world, verification, budget, 1 + i % 3
                )
                if any(text.startswith("origins") and wanted in text for text in block):
                    break
            lines += block
            count(block)
    assert all(seen[word] >= 3 for word in ("direct", "merged", "corrected", "free")), seen
    assert seen["lookup"] >= 24, seen
    path = Path(__file__).with_name("rounds.txt")
    path.write_text("\n".join(lines))
    print(f"{path.name}: {sum(text == 'end' for text in lines)} rounds, {dict(seen)}")


if __name__ == "__main__":
    main()
