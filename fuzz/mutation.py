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
        "C:/x",
        "a" * 5000,
        "(a*)*b",
        "<|im_end|>",
        "<0x41>",
        "1e9",
        "true",
    ),
    *("F32", "F64", "BF16", "F8_E4M3", "I8", "U8", "U64", "BOOL", "F4", "C64"),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "0" * 64),
    *([], {}, [[]], [None], [0], [""], {"": None}, {"type": "Sequence"}, {"content": []}),
]


def mutated(data: bytes, seed: int, most: int) -> bytes | None:
    """The value with one to three changes.

    Args:
        most: bytes of the result.

    Returns:
        None where the bytes hold no value, or the changed one would be too long, too deep or a
        number that cannot be written.
    """
    if len(data) > most:
        return None
    chance = random.Random(seed)
    try:
        value = json.loads(data)
        for _ in range(chance.choice((1, 1, 2, 3))):
            value = _changed(value, chance, most)
        changed = json.dumps(value).encode()
    except (ValueError, OverflowError, RecursionError):
        return None
    return changed if len(changed) <= most else None


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [place]
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            found += _places(each, (*place, key))
    return found


def _changed(value: Any, chance: random.Random, most: int) -> Any:
    places = _places(value)
    *way, last = chance.choice(places) or (None,)
    if last is None:
        return _copied(chance.choice(ODD), most)
    holder = value
    for key in way:
        holder = holder[key]
    what = chance.randrange(6)
    if what == 0:
        del holder[last]
    elif what == 1 and isinstance(holder, dict):
        odd = chance.choice([each for each in ODD if isinstance(each, str)])
        name = chance.choice(("type", "content", "id", str(last) + "x", odd))
        holder[name] = _copied(holder[last], most)
    elif what == 1:
        holder.insert(chance.randrange(len(holder) + 1), _copied(holder[last], most))
    elif what == 2:
        other = value
        for key in chance.choice(places):
            other = other[key]
        holder[last] = _copied(other, most)
    elif what == 3 and isinstance(holder[last], int | float):
        holder[last] = holder[last] * chance.choice((-1, 2, 1000)) + chance.choice((0, 1, 0.5))
    elif what == 4:
        nested: Any = holder[last]
        for _ in range(chance.choice((1, 10, 900))):
            nested = [nested]
        holder[last] = nested
    else:
        holder[last] = _copied(chance.choice(ODD), most)
    return value


def _copied(value: Any, most: int) -> Any:
    """A copy; None of what would fill an input alone, lest copies of copies take all memory."""
    text = json.dumps(value)
    return json.loads(text) if len(text) <= most else None
