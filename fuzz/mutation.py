"""Changes a JSON value in one place, which changed bytes seldom do."""

from __future__ import annotations

import json
import random
from typing import Any

ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 255, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, 10**30),
    *(0.5, -0.0, 1e-300, 1e300, float("inf"), float("nan"), "", " ", "a", "\0", "\ud800", "▁", "Ġ"),
    *(
        "../x",
        "/etc/passwd",
        "a" * 5000,
        "(a*)*b",
        "<|im_end|>",
        "<0x41>",
        "1e9",
        "F32",
        "I8",
        "true",
    ),
    *([], {}, [[]], [None], [0], [""], {"": None}, {"type": "Sequence"}, {"content": []}),
]


def mutated(data: bytes, seed: int) -> bytes | None:
    """The value with one to three changes; None where the bytes hold none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    chance = random.Random(seed)
    try:
        for _ in range(chance.choice((1, 1, 2, 3))):
            value = _changed(value, chance)
        return json.dumps(value).encode()
    except RecursionError:
        return None


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [place]
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            found += _places(each, (*place, key))
    return found


def _changed(value: Any, chance: random.Random) -> Any:
    places = _places(value)
    *way, last = chance.choice(places) or (None,)
    if last is None:
        return _copied(chance.choice(ODD))
    holder = value
    for key in way:
        holder = holder[key]
    what = chance.randrange(6)
    if what == 0:
        del holder[last]
    elif what == 1 and isinstance(holder, dict):
        name = chance.choice(("", "type", "content", "id", str(last) + "x"))
        holder[name] = _copied(holder[last])
    elif what == 1:
        holder.insert(chance.randrange(len(holder) + 1), _copied(holder[last]))
    elif what == 2:
        other = value
        for key in chance.choice(places):
            other = other[key]
        holder[last] = _copied(other)
    elif what == 3 and isinstance(holder[last], int | float):
        holder[last] = holder[last] * chance.choice((-1, 2, 1000)) + chance.choice((0, 1, 0.5))
    elif what == 4:
        nested: Any = holder[last]
        for _ in range(chance.choice((1, 10, 900))):
            nested = [nested]
        holder[last] = nested
    else:
        holder[last] = _copied(chance.choice(ODD))
    return value


def _copied(value: Any) -> Any:
    return json.loads(json.dumps(value))
