"""Small made-up models and vocabularies: no weights, no downloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chisquare

from omnidraft import _native
from omnidraft._native import Fixed, Speller
from omnidraft.runtime.decoding.drafting import Drafting
from omnidraft.runtime.errors import ContextOverflowError


@dataclass
class ToyModel:
    """A ``CausalModel`` whose logits are a fixed pseudo-random function of the last tokens."""

    vocab_size: int
    seed: int = 0
    order: int = 2
    spread: float = 2.0
    max_length: int = 512
    tokens: list[int] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.tokens)

    def forward(
        self, tokens: Sequence[int] | NDArray[np.int64], rows: int | None = None
    ) -> NDArray[np.float32]:
        if len(self.tokens) + len(tokens) > self.max_length:
            raise ContextOverflowError("too long")
        self.passes.append(len(tokens))
        logits = []
        for token in tokens:
            assert 0 <= token < self.vocab_size
            self.tokens.append(int(token))
            logits.append(self.logits(self.tokens))
        return np.stack(logits[-(rows or len(logits)) :])

    def truncate(self, length: int) -> None:
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"cannot truncate {len(self.tokens)} tokens to {length}")
        del self.tokens[length:]

    def logits(self, context: Sequence[int]) -> NDArray[np.float32]:
        rng = np.random.default_rng([self.seed, *context[-self.order :]])
        return (self.spread * rng.standard_normal(self.vocab_size)).astype(np.float32)


@dataclass
class ToyTree(ToyModel):
    """A ``ToyModel`` that scores trees."""

    chain: int = -1
    paths: list[list[int]] = field(default_factory=list)
    scores_trees: bool = True
    widest: int = 0

    def forward(
        self, tokens: Sequence[int] | NDArray[np.int64], rows: int | None = None
    ) -> NDArray[np.float32]:
        assert self.chain < 0, "a tree is held"
        return super().forward(tokens, rows)

    def truncate(self, length: int) -> None:
        assert self.chain < 0 or length <= self.chain
        self.chain, self.paths = -1, []
        super().truncate(length)

    def forward_tree(
        self,
        tokens: Sequence[int] | NDArray[np.int64],
        parents: Sequence[int] | NDArray[np.int64],
        rows: int | None = None,
    ) -> NDArray[np.float32]:
        if self.chain < 0:
            self.chain = self.length
        assert self.length + len(tokens) <= self.max_length
        self.passes.append(len(tokens))
        logits = []
        for token, parent in zip(tokens, parents, strict=True):
            assert self.chain - 1 <= parent < self.length
            path = [*self.paths[parent - self.chain]] if parent >= self.chain else []
            path.append(self.length)
            self.tokens.append(int(token))
            self.paths.append(path)
            seen = self.tokens[: self.chain] + [self.tokens[slot] for slot in path]
            logits.append(self.logits(seen))
        self.widest = max(self.widest, len(tokens))
        return np.stack(logits[-(rows or len(logits)) :])

    def keep(self, path: Sequence[int]) -> None:
        chain = self.chain if self.chain >= 0 else self.length
        assert not path or list(path) == self.paths[path[-1] - chain]
        kept = [self.tokens[slot] for slot in path]
        self.tokens[chain:] = kept
        self.chain, self.paths = -1, []


@dataclass
class ToyPair:
    """Two vocabularies over the letters a and b, a cache and a speller."""

    drafter: list[bytes | None]
    target: list[bytes | None]
    native: _native.VocabularyPair = field(init=False)
    cache: _native.NgramCache = field(init=False)
    speller: Speller = field(init=False)

    def __post_init__(self) -> None:
        self.native = _native.VocabularyPair(
            _native.Vocabulary(self.drafter), _native.Vocabulary(self.target)
        )
        self.cache = _native.NgramCache(self.native)
        self.speller = Speller(self.native, self.segment, special_text="a")

    def segment(self, data: bytes) -> list[int] | None:
        """Longest match first."""
        found = []
        while data:
            matches = [
                (len(surface), token)
                for token, surface in enumerate(self.drafter)
                if surface and data.startswith(surface)
            ]
            if not matches:
                return None
            length, token = max(matches)
            found.append(token)
            data = data[length:]
        return found

    def drafting(self, seed: int = 1, length: int = 4, max_length: int = 512) -> Drafting:
        model = ToyModel(len(self.drafter), seed, max_length=max_length)
        return Drafting(model, self.cache, self.speller, begin=(0,), policy=Fixed(length))


def toy_pair(seed: int = 0) -> ToyPair:
    """Random vocabularies; the first token of each is special."""
    rng = np.random.default_rng(seed)

    def strings(count: int, longest: int) -> list[bytes]:
        letters = [b"a", b"b", "é".encode()[:1], "é".encode()[1:]]
        words = {b"".join(rng.choice(letters, rng.integers(1, longest + 1))) for _ in range(count)}
        return sorted({*words, b"a", b"b"})

    return ToyPair([None, *strings(12, 2)], [None, *strings(16, 4), None])


def plain_greedy(model: ToyModel, prompt: Sequence[int], count: int) -> list[int]:
    """Plain greedy decoding, written down independently of the project's code."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(model.logits(tokens))))
    return tokens[len(prompt) :]


def follows_the_target(target: ToyModel, token: int, follows: Counter[int]) -> bool:
    """Whether the tokens that came after ``token`` are distributed as a first-order target says."""
    logits = target.logits([token]).astype(np.float64)
    wanted = np.exp(logits) / np.exp(logits).sum() * follows.total()
    found = np.array([follows[next_token] for next_token in range(len(wanted))])
    likely = wanted >= 5
    observed = [*found[likely], found[~likely].sum()]
    expected = [*wanted[likely], wanted[~likely].sum()]
    return len(observed) > 3 and bool(chisquare(observed, expected).pvalue > 1e-4)
