"""A tree of tokens in a KV cache: which slots a node sees, and which ones are kept of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Path = tuple[int, ...]
"""Slots of a node's ancestors within the tree, and its own: ascending, as a node follows another
one that was there before it."""


class TokenTree:
    """Nodes in the slots behind a chain: see ``ScoresTrees``.

    >>> tree = TokenTree(chain=10)
    >>> tree.grow(tree.paths([9, 9, 10], count=3))
    >>> tree.paths([12], count=1)
    [(10, 12, 13)]

    Args:
        chain: slots before those of the tree, whose tokens every node sees.
    """

    def __init__(self, chain: int) -> None:
        self.chain = chain
        self._paths: list[Path] = []

    def paths(self, parents: Sequence[int] | NDArray[np.int64], count: int) -> list[Path]:
        """Paths of ``count`` more nodes, in the next slots, by the slots of their parents.

        Raises:
            ValueError: a parent is neither the chain's last slot nor an earlier node's; or there
                are not ``count``.
        """
        if len(parents) != count:
            raise ValueError(f"{count} nodes with {len(parents)} parents: each must have one")
        paths = list(self._paths)
        first = self.chain + len(paths)
        for slot, parent in enumerate(map(int, parents), first):
            if not self.chain - 1 <= parent < slot:
                raise ValueError(
                    f"the node in slot {slot} follows slot {parent}: it must follow the end of "
                    f"the text (slot {self.chain - 1}) or an earlier node of the tree"
                )
            paths.append((*(paths[parent - self.chain] if parent >= self.chain else ()), slot))
        return paths[len(self._paths) :]

    def grow(self, paths: Sequence[Path]) -> None:
        """Add the nodes that ``paths`` gave."""
        self._paths += paths

    def moves(self, path: Sequence[int]) -> list[tuple[int, int]]:
        """From which slots to which ones a path moves so that it lies behind the chain.

        Both ascend, so one may be moved after the other. Those that lie right are left out.

        Raises:
            ValueError: it is no path from the chain downwards.
        """
        slots = tuple(map(int, path))
        index = slots[-1] - self.chain if slots else 0
        if slots and not (0 <= index < len(self._paths) and self._paths[index] == slots):
            raise ValueError(f"{list(slots)!s:.200} is no path of the tree from its root downwards")
        return [(slot, i) for i, slot in enumerate(slots, self.chain) if slot != i]

    def refuse(self, what: str) -> ValueError:
        """The error of what cannot be done while the tree is held."""
        return ValueError(
            f"{what} while a tree is held: call keep() with the path that is accepted, or "
            f"truncate() to at most the {self.chain} tokens before the tree"
        )
