"""A running level of seconds."""

from __future__ import annotations


class Level:
    """A running level of seconds that single long values do not move.

    Args:
        value: where it begins; 0: with the first value.
    """

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def observe(self, seconds: float) -> None:
        """Move towards a value, by a twentieth of the way."""
        if not self.value:
            self.value = seconds
        self.value += 0.05 * (min(seconds, 1.5 * self.value) - self.value)
