"""How many tokens to draft: what a policy is asked and told, and the fixed length.

A policy is asked before a round and after each draft step, and told what came of the round. Its
answers may depend on the path drawn so far, on past rounds and on time, never on what the next step
would draw. The walk is then a stopping time, and verification stays exact (method: walk the trie).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Outcome:
    """What a round did, for the policy that decided its length.

    Attributes:
        context: target tokens in the KV cache before the pass.
        rows: of the target's pass.
        steps: passes of the drafter, those that drew nothing included.
        drafted: draft tokens drawn, less those behind the end of the answer.
        accepted_drafts: of those, the ones that spell accepted target tokens.
        proposed: target tokens scored, less those behind the end of the answer.
        accepted: of those, the ones that stand.
        draft_seconds: of all draft steps, catching up included.
        target_seconds: of the pass.
        other_seconds: of the rest of the round.
        match: what ``look_up`` was told; 0 without a lookup.
        found_judged: tokens of the lookup, proposed or not, that the round showed to be right or
            wrong: the right ones at its beginning, and the first wrong one.
        found_right: of those, the right ones.
    """

    context: int
    rows: int
    steps: int
    drafted: int
    accepted_drafts: int
    proposed: int
    accepted: int
    draft_seconds: float
    target_seconds: float
    other_seconds: float
    match: int = 0
    found_judged: int = 0
    found_right: int = 0

    @property
    def judged(self) -> int:
        """Draft tokens that the target accepted or rejected: up to the first rejected one.

        The target did not judge what follows a rejected token, nor draft tokens at the end that
        made no target token.
        """
        return self.accepted_drafts + (self.accepted < self.proposed)


class DraftLengthPolicy(Protocol):
    """Decides how far a round drafts. One instance serves one session, generation by generation."""

    def look_up(self, found: int, match: int, context: int, unread: int) -> int:
        """How many of the tokens that lookup found to propose; 0 leaves the round to the drafter.

        Asked before ``begin`` where something was found. Nothing is drafted in a round that
        proposes them, and ``begin`` is not called.

        Args:
            found: tokens, as many as the round has room for at most.
            match: how many tokens at the end of the text led there.
            context, unread: see ``begin``.
        """

    def begin(self, room: int, context: int, unread: int) -> int:
        """The most draft tokens this round may draw, at most ``room``; 0 is plain decoding.

        Args:
            room: target tokens that are still wanted, less one.
            context: target tokens in the KV cache.
            unread: draft tokens that the drafter would have to read in its first step.
        """

    def go_on(self, score: float) -> bool:
        """Whether to draw another draft token.

        Args:
            score: how likely the token drawn last is to be accepted, in [0, 1].
        """

    def observe(self, outcome: Outcome) -> None:
        """What came of the round that ``look_up`` or ``begin`` opened."""


class Fixed:
    """The same length every round, ended early by low confidence.

    The rule is the threshold of adaptive drafting (method, section 4): draft until
    1 − Π score > γ, where ``confidence`` = 1 − γ.

    Args:
        length: draft tokens per round.
        confidence: a draft ends when the product of its scores falls below this; 0: never.
    """

    def __init__(self, length: int, confidence: float = 0.0) -> None:
        self._length = length
        self._confidence = confidence
        self._product = 1.0

    def look_up(self, found: int, match: int, context: int, unread: int) -> int:
        """Never: see ``DraftLengthPolicy.look_up``."""
        return 0

    def begin(self, room: int, context: int, unread: int) -> int:
        """See ``DraftLengthPolicy.begin``."""
        self._product = 1.0
        return min(self._length, room)

    def go_on(self, score: float) -> bool:
        """See ``DraftLengthPolicy.go_on``."""
        self._product *= score
        return self._product >= self._confidence

    def observe(self, outcome: Outcome) -> None:
        """Nothing is learnt."""
