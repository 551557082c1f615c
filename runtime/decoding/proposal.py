"""What a round proposed, for whoever wants to see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Proposal(NamedTuple):
    """The target tokens that a round proposed, as a tree; none where it decoded plainly."""

    tokens: Sequence[int]
    """Parents come before their children."""
    parents: Sequence[int]
    """Of each token the place in ``tokens`` of the one that it follows; −1: the text."""
    accepted: Sequence[int]
    """Places of the tokens that stood, from the text on. The token that ended the round is none of
    them, also where it was proposed."""
