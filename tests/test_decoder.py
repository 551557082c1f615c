"""The decoding loop: whatever is drafted, the tokens are the target's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare
from toy import ToyModel, ToyPair, plain_greedy, toy_pair

from omnidraft import Origin, SamplingParameters, Verification
from omnidraft._native import Fixed, Lookup, Outcome, Speller, Vocabulary, VocabularyPair
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.decoding.observed import Round
from omnidraft.runtime.errors import ContextOverflowError, OmniDraftError


def tokens_of(decoder: SpeculativeDecoder, prompt: list[int], count: int, stop=()) -> list[int]:
    return [emitted.token for emitted in decoder.generate(prompt, count, stop)]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    length=st.integers(1, 9),
    count=st.integers(1, 60),
    prompt_length=st.integers(1, 20),
    drafter_context=st.sampled_from([24, 40, 512]),
)
def test_greedy_is_plain_decoding_token_for_token(
    seed: int, length: int, count: int, prompt_length: int, drafter_context: int
) -> None:
    pair = toy_pair(seed)
    rng = np.random.default_rng(seed)
    target = ToyModel(len(pair.target), seed)
    prompt = rng.integers(0, len(pair.target), prompt_length).tolist()
    drafting = pair.drafting(seed + 1, length, max_length=drafter_context)
    decoder = SpeculativeDecoder(target, drafting)
    expected = plain_greedy(target, prompt, count)
    assert tokens_of(decoder, prompt, count) == expected
    # A second answer with a warm cache and KV caches left over from the first.
    assert tokens_of(decoder, prompt, count) == expected
    stats = decoder.statistics
    assert stats.target_tokens == count
    assert stats.accepted <= stats.proposed
    assert stats.ngram_accepted <= stats.ngram_hits <= stats.proposed
    assert stats.rounds <= count


@pytest.mark.parametrize("sampled", [False, True])
def test_an_ngram_of_the_prompt_that_the_target_never_says_is_soon_left_alone(
    sampled: bool,
) -> None:
    """The target spells "ab" as two tokens, the prompt as one."""

    class Alternating(ToyModel):
        def logits(self, context: Sequence[int]) -> NDArray[np.float32]:
            row = np.zeros(self.vocab_size, np.float32)
            row[2 if context[-1] == 1 else 1] = 40
            return row

    pair = ToyPair([None, b"a", b"b"], [None, b"a", b"b", b"ab"])
    drafting = dataclasses.replace(pair.drafting(0, 4), model=Alternating(3))
    sampling = SamplingParameters(temperature=1.0 if sampled else 0.0)
    decoder = SpeculativeDecoder(Alternating(4), drafting, sampling=sampling, seed=0)
    assert tokens_of(decoder, [3], 100) == [1, 2] * 50
    stats = decoder.statistics
    assert len(pair.cache) == 1 and stats.ngram_accepted == 0
    assert 2 <= stats.ngram_hits <= 6
    assert stats.rounds < 30


@pytest.mark.parametrize("drafter_context", [40, 64, 512])
def test_a_policy_is_told_what_the_drafter_will_read(drafter_context: int) -> None:
    """Also where the drafter's context is shorter than the text, and where rounds are skipped."""
    pair = toy_pair(1)
    told = []

    class NowAndThen(Fixed):
        def begin(self, room: int, space: int, context: int, unread: int, found: int) -> int:
            limit = super().begin(room, space, context, unread, found) if len(told) % 7 else 0
            told.append((limit, unread, len(drafting.model.passes)))
            return limit

    drafting = dataclasses.replace(
        pair.drafting(2, max_length=drafter_context), policy=NowAndThen(3)
    )
    decoder = SpeculativeDecoder(ToyModel(len(pair.target), 1), drafting)
    assert len(tokens_of(decoder, [2, 3] * 60, 200)) == 200
    drafted = [(unread, passes) for limit, unread, passes in told if limit]
    assert len(drafted) > 20
    for unread, passes in drafted:
        assert drafting.model.passes[passes] == unread <= drafter_context


def test_a_perfect_drafter_is_accepted_whole() -> None:
    pair = toy_pair(3)
    pair = type(pair)(pair.target, pair.target)
    target = ToyModel(len(pair.target), 5, order=1)
    # Specials would be seen as text: keep them out of the target's mouth.
    ordinary = [t for t, surface in enumerate(pair.target) if surface]

    table = ToyModel(len(pair.target), 5, order=1)

    def logits(context: list[int]) -> np.ndarray:
        row = np.full(len(pair.target), -50, np.float32)
        row[ordinary] = table.logits(context)[ordinary]
        return row

    target.logits = logits
    drafting = pair.drafting(5, 4)
    drafting.model.logits = logits
    decoder = SpeculativeDecoder(target, drafting)
    origins = [emitted.origin for emitted in decoder.generate([ordinary[0]], 50)]
    assert decoder.statistics.acceptance_rate == 1
    assert decoder.statistics.block_efficiency == 5
    assert origins == [*[Origin.DIRECT] * 4, Origin.FREE] * 10


def test_stops_at_an_end_token_and_says_so() -> None:
    pair = toy_pair(1)
    target = ToyModel(len(pair.target), 2)
    answer = plain_greedy(target, [1], 40)
    end = answer[11]
    decoder = SpeculativeDecoder(target, pair.drafting())
    first = answer.index(end)
    assert tokens_of(decoder, [1], 40, stop=[end]) == answer[: first + 1]
    assert decoder.finish_reason == "stop"
    assert decoder.statistics.target_tokens == first + 1
    assert tokens_of(decoder, [1], 5) == answer[:5]
    assert decoder.finish_reason == "length"


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 9), data=st.data())
def test_every_token_is_accepted_or_ends_its_round(
    seed: int, length: int, data: st.DataObject
) -> None:
    """Also where the answer ends, n-grams and lookups among what was proposed."""
    pair = toy_pair(seed)
    target = ToyModel(len(pair.target), seed, order=1)
    answer = plain_greedy(target, [2], 40)
    ends = data.draw(st.lists(st.sampled_from(answer), max_size=2))
    expected = answer[: min((answer.index(end) + 1 for end in ends), default=40)]
    # It knows the target's text by heart once it has seen some of it.
    drafting = dataclasses.replace(pair.drafting(seed + 1, length), lookup=Lookup(len(pair.target)))
    decoder = SpeculativeDecoder(target, drafting)
    for _ in range(2):
        assert tokens_of(decoder, [2], 40, stop=ends) == expected
        stats = decoder.statistics
        assert stats.accepted + stats.rounds == stats.target_tokens == len(expected)
        assert stats.ngram_accepted <= stats.ngram_hits <= stats.proposed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("looked_up", [False, True])
def test_what_stands_behind_the_end_counts_nowhere(temperature: float, looked_up: bool) -> None:
    """A perfect drafter, or a lookup, proposes the end token and tokens behind it."""

    class Counting(ToyModel):
        def logits(self, context: Sequence[int]) -> NDArray[np.float32]:
            row = np.full(self.vocab_size, -60, np.float32)
            row[context[-1] % 8 + 1] = 0
            return row

    letters: list[bytes | None] = [None, *(bytes([c]) for c in b"abcdefgh")]
    pair = ToyPair(letters, letters)
    seen: list[Round] = []
    told: list[Outcome] = []

    class Watched(Fixed):
        def found(self, match: int) -> float:
            return 1.0

        def layer(self, *arguments: Any) -> int:
            return 0 if looked_up else super().layer(*arguments)

        def count(self, gains: Sequence[float], limit: int) -> int:
            return min(limit, len(gains))

        def observe(self, outcome: Outcome) -> None:
            told.append(outcome)

    drafting = dataclasses.replace(
        pair.drafting(length=8),
        model=Counting(9),
        policy=Watched(8),
        lookup=Lookup(9) if looked_up else None,
    )
    target = Counting(9)
    decoder = SpeculativeDecoder(
        target,
        drafting,
        sampling=SamplingParameters(temperature=temperature),
        seed=0,
        observer=lambda shown: seen.append(shown._replace(context=list(shown.context))),
    )
    prompt = [*range(1, 9), 1, 2, 3] if looked_up else [3]
    origin = Origin.LOOKUP if looked_up else Origin.DIRECT
    emitted = [(each.token, each.origin) for each in decoder.generate(prompt, 100, stop=[6])]
    assert emitted == [(4, origin), (5, origin), (6, origin)]
    assert decoder.finish_reason == "stop"
    stats = decoder.statistics
    assert (stats.target_tokens, stats.rounds, stats.block_efficiency) == (3, 1, 3)
    assert (stats.proposed, stats.accepted, stats.acceptance_rate) == (2, 2, 1)
    assert stats.draft_tokens == (0 if looked_up else 2)
    [outcome] = told
    assert outcome.tokens == 3
    assert [each.right for each in outcome.judged] == ([] if looked_up else [True, True])
    assert outcome.rows == target.passes[-1] > 3, "what the pass took belongs to all its rows"
    if looked_up:  # each token is a round without a draft
        assert [(len(shown.context), shown.last) for shown in seen] == [(12, 4), (13, 5), (14, 6)]
        assert all(not shown.drafts and len(shown.logits) == 1 for shown in seen)
    else:
        [shown] = seen
        assert (shown.tokens, shown.drafts, shown.last) == ([4, 5], [4, 5], 6)
        assert len(shown.logits) == 3
    # Like any last token the end is not in the KV cache.
    assert target.tokens == [*prompt, 4, 5]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("passes", [0, 1, 7])
@pytest.mark.parametrize("how", ["nan", "raises", "narrow", "runs out"])
def test_an_answer_goes_on_without_a_drafter_that_breaks(
    how: str, passes: int, temperature: float
) -> None:
    class Breaking(ToyModel):
        def forward(
            self, tokens: Sequence[int] | NDArray[np.int64], rows: int | None = None
        ) -> NDArray[np.float32]:
            logits = super().forward(tokens, rows)
            if len(self.passes) <= passes:
                return logits
            if how == "raises":
                raise RuntimeError("the device is gone")
            if how == "runs out":
                raise MemoryError
            return logits[:, :-1].copy() if how == "narrow" else np.full_like(logits, np.nan)

    pair = toy_pair(4)
    target = ToyModel(len(pair.target), 7)
    good = pair.drafting(5, 3)
    drafting = dataclasses.replace(good, model=Breaking(good.model.vocab_size, 5))
    sampling = SamplingParameters(temperature=temperature)
    decoder = SpeculativeDecoder(target, drafting, sampling=sampling, seed=1)
    for _ in range(2):
        drafting.model.passes.clear()
        with pytest.warns(UserWarning, match="drafter failed") as caught:
            answer = tokens_of(decoder, [2, 3], 40)
        assert len(caught) == 1
        assert len(answer) == 40
        if not temperature:
            assert answer == plain_greedy(target, [2, 3], 40)
        assert len(drafting.model.passes) == passes + 1, "it is not asked again"
        assert decoder.statistics.draft_tokens <= passes


def test_a_target_that_breaks_is_an_error() -> None:
    class Breaking(ToyModel):
        def logits(self, context: Sequence[int]) -> NDArray[np.float32]:
            row = super().logits(context)
            return row * np.float32(np.nan) if len(context) > 9 else row

    pair = toy_pair(4)
    decoder = SpeculativeDecoder(Breaking(len(pair.target), 7), pair.drafting(5, 3))
    with pytest.raises(OmniDraftError, match=r"NaN|not numbers"):
        tokens_of(decoder, [2, 3], 40)


def test_fills_the_context_to_the_last_token() -> None:
    pair = toy_pair(1)
    target = ToyModel(len(pair.target), 2, max_length=30)
    decoder = SpeculativeDecoder(target, pair.drafting())
    prompt = [1] * 10
    # 30 positions: the prompt's 10 and 20 more; the token after the last needs none.
    assert tokens_of(decoder, prompt, 1000) == plain_greedy(target, prompt, 21)
    assert decoder.finish_reason == "length"
    with pytest.raises(ContextOverflowError, match=r"30 tokens.* by 1 token or more"):
        tokens_of(decoder, [1] * 30, 1)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(OmniDraftError, match="no tokens"):
        tokens_of(SpeculativeDecoder(ToyModel(5)), [], 1)


def test_a_long_prompt_is_read_in_chunks() -> None:
    target = ToyModel(8, max_length=2000)
    tokens_of(SpeculativeDecoder(target), [1] * 700, 1)
    assert max(target.passes) <= 256
    assert sum(target.passes) == 700


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_numbers_are_reported(bad: float) -> None:
    target = ToyModel(8)
    target.logits = lambda context: np.full(8, bad, np.float32)
    with pytest.raises(OmniDraftError, match="not numbers"):
        tokens_of(SpeculativeDecoder(target), [1], 3)


@pytest.mark.parametrize("verification", [Verification.EXACT, Verification.PAPER])
def test_a_seed_repeats_a_sampled_run(verification: Verification) -> None:
    runs = []
    for seed in (7, 7, 8):
        pair = toy_pair(4)
        decoder = SpeculativeDecoder(
            ToyModel(len(pair.target), 2),
            pair.drafting(),
            sampling=SamplingParameters(temperature=1.0),
            verification=verification,
            seed=seed,
        )
        runs.append(tokens_of(decoder, [1, 2], 40))
    assert runs[0] == runs[1] != runs[2]


def test_sampled_tokens_follow_the_target_with_merges_and_a_growing_cache() -> None:
    pair = toy_pair(11)
    target = ToyModel(len(pair.target), 9, order=1, spread=1.0)
    sampling = SamplingParameters(temperature=1.0)
    counts = np.zeros((len(pair.target), len(pair.target)))
    merged = 0
    drafting = pair.drafting(3)
    for seed in range(300):
        decoder = SpeculativeDecoder(target, drafting, sampling=sampling, seed=seed)
        previous = 1
        for token, origin, *_ in decoder.generate([1], 40):
            counts[previous, token] += 1
            merged += origin == Origin.MERGED
            previous = token
    assert merged > 100
    history = None
    for previous in range(len(pair.target)):
        seen = counts[previous].sum()
        logits = target.logits([previous]).astype(np.float64)
        p = np.exp(logits - logits.max())
        expected = seen * p / p.sum()
        enough = expected >= 5
        if enough.sum() < 2:
            continue
        observed = np.append(counts[previous][enough], counts[previous][~enough].sum())
        wanted = np.append(expected[enough], expected[~enough].sum())
        keep = wanted > 0
        history = chisquare(observed[keep], wanted[keep]).pvalue
        assert history > 1e-4, f"after token {previous}: p = {history}"
    assert history is not None


def test_the_draft_context_spells_the_targets_bytes() -> None:
    pair = toy_pair(21)
    target = ToyModel(len(pair.target), 4)
    drafting = pair.drafting(6)
    prompt = [1, 3, 2, 0, 4]
    decoder = SpeculativeDecoder(target, drafting)
    answer = tokens_of(decoder, prompt, 30)

    def spelled(tokens: list[int]) -> bytes:
        return b"".join(
            b"".join(pair.drafter[d] or b"" for d in pair.speller.spell(t)) for t in tokens
        )

    def surface(tokens: list[int]) -> bytes:
        known = [t for t in tokens if pair.speller.spell(t)]
        return b"".join(b"a" if pair.target[t] is None else pair.target[t] for t in known)

    assert spelled(prompt + answer) == surface(prompt + answer)
    # What the drafter holds is a prefix of that, as drafted.
    held = b"".join(pair.drafter[d] or b"" for d in drafting.model.tokens)
    assert surface(prompt) == held[: len(surface(prompt))]


def test_shared_special_tokens_are_spelled_by_themselves() -> None:
    pair = toy_pair(2)
    native = VocabularyPair(Vocabulary(pair.drafter), Vocabulary(pair.target))
    speller = Speller(native, pair.segment, "b", {0: 0})
    last = len(pair.target) - 1
    assert speller.spell(0) == [0]
    assert speller.spell(last) == pair.segment(b"b")
