"""Lookup drafting against a search of the whole text, and rounds that it drafts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import toy_pair

from omnidraft._native import (
    Draft,
    DraftContext,
    Generator,
    History,
    Lookup,
    NgramCache,
    Origin,
    SamplingParameters,
    Verification,
    Verifier,
    Vocabulary,
    VocabularyPair,
)

WORDS = 4
texts = st.lists(st.integers(0, WORDS - 1), max_size=80)


def search(text: list[int], count: int, min_match: int) -> tuple[int, list[int]]:
    """Length of the longest earlier occurrence of the text's end, and what followed."""
    for length in range(len(text) - 1, 0, -1):
        for end in range(len(text) - 1, length - 1, -1):  # the most recent first
            if text[end - length : end] == text[-length:]:
                followed = list(text)
                for _ in range(count):  # a loop goes on
                    followed.append(followed[end + len(followed) - len(text)])
                return length, followed[len(text) :] if length >= min_match else []
    return 0, []


@settings(max_examples=200)
@given(st.lists(texts, max_size=4), st.integers(0, 6), st.integers(0, 4))
def test_it_finds_what_a_search_finds(pieces: list[list[int]], count: int, min_match: int) -> None:
    lookup, text = Lookup(WORDS), []
    for piece in pieces:
        lookup.add(piece)
        text += piece
        length, followed = search(text, count, min_match)
        assert lookup.match_length == length
        assert lookup.propose(count, min_match) == followed
        assert len(lookup) == len(text)


@settings(max_examples=100)
@given(texts, st.integers(2, 20))
def test_the_oldest_tokens_go(text: list[int], max_tokens: int) -> None:
    lookup = Lookup(WORDS, max_tokens)
    for i, token in enumerate(text):
        lookup.add([token])
        assert min(i + 1, max_tokens // 2) <= len(lookup) <= max_tokens
        kept = text[i + 1 - len(lookup) : i + 1]
        assert (lookup.match_length, lookup.propose(3, 1)) == search(kept, 3, 1)


def test_the_way_tokens_arrive_makes_no_difference() -> None:
    text = np.random.default_rng(0).integers(0, WORDS, 1000).tolist()
    one, many = Lookup(WORDS, 300), Lookup(WORDS, 300)
    many.add(text)
    for token in text:
        one.add([token])
    assert len(one) == len(many) and one.propose(9) == many.propose(9)
    one.clear()
    assert len(one) == one.match_length == 0 and one.propose(9, 0) == []
    one.add(text)
    assert one.propose(9) == many.propose(9)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="2 to 2"):
        Lookup(WORDS, 1)
    lookup = Lookup(WORDS)
    for token in (-1, WORDS):
        with pytest.raises(IndexError, match="outside"):
            lookup.add([0, token])
    assert len(lookup) == 0


def test_an_answer_that_repeats_is_drafted_by_lookup() -> None:
    """Greedy rounds without a drafter: the same tokens in a fraction of the passes."""
    vocabulary = 50
    target = Vocabulary([None] * vocabulary)
    cache = NgramCache(VocabularyPair(Vocabulary([None]), target))
    phrase = np.random.default_rng(1).permutation(vocabulary)[:12].tolist()
    answer = phrase * 6
    draft, verifier = Draft(cache, Verification.GREEDY), Verifier(cache)
    lookup, history = Lookup(vocabulary), History(vocabulary)
    emitted: list[int] = []
    origins: list[Origin] = []
    rounds = 0
    while len(emitted) < len(answer):
        draft.propose(lookup.propose(7))
        proposal = draft.finish()
        rows = np.zeros((len(proposal.tokens) + 1, vocabulary), np.float32)
        for i, row in enumerate(rows):
            row[answer[(len(emitted) + i) % len(answer)]] = 1
        verdict = verifier.verify(proposal, rows, SamplingParameters(), history, Generator(0))
        emitted += verdict.tokens
        origins += verdict.origins
        lookup.add(verdict.tokens)
        rounds += 1
    assert emitted[: len(answer)] == answer
    assert rounds == 12 + 2 + 8  # two tokens of the second phrase, then eight a round
    assert origins.count(Origin.LOOKUP) == 56


def test_the_drafter_sees_what_was_looked_up() -> None:
    """Without draft tokens of their own, accepted tokens are spelled as any other text."""
    pair = toy_pair(2)
    context = DraftContext(pair.speller, pair.cache)
    draft = Draft(pair.cache, Verification.GREEDY)
    tokens = [token for token, surface in enumerate(pair.target) if surface][:3]
    draft.propose(tokens)
    proposal = draft.finish()
    assert proposal.draft_counts == [0, 0, 0] and proposal.drafts == []
    context.extend(proposal.tokens, [[], [], []])
    spelled = b"".join(pair.drafter[draft_token] or b"" for draft_token in context.tokens)
    assert spelled == b"".join(pair.target[token] or b"" for token in tokens)
