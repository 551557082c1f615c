"""Which tokens of its context the drafter's KV cache holds."""

from __future__ import annotations

from omnidraft.runtime.engines.model import CausalModel, KnowsTokens


class Reader:
    """Follows which tokens of a context the drafter's KV cache holds.

    Args:
        model: whose KV cache it is.
        tokens: the context, which grows at its end.
        keep: go on with what the KV cache holds, instead of emptying it.

    Attributes:
        fed: the tokens in the KV cache.
    """

    def __init__(self, model: CausalModel, tokens: list[int], keep: bool) -> None:
        known = keep and isinstance(model, KnowsTokens)
        self.fed = list(model.held) if known else []  # type: ignore[attr-defined]
        self._model = model
        self._tokens = tokens
        self._agreed = 0  # tokens at the beginning of both that are known to agree
        model.truncate(len(self.fed))

    @property
    def unread(self) -> int:
        """How many tokens the next step has to read."""
        return len(self._tokens) - self._common()

    def make_room(self, steps: int) -> None:
        """Where the drafter's context is too short for so many steps, keep its recent half."""
        length, tokens = self._model.max_length, self._tokens
        if len(tokens) + steps > length:
            del tokens[: len(tokens) - length // 2]
            self.fed = []
            self._agreed = 0

    def catch_up(self) -> list[int]:
        """Cut the KV cache back to what still holds; return what the next step has to read."""
        common = self._common()
        self._model.truncate(common)
        del self.fed[common:]
        return self._tokens[common:]

    def _common(self) -> int:
        """How many tokens of the context the KV cache holds; at least one is left to read."""
        tokens, fed = self._tokens, self.fed
        limit = min(len(fed), len(tokens) - 1)
        # What agreed before still does: the context only grows.
        while self._agreed < limit and fed[self._agreed] == tokens[self._agreed]:
            self._agreed += 1
        return self._agreed
