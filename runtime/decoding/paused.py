"""Where an answer is in its models while other answers are made with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.engines.model import (
    CacheCopy,
    CausalModel,
    CopiesCache,
    TakesAdapters,
    use_adapter,
)


@dataclass(frozen=True)
class Place:
    """What a drafter holds, and its weights."""

    model: CausalModel
    adapter: Mapping[str, NDArray[np.float32]] | None
    copy: CacheCopy

    def put_back(self) -> None:
        """Let the drafter hold it again."""
        assert isinstance(self.model, CopiesCache)
        # First, as it empties the cache.
        use_adapter(self.model, self.adapter)
        self.model.put_cache(self.copy)


class Paused(NamedTuple):
    """A paused answer.

    Attributes:
        tokens: what the target held.
        drafter: None: nothing is drafted.
        since: when it was paused, by ``perf_counter``.
    """

    tokens: Sequence[int]
    drafter: Place | None
    since: float


def place_of(drafter: CausalModel) -> Place | None:
    """Where a drafter is between two rounds; None: it cannot be left."""
    copy = drafter.copy_cache() if isinstance(drafter, CopiesCache) else None
    if copy is None or len(copy.tokens) != drafter.length:
        return None
    return Place(drafter, drafter.adapter if isinstance(drafter, TakesAdapters) else None, copy)
