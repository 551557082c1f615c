"""Several drafters: the fastest is taken, little is lost on others, answers are the target's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from toy import ToyModel, ToyPair, follows_the_target, plain_greedy, toy_pair

from omnidraft import Origin, SamplingParameters
from omnidraft.runtime.decoder import Drafting, SpeculativeDecoder
from omnidraft.runtime.drafter_choice import ALLOWANCE, FIRST_VISITS, VISIT, DrafterChoice


def run(
    choice: DrafterChoice, speeds: Sequence[float], rounds: int, seed: int = 0, reading: float = 0.0
) -> tuple[float, list[int]]:
    """Seconds that were lost against the fastest, and how often each was taken.

    Rounds give 1 to 7 tokens, at ``speeds`` tokens a second on average.
    """
    rng = np.random.default_rng(seed)
    lost, taken = 0.0, [0] * len(speeds)
    previous = -1
    for _ in range(rounds):
        i = choice.choose()
        tokens = int(rng.integers(1, 8))
        seconds = 4 / speeds[i] + reading * (i != previous)
        choice.observe(tokens, seconds)
        lost += 4 / speeds[i] + reading * (i != previous) - 4 / max(speeds)
        taken[i] += 1
        previous = i
    return lost, taken


@pytest.mark.parametrize("speeds", [(10.0, 14.0), (14.0, 10.0), (10.0, 9.0, 13.0)])
@pytest.mark.parametrize("seed", range(4))
def test_the_fastest_drafter_is_taken(speeds: tuple[float, ...], seed: int) -> None:
    choice = DrafterChoice(len(speeds))
    run(choice, speeds, 2000, seed)
    _, taken = run(choice, speeds, 2000, seed + 100)
    assert taken[int(np.argmax(speeds))] > 0.85 * 2000


@pytest.mark.parametrize("seed", range(4))
def test_another_drafter_that_becomes_the_fastest_is_found(seed: int) -> None:
    choice = DrafterChoice(2)
    run(choice, (14.0, 10.0), 1000, seed)
    run(choice, (10.0, 14.0), 3000, seed + 1)
    _, taken = run(choice, (10.0, 14.0), 1000, seed + 2)
    assert taken[1] > 850


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    speeds=st.lists(st.floats(1, 30), min_size=2, max_size=4),
    reading=st.floats(0, 2),
)
def test_little_is_lost_on_drafters_that_are_slower_by_far(
    seed: int, speeds: list[float], reading: float
) -> None:
    """First visits, the allowance, and one visit more: no matter how dear a change is."""
    speeds = [60.0, *speeds]  # twice as fast as any other: no luck hides that
    rounds = 3000
    lost, _ = run(DrafterChoice(len(speeds)), speeds, rounds, seed, reading)
    visit = VISIT * 4 / min(speeds) + 2 * reading
    seconds = rounds * 4 / max(speeds) + lost
    # A visit's loss is measured by its own tokens, which are few by chance.
    allowed = (FIRST_VISITS * (len(speeds) - 1) + 1) * visit + 2 * ALLOWANCE * seconds
    # To come back is not part of the visit's loss.
    assert lost <= allowed + reading * rounds * ALLOWANCE


def test_one_drafter_is_always_taken() -> None:
    assert run(DrafterChoice(1), (3.0,), 100)[1] == [100]


# --- in the decoder ---------------------------------------------------------------------------


def rivals(seed: int, lengths: Sequence[int] = (4, 3), context: int = 512) -> list[Drafting]:
    """Drafters of different vocabularies for the target of ``toy_pair(seed)``."""
    one = toy_pair(seed)
    other = ToyPair(toy_pair(seed + 77).drafter, one.target)
    return [
        pair.drafting(seed + i, length, context)
        for i, (pair, length) in enumerate(zip((one, other), lengths, strict=True), 1)
    ]


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), context=st.sampled_from([24, 512]))
def test_greedy_answers_are_plain_ones(seed: int, context: int) -> None:
    target = ToyModel(len(toy_pair(seed).target), seed)
    choice = DrafterChoice(2)
    decoder = SpeculativeDecoder(target, rivals(seed, context=context), choice=choice)
    expected = plain_greedy(target, [1, 2], 120)
    for _ in range(2):
        assert [emitted.token for emitted in decoder.generate([1, 2], 120)] == expected
    assert all(choice.rounds)


def test_every_drafter_sees_the_whole_text() -> None:
    """A drafter that is the target itself is right in every round, whoever drafted before."""

    class Plain(ToyModel):
        """Says no special tokens, which the two vocabularies spell differently."""

        def logits(self, context: Sequence[int]) -> NDArray[np.float32]:
            special = [surface is None for surface in pair.target]
            return super().logits(context) - np.array(special, np.float32) * 100

    pair = toy_pair(3)
    target = Plain(len(pair.target), 5)
    same = ToyPair(pair.target, pair.target)
    twin = replace(same.drafting(0, 4), model=Plain(len(pair.target), 5), begin=())
    judged = []

    class Watched(DrafterChoice):
        def observe(self, tokens: int, seconds: float) -> None:
            judged.append((self._current, tokens))
            super().observe(tokens, seconds)

    decoder = SpeculativeDecoder(target, [pair.drafting(1), twin], choice=Watched(2))
    prompt = [1, 2, 3]
    answer = [emitted.token for emitted in decoder.generate(prompt, 100)]
    assert answer == plain_greedy(target, prompt, 100)
    assert all(pair.target[token] for token in answer)
    rounds = [tokens for drafter, tokens in judged[:-1] if drafter == 1]
    assert len(rounds) > 10 and set(rounds) == {5}


def test_sampled_tokens_follow_the_target() -> None:
    target = ToyModel(len(toy_pair(5).target), 9, order=1, spread=2.5)
    drafters = rivals(5)
    origins: Counter[Origin] = Counter()
    follows: Counter[int] = Counter()

    class Even(DrafterChoice):
        """Takes every round to be as long as the others, whatever the machine does meanwhile."""

        def observe(self, tokens: int, seconds: float) -> None:
            super().observe(tokens, 1.0)

    choice = Even(2)
    for seed in range(150):
        decoder = SpeculativeDecoder(
            target,
            drafters,
            choice=choice,
            sampling=SamplingParameters(temperature=1.0),
            seed=seed,
        )
        answer = list(decoder.generate([1 + seed % 4], 60))
        origins.update(emitted.origin for emitted in answer)
        tokens = [1 + seed % 4, *(emitted.token for emitted in answer)]
        follows.update(b for a, b in pairwise(tokens) if a == 4)
    assert min(choice.rounds) > 50 and origins[Origin.DIRECT] > 50
    assert follows_the_target(target, 4, follows)
