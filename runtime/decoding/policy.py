"""What to draft: what a policy is asked and told, and a fixed number of tokens.

A round proposes a tree of target tokens. A chain is a tree whose layers have one open node each,
the token drawn last. Plain decoding is the tree without nodes.

A policy is asked before a round and after each pass of the drafter, and told what came of it. Its
answers may depend on what was drafted so far, on past rounds and on time, never on what the next
pass would draw. The draft is then a stopping time, and the verification of a chain stays exact
(method: walk the trie).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from omnidraft._native import Outcome

LIKELY = 0.8
"""About how likely the drafter's first choice is, where it is run on a likely path."""


class DraftPolicy(Protocol):
    """Decides what rounds draft. One instance serves one session, generation by generation.

    By cost: ``CostAware`` of the native core.
    """

    @property
    def calibration(self) -> list[tuple[float, float]]:
        """Slope and offset, by rank: see ``TreeDraft.calibrate``; none: as the drafter says."""

    def begin(self, room: int, space: int, context: int, unread: int, found: int) -> int:
        """The most nodes that this round may score, at most ``space``; 0 is plain decoding.

        Args:
            room: tokens that are still wanted, less one.
            space: nodes that there is room for.
            context: target tokens in the KV cache.
            unread: draft tokens that the drafter would have to read in its first pass.
            found: tokens that a lookup would propose.
        """

    def found(self, match: int) -> float:
        """How likely a looked up token is, after a match of so many tokens."""

    def layer(self, open_nodes: Sequence[float], gains: Sequence[float], limit: int) -> int:
        """How many of the open draft nodes the drafter runs on next; 0 ends drafting.

        Args:
            open_nodes: their probabilities, in descending order; before the first pass 1, the text.
            gains: the probabilities of the target nodes so far, in descending order.
            limit: what ``begin`` said.
        """

    def count(self, gains: Sequence[float], limit: int) -> int:
        """How many target nodes to score, the most probable ones, at most ``limit``."""

    def observe(self, outcome: Outcome) -> None:
        """What came of the round."""


class Fixed:
    """The same number of tokens every round, ended early by low confidence.

    The rule is the threshold of adaptive drafting (method, section 4): draft until
    1 − Π score > γ, where ``confidence`` = 1 − γ.

    Args:
        nodes: of a chain or a tree. Of a tree the most probable ones.
        confidence: no drafting goes on from a path whose product of scores falls below this; 0:
            from every one.
    """

    def __init__(self, nodes: int, confidence: float = 0.0) -> None:
        self.calibration: list[tuple[float, float]] = []
        self._nodes = nodes
        self._confidence = confidence

    def begin(self, room: int, space: int, context: int, unread: int, found: int) -> int:
        """See ``DraftPolicy``."""
        return min(self._nodes, space) if room > 0 else 0

    def found(self, match: int) -> float:
        """See ``DraftPolicy``."""
        return 0.0

    def layer(self, open_nodes: Sequence[float], gains: Sequence[float], limit: int) -> int:
        """Those whose children may be among the most probable nodes."""
        least = gains[limit - 1] if len(gains) >= limit else 0.0
        return sum(p * LIKELY > least and p >= self._confidence for p in open_nodes)

    def count(self, gains: Sequence[float], limit: int) -> int:
        """All."""
        return limit

    def observe(self, outcome: Outcome) -> None:
        """Nothing is learnt."""
