"""Where an answer ends because of a text in it: stop strings."""

from __future__ import annotations

from collections.abc import Sequence


class StopSearch:
    """Finds the earliest occurrence of any of several texts in a stream of text.

        search = StopSearch(["\\n\\n", "END"])
        search.push("Yes.\\n")      # search.certain == 4: the line break may begin a stop string
        search.push("\\nNo.")       # search.cut == 4, search.ended

    Where the pieces begin and end makes no difference. With overlapping occurrences the one that
    begins first counts, even when another is complete before it. Without stop strings nothing is
    ever found.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._partials = [_Partial(stop) for stop in stops]
        self._length = 0
        self.cut: int | None = None
        """Characters before the earliest occurrence that is complete; None: there is none yet."""

    @property
    def certain(self) -> int:
        """Characters that no occurrence can contain, whatever follows."""
        begun = [self._length - partial.matched for partial in self._partials]
        return min([self._length, *begun] if self.cut is None else [self.cut, *begun])

    @property
    def ended(self) -> bool:
        """Whether ``cut`` is the earliest occurrence, whatever follows."""
        return self.cut is not None and self.certain == self.cut

    def push(self, text: str) -> None:
        """Add text to the stream."""
        for character in text:
            self._length += 1
            for partial in list(self._partials):
                if partial.push(character):
                    begin = self._length - len(partial.stop)
                    self.cut = begin if self.cut is None else min(self.cut, begin)
                    # Its later occurrences begin later.
                    self._partials.remove(partial)


class _Partial:
    """How much of one stop string the stream ends with (Knuth, Morris and Pratt)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        """Characters of the longest beginning of ``stop`` that the stream ends with."""
        # Of each beginning of the stop string: its longest proper beginning that is also its end.
        self._borders = [0]
        border = 0
        for character in stop[1:]:
            while border and stop[border] != character:
                border = self._borders[border - 1]
            border += stop[border] == character
            self._borders.append(border)

    def push(self, character: str) -> bool:
        """Add a character; returns whether the stop string is complete."""
        while self.matched and self.stop[self.matched] != character:
            self.matched = self._borders[self.matched - 1]
        self.matched += self.stop[self.matched] == character
        return self.matched == len(self.stop)
