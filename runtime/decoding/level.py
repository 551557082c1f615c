"""A running level of seconds."""

from __future__ import annotations


class Level:
    """A running level of seconds that single long values do not move.

    Args:
        value: where it begins, as if it had been observed once; 0: with the first value.
    """

    def __init__(self, value: float = 0.0) -> None:
        self.value = value
        self._seen = 1

    def observe(self, seconds: float) -> None:
        """Move towards a value: by a twentieth of the way, at first by more."""
        if not self.value:
            self.value = seconds
        self._seen = min(20, self._seen + 1)
        self.value += (min(seconds, 1.5 * self.value) - self.value) / self._seen
