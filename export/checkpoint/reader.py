"""What the readers of both formats do alike: find, check, cut and order the rows of a tensor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.checkpoint.spec import LINEAR_PARTS, Decoder, split_name, tensor_names
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError
from omnidraft.runtime.storage.reading import reading

_Sizes = Sequence[tuple[str, int]]
"""A tensor's sizes, each with what it is."""


class Reader(ABC):
    """A ``Checkpoint`` over files that a format names and reads in its own way.

    Parts of one linear (see ``LINEAR_PARTS``) that have the same stored name lie in that tensor one
    after another.
    """

    _source: Path
    _decoder: Decoder
    _names: Mapping[str, str]
    """The stored name of each part, without layer and suffix."""
    _interleaved = False
    """The rows of a head's queries and keys lie as 0, half, 1, half + 1, …"""
    _norm_offset = 0.0
    """What is added to norms' weights."""

    @abstractmethod
    def _stored_name(self, layer: str, part: str, suffix: str) -> str:
        """A tensor's name in the files; ``layer`` may be empty, ``suffix`` is weight or bias."""

    @abstractmethod
    def _shape(self, stored: str) -> tuple[int, ...]:
        """A tensor's shape, [out, in] or [out]; DamagedFileError if there is no such tensor."""

    @abstractmethod
    def _read(self, stored: str, start: int, stop: int) -> NDArray[np.float32]:
        """Rows of a tensor as they are stored."""

    @property
    def decoder(self) -> Decoder:
        return self._decoder

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """See ``Checkpoint``."""
        _, part, _ = split_name(name)
        values = self._rows_by(self._read, name, start, stop)
        self._demand_finite(name, values)
        if self._norm_offset and part.endswith("norm"):
            values = values + np.float32(self._norm_offset)
        if (scale := self._decoder.folded.get(part, 1.0)) != 1:
            values = values * np.float32(scale)
        return values

    def _rows_by(
        self, read: Callable[[str, int, int], NDArray[Any]], name: str, start: int, stop: int | None
    ) -> NDArray[Any]:
        """Rows of a tensor in the decoder's order, which ``read`` gives as they are stored."""
        layer, part, suffix = split_name(name)
        stored = self._stored_name(layer, part, suffix)
        stack = self._stack(part)
        before = sum(self._count(each) for each in stack[: stack.index(part)])
        rows = before + self._ordered(part, np.arange(self._count(part)))[start:stop]
        first = int(rows.min())
        with reading(f"{self._source}: {stored}"):
            values = read(stored, first, int(rows.max()) + 1)
        if len(values) != len(rows) or (np.diff(rows) != 1).any():
            values = values[rows - first]
        return values

    def _demand_finite(self, name: str, values: NDArray[Any]) -> None:
        if not np.isfinite(values).all():
            raise DamagedFileError(
                f"{self._source}: {self._stored_name(*split_name(name))} holds weights that are "
                "NaN or infinite. Fetch the checkpoint again, or take one from before its training "
                "diverged."
            )

    def _check_tensors(self, present: Set[str], optional: str | None = None) -> None:
        """Demand that the files hold what the decoder computes with, and nothing else.

        What is left out in silence may be what a model of another kind needs.

        Args:
            present: all tensors there but for those that are known to be of no concern.
            optional: how names of tensors end that may be missing.

        Raises:
            DamagedFileError: a tensor is missing, or of another shape than the decoder has.
            OmniDraftError: one would not be read.
        """
        names = map(split_name, tensor_names(self._decoder))
        wanted = {self._stored_name(*name): name for name in names}
        missing = [name for name in wanted if name not in present]
        if optional is not None:
            missing = [name for name in missing if not name.endswith(optional)]
        if missing:
            more = f" (nor {len(missing) - 1:,} others)" if missing[1:] else ""
            raise DamagedFileError(
                f"{self._source} has no tensor {missing[0]}{more}. Fetch the checkpoint again."
            )
        if unread := sorted(present - wanted.keys()):
            more = f" (and {len(unread) - 1:,} others)" if unread[1:] else ""
            raise OmniDraftError(
                f"{self._source} holds the tensor {unread[0]}{more}, with which a "
                f"{self._decoder.architecture} model as it is known here does not compute. Take "
                "another checkpoint of the model."
            )
        for stored in wanted.keys() & present:
            _, part, suffix = wanted[stored]
            sizes = [_sizes(self._decoder, each) for each in self._stack(part)]
            sizes = [size[: 1 if suffix == "bias" else 2] for size in sizes]
            _check_shape(f"{self._source}: {stored}", self._shape(stored), sizes)

    def _count(self, part: str) -> int:
        """How many rows a part has."""
        return _sizes(self._decoder, part)[0][1]

    def _stack(self, part: str) -> list[str]:
        """The parts that lie in one tensor with ``part``, in their order."""
        for parts in LINEAR_PARTS.values():
            if part in parts:
                return [each for each in parts if self._names[each] == self._names[part]]
        return [part]

    def _ordered(self, part: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The stored rows of a part in the order in which the decoder wants them."""
        if part not in ("q", "k", "q_norm", "k_norm"):
            return rows
        size = self._decoder.head_size
        if self._interleaved:
            return rows.reshape(-1, size // 2, 2).swapaxes(1, 2).reshape(-1)
        rotated = self._decoder.rotary_size
        if rotated is None or rotated == size:
            return rows
        first, second, still = np.split(np.arange(size), (rotated // 2, rotated))
        order = np.concatenate([first, still[: len(still) // 2], second, still[len(still) // 2 :]])
        return rows.reshape(-1, size)[:, order].reshape(-1)


def _sizes(decoder: Decoder, part: str) -> _Sizes:
    d = decoder
    vocabulary, hidden = ("vocab_size", d.vocab_size), ("hidden_size", d.hidden_size)
    inner = ("intermediate_size", d.feed_forward_size)
    queries = ("num_attention_heads x head_dim", d.heads * d.head_size)
    keys = ("num_key_value_heads x head_dim", d.kv_heads * d.head_size)
    sizes: dict[str, _Sizes] = {
        "embedding": (vocabulary, hidden),
        "head": (vocabulary, hidden),
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, queries),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
        "q_norm": (queries if d.qk_norm == "row" else ("head_dim", d.head_size),),
        "k_norm": (keys if d.qk_norm == "row" else ("head_dim", d.head_size),),
    }
    return sizes.get(part, (hidden,))


def _check_shape(place: str, shape: tuple[int, ...], sizes: Sequence[_Sizes]) -> None:
    """Demand that a tensor has exactly the shape of the parts that lie in it.

    A padded vocabulary is no exception: the padding counts in ``vocab_size``, as Hugging Face has
    it.
    """
    expected = (sum(size[0][1] for size in sizes), *(count for _, count in sizes[0][1:]))
    if shape != expected:
        first = " + ".join(size[0][0] for size in sizes)
        said = [first, *(what for what, _ in sizes[0][1:])]
        text = ", ".join(f"{what} = {size}" for what, size in zip(said, expected, strict=True))
        raise DamagedFileError(
            f"{place} is {list(shape)}, but the model's description says [{text}]."
        )
