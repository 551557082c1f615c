"""What every engine offers: a causal language model with a KV cache that can be cut back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.errors import ContextOverflowError, OmniDraftError
from omnidraft.runtime.storage.lora import LoraWeights


@runtime_checkable
class CausalModel(Protocol):
    """A causal language model with one sequence in its KV cache.

    One instance serves one thread. ``forward`` appends, ``truncate`` drops the tail in O(1).
    """

    @property
    def vocab_size(self) -> int:
        """Number of columns of the logits."""

    @property
    def length(self) -> int:
        """Number of tokens in the KV cache."""

    @property
    def max_length(self) -> int:
        """Longest sequence the model can hold, in tokens."""

    def forward(
        self, tokens: Sequence[int] | NDArray[np.int64], rows: int | None = None
    ) -> NDArray[np.float32]:
        """Append ``tokens`` to the KV cache and return logits.

        Args:
            tokens: n ≥ 1 token ids.
            rows: return the logits of the last ``rows`` tokens only (default: all n).

        Returns:
            float32 ``[rows, vocab_size]``, C-contiguous. Row i holds the logits of the token that
            follows the i-th of the tokens it belongs to. The array may be a view of a buffer that
            the next ``forward`` overwrites.

        Raises:
            ContextOverflowError: ``length + n > max_length``; the cache is unchanged.
            ValueError: no tokens, a token outside the vocabulary, or ``rows`` outside 1…n.
        """

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens of the KV cache.

        Raises:
            ValueError: ``length`` is negative or greater than the current length.
        """


@runtime_checkable
class KnowsTokens(Protocol):
    """A model that knows which tokens its KV cache holds."""

    @property
    def held(self) -> Sequence[int]:
        """They, in order: ``length`` of them; while a tree is held, those before the tree."""


def held_of(model: CausalModel, tokens: Sequence[int]) -> int:
    """How many of the first tokens a KV cache holds, as far as the model knows."""
    return common_length(model.held, tokens) if isinstance(model, KnowsTokens) else 0


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many tokens both begin."""
    count = min(len(one), len(other))
    return next((i for i in range(count) if one[i] != other[i]), count)


@dataclass(frozen=True)
class CacheCopy:
    """A KV cache as it was, to be put back into the same model."""

    tokens: Sequence[int]
    """What it holds, in order."""
    state: NDArray[Any]
    """Keys and values, as the engine lays them out."""


@runtime_checkable
class CopiesCache(Protocol):
    """A model whose KV cache can be copied and put back."""

    def copy_cache(self) -> CacheCopy | None:
        """What it holds; of a tree the text before it. None: it cannot be copied."""

    def put_cache(self, copy: CacheCopy) -> None:
        """Hold what a copy of this very model holds, and nothing else."""


@runtime_checkable
class ScoresTrees(Protocol):
    """A model that scores several continuations of its text in one pass, as a tree of tokens.

    The slots of the KV cache are numbered from 0; ``length`` counts all that are held. Until
    ``forward_tree`` they hold the text, a chain. A tree that grows behind it is held until ``keep``
    or a ``truncate`` to within the text; until then ``forward``, and a ``truncate`` to a length
    within the tree, are a ``ValueError``. See ``tree_scorer``.
    """

    @property
    def scores_trees(self) -> bool:
        """Whether this model does; of some engines only some do."""

    def forward_tree(
        self,
        tokens: Sequence[int] | NDArray[np.int64],
        parents: Sequence[int] | NDArray[np.int64],
        rows: int | None = None,
    ) -> NDArray[np.float32]:
        """Append nodes to the tree, which the first call begins, and return logits.

        A node sees the text, its ancestors in the order of its path, and itself; its position is
        its depth behind the text. Where a model is batch-invariant its row is, bit for bit, the row
        of its path decoded one token at a time.

        Args:
            tokens: n ≥ 1 token ids. They take the next slots, in order.
            parents: for each token the slot that it follows: the text's last one (−1 if there is
                none), or that of an earlier node, of this call or one before.
            rows: as for ``CausalModel.forward``.

        Returns:
            float32 ``[rows, vocab_size]``, as ``CausalModel.forward``.

        Raises:
            ContextOverflowError: ``length + n > max_length``; the cache is unchanged.
            ValueError: see ``CausalModel.forward``; or a parent is none of those above.
            OmniDraftError: this model scores no trees.
        """

    def keep(self, path: Sequence[int]) -> None:
        """End the tree: of its nodes keep those of a path, moved together behind the text.

        Args:
            path: slots from the text downwards, each the parent of the next; none: the tree goes.

        Raises:
            ValueError: it is no such path; the tree is still held.
        """


def tree_scorer(model: CausalModel) -> ScoresTrees | None:
    """The model as one that scores trees, or None if it does not."""
    return model if isinstance(model, ScoresTrees) and model.scores_trees else None


@runtime_checkable
class LimitedContext(Protocol):
    """A model that may have been opened for shorter sequences than it was made for."""

    @property
    def own_length(self) -> int:
        """Longest sequence the model was made for, in tokens; ``max_length`` may be less."""


@runtime_checkable
class HiddenStates(Protocol):
    """A model that also tells what its head read, for the acceptance head."""

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states; 0 when this graph does not give them."""

    def last_hidden(self) -> NDArray[np.float32]:
        """float32 [hidden_size] of the last token of the last ``forward``.

        A view of a buffer that the next ``forward`` overwrites.
        """


@runtime_checkable
class TakesAdapters(Protocol):
    """A drafter that drafts with a LoRA adapter, or without one."""

    @property
    def adapter(self) -> LoraWeights | None:
        """What ``set_adapter`` was given last."""

    def set_adapter(self, adapter: LoraWeights | None) -> None:
        """Use an adapter from now on; the KV cache, which the old weights filled, is emptied.

        Args:
            adapter: see ``omnidraft.runtime.storage.lora``; None: the base model, exactly.

        Raises:
            OmniDraftError: the adapter does not fit the model; the one in use stays.
        """


def use_adapter(model: CausalModel, lora: LoraWeights | None) -> None:
    """Let a drafter draft with weights, or without any, whatever was set before."""
    if isinstance(model, TakesAdapters) and model.adapter is not lora:
        model.set_adapter(lora)


def reserve_cache(
    shapes: Mapping[str, Sequence[int]], dtype: type[np.generic], tokens: int
) -> dict[str, NDArray[Any]]:
    """Arrays for keys and values of ``tokens`` tokens, whose memory is taken as they fill.

    Raises:
        OmniDraftError: the system does not even reserve so much.
    """
    try:
        # zeros, not empty: the system then hands out pages when they are first written.
        return {name: np.zeros(shape, dtype) for name, shape in shapes.items()}
    except MemoryError as error:
        size = sum(math.prod(shape) for shape in shapes.values()) * np.dtype(dtype).itemsize
        raise OmniDraftError(
            f"the system reserves no {size / 1e9:.1f} GB for the keys and values of {tokens} "
            "tokens. Choose a shorter context (context=…), or free memory"
        ) from error


def check_pass(
    model: CausalModel, tokens: Sequence[int] | NDArray[np.int64], rows: int | None
) -> tuple[NDArray[np.int64], int]:
    """What every engine's ``forward`` demands of its arguments.

    Returns:
        int64 [n] token ids, C-contiguous, and the number of rows that are wanted.

    Raises:
        ContextOverflowError, ValueError: see ``CausalModel.forward``.
    """
    ids = np.ascontiguousarray(tokens, dtype=np.int64)
    count = len(ids)
    rows = count if rows is None else rows
    if ids.ndim != 1 or not count or not 1 <= rows <= count:
        raise ValueError(f"{count} tokens of which {rows} rows are asked for")
    if ids.min() < 0 or ids.max() >= model.vocab_size:
        raise ValueError(f"token ids must lie in 0…{model.vocab_size - 1}")
    if model.length + count > model.max_length:
        raise ContextOverflowError(
            f"{model.length} + {count} tokens exceed the context of {model.max_length}. "
            "Shorten the prompt or generate fewer tokens."
        )
    return ids, rows


def check_truncation(model: CausalModel, length: int) -> None:
    """What every engine's ``truncate`` demands of its argument.

    Raises:
        ValueError: see ``CausalModel.truncate``.
    """
    if not 0 <= length <= model.length:
        raise ValueError(f"cannot truncate {model.length} tokens to {length}")
