"""Stop strings in a stream are found where they are in the whole text."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from omnidraft.runtime.text.stop import StopSearch

# Few characters: repetitions and overlaps are then frequent.
TEXT = st.text("abé", max_size=30)
STOPS = st.lists(st.text("abé", min_size=1, max_size=5), max_size=4)


def earliest(text: str, stops: list[str]) -> int | None:
    return min((text.find(stop) for stop in stops if stop in text), default=None)


@given(st.lists(TEXT, max_size=8), STOPS)
@example(["ab", "ab", "a"], ["ababa"])
@example(["abb"], ["b", "abb"])
@example(["ab", "é"], ["b", "abb"])
def test_the_earliest_occurrence_is_found(pieces: list[str], stops: list[str]) -> None:
    search = StopSearch(stops)
    for piece in pieces:
        search.push(piece)
    assert search.cut == earliest("".join(pieces), stops)


@given(TEXT, TEXT, STOPS)
def test_what_is_certain_stays_so_and_no_more_is_held_back(
    text: str, rest: str, stops: list[str]
) -> None:
    search = StopSearch(stops)
    search.push(text)
    cut = earliest(text + rest, stops)
    assert search.certain <= (len(text) if cut is None else cut)
    if search.ended:
        assert search.cut == search.certain == cut
    # What is held back begins a stop string, or is a whole one.
    held = text[search.certain :]
    assert not held or any(stop.startswith(held) or held.startswith(stop) for stop in stops)


@given(TEXT, STOPS)
def test_where_pieces_end_makes_no_difference(text: str, stops: list[str]) -> None:
    whole, pieces = StopSearch(stops), StopSearch(stops)
    whole.push(text)
    for character in text:
        pieces.push(character)
    found = [(search.cut, search.certain, search.ended) for search in (whole, pieces)]
    assert found[0] == found[1]
