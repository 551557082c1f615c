"""A teacher's tokens in the drafter's: aligned to them, and in the drafter's own segmentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.text.tokenizer import Tokenizer

Ints = NDArray[np.int64]


class Speller:
    """Spells bytes in the drafter's tokens, as the drafter is fed them when it drafts.

    Args:
        tokenizer: the drafter's.

    Raises:
        OmniDraftError: it has no token that begins a text, or cannot spell a newline.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if tokenizer.bos_id is None:
            raise OmniDraftError("The drafter's tokenizer has no token that begins a text.")
        self.begin = tokenizer.bos_id
        self.vocab_size = tokenizer.vocab_size
        self._tokenizer = tokenizer
        self._direct: dict[bytes, int] = {}
        byte_tokens: dict[bytes, int] = {}
        for token, surface in enumerate(tokenizer.surfaces):
            if surface:
                (byte_tokens if tokenizer.is_byte_token(token) else self._direct)[surface] = token
        for surface, token in byte_tokens.items():
            self._direct.setdefault(surface, token)
        # What stands for a control token, which has no surface.
        self.control = self.spell(b"\n")

    def spell(self, surface: bytes) -> list[int]:
        """The token of just these bytes if there is one, else the tokenizer's segmentation.

        Raises:
            OmniDraftError: the drafter's vocabulary cannot spell them.
        """
        if (direct := self._direct.get(surface)) is not None:
            return [direct]
        return self.segment(surface)

    def segment(self, text: bytes) -> list[int]:
        """The tokenizer's segmentation, without a space in front.

        Raises:
            OmniDraftError: see ``spell``.
        """
        ids = self._tokenizer.segment(text)
        if ids is None:
            raise OmniDraftError(
                f"The drafter's vocabulary cannot spell {text[:40]!r}. Take one with byte tokens."
            )
        return ids

    def lengths(self, ids: Sequence[int]) -> list[int]:
        """Bytes of each token."""
        return [len(self._tokenizer.surfaces[token] or b"") for token in ids]


@dataclass(frozen=True)
class Alignment:
    """The spelling of each of a shard's tokens, one after another.

    Args:
        flat: draft tokens.
        starts, counts: where each token's lie.
        firsts: the first of each, which labels are mapped to.
    """

    flat: Ints
    starts: Ints
    counts: Ints
    firsts: Ints

    def expand(self, tokens: NDArray[np.int32]) -> tuple[Ints, Ints, Ints]:
        """Draft tokens of a text, and for each which token it belongs to and which of its pieces it
        is."""
        counts = self.counts[tokens]
        owner = np.repeat(np.arange(len(tokens)), counts)
        piece = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.flat[self.starts[tokens][owner] + piece], owner, piece


def align(surfaces: Sequence[bytes | None], speller: Speller) -> Alignment:
    """Spell every token of a shard; a token without bytes is spelled as a control token."""
    rows = [speller.spell(surface) if surface else speller.control for surface in surfaces]
    counts = np.array([len(row) for row in rows], np.int64)
    flat = np.array([token for row in rows for token in row], np.int64)
    starts = np.cumsum(counts) - counts
    return Alignment(flat, starts, counts, flat[starts])
