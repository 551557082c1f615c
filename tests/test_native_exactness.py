"""Whatever the cache holds, a round emits the target's own distribution (method: walk the trie)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from enumeration import Instance, outcomes, random_instance
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from omnidraft._native import (
    Chance,
    Draft,
    Generator,
    NgramCache,
    Origin,
    SamplingParameters,
    Verification,
    Vocabulary,
    VocabularyPair,
)

TOLERANCE = 1e-12

SAMPLING = {
    "plain": SamplingParameters(temperature=1.0),
    "cold": SamplingParameters(temperature=0.3),
    "hot": SamplingParameters(temperature=2.0),
    "top-k": SamplingParameters(temperature=1.0, top_k=3),
    "top-p": SamplingParameters(temperature=1.0, top_p=0.7),
    "min-p": SamplingParameters(temperature=1.0, min_p=0.2),
    "penalty": SamplingParameters(temperature=1.0, repetition_penalty=1.7),
    "reward": SamplingParameters(temperature=1.0, repetition_penalty=0.6),
    "all": SamplingParameters(
        temperature=0.8, top_k=5, top_p=0.9, min_p=0.05, repetition_penalty=1.2
    ),
}


def plain(instance: Instance) -> None:
    pass


def holes(instance: Instance) -> None:
    instance.holes = 0.5


def underflow(instance: Instance) -> None:
    instance.spread = 150.0  # most weights are exactly 0


def peaked(instance: Instance) -> None:
    instance.peak = 1000.0  # often of a token that cannot be proposed, or not at every node


def doubted(instance: Instance) -> None:
    for _, drafts, *_ in instance.cache.ngrams()[::2]:
        for _ in range(2):
            instance.cache.judge(drafts, False)


def both(instance: Instance) -> None:
    instance.spread, instance.holes = 40.0, 0.3


@pytest.mark.parametrize("name", SAMPLING)
def test_one_position_is_exact(name: str) -> None:
    for seed in range(60):
        instance = random_instance(seed, SAMPLING[name])
        assert instance.deviation(1 + seed % 4, Verification.EXACT, 1) < TOLERANCE, seed


@pytest.mark.parametrize("change", [holes, underflow, peaked, both, doubted])
@pytest.mark.parametrize("name", ["plain", "all"])
def test_extreme_logits_are_exact(name: str, change: Callable[[Instance], None]) -> None:
    for seed in range(25):
        instance = random_instance(1000 + seed, SAMPLING[name])
        change(instance)
        assert instance.deviation(1 + seed % 4, Verification.EXACT, 2) < TOLERANCE, seed


def softmax(logits: NDArray[np.float32], allowed: set[int], temperature: float) -> dict[int, float]:
    """Probabilities of the allowed tokens whose logits are finite, in extended precision."""
    finite = [token for token in allowed if logits[token] > -np.inf]
    exponents = logits[finite].astype(np.longdouble) / np.longdouble(temperature)
    weights = np.exp(exponents - exponents.max(initial=-np.inf))
    return dict(zip(finite, (weights / weights.sum()).astype(float).tolist(), strict=True))


def drafts_wanted(
    instance: Instance, steps: int, temperature: float
) -> dict[tuple[int, ...], float]:
    """Probability of every sequence of draft tokens: each drawn among what the trie allows."""
    direct = set(instance.target) - {None}
    paths = {(d,) for d, surface in enumerate(instance.drafter) if surface in direct}
    paths |= {tuple(drafts) for _, drafts, _, primary in instance.cache.ngrams() if primary}

    def children(node: tuple[int, ...]) -> set[int]:
        return {path[len(node)] for path in paths if path[:-1][: len(node)] == node}

    found: dict[tuple[int, ...], float] = {}

    def extend(drafts: tuple[int, ...], node: tuple[int, ...], probability: float) -> None:
        allowed = children(node)
        if node in paths or not allowed:
            allowed = allowed | children(())
        following = softmax(instance.logits("q", drafts), allowed, temperature)
        if len(drafts) == steps or not following:
            found[drafts] = probability
            return
        for token, share in following.items():
            begun = node if token in children(node) else ()
            extend((*drafts, token), (*begun, token), probability * share)

    extend((), (), 1.0)
    return found


@settings(max_examples=150)
@given(
    st.integers(0, 2**20),
    st.floats(-3, 1).map(lambda exponent: 10.0**exponent),
    st.floats(-1, 4).map(lambda exponent: 10.0**exponent),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.0, 1e4]),
)
def test_drafts_are_drawn_among_what_can_be_proposed(
    seed: int, temperature: float, spread: float, holes: float, peak: float
) -> None:
    """However far the drafter prefers what cannot be proposed: no step that could draw is empty."""
    instance = random_instance(seed)
    instance.spread, instance.holes, instance.peak = spread, holes, peak
    found = outcomes(
        lambda chance: instance.drafts(
            Draft(instance.cache, Verification.EXACT, temperature), chance, 3
        )
    )
    wanted = drafts_wanted(instance, 3, temperature)
    for drafts in found.keys() | wanted.keys():
        assert found.get(drafts, 0.0) == pytest.approx(wanted.get(drafts, 0.0), rel=0, abs=2e-6)


def test_a_favourite_that_cannot_be_proposed_does_not_empty_a_draft() -> None:
    drafter: list[bytes | None] = [b"lacking", b"a", b"b"]
    target: list[bytes | None] = [b"a", b"b", b"c"]
    cache = NgramCache(VocabularyPair(Vocabulary(drafter), Vocabulary(target)))
    row = np.array([10, 5, 4.9], np.float32)

    def step(chance: Chance) -> int:
        draft = Draft(cache, Verification.EXACT, 0.05)
        token = draft.step(row, chance)
        assert draft.confidence == pytest.approx(1.0)  # the drafter was sure of the other token
        return token

    wanted = softmax(row, {1, 2}, 0.05)
    assert outcomes(step) == pytest.approx(wanted, abs=1e-6)
    assert wanted[1] == pytest.approx(0.88, abs=0.01)


@pytest.mark.parametrize("name", SAMPLING)
def test_rounds_of_two_positions_are_exact(name: str) -> None:
    for seed in range(20):
        instance = random_instance(2000 + seed, SAMPLING[name])
        assert instance.deviation(1 + seed % 4, Verification.EXACT, 2) < TOLERANCE, seed


def test_larger_worlds_are_exact() -> None:
    """Three letters and five draft steps: deeper paths, more n-grams on one prefix."""
    for seed in range(6):
        instance = random_instance(3000 + seed, letters="abc")
        assert instance.deviation(5, Verification.EXACT, 1) < TOLERANCE, seed


def test_the_worlds_hold_what_they_should() -> None:
    """Several spellings, shared prefixes, inner tokens, tokens outside the trie: all occur."""
    seen: Counter[str] = Counter()
    for seed in range(30):
        instance = random_instance(seed)
        ngrams = instance.cache.ngrams()
        paths = [tuple(drafts) for _, drafts, _, _ in ngrams]
        seen["spellings"] += any(not primary for *_, primary in ngrams)
        seen["prefixes"] += any(a != b and a[:2] == b[:2] for a in paths for b in paths)
        seen["inner"] += any(a != b and a == b[: len(a)] for a in paths for b in paths)
        seen["outside"] += len({token for token, *_ in ngrams}) < instance.target_size - 4
    assert min(seen[name] for name in ("spellings", "prefixes", "inner", "outside")) >= 3, seen


@pytest.mark.parametrize("change", [plain, holes, underflow, both])
@pytest.mark.parametrize("verification", [Verification.EXACT, Verification.PAPER])
@pytest.mark.parametrize("name", SAMPLING)
def test_given_tokens_are_exact(
    name: str, verification: Verification, change: Callable[[Instance], None]
) -> None:
    """Target tokens proposed without drafting: any of them, by either verification."""
    for seed in range(12):
        instance = random_instance(4000 + seed, SAMPLING[name])
        change(instance)
        given = np.random.default_rng(seed).integers(0, instance.target_size, 1 + seed % 3)
        instance.given = tuple(given.tolist())
        assert instance.deviation(0, verification, 2) < TOLERANCE, seed


@pytest.mark.parametrize("name", ["plain", "all"])
def test_drafted_tokens_after_given_ones_are_exact(name: str) -> None:
    for seed in range(15):
        instance = random_instance(5000 + seed, SAMPLING[name])
        instance.given = (seed % instance.target_size,)
        assert instance.deviation(1 + seed % 3, Verification.EXACT, 2) < TOLERANCE, seed


@pytest.mark.parametrize("outside", [-1, 99])
def test_given_tokens_are_checked(outside: int) -> None:
    instance = random_instance(0)
    draft = Draft(instance.cache, Verification.EXACT)
    with pytest.raises(IndexError, match="outside the target's vocabulary"):
        draft.propose([0, outside])
    assert draft.finish().tokens == []
    draft.step(instance.logits("q", ()), Generator(0))
    with pytest.raises(ValueError, match="before"):
        draft.propose([0])


def test_a_paper_round_is_not_exact() -> None:
    """The approximation is measurable, and so would be a mistake in the exact walk."""
    worst = max(random_instance(seed).deviation(3, Verification.PAPER, 1) for seed in range(20))
    assert worst > 0.05


@pytest.mark.parametrize("penalty", [1.0, 1.5, 0.7])
@pytest.mark.parametrize("change", [plain, both])
def test_greedy_is_the_targets_argmax(penalty: float, change: Callable[[Instance], None]) -> None:
    sampling = SamplingParameters(repetition_penalty=penalty)
    accepted: Counter[Origin] = Counter()
    for seed in range(150):
        instance = random_instance(seed, sampling)
        change(instance)
        proposal, verdict = instance.verdict(Generator(0), 1 + seed % 8, Verification.GREEDY)
        for i, token in enumerate(verdict.tokens):
            context = tuple(verdict.tokens[:i])
            row = instance.logits("p", context).copy()
            for old in set(context):
                row[old] = row[old] / np.float32(penalty) if row[old] > 0 else row[old] * penalty
            assert token == int(np.argmax(row))
        assert verdict.accepted == len(verdict.tokens) - 1
        assert verdict.tokens[:-1] == proposal.tokens[: verdict.accepted]
        accepted.update(verdict.origins)
    assert accepted[Origin.MERGED] > 5 and accepted[Origin.CORRECTED] > 5


@pytest.mark.parametrize("given", [0, 2])
@pytest.mark.parametrize("verification", list(Verification))
def test_a_verdict_counts_what_it_says(verification: Verification, given: int) -> None:
    greedy = verification is Verification.GREEDY
    sampling = SamplingParameters(temperature=0.0 if greedy else 1.0)
    for seed in range(150):
        instance = random_instance(seed, sampling)
        random = np.random.default_rng(seed)
        instance.given = tuple(random.integers(0, instance.target_size, given).tolist())
        proposal, verdict = instance.verdict(Generator(seed), 1 + seed % 6, verification)
        assert [count == 0 for count in proposal.draft_counts[:given]] == [True] * given
        assert all(count > 0 for count in proposal.draft_counts[given:])
        merged = [count > 1 for count in proposal.draft_counts]
        assert verdict.proposed == len(proposal.tokens) == len(merged)
        assert sum(proposal.draft_counts) <= len(proposal.drafts)
        assert verdict.merged == sum(merged)
        assert verdict.merged_accepted == sum(merged[: verdict.accepted])
        assert verdict.accepted_drafts == sum(proposal.draft_counts[: verdict.accepted])
        assert verdict.tokens[: verdict.accepted] == proposal.tokens[: verdict.accepted]
        assert len(verdict.tokens) == len(verdict.origins) == verdict.accepted + 1
        wanted = [Origin.MERGED if m else Origin.DIRECT for m in merged[: verdict.accepted]]
        wanted[:given] = [Origin.LOOKUP] * len(wanted[:given])
        assert verdict.origins[:-1] == wanted
        rejected = verdict.accepted < verdict.proposed
        # A path that the budget cut short proposes no token; rejecting it inside is a correction.
        if rejected:
            assert verdict.origins[-1] is Origin.CORRECTED
        elif verification is not Verification.EXACT:
            assert verdict.origins[-1] is Origin.FREE


def test_sampled_rounds_follow_the_target() -> None:
    """The real generator: two tokens of 30,000 rounds against the target, merges included."""
    instance = next(
        world
        for world in map(random_instance, range(100))
        if sum(primary for *_, primary in world.cache.ngrams()) >= 3
    )
    pairs: Counter[tuple[int, int]] = Counter()
    merged = 0
    for seed in range(30_000):
        _, verdict = instance.verdict(Generator(seed), 4, Verification.EXACT)
        tokens = list(verdict.tokens)
        merged += verdict.merged_accepted
        if len(tokens) == 1:  # the next round would begin here; the target itself stands in for it
            weights = instance.p(tuple(tokens)).tolist()
            tokens.append(Generator(seed + 1_000_000).draw(weights))
        pairs[tokens[0], tokens[1]] += 1
    assert merged > 1000
    wanted = np.array(
        [
            instance.p(())[a] * instance.p((a,))[b]
            for a in range(instance.target_size)
            for b in range(instance.target_size)
        ]
    )
    found = np.array([pairs[divmod(i, instance.target_size)] for i in range(len(wanted))])
    likely = wanted * 30_000 >= 5
    observed = [*found[likely], found[~likely].sum()]
    expected = 30_000 * np.array([*wanted[likely], wanted[~likely].sum()])
    assert chisquare(observed, expected).pvalue > 1e-4
