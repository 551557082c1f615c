"""A model that notes how long each of its passes took, or would take on another device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.errors import ContextOverflowError
from omnidraft.runtime.profiling.devices import PassLatency, pass_seconds

# Sleeping overshoots by less than this; the rest of a wait is spent spinning.
_SLEEP_SLACK = 0.0005


class Pass(NamedTuple):
    """One call of ``forward``."""

    context: int
    """Tokens in the KV cache before it."""
    tokens: int
    seconds: float


class RecordedModel:
    """A ``CausalModel`` that behaves as the one it wraps and records its passes.

    Only what is profiled is wrapped, so that decoding pays nothing otherwise.

    With ``latencies`` a pass takes the table's time. Where this machine is faster, ``forward``
    returns only when that time is over, so that whatever watches the clock, the choice of the draft
    length for one, sees the device. Where this machine is slower, nothing can take the excess
    back: it is summed in ``excess_seconds``, for the caller to subtract.

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
        # What an engine offers beyond the protocol, such as LoRA weights, stays reachable.
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

    # Stated for ``HiddenStates``, which is not looked for among what ``__getattr__`` finds.
    @property
    def hidden_size(self) -> int:
        """Width of the hidden states; 0 when the model does not give them."""
        return int(getattr(self._model, "hidden_size", 0))

    @property
    def last_hidden(self) -> NDArray[np.float32]:
        """float32 [hidden_size] of the last token of the last ``forward``."""
        hidden: NDArray[np.float32] = self._model.last_hidden  # type: ignore[attr-defined]
        return hidden

    def forward(
        self, tokens: Sequence[int] | NDArray[np.int64], rows: int | None = None
    ) -> NDArray[np.float32]:
        """Append ``tokens`` and return logits: see ``CausalModel.forward``."""
        context, count = self._model.length, len(tokens)
        if context + count > self._max_length:
            raise ContextOverflowError(
                f"{context} + {count} tokens exceed the context of {self.max_length}. "
                "Shorten the prompt or generate fewer tokens."
            )
        started = perf_counter()
        logits = self._model.forward(tokens, rows)
        seconds = perf_counter() - started
        if self.latencies:
            due = pass_seconds(self.latencies, count, context + count)
            self.excess_seconds += max(0.0, seconds - due)
            _wait_until(started + due)
            seconds = due
        self.passes.append(Pass(context, count, seconds))
        if context + count > self.longest:
            self.longest = context + count
        return logits

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens of the KV cache: see ``CausalModel.truncate``."""
        self._model.truncate(length)

    def clear(self) -> None:
        """Forget the passes recorded so far."""
        self.passes = []
        self.excess_seconds = 0.0


def _wait_until(moment: float) -> None:
    left = moment - perf_counter()
    if left > _SLEEP_SLACK:
        time.sleep(left - _SLEEP_SLACK)
    while perf_counter() < moment:
        pass
