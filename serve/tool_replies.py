"""Answers that may call functions, as OpenAI's objects."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable, Iterator
from typing import Any

from omnidraft.runtime.answer import Piece
from omnidraft.runtime.statistics import Statistics
from omnidraft.serve.calls import Call
from omnidraft.serve.replies import ChatReply, Json
from omnidraft.serve.tools import ToolUse

_LETTERS = string.ascii_letters + string.digits


class ToolReply(ChatReply):
    """Of ``/v1/chat/completions`` with tools.

    A call is told at once, as soon as it is complete.

    Args:
        use: how the tools are used.
    """

    def __init__(self, use: ToolUse, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._markers = use.markers
        self._readers = [use.reader() for _ in range(self._choices)]
        self._texts = [""] * self._choices
        self._calls: list[list[Json]] = [[] for _ in range(self._choices)]
        self._rest: list[list[Json]] = [[] for _ in range(self._choices)]
        """What the end of an answer made certain."""

    def add(self, index: int, piece: Piece) -> None:
        self._deltas(index, self._readers[index].push(self._text(piece)))

    def chunks(self, index: int, piece: Piece) -> Iterator[Json]:
        for delta in self._deltas(index, self._readers[index].push(self._text(piece))):
            yield self._chunk(index, {"delta": delta, "logprobs": None}, None)

    def end(self, index: int, reason: str, statistics: Statistics) -> None:
        self._rest[index] = self._deltas(index, self._readers[index].finish())
        if reason == "stop" and self._calls[index]:
            reason = "tool_calls"
        super().end(index, reason, statistics)

    def endings(self, index: int) -> Iterator[Json]:
        for delta in self._rest[index]:
            yield self._chunk(index, {"delta": delta, "logprobs": None}, None)
        yield from super().endings(index)

    def choice(self, index: int, pieces: list[Piece]) -> Json:
        message: Json = {"role": "assistant", "content": self._texts[index], "refusal": None}
        if calls := self._calls[index]:
            message |= {"content": self._texts[index] or None, "tool_calls": calls}
        return {"message": message, "logprobs": None}

    def _text(self, piece: Piece) -> str:
        marker = self._markers.get(piece.token, "") if piece.token is not None else ""
        return piece.text + marker

    def _deltas(self, index: int, parts: Iterable[str | Call]) -> list[Json]:
        deltas: list[Json] = []
        for part in parts:
            if isinstance(part, str):
                self._texts[index] += part
                deltas.append({"content": part})
                continue
            calls = self._calls[index]
            call = {
                # Nine letters and digits: templates of Mistral's take no other name.
                "id": "".join(secrets.choice(_LETTERS) for _ in range(9)),
                "type": "function",
                "function": part._asdict(),
            }
            deltas.append({"tool_calls": [{"index": len(calls), **call}]})
            calls.append(call)
        return deltas
