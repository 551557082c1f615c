"""What a round proposed, for whoever wants to see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from omnidraft._native import Pass


class Proposal(NamedTuple):
    """The target tokens that a round proposed, as a tree; none where it decoded plainly."""

    tokens: Sequence[int]
    """Parents come before their children."""
    parents: Sequence[int]
    """Of each token the place in ``tokens`` of the one that it follows; −1: the text."""
    accepted: Sequence[int]
    """Places of the tokens that stood, from the text on. The token that ended the round is none of
    them, also where it was proposed."""


def proposal_of(scored: Pass, rows: Sequence[int]) -> Proposal:
    """The proposal of a round.

    Args:
        scored: the target's pass, over the text's last token and what was proposed.
        rows: of the pass, from which the round's tokens were taken: ``Generation.rows``.
    """
    tokens = scored.tokens[1:]
    # Slots in the target's KV cache, behind those of the text and of its last token.
    slots = scored.parents[1:]
    first = scored.held + 1
    parents = [slot - first for slot in slots] if slots else list(range(-1, len(tokens) - 1))
    return Proposal(tokens, parents, [row - 1 for row in rows[1:]])
