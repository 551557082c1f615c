"""A running level of seconds."""

from __future__ import annotations


class Level:
    """A running level of seconds that single long values do not move; 0 before the first."""

    def __init__(self) -> None:
        self.value = 0.0

    def observe(self, seconds: float) -> None:
        """Move towards a value, by a twentieth of the way."""
        if not self.value:
            self.value = seconds
        self.value += 0.05 * (min(seconds, 1.5 * self.value) - self.value)
