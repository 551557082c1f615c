"""Answers that come piece by piece, and why they ended."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator

from omnidraft.runtime.answer import Piece
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.statistics import Statistics


class _Told:
    """What has come of an answer."""

    def __init__(self, decoders: list[SpeculativeDecoder]) -> None:
        self.decoders = decoders
        """The one that makes it, from its turn on."""
        self._over = False
        self.token_ids: list[int] = []
        """The target's, as far as they have come."""
        self.finish_reason: str | None = None
        """See ``Answer``; None: the answer has not ended, or failed."""
        self.stats: Statistics | None = None
        """See ``Answer``; None: likewise."""

    def _take(self, piece: Piece) -> Piece:
        if piece.token is not None:
            self.token_ids.append(piece.token)
        return piece

    def _end(self, *, broken_off: bool = False) -> None:
        if self._over:
            return
        self._over = True
        # Without a decoder it ended while it waited for its turn.
        decoder = self.decoders[0] if self.decoders else None
        self.stats = decoder.statistics if decoder else Statistics()
        self.finish_reason = decoder.finish_reason if decoder and not broken_off else "cancelled"

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, OmniDraftError):
            self._over = True  # there is no answer
        else:
            self._end(broken_off=True)


class Stream(_Told, Iterator[Piece]):
    """What ``Model.stream`` gives: the pieces of an answer, then why it ended.

    stream = model.stream("Why is the sky blue?")
    for piece in stream:
        print(piece.text, end="", flush=True)
    print(stream.finish_reason, stream.stats)

    Closing or dropping it breaks the answer off.
    """

    def __init__(
        self, pieces: Generator[Piece, None, None], decoders: list[SpeculativeDecoder]
    ) -> None:
        super().__init__(decoders)
        self._pieces = pieces

    def __next__(self) -> Piece:
        try:
            piece = next(self._pieces)
        except StopIteration:
            self._end()
            raise
        except BaseException as error:
            # Not where somebody else is reading it at this moment.
            if inspect.getgeneratorstate(self._pieces) == inspect.GEN_CLOSED:
                self._fail(error)
            raise
        return self._take(piece)

    def close(self) -> None:
        """Break the answer off, unless it has ended; its finish reason is "cancelled"."""
        self._pieces.close()
        self._end(broken_off=True)

    def _close_if_paused(self) -> None:
        """The same from any thread, unless it is being read: then it ends by being cancelled."""
        if inspect.getgeneratorstate(self._pieces) == inspect.GEN_SUSPENDED:
            with contextlib.suppress(ValueError):  # somebody reads on at this moment
                self.close()


class AsyncStream(_Told, AsyncIterator[Piece]):
    """The same for asyncio: what ``Model.astream`` gives."""

    def __init__(
        self, pieces: AsyncGenerator[Piece, None], decoders: list[SpeculativeDecoder]
    ) -> None:
        super().__init__(decoders)
        self._pieces = pieces

    async def __anext__(self) -> Piece:
        try:
            piece = await anext(self._pieces)
        except StopAsyncIteration:
            self._end()
            raise
        except BaseException as error:
            if getattr(self._pieces, "ag_frame", None) is None:  # not where somebody else reads
                self._fail(error)
            raise
        return self._take(piece)

    async def aclose(self) -> None:
        """Break the answer off, unless it has ended; its finish reason is "cancelled"."""
        await self._pieces.aclose()
        self._end(broken_off=True)
