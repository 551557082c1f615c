"""Every path that drafting and verification can take, with its probability.

The native code makes each random decision through ``Chance``. ``ScriptedChance`` replays a script
and records the probabilities of every decision, so a depth-first walk over scripts visits every
path once and the probabilities of the results are exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from omnidraft import _native

Result = TypeVar("Result", bound=Hashable)


def outcomes(
    run: Callable[[_native.ScriptedChance], Result],
) -> dict[Result, float]:
    """Probability of each result of ``run``."""
    found: dict[Result, float] = defaultdict(float)
    scripts: list[list[int]] = [[]]
    while scripts:
        script = scripts.pop()
        chance = _native.ScriptedChance(script)
        result = run(chance)
        probability = 1.0
        for depth, (choice, weights) in enumerate(
            zip(chance.choices, chance.probabilities, strict=True)
        ):
            probability *= weights[choice]
            if depth >= len(script):
                scripts += [
                    [*chance.choices[:depth], other]
                    for other, weight in enumerate(weights)
                    if other > choice and weight > 0
                ]
        found[result] += probability
    return dict(found)


@dataclass
class Instance:
    """A random small world: vocabularies over an alphabet, a cache, context-dependent p and q."""

    cache: _native.NgramCache
    drafter: list[bytes | None]
    target: list[bytes | None]
    seed: int
    sampling: _native.SamplingParameters
    spread: float = 1.5
    holes: float = 0.0
    """How many of the logits are −inf."""
    peak: float = 0.0
    """How far one of the drafter's logits is raised above the others."""
    given: tuple[int, ...] = ()
    """Target tokens that are proposed before anything is drafted."""
    _rows: dict[tuple[str, tuple[int, ...]], NDArray[np.float32]] = field(default_factory=dict)

    @property
    def target_size(self) -> int:
        return len(self.target)

    def logits(self, model: str, context: tuple[int, ...]) -> NDArray[np.float32]:
        key = (model, context)
        if key not in self._rows:
            width = len(self.target if model == "p" else self.drafter)
            rng = np.random.default_rng([self.seed, model == "p", *context])
            row = self.spread * rng.standard_normal(width)
            holes = rng.random(width) < self.holes
            if model == "p":  # a target always has a next token
                holes[rng.integers(width)] = False
            elif self.peak:
                row[rng.integers(width)] += self.peak
            self._rows[key] = np.where(holes, -np.inf, row).astype(np.float32)
        return self._rows[key]

    def p(self, context: tuple[int, ...]) -> NDArray[np.float64]:
        """The target's distribution after ``context``, float64 [target vocabulary]."""
        history = _native.History(self.target_size)
        history.add(list(context))
        return _native.shape(self.logits("p", context), self.sampling, history)

    def drafts(self, draft: _native.Draft, chance: _native.Chance, budget: int) -> tuple[int, ...]:
        """Draft tokens drawn one by one, until there are enough or nothing can follow."""
        drafts: tuple[int, ...] = ()
        for _ in range(budget):
            token = draft.step(self.logits("q", drafts), chance)
            if token < 0:
                break
            drafts += (token,)
        return drafts

    def round(
        self, chance: _native.Chance, budget: int, verification: _native.Verification
    ) -> tuple[int, ...]:
        """One round of drafting and verification from an empty context; the emitted tokens."""
        return tuple(self.verdict(chance, budget, verification)[1].tokens)

    def verdict(
        self, chance: _native.Chance, budget: int, verification: _native.Verification
    ) -> tuple[_native.Proposal, _native.Verdict]:
        """The same round with everything that is known about it."""
        draft = _native.Draft(self.cache, verification, 1.0)
        draft.propose(self.given)
        self.drafts(draft, chance, budget)
        proposal = draft.finish()
        tokens = tuple(proposal.tokens)
        rows = np.stack([self.logits("p", tokens[:i]) for i in range(len(tokens) + 1)])
        history = _native.History(self.target_size)
        verdict = _native.Verifier(self.cache).verify(
            proposal, rows, self.sampling, history, chance
        )
        return proposal, verdict

    def deviation(self, budget: int, verification: _native.Verification, positions: int) -> float:
        """Largest |probability of the first ``positions`` tokens − the target's|.

        Where a round emits fewer, the target's own distribution continues it, as the next round
        would if it is exact.
        """
        rounds = outcomes(lambda chance: self.round(chance, budget, verification))
        p = cache(self.p)

        def sequence_probability(tokens: tuple[int, ...], start: int = 0) -> float:
            result = 1.0
            for i in range(start, len(tokens)):
                result *= float(p(tokens[:i])[tokens[i]])
            return result

        emitted: dict[tuple[int, ...], float] = defaultdict(float)
        for tokens, probability in rounds.items():
            emitted[tokens[:positions]] += probability
        worst = abs(sum(rounds.values()) - 1.0)
        for index in np.ndindex(*([self.target_size] * positions)):
            wanted = sequence_probability(index)
            got = sum(
                probability * sequence_probability(index, len(prefix))
                for prefix, probability in emitted.items()
                if index[: len(prefix)] == prefix
            )
            worst = max(worst, abs(got - wanted))
        return worst


def random_instance(
    seed: int, sampling: _native.SamplingParameters | None = None, letters: str = "ab"
) -> Instance:
    """Vocabularies of random short strings over ``letters``, and a cache of random n-grams."""
    rng = np.random.default_rng(seed)
    alphabet = [letter.encode() for letter in letters]

    def strings(count: int, longest: int) -> list[bytes]:
        words = {b"".join(rng.choice(alphabet, rng.integers(1, longest + 1))) for _ in range(count)}
        return sorted(words | set(alphabet[: rng.integers(0, len(alphabet) + 1)]))

    drafter_surfaces: list[bytes | None] = [*strings(4, 2), None]
    target_surfaces: list[bytes | None] = [*strings(7, 4), None]
    drafter = _native.Vocabulary(drafter_surfaces)
    target = _native.Vocabulary(target_surfaces)
    pair = _native.VocabularyPair(drafter, target)
    ngrams = _native.NgramCache(pair)
    for token, surface in enumerate(target_surfaces):
        if surface is None or rng.random() < 0.15:
            continue
        for spelling in spellings(surface, drafter_surfaces):
            for _ in range(int(rng.integers(0, 3))):
                ngrams.observe(token, spelling)
    return Instance(
        ngrams,
        drafter_surfaces,
        target_surfaces,
        seed,
        sampling or _native.SamplingParameters(temperature=1.0),
    )


def spellings(surface: bytes, drafter: list[bytes | None]) -> list[list[int]]:
    """Every way to spell ``surface`` with draft tokens."""
    if not surface:
        return [[]]
    return [
        [token, *rest]
        for token, piece in enumerate(drafter)
        if piece and surface.startswith(piece)
        for rest in spellings(surface[len(piece) :], drafter)
    ]
