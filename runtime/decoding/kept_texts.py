"""Texts that a model has read before, kept while it reads others.

kept = KeptTexts(model, 512_000_000)
kept.recall(prompt)    # the model holds what of the prompt it read last, or some time before
"""

from __future__ import annotations

from collections.abc import Sequence

from omnidraft.runtime.engines.model import (
    CacheCopy,
    CausalModel,
    CopiesCache,
    KnowsTokens,
    common_length,
    held_of,
)

_WORTH = 32
"""Tokens: fewer are read again in the time that a copy takes."""

_TEXTS = 4
"""Texts that there should be room for, at least."""


class KeptTexts:
    """Copies of a KV cache, one for each text that another one displaced.

    The least recently used ones go when they take too much memory. A text whose beginning another
    one shares is kept whole, for both.

    Args:
        model: whose KV cache it is. Of an engine whose caches cannot be copied nothing is kept.
        most_bytes: that the copies may take.
    """

    def __init__(self, model: CausalModel, most_bytes: int) -> None:
        self._model = model
        self._most_bytes = most_bytes
        self._copies: list[CacheCopy] = []
        """The one used last is at the end."""

    @property
    def nbytes(self) -> int:
        """Bytes that the copies take."""
        return sum(copy.state.nbytes for copy in self._copies)

    def __len__(self) -> int:
        return len(self._copies)

    def text_of(self, model: CausalModel) -> Sequence[int] | None:
        """What the model holds now; None: it is not kept when another text displaces it.

        A text that takes more than a part of the memory may be dropped for others before it is
        wanted again.
        """
        if model is not self._model or not isinstance(model, CopiesCache):
            return None
        if not isinstance(model, KnowsTokens) or len(model.held) != model.length:
            return None
        per_token: int = getattr(model, "kv_bytes_per_token", 0)
        if per_token * model.length > self._most_bytes // _TEXTS:
            return None
        return list(model.held)

    def recall(self, tokens: Sequence[int]) -> None:
        """Let the model hold the text that has most in common with tokens that it is to read.

        What it holds now is kept, if that would be lost. The caller has the sole use of the model.
        """
        model = self._model
        if not self._most_bytes or not isinstance(model, CopiesCache):
            return
        now = held_of(model, tokens)
        shared = [common_length(copy.tokens, tokens) for copy in self._copies]
        most = max(shared, default=0)
        found = self._copies[shared.index(most)] if most >= now + _WORTH else None
        held = len(model.held) if isinstance(model, KnowsTokens) else 0
        if held - (0 if found else now) >= _WORTH:
            self._keep(model)
        if found is None:
            return
        model.put_cache(found)
        self._copies = [copy for copy in self._copies if copy is not found]
        # The model goes on with it, and it is copied anew then; unless the two texts part.
        if most < len(found.tokens):
            self._add(found)

    def _keep(self, model: CopiesCache) -> None:
        if (copy := model.copy_cache()) is None:
            return
        # Beginnings of it are held by it.
        self._copies = [
            each
            for each in self._copies
            if common_length(each.tokens, copy.tokens) < len(each.tokens)
        ]
        self._add(copy)

    def _add(self, copy: CacheCopy) -> None:
        if copy.state.nbytes > self._most_bytes:
            return
        self._copies.append(copy)
        while self.nbytes > self._most_bytes:
            self._copies.pop(0)
