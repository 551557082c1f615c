"""What two models hold while other answers are made with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.engines.model import (
    CacheCopy,
    CausalModel,
    CopiesCache,
    KnowsTokens,
    TakesAdapters,
    held_of,
    use_adapter,
)


@dataclass(frozen=True)
class Paused:
    """An answer's place in its models.

    Attributes:
        tokens: what the target held.
        since: when it was paused, by ``perf_counter``.
    """

    target: CausalModel
    tokens: Sequence[int]
    drafter: CausalModel | None
    adapter: Mapping[str, NDArray[np.float32]] | None
    copy: CacheCopy | None
    """Of the drafter."""
    since: float = field(default_factory=perf_counter)

    def put_back(self, chunk: int) -> None:
        """Let the models hold what they held.

        What the target does not hold of its text is read again, which is the same where it is
        batch-invariant.

        Args:
            chunk: tokens that a pass reads at most.
        """
        held = held_of(self.target, self.tokens)
        self.target.truncate(held)
        missing = np.asarray(self.tokens[held:], np.int64)
        for begin in range(0, len(missing), chunk):
            self.target.forward(missing[begin : begin + chunk], rows=1)
        if isinstance(self.drafter, CopiesCache) and self.copy is not None:
            # First, as it empties the cache.
            use_adapter(self.drafter, self.adapter)
            self.drafter.put_cache(self.copy)


def pause_models(target: CausalModel, drafter: CausalModel | None) -> Paused | None:
    """The place of an answer, between two of its rounds; None: one of them cannot be left."""
    if not isinstance(target, KnowsTokens):
        return None
    tokens = list(target.held)
    if drafter is None:
        return Paused(target, tokens, None, None, None)
    copy = drafter.copy_cache() if isinstance(drafter, CopiesCache) else None
    if copy is None or len(copy.tokens) != drafter.length:
        return None
    adapter = drafter.adapter if isinstance(drafter, TakesAdapters) else None
    return Paused(target, tokens, drafter, adapter, copy)
