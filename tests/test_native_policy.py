"""The recorded policies that every language replays: see vectors/README.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omnidraft._native import CostAware, CostCurve, Costs, Judged, Outcome

Lines = list[tuple[str, list[str]]]


def policies() -> Iterator[Lines]:
    lines: Lines = []
    for text in (Path(__file__).parent / "vectors" / "policy.txt").read_text("utf-8").splitlines():
        word, *values = text.split()
        if word == "end":
            yield lines
            lines = []
        elif word != "#":
            lines.append((word, values))


def curve(values: list[str]) -> CostCurve:
    return CostCurve(dict(zip(map(int, values[::2]), map(float, values[1::2]), strict=True)))


def outcome(values: list[str]) -> Outcome:
    rows, tokens, target, other, match, known, right, count, *rest = values
    ends = 2 * int(count)
    passes = list(zip(map(int, rest[:ends:2]), map(float, rest[1:ends:2]), strict=True))
    judged = [
        Judged(int(rest[i]), float(rest[i + 1]), rest[i + 2] == "1")
        for i in range(ends, len(rest), 3)
    ]
    seconds = (float(target), float(other))
    return Outcome(
        int(rows), int(tokens), passes, judged, *seconds, int(match), int(known), int(right)
    )


@pytest.mark.parametrize("lines", list(policies()), ids=lambda lines: "-".join(lines[0][1]))
def test_replay(lines: Lines) -> None:
    (_, target), (_, drafter) = lines[1:3]
    policy = CostAware(Costs({256: curve(target)}, curve(drafter)))
    for word, values in lines[3:]:
        if word == "begin":
            *asked, limit = map(int, values)
            assert policy.begin(*asked) == limit
        elif word == "layer":
            limit, chosen, count = map(int, values[:3])
            numbers = list(map(float, values[3:]))
            assert policy.layer(numbers[:count], numbers[count:], limit) == chosen
        elif word == "count":
            limit, chosen = map(int, values[:2])
            assert policy.count(list(map(float, values[2:])), limit) == chosen
        elif word == "observe":
            policy.observe(outcome(values))
        else:
            assert word == "calibration"
            numbers = [number for line in policy.calibration for number in line]
            assert numbers == pytest.approx(list(map(float, values)), rel=1e-9)


def test_the_file_shows_what_a_policy_can_do() -> None:
    words = [(word, values) for lines in policies() for word, values in lines]
    chosen = {int(values[1]) for word, values in words if word == "layer"}
    assert chosen >= {0, 1, 2, 3}
    assert any(values[-1] == "0" for word, values in words if word == "begin")
    assert any(values[1] == "0" for word, values in words if word == "count")
    assert any(int(values[1]) > 2 for word, values in words if word == "count")
