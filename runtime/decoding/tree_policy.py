"""Which tree to propose: what a policy is asked and told, and a fixed number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from omnidraft._native import TreeProposal, TreeVerdict

LIKELY = 0.8
"""About how likely the drafter's first choice is, where it is run on a likely path."""
MAX_LAYER = 4
"""Most draft nodes in a pass of the drafter."""


@dataclass(frozen=True)
class TreeOutcome:
    """What a round did.

    Attributes:
        context: target tokens in the KV cache before the pass.
        passes: tokens and seconds of each pass of the drafter. The first has those tokens that it
            had to catch up with.
        target_seconds: of the target's pass.
        other_seconds: of the rest of the round.
        match: how many tokens at the end of the text led to what lookup found; 0: to nothing.
        found_judged, found_right: see ``Outcome``.
    """

    context: int
    proposal: TreeProposal
    verdict: TreeVerdict
    passes: Sequence[tuple[int, float]]
    target_seconds: float
    other_seconds: float
    match: int = 0
    found_judged: int = 0
    found_right: int = 0


class TreePolicy(Protocol):
    """Decides how a tree grows. One instance serves one session, generation by generation.

    Attributes:
        calibration: slope and offset, by rank: see ``TreeDraft.calibrate``.
    """

    @property
    def calibration(self) -> list[tuple[float, float]]: ...

    def begin(self, room: int, space: int, context: int, unread: int, found: int) -> int:
        """The most nodes that this round may score, at most ``space``; 0 is plain decoding.

        Args:
            room: tokens that are still wanted, less one.
            space: nodes that fit the target's KV cache.
            context: target tokens in the KV cache.
            found: tokens that a lookup would propose.
            unread: draft tokens that the drafter would have to read in its first pass.
        """

    def found(self, match: int) -> float:
        """How likely a looked up token is, after a match of so many tokens."""

    def layer(self, open_nodes: Sequence[float], gains: Sequence[float], limit: int) -> int:
        """How many of the open draft nodes the drafter runs on next; 0 ends drafting.

        Args:
            open_nodes: their probabilities, in descending order; before the first pass 1, the text.
            gains: of the target nodes so far, see ``TreeDraft.gains``.
            limit: what ``begin`` said.
        """

    def count(self, gains: Sequence[float], limit: int) -> int:
        """How many target nodes to score, at most ``limit``."""

    def observe(self, outcome: TreeOutcome) -> None:
        """What came of the round."""


class FixedTree:
    """The same number of nodes every round: the most probable ones.

    Args:
        nodes: at least 1.
    """

    def __init__(self, nodes: int) -> None:
        self.calibration: list[tuple[float, float]] = []
        self._nodes = nodes

    def begin(self, room: int, space: int, context: int, unread: int, found: int) -> int:
        """See ``TreePolicy``."""
        return min(self._nodes, space) if room else 0

    def found(self, match: int) -> float:
        """See ``TreePolicy``."""
        return 0.0

    def layer(self, open_nodes: Sequence[float], gains: Sequence[float], limit: int) -> int:
        """Those whose children may be among the most probable nodes."""
        least = gains[limit - 1] if len(gains) >= limit else 0.0
        return sum(probability * LIKELY > least for probability in open_nodes)

    def count(self, gains: Sequence[float], limit: int) -> int:
        """All."""
        return limit

    def observe(self, outcome: TreeOutcome) -> None:
        """Nothing is learnt."""
