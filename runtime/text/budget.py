"""What the rendering of a template may spend, and what values and operations cost.

A unit is about a microsecond's work. An operation that could make much more than it reads spends
before it begins.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence, Set, ValuesView
from typing import Any

from jinja2 import TemplateError
from jinja2.runtime import LoopContext

BASE, SHARE = 500_000, 50
"""A rendering may spend BASE units, and SHARE times what it takes to read all it is given."""
CHARACTERS, _BITS = 100, 200
"""Characters of a text, and bits of a number, that cost a unit."""
_COMPARED = 20
"""Characters of a text, and of what is looked for in it, that cost a unit."""
_MOST_READ = 10_000_000
_MOST_BITS = 100_000
_MOST_WIDTH = 1_000


class TooMuchError(TemplateError):
    """A template asks for more than may be computed."""

    def __init__(self, what: str = "it computes too much, perhaps without end") -> None:
        super().__init__(what)


class Budget:
    """What may still be spent, in units.

    Args:
        given: what the template is given.
    """

    def __init__(self, given: object) -> None:
        self._left = _MOST_READ
        self._left = BASE + SHARE * self.read(given)

    def spend(self, units: int) -> int:
        self._left -= units
        if self._left < 0:
            raise TooMuchError
        return units

    def text(self, length: int) -> int:
        """Spend what a text of so many characters costs."""
        return self.spend(1 + length // CHARACTERS)

    def made(self, value: Any) -> Any:
        """The value, for what it costs to make it of others; an iterator costs as it goes."""
        if isinstance(value, str):
            self.text(len(value))
        elif isinstance(value, int):
            self.spend(1 + value.bit_length() // _BITS)
        elif isinstance(value, range) or is_collection(value):
            self.spend(1 + len(value))
        elif isinstance(value, Iterator) and not isinstance(value, LoopContext):
            return map(self.made, value)
        else:
            self.spend(1)
        return value

    def read(self, value: object) -> int:
        """Spend what it costs to read all of a value; what it holds twice counts twice."""
        before = self._left
        pending: list[Any] = [value]
        while pending:
            each = pending.pop()
            self.made(each)
            if is_collection(each):
                pending.extend(each)
            if isinstance(each, Mapping):
                pending.extend(each.values())
        return before - self._left

    def searching(self, text: str, part: str) -> None:
        """Spend what it may cost to compare a part at every place of a text."""
        self.read((text, part))
        self.spend((len(text) // _COMPARED) * (len(part) // _COMPARED))

    def splitting(self, text: str, at: str) -> None:
        """Spend what it may cost to make many small texts of one."""
        self.searching(text, at)
        self.spend(text.count(at) if at else len(text) // _COMPARED)

    def replacing(self, text: str, old: str, new: str) -> None:
        self.searching(text, old)
        self.text(text.count(old) * len(new))

    def joining(self, parts: Collection[object], between: str = "") -> None:
        self.read(parts)
        self.text(len(parts) * len(between))

    def formatting(self, form: str, mark: str, values: object) -> None:
        """Spend what it costs to put values where ``mark`` stands in a text.

        Raises:
            TooMuchError: or a width is large, or is itself a value.
        """
        if re.search(r"\d{4}|%[^a-zA-Z%]*\*|\{[^{}]*\{", form):
            raise TooMuchError("it formats to a width that is too large, or not a number")
        cost = _MOST_WIDTH // CHARACTERS + self.read(values)
        self.text(len(form))
        self.spend(form.count(mark) * cost)

    def operating(self, operator: str, left: Any, right: Any) -> None:
        """Spend what a binary operator costs, and its result."""
        if operator == "%" and isinstance(left, str):
            self.formatting(left, "%", right)
        elif isinstance(left, int) and isinstance(right, int):
            bits = {"*": left.bit_length() + right.bit_length(), "**": left.bit_length() * right}
            if bits.get(operator, 0) > _MOST_BITS:
                raise TooMuchError
        elif operator == "*":
            for value, count in ((left, right), (right, left)):
                if isinstance(count, int) and isinstance(value, str):
                    self.text(len(value) * count)
                elif isinstance(count, int) and is_collection(value):
                    self.spend(max(0, len(value) * count))
        else:
            self.made(left)
            self.made(right)


def check_width(*values: object) -> None:
    """Refuse a width or a count with which a function makes much of nothing."""
    if any(isinstance(value, int) and abs(value) > _MOST_WIDTH for value in values):
        raise TooMuchError(f"it asks for a width of more than {_MOST_WIDTH}")


def is_collection(value: object) -> bool:
    return isinstance(value, (Sequence, Mapping, Set, ValuesView)) and not isinstance(
        value, (str, range)
    )
