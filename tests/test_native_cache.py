"""The n-gram cache against a plain model, its bounds, and its file."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from enumeration import spellings
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omnidraft._native import (
    CacheDamagedError,
    CacheMismatchError,
    Draft,
    Eviction,
    Generator,
    NgramCache,
    Verification,
    Vocabulary,
    VocabularyPair,
)

DRAFTER: list[bytes | None] = [b"a", b"b", b"ab", b"ba", None, b"c"]
TARGET: list[bytes | None] = [
    b"a",  # direct
    b"aab",
    b"abab",
    b"bab",
    b"aaaa",
    b"bba",
    b"abba",
    b"ababab",
    None,
    b"bab",  # the same bytes as token 3
    b"xyz",  # not to be spelled
]
PAIR = VocabularyPair(Vocabulary(DRAFTER), Vocabulary(TARGET))
NGRAMS = [
    (token, drafts)
    for token in range(1, len(TARGET))
    for drafts in spellings(TARGET[token] or b"x", DRAFTER)
]
LIMITS = 1 << 20


@dataclass
class Model:
    """What the cache should hold: entries in the order of their last use."""

    max_entries: int
    eviction: Eviction
    uses: dict[tuple[int, ...], int] = field(default_factory=dict)
    target: dict[tuple[int, ...], int] = field(default_factory=dict)

    def observe(self, token: int, drafts: tuple[int, ...]) -> bool:
        if drafts in self.uses:
            if self.target[drafts] == token:
                self.uses[drafts] = self.uses.pop(drafts) + 1
            return False
        if self.max_entries == 0:
            return False
        if len(self.uses) == self.max_entries:
            lru = self.eviction is Eviction.LRU
            victim = min(self.uses, key=(lambda _: 0) if lru else self.uses.__getitem__)
            del self.uses[victim]
        self.uses[drafts], self.target[drafts] = 1, token
        return True

    def ngrams(self) -> list[tuple[int, list[int], int, bool]]:
        best: dict[int, tuple[int, ...]] = {}
        for drafts, uses in self.uses.items():  # least recently used first
            token = self.target[drafts]
            if token not in best or uses > self.uses[best[token]]:
                best[token] = drafts
        return [
            (self.target[d], list(d), self.uses[d], best[self.target[d]] == d)
            for d in sorted(self.uses)
        ]


operations = st.lists(st.sampled_from(NGRAMS), max_size=120)


@settings(max_examples=150)
@given(operations, st.integers(0, 8), st.sampled_from(list(Eviction)))
def test_it_behaves_like_the_model(
    observed: list[tuple[int, list[int]]], max_entries: int, eviction: Eviction
) -> None:
    cache = NgramCache(PAIR, max_entries, LIMITS, eviction)
    model = Model(max_entries, eviction)
    inserted = 0
    for token, drafts in observed:
        before, state = cache.version, cache.ngrams()
        fresh = cache.observe(token, drafts)
        assert fresh == model.observe(token, tuple(drafts))
        inserted += fresh
        assert cache.ngrams() == model.ngrams()
        assert len(cache) == len(model.uses) <= max_entries
        assert cache.evictions == inserted - len(cache)
        trie = [(t, d, primary) for t, d, _, primary in cache.ngrams()]
        if trie != [(t, d, primary) for t, d, _, primary in state]:
            assert cache.version != before


def is_merged(cache: NgramCache, drafts: list[int]) -> bool:
    """Whether a greedy drafter that says these draft tokens proposes them as one target token."""
    draft = Draft(cache, Verification.GREEDY)
    chance = Generator(0)
    for token in drafts:
        row = np.zeros(len(DRAFTER), np.float32)
        row[token] = 1
        draft.step(row, chance)
    proposal = draft.finish()
    # A drafter that may not say one of them says others, which may be merged as well.
    return proposal.drafts == drafts and proposal.draft_counts == [len(drafts)]


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.sampled_from(NGRAMS), st.sampled_from(["observe", "said", "refused"])),
        max_size=60,
    ),
    st.integers(0, 8),
)
@example(  # without the refused one a drafter that wants it can only say the other
    [((1, [0, 0, 1]), "observe"), ((9, [1, 0, 1]), "observe"), *[((9, [1, 0, 1]), "refused")] * 2],
    2,
)
def test_what_the_target_refuses_leaves_the_trie_until_it_says_it(
    told: list[tuple[tuple[int, list[int]], str]], max_entries: int
) -> None:
    cache = NgramCache(PAIR, max_entries)
    doubts: dict[tuple[int, ...], int] = {}
    for (token, drafts), what in told:
        before = cache.version
        trusted = is_merged(cache, drafts)
        if what == "observe":
            cache.observe(token, drafts)
        else:
            cache.judge(drafts, what == "said")
            if tuple(drafts) in doubts:
                change = -1 if what == "said" else 1
                doubts[tuple(drafts)] = min(2, max(0, doubts[tuple(drafts)] + change))
        held = {tuple(d): target for target, d, *_ in cache.ngrams()}
        doubts = {d: doubts.get(d, 0) for d in held}
        for known in (cache, NgramCache.from_bytes(cache.to_bytes(), PAIR, max_entries)):
            for d, doubt in doubts.items():
                assert is_merged(known, list(d)) == (doubt < 2)
            for target in set(held.values()):
                spelled = {tuple(d): primary for t, d, _, primary in known.ngrams() if t == target}
                assert sum(spelled.values()) == 1
                if any(doubts[d] < 2 for d in spelled):
                    assert all(doubts[d] < 2 for d, primary in spelled.items() if primary)
        if is_merged(cache, drafts) != trusted:
            assert cache.version != before


@settings(max_examples=100)
@given(operations, st.integers(0, 900), st.sampled_from(list(Eviction)))
def test_memory_stays_within_its_bound(
    observed: list[tuple[int, list[int]]], more: int, eviction: Eviction
) -> None:
    fixed = NgramCache(PAIR).memory_bytes
    cache = NgramCache(PAIR, 1000, fixed + more, eviction)
    for token, drafts in observed:
        known = [ngram[1] for ngram in cache.ngrams()]
        fresh = cache.observe(token, drafts)
        assert cache.memory_bytes <= fixed + more
        now = [ngram[1] for ngram in cache.ngrams()]
        assert now == sorted(now)
        if fresh:
            assert drafts in now
        else:
            assert now == known
    assert len(cache) == 0 or more > 0


def test_longer_ngrams_take_the_memory_of_shorter_ones() -> None:
    """The budget of one structure is not lost to another one when n-grams change their length."""
    letters: list[bytes | None] = [bytes([i]) for i in range(64)]
    short: list[bytes | None] = [bytes([i, j]) for i in range(64) for j in range(64)]
    long: list[bytes | None] = [bytes([i, j]) * 20 for i in range(64) for j in range(64)]
    pair = VocabularyPair(Vocabulary(letters), Vocabulary([*short, *long]))
    fixed = NgramCache(pair).memory_bytes
    cache = NgramCache(pair, 10_000, fixed + 20_000)
    for token, surface in enumerate(short):
        assert cache.observe(token, list(surface or b""))
    of_short = len(cache)
    for token, surface in enumerate(long, len(short)):
        assert cache.observe(token, list(surface or b""))
        assert cache.memory_bytes <= fixed + 20_000
    assert len(cache) > 80  # 20,000 / (24 + 40 * 4) with a part of it in reserve
    for token, surface in enumerate(short):
        assert cache.observe(token, list(surface or b""))
    assert len(cache) > 0.8 * of_short > 350


def test_an_ngram_larger_than_the_bound_costs_nothing() -> None:
    letters: list[bytes | None] = [b"a"]
    surfaces: list[bytes | None] = [b"aa", b"aaa", b"a" * 120]
    pair = VocabularyPair(Vocabulary(letters), Vocabulary(surfaces))
    cache = NgramCache(pair, 100, NgramCache(pair).memory_bytes + 430)
    assert cache.observe(0, [0] * 2) and cache.observe(1, [0] * 3)
    assert not cache.observe(2, [0] * 120)
    assert [ngram[0] for ngram in cache.ngrams()] == [0, 1]


@pytest.mark.parametrize(
    ("token", "drafts"),
    [
        (1, [0]),  # too short
        (1, []),
        (0, [0, 0]),  # direct
        (1, [0, 1]),  # other bytes
        (1, [0, 0, 1, 0]),
        (1, [0, 4, 2]),  # a special among them
        (8, [0, 1]),  # a special target
        (10, [5, 5]),
    ],
)
def test_it_refuses_what_is_no_ngram(token: int, drafts: list[int]) -> None:
    cache = NgramCache(PAIR)
    version = cache.version
    assert not cache.observe(token, drafts)
    assert len(cache) == 0 and cache.version == version


def test_it_refuses_a_second_target_for_the_same_drafts() -> None:
    cache = NgramCache(PAIR)
    assert cache.observe(3, [1, 2])
    assert not cache.observe(9, [1, 2])
    assert cache.observe(9, [3, 1])
    assert cache.ngrams() == [(3, [1, 2], 1, True), (9, [3, 1], 1, True)]


def test_the_longest_ngram() -> None:
    surfaces: list[bytes | None] = [b"a" * 127, b"a" * 128]
    cache = NgramCache(VocabularyPair(Vocabulary([b"a"]), Vocabulary(surfaces)))
    assert cache.observe(0, [0] * 127)
    assert not cache.observe(1, [0] * 128)
    assert cache.ngrams() == [(0, [0] * 127, 1, True)]


@pytest.mark.parametrize(
    ("token", "drafts"), [(-1, [0, 0]), (99, [0, 0]), (1, [0, 99]), (1, [0, -1])]
)
def test_ids_outside_a_vocabulary_are_an_error(token: int, drafts: list[int]) -> None:
    with pytest.raises(IndexError, match="outside"):
        NgramCache(PAIR).observe(token, drafts)


@settings(max_examples=60)
@given(operations, operations, st.sampled_from(list(Eviction)))
def test_a_saved_cache_goes_on_as_if_it_had_never_stopped(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[tuple[int, list[int]]],
    after: list[tuple[int, list[int]]],
    eviction: Eviction,
) -> None:
    path = tmp_path_factory.mktemp("cache") / "ngrams.odn"
    cache = NgramCache(PAIR, 6, LIMITS, eviction)
    for token, drafts in before:
        cache.observe(token, drafts)
    cache.save(path)
    assert os.listdir(path.parent) == [path.name]
    loaded = NgramCache.load(path, PAIR, 6, LIMITS, eviction)
    assert loaded.ngrams() == cache.ngrams()
    for token, drafts in after:  # evictions follow the order of use, which was saved with them
        assert loaded.observe(token, drafts) == cache.observe(token, drafts)
        assert loaded.ngrams() == cache.ngrams()


def layout(cache: NgramCache) -> tuple[object, ...]:
    """All that can be seen of a cache but its version, which only has to change with the trie."""
    return cache.ngrams(), cache.memory_bytes, cache.evictions


@settings(max_examples=150)
@given(
    operations,
    operations,
    st.integers(0, 40),
    st.integers(0, 2500),
    st.sampled_from(list(Eviction)),
    st.sampled_from(list(Eviction)),
)
def test_bytes_hold_what_one_by_one_gives(
    before: list[tuple[int, list[int]]],
    after: list[tuple[int, list[int]]],
    max_entries: int,
    more: int,
    eviction: Eviction,
    old_eviction: Eviction,
) -> None:
    """Loaded at once or n-gram by n-gram, with bounds that the content may exceed."""
    saved = NgramCache(PAIR, 30, LIMITS, old_eviction)
    for token, drafts in before:
        saved.observe(token, drafts)
    data = saved.to_bytes()
    bounds = max_entries, NgramCache(PAIR).memory_bytes + more, eviction
    loaded = NgramCache.from_bytes(data, PAIR, *bounds)
    expected = NgramCache(PAIR, *bounds)
    for token, drafts, uses in body(data):
        if expected.observe(token, drafts):
            for _ in range(uses - 1):
                expected.observe(token, drafts)
    assert layout(loaded) == layout(expected)
    for token, drafts in after:  # and it goes on in the same way: the order of use is the same
        assert loaded.observe(token, drafts) == expected.observe(token, drafts)
        assert layout(loaded) == layout(expected)


def body(data: bytes) -> list[tuple[int, list[int], int]]:
    """The n-grams of a saved cache in their order: target token, draft tokens, uses."""
    words = [int.from_bytes(data[i : i + 4], "little") for i in range(20, len(data) - 8, 4)]
    ngrams, at = [], 1
    while at < len(words):
        token, length, uses = words[at : at + 3]
        ngrams.append((token, words[at + 3 : at + 3 + length], uses))
        at += 3 + length
    assert len(ngrams) == words[0]
    return ngrams


def test_a_repeated_ngram_and_a_refused_one_are_read_as_observed() -> None:
    """A body that no cache writes: with a valid checksum it means what observing it means."""
    data = filled().to_bytes()
    records = body(data)
    records += [records[0], (0, [0, 0], 5), (9, records[2][1], 3), (NGRAMS[7][0], NGRAMS[7][1], 2)]
    words = [len(records)]
    for token, drafts, uses in records:
        words += [token, len(drafts), uses, *drafts]
    altered = data[:20] + b"".join(word.to_bytes(4, "little") for word in words)
    loaded = NgramCache.from_bytes(altered + fnv1a(altered), PAIR)
    expected = filled()
    expected.observe(*NGRAMS[0])
    expected.observe(*NGRAMS[7])
    expected.observe(*NGRAMS[7])
    assert layout(loaded) == layout(expected)


def test_a_file_holds_the_bytes(tmp_path: Path) -> None:
    cache = filled()
    cache.save(tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == cache.to_bytes()
    with pytest.raises(CacheDamagedError, match="n-gram cache fails its checksum"):
        NgramCache.from_bytes(cache.to_bytes()[:-1] + b"\1", PAIR)
    with pytest.raises(TypeError):
        NgramCache.from_bytes("text", PAIR)  # type: ignore[arg-type]


def filled() -> NgramCache:
    cache = NgramCache(PAIR)
    for token, drafts in NGRAMS[:5]:
        cache.observe(token, drafts)
    return cache


def test_a_smaller_bound_keeps_the_last_used(tmp_path: Path) -> None:
    cache = filled()
    cache.observe(*NGRAMS[0])
    cache.save(tmp_path / "c")
    loaded = NgramCache.load(tmp_path / "c", PAIR, 2)
    kept = sorted(drafts for _, drafts in (NGRAMS[0], NGRAMS[4]))
    assert [drafts for _, drafts, _, _ in loaded.ngrams()] == kept


def test_every_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ngrams.odn"
    filled().save(path)
    good = path.read_bytes()
    damaged = [good[:length] for length in range(len(good))]
    damaged += [good + b"\0", good + good, b""]
    for i in range(len(good)):
        for flip in (0x01, 0x80, 0xFF):
            damaged.append(good[:i] + bytes([good[i] ^ flip]) + good[i + 1 :])
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises((CacheDamagedError, CacheMismatchError), match=r"ngrams\.odn"):
            NgramCache.load(path, PAIR)


def fnv1a(data: bytes) -> bytes:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value.to_bytes(8, "little")


def test_a_valid_checksum_does_not_excuse_nonsense(tmp_path: Path) -> None:
    """Every 32-bit word of the body set to extremes, with the checksum made right."""
    path = tmp_path / "ngrams.odn"
    cache = filled()
    cache.save(path)
    body = path.read_bytes()[:-8]
    for at in range(8, len(body) - 3, 4):
        for word in (0, 1, 127, 128, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
            altered = body[:at] + word.to_bytes(4, "little") + body[at + 4 :]
            path.write_bytes(altered + fnv1a(altered))
            try:
                loaded = NgramCache.load(path, PAIR)
            except (CacheDamagedError, CacheMismatchError):
                continue
            for token, drafts, _, _ in loaded.ngrams():  # whatever was read is an n-gram
                assert drafts in spellings(TARGET[token] or b"", DRAFTER)


def test_another_pair_and_another_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ngrams.odn"
    filled().save(path)
    other = VocabularyPair(Vocabulary([*DRAFTER, b"d"]), Vocabulary(TARGET))
    with pytest.raises(CacheMismatchError, match="another pair"):
        NgramCache.load(path, other)
    body = bytearray(path.read_bytes()[:-8])
    body[8] += 1
    path.write_bytes(bytes(body) + fnv1a(bytes(body)))
    with pytest.raises(CacheMismatchError, match="version 3"):
        NgramCache.load(path, PAIR)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cannot open"):
        NgramCache.load(tmp_path / "none", PAIR)
    with pytest.raises(OSError, match="cannot"):
        NgramCache.load(tmp_path, PAIR)
    with pytest.raises(FileNotFoundError, match="cannot write"):
        filled().save(tmp_path / "no folder" / "ngrams.odn")


def test_a_failed_save_leaves_everything_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    (folder / "inside").mkdir(parents=True)
    with pytest.raises(OSError):
        filled().save(folder)  # a folder cannot be replaced by a file
    assert os.listdir(tmp_path) == ["taken"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(PermissionError):
            filled().save(tmp_path / "ngrams.odn")
        assert os.listdir(tmp_path) == []
    finally:
        tmp_path.chmod(stat.S_IRWXU)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a full device")
def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    (tmp_path / f"ngrams.odn.tmp{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(OSError, match="cannot write"):
        filled().save(tmp_path / "ngrams.odn")
    assert os.listdir(tmp_path) == []
