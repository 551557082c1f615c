"""A model that notes how long each of its passes took, or would take on another device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.engines.model import (
    CacheCopy,
    CausalModel,
    CopiesCache,
    ScoresTrees,
    tree_scorer,
)
from omnidraft.runtime.errors import ContextOverflowError, OmniDraftError
from omnidraft.runtime.profiling.devices import PassLatency, pass_seconds
from omnidraft.runtime.profiling.summary import PassKind
from omnidraft.runtime.storage.lora import LoraWeights

# Sleeping overshoots by less than this; the rest of a wait is spent spinning.
_SLEEP_SLACK = 0.0005


class Pass(NamedTuple):
    """One call of ``forward`` or ``forward_tree``."""

    kind: PassKind
    context: int
    """Tokens in the KV cache before it."""
    tokens: int
    """Of a chain, or nodes of a tree."""
    seconds: float
    began: float
    """By ``perf_counter``."""


class RecordedModel:
    """A ``CausalModel`` that behaves as the one it wraps and records its passes.

    Only what is profiled is wrapped, so that decoding pays nothing otherwise.

    With ``latencies`` a pass takes the table's time. Where this machine is faster, ``forward``
    returns only when that time is over, so that whatever watches the clock, the choice of the draft
    length for one, sees the device. Where this machine is slower, nothing can take the excess
    back: it is summed in ``excess_seconds``, for the caller to subtract. Such a model scores no
    trees, as the static graphs that a table is of score none.

    Args:
        model: the model to run.
        max_length: the device's longest sequence in tokens, where it is shorter than the model's.
        latencies: the device's time for a pass; empty: this machine's.
    """

    def __init__(
        self,
        model: CausalModel,
        *,
        max_length: int | None = None,
        latencies: Sequence[PassLatency] = (),
    ) -> None:
        self._model = model
        self._max_length = min(model.max_length, max_length or model.max_length)
        self.latencies = latencies
        self.passes: list[Pass] = []
        """Since the last ``clear``."""
        self.excess_seconds = 0.0
        """Time since the last ``clear`` that the device would not have taken."""
        self.longest = 0
        """Tokens of the longest sequence so far."""

    def __getattr__(self, name: str) -> Any:
        # What an engine offers beyond the protocols stays reachable.
        return getattr(self._model, name)

    @property
    def vocab_size(self) -> int:
        """Number of columns of the logits."""
        return self._model.vocab_size

    @property
    def length(self) -> int:
        """Number of tokens in the KV cache."""
        return self._model.length

    @property
    def max_length(self) -> int:
        """Longest sequence the model, on the device, can hold, in tokens."""
        return self._max_length

    @property
    def own_length(self) -> int:
        """``max_length``: the device's limit cannot be raised."""
        return self._max_length

    @property
    def unlimited_length(self) -> int:
        """``max_length`` of the model itself, for which its engine reserves memory."""
        return self._model.max_length

    # What the other protocols of ``engines.model`` ask for is stated: from Python 3.12 on
    # ``isinstance`` does not look for it among what ``__getattr__`` finds.
    @property
    def held(self) -> Sequence[int]:
        """See ``KnowsTokens``; none where the model does not know."""
        held: Sequence[int] = getattr(self._model, "held", ())
        return held

    def copy_cache(self) -> CacheCopy | None:
        """See ``CopiesCache``; None where the model's cache cannot be copied."""
        return self._model.copy_cache() if isinstance(self._model, CopiesCache) else None

    def put_cache(self, copy: CacheCopy) -> None:
        """Hold what a copy holds: see ``CopiesCache``."""
        self._model.put_cache(copy)  # type: ignore[attr-defined]

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states; 0 when the model does not give them."""
        return int(getattr(self._model, "hidden_size", 0))

    def last_hidden(self) -> NDArray[np.float32]:
        """float32 [hidden_size] of the last token of the last ``forward``."""
        hidden: NDArray[np.float32] = self._model.last_hidden()  # type: ignore[attr-defined]
        return hidden

    @property
    def adapter(self) -> LoraWeights | None:
        """See ``TakesAdapters``; None where the model takes none."""
        adapter: LoraWeights | None = getattr(self._model, "adapter", None)
        return adapter

    def set_adapter(self, adapter: LoraWeights | None) -> None:
        """Use an adapter from now on: see ``TakesAdapters``."""
        self._model.set_adapter(adapter)  # type: ignore[attr-defined]

    def forward(
        self, tokens: Sequence[int] | NDArray[np.int64], rows: int | None = None
    ) -> NDArray[np.float32]:
        """Append ``tokens`` and return logits: see ``CausalModel.forward``."""
        return self._run("chain", tokens, partial(self._model.forward, tokens, rows))

    @property
    def scores_trees(self) -> bool:
        """See ``ScoresTrees``: as the model, but not where a table gives the times of passes."""
        return not self.latencies and tree_scorer(self._model) is not None

    def forward_tree(
        self,
        tokens: Sequence[int] | NDArray[np.int64],
        parents: Sequence[int] | NDArray[np.int64],
        rows: int | None = None,
    ) -> NDArray[np.float32]:
        """Append nodes of a tree and return logits: see ``ScoresTrees.forward_tree``."""
        run = partial(self._trees().forward_tree, tokens, parents, rows)
        return self._run("tree", tokens, run)

    def keep(self, path: Sequence[int]) -> None:
        """End the tree: see ``ScoresTrees.keep``."""
        self._trees().keep(path)

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens of the KV cache: see ``CausalModel.truncate``."""
        self._model.truncate(length)

    def clear(self) -> None:
        """Forget the passes recorded so far."""
        self.passes = []
        self.excess_seconds = 0.0

    def _trees(self) -> ScoresTrees:
        trees = None if self.latencies else tree_scorer(self._model)
        if trees is None:
            raise OmniDraftError("this model scores no trees of tokens")
        return trees

    def _run(
        self,
        kind: PassKind,
        tokens: Sequence[int] | NDArray[np.int64],
        run: Callable[[], NDArray[np.float32]],
    ) -> NDArray[np.float32]:
        context, count = self._model.length, len(tokens)
        if context + count > self._max_length:
            raise ContextOverflowError(
                f"{context} + {count} tokens exceed the context of {self.max_length}. "
                "Shorten the prompt or generate fewer tokens."
            )
        started = perf_counter()
        logits = run()
        seconds = perf_counter() - started
        if self.latencies:
            due = pass_seconds(self.latencies, count, context + count)
            self.excess_seconds += max(0.0, seconds - due)
            _wait_until(started + due)
            seconds = due
        self.passes.append(Pass(kind, context, count, seconds, started))
        if context + count > self.longest:
            self.longest = context + count
        return logits


def _wait_until(moment: float) -> None:
    left = moment - perf_counter()
    if left > _SLEEP_SLACK:
        time.sleep(left - _SLEEP_SLACK)
    while perf_counter() < moment:
        pass
