"""Fair turns: who is next, and who gives way where no place is left."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from omnidraft.serve.turns import Turns

CLIENTS = st.sampled_from("abcd")


def test_clients_take_turns() -> None:
    turns = Turns[str](8)
    for name in ("a1", "a2", "a3", "b1", "c1", "b2"):
        assert turns.join(name[0], name) is None
    taken = [turns.take() for _ in range(7)]
    assert taken == ["a1", "b1", "c1", "a2", "b2", "a3", None]


def test_who_asks_for_much_keeps_nobody_out() -> None:
    turns = Turns[str](3)
    assert [turns.join("a", f"a{i}") for i in range(3)] == [None] * 3
    assert turns.join("a", "a3") == "a3"
    assert turns.join("b", "b0") == "a2"
    assert turns.join("b", "b1") == "b1"  # it would hold as much as a
    assert turns.join("c", "c0") == "a1"
    assert turns.join("d", "d0") == "d0"
    assert [turns.take() for _ in range(4)] == ["a0", "b0", "c0", None]


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.sampled_from(["join", "take", "leave"]), CLIENTS), max_size=60),
)
def test_nobody_is_lost_and_turns_are_fair(places: int, steps: list[tuple[str, str]]) -> None:
    turns = Turns[tuple[str, int]](places)
    waiting: list[tuple[str, int]] = []
    for number, (step, client) in enumerate(steps):
        if step == "join":
            left = turns.join(client, (client, number))
            waiting.append((client, number))
            assert (left is not None) == (len(waiting) > places)
            if left is not None:
                held = Counter(each for each, _ in waiting)
                assert held[left[0]] == max(held.values())
                assert left == [each for each in waiting if each[0] == left[0]][-1]
                waiting.remove(left)
        elif step == "take":
            item = turns.take()
            assert (item is None) == (not waiting)
            if item is not None:
                assert item == next(each for each in waiting if each[0] == item[0])
                waiting.remove(item)
        elif waiting:
            item = waiting.pop(number % len(waiting))
            assert turns.leave(item) and not turns.leave(item)
        assert len(turns) == len(waiting)
    # Nobody has a second turn before all that wait had one.
    counts = Counter(client for client, _ in waiting)
    order = [item[0] for item in iter(turns.take, None)]
    assert Counter(order) == counts
    for client, count in counts.items():
        places_of = [place for place, each in enumerate(order) if each == client]
        assert len(places_of) == count
        for first, second in pairwise(places_of):
            assert len(set(order[first + 1 : second])) == second - first - 1


def test_all_may_go_at_once() -> None:
    turns = Turns[int](4)
    for number in range(4):
        turns.join(number % 2, number)
    assert sorted(turns.clear()) == [0, 1, 2, 3]
    assert len(turns) == 0 and turns.take() is None and not turns.leave(1)
