"""The direct mapping between two vocabularies: both rules, small cases and real tokenizers."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnidraft._native import MappingRule, Vocabulary, VocabularyPair
from omnidraft.runtime.text.tokenizer import Tokenizer

TOKENIZERS = Path(__file__).parents[2] / "shared" / "data" / "tokenizers"


def test_equal_bytes_are_a_pair() -> None:
    pair = VocabularyPair(
        Vocabulary([b"a", b" the", "é".encode(), None, b"\xe2\x96"]),
        Vocabulary([b" the", b"\xe2\x96", b"b", None, "é".encode()]),
    )
    assert [pair.to_target(i) for i in range(5)] == [-1, 0, 4, -1, 1]
    assert [pair.to_draft(i) for i in range(5)] == [1, 4, -1, -1, 2]
    assert pair.direct_count == 3
    assert pair.rule is MappingRule.BYTES


def test_an_ordinary_token_goes_before_a_byte_token() -> None:
    drafter = Vocabulary([b"a", b"a", b"\n", b"b", b"b"], byte_tokens=[0, 2])
    target = Vocabulary([b"a", b"b", b"a", b"\n", b"b"], byte_tokens=[0, 3])
    pair = VocabularyPair(drafter, target)
    # Each surface once, its lowest ordinary id on both sides; without one, the byte token.
    assert [pair.to_target(i) for i in range(5)] == [-1, 2, 3, 1, -1]
    # Every target token knows how it is spelled, the doubled ones too.
    assert [pair.to_draft(i) for i in range(5)] == [1, 3, 1, 2, 3]
    assert pair.direct_count == 3


def test_a_token_without_bytes_is_special() -> None:
    vocabulary = Vocabulary([b"", b"a", None])
    assert [vocabulary.surface(i) for i in range(3)] == [None, b"a", None]
    assert VocabularyPair(vocabulary, vocabulary).direct_count == 1


def test_the_paper_rule_compares_strings() -> None:
    drafts = ["<s>", "<0x0A>", "<0x41>", "▁the", "▁▁", "▁", "Ġ", "x"]
    targets = ["Ċ", "Ġthe", "Ġ▁", "Ġ", "x", "▁the", "<0x41>", "<s>"]
    drafter = Vocabulary([None, *(d.encode() for d in drafts[1:])], drafts)
    pair = VocabularyPair(
        drafter, Vocabulary([t.encode() for t in targets], targets), MappingRule.PAPER
    )
    # "▁" becomes "Ġ" before the literal "Ġ" could, and only the first "▁" is rewritten.
    assert [pair.to_target(i) for i in range(8)] == [7, 0, 6, 1, 2, 3, -1, 4]
    assert pair.direct_count == 7
    # A special target token takes no part.
    special = Vocabulary([*(t.encode() for t in targets[:7]), None], targets)
    assert VocabularyPair(drafter, special, MappingRule.PAPER).direct_count == 6


words = st.lists(st.none() | st.binary(min_size=1, max_size=2), min_size=1, max_size=40)


@given(words, words, st.sets(st.integers(0, 39)), st.sets(st.integers(0, 39)))
def test_invariants(
    drafter: list[bytes | None],
    target: list[bytes | None],
    draft_bytes: set[int],
    target_bytes: set[int],
) -> None:
    pair = VocabularyPair(
        Vocabulary(drafter, byte_tokens=[i for i in draft_bytes if i < len(drafter)]),
        Vocabulary(target, byte_tokens=[i for i in target_bytes if i < len(target)]),
    )
    common = {s for s in drafter if s is not None} & {s for s in target if s is not None}
    assert pair.direct_count == len(common)
    named = [t for t in map(pair.to_target, range(len(drafter))) if t >= 0]
    assert len(set(named)) == len(named) == len(common)
    for draft, surface in enumerate(drafter):
        if (token := pair.to_target(draft)) >= 0:
            assert target[token] == surface
            assert pair.to_draft(token) == draft
    for token, surface in enumerate(target):
        assert (pair.to_draft(token) >= 0) == (surface in common)
        if surface in common:
            assert drafter[pair.to_draft(token)] == surface


def test_a_fingerprint_belongs_to_one_vocabulary() -> None:
    vocabularies = [
        Vocabulary([b"a", b"b"]),
        Vocabulary([b"b", b"a"]),
        Vocabulary([b"ab"]),
        Vocabulary([b"a", b"b", None]),
        Vocabulary([b"a", None]),
        Vocabulary([b"a", b"b"], ["a", "b"]),
        Vocabulary([b"a", b"b"], ["ab", ""]),
        Vocabulary([b"a", b"b"], byte_tokens=[0]),
    ]
    assert len({v.fingerprint for v in vocabularies}) == len(vocabularies)
    assert Vocabulary([b"a", b"b"]).fingerprint == vocabularies[0].fingerprint
    pairs = [VocabularyPair(a, b).fingerprint for a in vocabularies for b in vocabularies]
    assert len(set(pairs)) == len(pairs)
    a, b = vocabularies[5], vocabularies[6]
    by_bytes = VocabularyPair(a, b, MappingRule.BYTES).fingerprint
    assert by_bytes != VocabularyPair(a, b, MappingRule.PAPER).fingerprint


def test_errors() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        Vocabulary([])
    with pytest.raises(ValueError, match="pieces"):
        Vocabulary([b"a"], ["a", "b"])
    with pytest.raises(IndexError, match="outside"):
        Vocabulary([b"a"], byte_tokens=[1])
    vocabulary = Vocabulary([b"a"])
    pair = VocabularyPair(vocabulary, vocabulary)
    for bad in (-1, 1):
        for function in (vocabulary.surface, pair.to_draft, pair.to_target):
            with pytest.raises(IndexError, match="outside"):
                function(bad)


@cache
def real_vocabulary(name: str) -> Vocabulary:
    path = TOKENIZERS / f"{name}.tokenizer.json.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in ../shared/data/tokenizers")
    tokenizer = Tokenizer({"tokenizer.json": gzip.decompress(path.read_bytes())})
    byte_tokens = [i for i in range(tokenizer.vocab_size) if tokenizer.is_byte_token(i)]
    return Vocabulary(tokenizer.surfaces, tokenizer.tokens, byte_tokens)


@pytest.mark.parametrize(
    ("target", "by_bytes", "paper"),
    [
        ("qwen2.5", 26_342, 22_275),
        ("llama3.1", 26_599, 22_416),
        ("deepseek-v3", 28_037, 23_053),
    ],
)
def test_real_tokenizers(target: str, by_bytes: int, paper: int) -> None:
    drafter = real_vocabulary("llama2")
    assert len(drafter) == 32_000
    other = real_vocabulary(target)
    assert VocabularyPair(drafter, other, MappingRule.BYTES).direct_count == by_bytes
    assert VocabularyPair(drafter, other, MappingRule.PAPER).direct_count == paper


def test_llama2_with_itself() -> None:
    """96 surfaces are spelled by a byte token and by an ordinary one; each is one pair."""
    drafter = real_vocabulary("llama2")
    pair = VocabularyPair(drafter, drafter)
    assert pair.direct_count == 31_901
    letter = next(i for i in range(300, len(drafter)) if drafter.surface(i) == b"A")
    assert pair.to_target(letter) == letter
    assert pair.to_draft(3 + ord("A")) == letter  # <0x41>
