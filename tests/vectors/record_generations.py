"""Record whole answers in small worlds: ``python tests/vectors/record_generations.py``.

README.md describes the file, and how the models of these worlds make their rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnidraft._native import (
    CostAware,
    CostCurve,
    Costs,
    Fixed,
    Generation,
    Lookup,
    NgramCache,
    Pass,
    Policy,
    SamplingParameters,
    Speller,
    Verification,
    Vocabulary,
    VocabularyPair,
)
from omnidraft.runtime.decoding.drafting import keep, run_pass

FILE = Path(__file__).parent / "generations.txt"
MASK = 2**64 - 1
FOLLOW = Verification.GREEDY
Block = dict[str, list[str]]


@dataclass
class World:
    """Two vocabularies, None being a special token, and the rows of two models over them."""

    seed: int
    drafter: list[bytes | None]
    target: list[bytes | None]
    tail: int

    def row(self, of_target: bool, context: Sequence[int]) -> list[float]:
        surfaces = self.target if of_target else self.drafter
        tail = b"".join(surfaces[token] or b"" for token in context)[-self.tail :]
        model = 0 if of_target else 1
        return [
            (3 * self._points(2, tail, text[:1]) * bool(text) + self._points(model, tail, text))
            / 512
            for text in (surface or b"" for surface in surfaces)
        ]

    def segment(self, text: bytes) -> list[int] | None:
        tokens = []
        while text:
            fitting = [
                (-len(surface), token)
                for token, surface in enumerate(self.drafter)
                if surface and text.startswith(surface)
            ]
            if not fitting:
                return None
            length, token = min(fitting)
            tokens.append(token)
            text = text[-length:]
        return tokens

    def _points(self, model: int, tail: bytes, text: bytes) -> int:
        value = 0xCBF29CE484222325
        for part in (self.seed, model, *tail, 256, *text):
            value = (value ^ part) * 0x100000001B3 & MASK
        return ((value ^ value >> 32) * 0x9E3779B97F4A7C15 & MASK) >> 54


@dataclass
class Model:
    """A ``CausalModel`` of a world, which scores trees, too."""

    world: World
    of_target: bool
    scores_trees: bool = True
    tokens: list[int] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)
    chain: int | None = None

    vocab_size = 0
    max_length = 10**6

    @property
    def length(self) -> int:
        return len(self.tokens)

    def forward(self, tokens: Sequence[int], rows: int | None = None) -> NDArray[np.float32]:
        assert self.chain is None
        before = self.length
        self.tokens += tokens
        return self._rows(
            [self.tokens[: before + i + 1] for i in range(len(tokens))], rows or len(tokens)
        )

    def forward_tree(
        self, tokens: Sequence[int], parents: Sequence[int], rows: int | None = None
    ) -> NDArray[np.float32]:
        if self.chain is None:
            self.chain = self.length
        contexts = []
        for token, parent in zip(tokens, parents, strict=True):
            path = [*(self.paths[parent - self.chain] if parent >= self.chain else []), self.length]
            self.tokens.append(token)
            self.paths.append(path)
            contexts.append(self.tokens[: self.chain] + [self.tokens[slot] for slot in path])
        return self._rows(contexts, rows or len(tokens))

    def keep(self, path: Sequence[int]) -> None:
        assert self.chain is not None
        assert not path or list(path) == self.paths[path[-1] - self.chain]
        self.tokens[self.chain :] = [self.tokens[slot] for slot in path]
        self.chain, self.paths = None, []

    def truncate(self, length: int) -> None:
        assert length <= (self.length if self.chain is None else self.chain)
        self.chain, self.paths = None, []
        del self.tokens[length:]

    def _rows(self, contexts: list[list[int]], rows: int) -> NDArray[np.float32]:
        self.passes.append(len(contexts))
        wanted = [self.world.row(self.of_target, context) for context in contexts[-rows:]]
        return np.array(wanted, dtype=np.float32)


def answer(block: Block) -> Block:
    """What comes of a block's input lines, as its expected lines."""

    def numbers(key: str) -> list[int]:
        return [int(word) for word in block[key]]

    seed, tail = numbers("world")
    world = World(seed, surfaces(block["drafter"]), surfaces(block["target"]), tail)
    most, target_max, drafter_max = numbers("limits")
    temperature, top_k, *others = block["sampling"]
    name = block["verification"][0]
    pair = VocabularyPair(Vocabulary(world.drafter), Vocabulary(world.target))
    cache = NgramCache(pair)
    drafting: dict[str, object] = {}
    tree, scores_trees = block["draft"][0] == "tree", block["draft"][1] == "1"
    if (decides := policy(block["policy"])) is not None:
        kept = numbers("lookup")
        drafting = {
            "cache": cache,
            "speller": Speller(pair, world.segment),
            "policy": decides,
            "lookup": Lookup(len(world.target), kept[0]) if kept else None,
            "begin": numbers("begin"),
            "tree": tree,
            "max_length": drafter_max,
            "scores_trees": scores_trees,
        }
    generation = Generation(
        len(world.target),
        SamplingParameters(float(temperature), int(top_k), *map(float, others)),
        verification=FOLLOW if name == "follow" else Verification[name.upper()],
        seed=numbers("seed")[0],
        ends=numbers("ends"),
        **drafting,  # type: ignore[arg-type]
    )
    target, drafter = Model(world, True), Model(world, False, scores_trees)
    prompt = numbers("prompt")
    inserted = generation.read(prompt)
    if prompt[:-1]:
        target.forward(prompt[:-1], 1)
    target.passes = []
    tokens: list[int] = []
    origins: list[str] = []
    while len(tokens) < most and target.length < target_max:
        more = generation.begin(most - len(tokens) - 1, target.length, target_max)
        while more:
            wanted: Pass = generation.drafter_pass
            logits = run_pass(drafter, wanted)
            generation.drafted(logits, drafter_seconds(len(wanted.tokens)))
            more = generation.draft_on()
        wanted = generation.score()
        verdict = generation.scored(run_pass(target, wanted))
        tokens += verdict.tokens
        origins += [origin.name.lower() for origin in verdict.origins]
        ended = generation.ended
        settled = generation.settle(target_seconds(len(wanted.tokens)), 0)
        inserted += settled.inserted
        keep(target, settled.target)
        keep(drafter, settled.drafter)
        if ended:
            break
    return {
        "tokens": words(tokens),
        "origins": origins,
        "rows": words(target.passes),
        "passes": words(drafter.passes),
        "inserted": words([inserted]),
        "cache": [cache.to_bytes().hex()],
    }


def policy(given: Sequence[str]) -> Policy | None:
    kind, *values = given
    if kind == "none":
        return None
    if kind == "fixed":
        return Fixed(int(values[0]), float(values[1]))
    target, drafter = (
        CostCurve({size: seconds(size) for size in (1, 8)})
        for seconds in (target_seconds, drafter_seconds)
    )
    return CostAware(Costs({256: target}, drafter))


def drafter_seconds(tokens: int) -> float:
    return 0.001 + 0.0001 * tokens


def target_seconds(tokens: int) -> float:
    return 0.01 + 0.001 * tokens


def surfaces(given: Sequence[str]) -> list[bytes | None]:
    return [None if word == "-" else bytes.fromhex(word) for word in given]


def words(values: Sequence[object]) -> list[str]:
    return [str(value) for value in values]


def read() -> Iterator[tuple[str, Block]]:
    """The recorded blocks by their names: input lines and expected ones."""
    block: Block = {}
    for text in FILE.read_text("ascii").splitlines():
        key, *values = text.split()
        if key == "end":
            yield block.pop("answer")[0], block
            block = {}
        elif key != "#":
            block[key] = values


def asked(number: int) -> Block:
    """The input lines of an answer: an answer of each kind follows the other."""
    rng = random.Random(number)

    letters = [b"a", b"b", b"\n", "é".encode()[:1], "é".encode()[1:]]

    def strings(count: int, longest: int, always: int) -> list[str]:
        drawn = {
            b"".join(rng.choice(letters) for _ in range(rng.randint(1, longest)))
            for _ in range(count)
        }
        named = [surface.hex() for surface in sorted({*drawn, *letters[:always]})]
        named.insert(rng.randrange(len(named)), "-")
        return named

    drafter, target = strings(3, 2, rng.choice([3, 5, 5, 5])), strings(rng.randint(2, 9), 3, 4)
    tree, sampled, decides = number % 2 == 1, number // 2 % 2 == 1, number // 4 % 3
    rejects = sampled and not tree and number // 12 % 2 == 1
    temperature = rng.choice([0.5, 1.0]) if sampled else 0.0
    rest = [rng.choice([0, 5]), rng.choice([1.0, 0.9]), rng.choice([0.0, 0.02])] if sampled else []
    penalty = rng.choice([1.0, 1.0, 1.2])
    fixed = ["fixed", str(rng.choice([3, 5, 8])), repr(rng.choice([0.0, 0.3]))]
    return {
        "world": words([rng.randrange(2**32), rng.choice([1, 9, 9])]),
        "drafter": drafter,
        "target": target,
        "prompt": words([rng.randrange(len(target)) for _ in range(rng.randint(1, 12))]),
        "ends": words([target.index("-")] if rng.random() < 0.5 else []),
        "limits": words([rng.randint(20, 60), rng.choice([40, 200]), rng.choice([24, 200])]),
        "sampling": words([temperature, *(rest or [0, 1.0, 0.0]), penalty]),
        "seed": [str(rng.randrange(2**64))],
        "verification": [rng.choice(["exact", "exact", "paper"]) if rejects else "follow"],
        "begin": words([drafter.index("-")] if rng.random() < 0.5 else []),
        "draft": words(["tree" if tree else "chain", int(tree and rng.random() < 0.7)]),
        "policy": ["none"] if number % 24 == 23 else ["cost"] if decides == 2 else fixed,
        "lookup": ["100"] if decides else [],
    }


def main() -> None:
    lines = ["# Whole answers in small worlds; README.md describes them."]
    for number in range(72):
        block = asked(number)
        lines.append(f"answer {number}")
        for key, values in {**block, **answer(block)}.items():
            lines.append(" ".join([key, *values]))
        lines.append("end")
    FILE.write_text("\n".join(lines) + "\n", "ascii")


if __name__ == "__main__":
    main()
