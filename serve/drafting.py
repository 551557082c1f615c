"""What the server tells of drafting, which OpenAI's interface knows nothing of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from omnidraft.runtime.decoding.proposal import Proposal
from omnidraft.serve.answering import Ended, Told
from omnidraft.serve.replies import Json, Reply

FIELD = "omnidraft"


class DraftingTold:
    """The chunks of a stream, with how their text came about in the field ``omnidraft``.

    A chunk may hold the text of several tokens, and a token may have no text. So what is known of
    tokens waits for the next chunk of their answer; the last one has the answer's figures.
    """

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._pieces: dict[int, list[Json]] = {}

    def with_pieces(self, told: Told, chunks: Iterable[Json]) -> Iterator[Json]:
        """The chunks of a piece."""
        pieces = self._pieces.setdefault(told.choice, [])
        pieces.append(self._piece(told))
        for chunk in chunks:
            yield chunk | {FIELD: {"pieces": [*pieces]}}
            pieces.clear()

    def with_figures(self, ended: Ended, chunks: Iterable[Json]) -> Iterator[Json]:
        """The chunks with which an answer ends."""
        for chunk in chunks:
            pieces = self._pieces.pop(ended.choice, [])
            yield chunk | {FIELD: {"pieces": pieces, "figures": _figures(ended)}}

    def _piece(self, told: Told) -> Json:
        piece = told.piece
        shown: Json = {"text": piece.text, "origin": piece.origin.name.lower()}
        if piece.proposal is not None:
            shown["round"] = self._round(piece.proposal) | {
                "seconds": told.seconds,
                "plain_tokens_per_second": _rate(1, told.plain_seconds),
            }
        return shown

    def _round(self, proposal: Proposal) -> Json:
        return {
            "tokens": [self._reply.token(token)[0] for token in proposal.tokens],
            "parents": proposal.parents,
            "accepted": proposal.accepted,
        }


def _figures(ended: Ended) -> Json:
    stats = ended.statistics
    return {
        "tokens": stats.target_tokens,
        "rounds": stats.rounds,
        "proposed": stats.proposed,
        "accepted": stats.accepted,
        "seconds": stats.seconds,
        "prompt_seconds": stats.prompt_seconds,
        "tokens_per_round": stats.block_efficiency,
        "tokens_per_second": stats.tokens_per_second,
        "plain_tokens_per_second": _rate(stats.target_tokens, ended.plain_seconds),
    }


def _rate(tokens: int, seconds: float | None) -> float | None:
    """Tokens per second; None where it is not known."""
    return tokens / seconds if seconds else None
