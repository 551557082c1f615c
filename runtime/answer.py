"""An answer and its pieces, and how tokens become them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from omnidraft._native import Origin
from omnidraft.runtime.decoding.decoder import Emitted
from omnidraft.runtime.decoding.logprobs import TokenLogprobs
from omnidraft.runtime.decoding.proposal import Proposal
from omnidraft.runtime.statistics import Statistics
from omnidraft.runtime.text.stop import StopSearch
from omnidraft.runtime.text.surface import TextStream
from omnidraft.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Piece:
    """A token of an answer and the text it completes, empty within a character.

    A piece without a token, at the very end, is what an unfinished character leaves.
    """

    token: int | None
    origin: Origin
    text: str
    logprobs: TokenLogprobs | None = None
    """Of the token, if they were asked for."""
    proposal: Proposal | None = None
    """Of the round that the token begins, if proposals were asked for."""


@dataclass
class Answer:
    """A whole answer.

    Attributes:
        text: what a reader sees; special tokens have no text.
        token_ids: of the target, an end-of-text token included.
        finish_reason: "stop": the model or a stop string ended it; "length": it was cut at
            ``max_new_tokens`` or at the end of the context; "cancelled".
        stats: what was drafted and accepted, and where the time went; ``statistics`` is another
            name for it.
        logprobs: of each of ``token_ids``; None: they were not asked for.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    stats: Statistics
    logprobs: list[TokenLogprobs] | None = None

    @property
    def statistics(self) -> Statistics:
        """``stats``."""
        return self.stats


class AnswerText:
    """The text of the tokens of an answer, up to a stop string.

    What may be the beginning of a stop string is held back until that is known.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._search = StopSearch(stops) if stops else None
        self._stream = TextStream()
        self._texts: deque[str] = deque()
        """Of tokens that the decoder has made and not yet yielded."""
        self._held: deque[Piece] = deque()
        self._told = 0
        """Characters in pieces that are not held any more."""

    @property
    def cut(self) -> bool:
        """Whether a stop string ends the answer."""
        return self._search is not None and self._search.cut is not None

    def ends_with(self, token: int) -> bool:
        """Add a token of the answer; returns whether a stop string is complete with it."""
        return self._add(self._tokenizer.shown_bytes(token))

    def pieces(self, emitted: Emitted) -> Iterator[Piece]:
        """Take what the decoder yields, and yield what no stop string can contain."""
        token, origin, logprobs, proposal = emitted
        if token in self._tokenizer.eos_ids:
            # The end is no part of the text, whatever else that token means.
            self._add(b"")
        self._held.append(Piece(token, origin, self._texts.popleft(), logprobs, proposal))
        if self._search is None:
            yield self._held.popleft()
            return
        end = told = 0
        for index, piece in enumerate(self._held, 1):
            told += len(piece.text)
            # A token without text may belong to a character that is cut.
            if piece.text and self._told + told <= self._search.certain:
                end = index
        yield from self._release(end)

    def finish(self) -> Iterator[Piece]:
        """What is held back at the end of the answer, up to a stop string."""
        if rest := self._stream.finish():
            self._held.append(Piece(None, Origin.FREE, rest))
            if self._search is not None:
                self._search.push(rest)
        if self._search is None or (cut := self._search.cut) is None:
            yield from self._release(len(self._held))
            return
        told = self._told
        for index, piece in enumerate(self._held, 1):
            if told + len(piece.text) >= cut:
                if told < cut:
                    yield from self._release(index - 1)
                    yield replace(piece, text=piece.text[: cut - told])
                return
            told += len(piece.text)

    def _add(self, shown: bytes) -> bool:
        text = self._stream.push(shown)
        self._texts.append(text)
        if self._search is None:
            return False
        self._search.push(text)
        return self._search.ended

    def _release(self, count: int) -> Iterator[Piece]:
        for _ in range(count):
            piece = self._held.popleft()
            self._told += len(piece.text)
            yield piece
