"""Which documents a step of the trainer sees: a function of the seed and the step alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omnidraft.distill.documents import Documents

# How many documents lose their head: the system prompt, also the user's header, all but the answer.
# The drafter must also work behind other chat formats, and from the first token on.
CUTS = (0.15, 0.15, 0.15)
# A document of fewer tokens teaches nothing.
_SHORTEST = 16


@dataclass(frozen=True)
class Batch:
    """A process's share of a step.

    Args:
        ids: int64 [rows, length].
        where: int64 [n], the positions with a loss, in ids as one row.
        labels: int64, shares: float32 [n, TOP].
        tokens: int64 [n], what was said there; chunks, weights: float32 [n].
        weight: the sum of weights over all processes.
    """

    ids: Tensor
    where: Tensor
    labels: Tensor
    shares: Tensor
    tokens: Tensor
    chunks: Tensor
    weights: Tensor
    weight: float


class Plan:
    """Documents of several teachers, in batches of like length.

    Args:
        parts: documents, and how often each of them is seen in an epoch.
        positions: tokens of a step, over all processes.
        longest: draft tokens of a document.
        cut_heads: let some documents begin later: see CUTS.
        device: where the documents are held.
        rank, processes: which share of each batch is this process's.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Documents, float]],
        *,
        positions: int,
        longest: int,
        cut_heads: bool,
        seed: int,
        device: str,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        self._positions, self._seed = positions, seed
        self._rank, self._processes, self._device = rank, processes, device
        documents = [part for part, _ in parts]
        offsets = np.cumsum([0, *(len(part.tokens) for part in documents)])

        def joined(name: str) -> NDArray[np.generic]:
            return np.concatenate([getattr(part, name) for part in documents])

        starts = np.concatenate(
            [part.starts + at for part, at in zip(documents, offsets, strict=False)]
        )
        lengths = np.asarray(joined("lengths"), np.int64)
        if cut_heads:
            shift = _shifts(np.asarray(joined("cuts")), lengths, seed)
            starts, lengths = starts + shift, lengths - shift
        self._starts, self._lengths = torch.from_numpy(starts), torch.from_numpy(lengths)
        self._often = np.repeat(
            [often for _, often in parts], [len(part.starts) for part in documents]
        )
        names = ("tokens", "labels", "shares", "weights", "chunks")
        self._columns = {name: torch.from_numpy(joined(name)).to(device) for name in names}
        weights = joined("weights").astype(np.float64)
        self._summed = torch.from_numpy(np.concatenate([[0.0], np.cumsum(weights)]))
        self._sizes = [int(size) for size in _sizes(longest)]

    @property
    def size(self) -> int:
        """Draft tokens of an epoch in which each document is seen once."""
        return int(self._lengths.sum())

    def steps(self, first: int) -> Iterator[Batch]:
        """Batches without end, from step ``first`` on; the same whatever was taken before."""
        epoch, behind = 0, 0
        while True:
            order = self._order(epoch)
            for size, picked in order[max(0, first - behind) :]:
                yield self._batch(size, picked)
            behind += len(order)
            epoch += 1

    def _order(self, epoch: int) -> list[tuple[int, Tensor]]:
        """An epoch's batches: the length of their rows, and which documents."""
        random = np.random.default_rng([self._seed, epoch])
        # Seen 2.3 times an epoch: twice, and a third time with that chance.
        times = np.floor(self._often + random.random(len(self._often))).astype(np.int64)
        seen = np.repeat(np.arange(len(times)), times)
        lengths = self._lengths.numpy()[seen]
        batches: list[tuple[int, Tensor]] = []
        low = _SHORTEST - 1
        for size in self._sizes:
            group = random.permutation(seen[(lengths > low) & (lengths <= size)])
            rows = max(self._processes, self._positions // size)
            batches += [
                (size, torch.from_numpy(group[i : i + rows])) for i in range(0, len(group), rows)
            ]
            low = size
        if not batches:
            raise ValueError("there is no document to learn from")
        return [batches[i] for i in random.permutation(len(batches))]

    def _batch(self, size: int, picked: Tensor) -> Batch:
        begin = self._starts[picked]
        total = self._summed[begin + self._lengths[picked]] - self._summed[begin + 1]
        mine = picked[self._rank :: self._processes]
        starts, lengths = (each[mine].to(self._device) for each in (self._starts, self._lengths))
        place = torch.arange(size, device=self._device)
        live = place < lengths[:, None]
        columns = self._columns
        index = (starts[:, None] + place).clamp(max=len(columns["tokens"]) - 1)
        ids = torch.where(live, columns["tokens"][index].long(), 0)
        if len(mine):
            ids[:, 0] = columns["tokens"][0]  # the token that begins a text
        weights = torch.where(live, columns["weights"][index].float(), 0.0)[:, 1:]
        row, column = (weights > 0).nonzero(as_tuple=True)
        flat = index[row, column + 1]
        return Batch(
            ids,
            row * size + column,
            columns["labels"][flat].long(),
            columns["shares"][flat].float(),
            columns["tokens"][flat].long(),
            columns["chunks"][flat],
            weights[row, column],
            float(total.sum()),
        )


def _sizes(longest: int) -> list[int]:
    """Lengths of rows: half an octave apart, so that little is padding."""
    sizes, size = [], 96.0
    while size < longest:
        sizes.append(int(size) // 32 * 32)
        size *= 2**0.4
    return [*sizes, longest]


def _shifts(cuts: NDArray[np.generic], lengths: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    draw = np.random.default_rng(seed).random(len(lengths))
    bounds = np.cumsum(CUTS)
    shift = np.zeros(len(lengths), np.int64)
    for kind in range(3):
        low = bounds[kind - 1] if kind else 0.0
        chosen = (draw >= low) & (draw < bounds[kind])
        shift[chosen] = cuts[chosen, kind]
    return np.where(shift < lengths - _SHORTEST, shift, 0)
