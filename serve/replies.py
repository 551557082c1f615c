"""Answers as OpenAI's objects, whole and in chunks."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from omnidraft.runtime.answer import Piece
from omnidraft.runtime.decoding.logprobs import TokenLogprobs
from omnidraft.runtime.statistics import Statistics
from omnidraft.runtime.text.tokenizer import Tokenizer

Json = dict[str, Any]


class Reply(ABC):
    """The answers to one request, as they come.

    Args:
        model: its name.
        tokenizer: of the model, for the tokens of log-probabilities.
        choices: how many answers there will be.
        include_usage: a stream ends with a chunk that tells it.
        prompts: how many prompts these answers are of.
    """

    prefix: str
    whole: str
    """The type of the whole object."""
    chunk: str
    """The type of a chunk."""

    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        choices: int,
        include_usage: bool,
        prompts: int = 1,
    ) -> None:
        self.tokenizer = tokenizer
        self._choices = choices
        self._per_prompt = choices // prompts
        self._include_usage = include_usage
        self._head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        self._pieces: list[list[Piece]] = [[] for _ in range(choices)]
        self._reasons: list[str | None] = [None] * choices
        self._statistics = [Statistics() for _ in range(choices)]

    @abstractmethod
    def opening(self, index: int) -> Json | None:
        """The choice of the chunk with which an answer begins, if it has one."""

    @abstractmethod
    def part(self, index: int, piece: Piece) -> Json:
        """The choice of a chunk with a piece."""

    @abstractmethod
    def ending(self, index: int) -> Json:
        """The choice of the chunk with which an answer ends."""

    @abstractmethod
    def choice(self, index: int, pieces: list[Piece]) -> Json:
        """A whole answer."""

    def add(self, index: int, piece: Piece) -> None:
        """Keep a piece for the whole object."""
        self._pieces[index].append(piece)

    def end(self, index: int, reason: str, statistics: Statistics) -> None:
        """An answer has ended."""
        self._reasons[index] = reason
        self._statistics[index] = statistics

    def object(self) -> Json:
        """All answers at once."""
        choices = [
            {
                "index": index,
                **self.choice(index, pieces),
                "finish_reason": self._reasons[index],
            }
            for index, pieces in enumerate(self._pieces)
        ]
        return {**self._head, "object": self.whole, "choices": choices, "usage": self.usage()}

    def openings(self) -> Iterator[Json]:
        """The chunks with which a stream begins."""
        for index in range(self._choices):
            if (choice := self.opening(index)) is not None:
                yield self._chunk(index, choice, None)

    def chunks(self, index: int, piece: Piece) -> Iterator[Json]:
        """The chunk of a piece; none of a piece that says nothing."""
        if piece.text or self.tells_logprobs(piece):
            yield self._chunk(index, self.part(index, piece), None)

    def endings(self, index: int) -> Iterator[Json]:
        """The chunk with which an answer ends."""
        yield self._chunk(index, self.ending(index), self._reasons[index])

    def last(self) -> Iterator[Json]:
        """The chunk with which a stream ends, if it was asked for."""
        if self._include_usage:
            usage = self.usage()
            yield {**self._head, "object": self.chunk, "choices": [], "usage": usage}

    def usage(self) -> Json:
        """Tokens of the prompts, each once, and of all answers, their ends included."""
        # Of several answers to a prompt the first one reads it.
        firsts = self._statistics[:: self._per_prompt]
        prompt = sum(each.prompt_tokens for each in firsts)
        answers = sum(each.target_tokens for each in self._statistics)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answers,
            "total_tokens": prompt + answers,
            "prompt_tokens_details": {"cached_tokens": sum(each.prompt_kept for each in firsts)},
        }

    def tells_logprobs(self, piece: Piece) -> bool:
        """Whether the log-probabilities of a piece are told: not of the end of the text."""
        return piece.logprobs is not None and piece.token not in self.tokenizer.eos_ids

    def token(self, token: int) -> tuple[str, list[int] | None]:
        """The text of a token and its bytes; a special one's is its name."""
        shown = self.tokenizer.shown_bytes(token)
        if not shown:
            names = self.tokenizer.tokens
            return names[token] if token < len(names) else "", None
        return shown.decode("utf-8", "replace"), list(shown)

    def _chunk(self, index: int, choice: Json, reason: str | None) -> Json:
        chunk: Json = {
            **self._head,
            "object": self.chunk,
            "choices": [{"index": index, **choice, "finish_reason": reason}],
        }
        if self._include_usage:
            chunk["usage"] = None
        return chunk


class ChatReply(Reply):
    """Of ``/v1/chat/completions``."""

    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, index: int) -> Json:
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def part(self, index: int, piece: Piece) -> Json:
        return {"delta": {"content": piece.text}, "logprobs": self._logprobs([piece])}

    def ending(self, index: int) -> Json:
        return {"delta": {}, "logprobs": None}

    def choice(self, index: int, pieces: list[Piece]) -> Json:
        text = "".join(piece.text for piece in pieces)
        return {
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._logprobs(pieces),
        }

    def _logprobs(self, pieces: list[Piece]) -> Json | None:
        told = [each for each in pieces if self.tells_logprobs(each)]
        if not any(each.logprobs for each in pieces):
            return None
        content = []
        for piece in told:
            assert piece.token is not None and piece.logprobs is not None
            content.append(
                {
                    **self._one(piece.token, piece.logprobs.chosen),
                    "top_logprobs": [self._one(*each) for each in piece.logprobs.top],
                }
            )
        return {"content": content, "refusal": None}

    def _one(self, token: int, logprob: float) -> Json:
        text, data = self.token(token)
        return {"token": text, "logprob": logprob, "bytes": data}


class CompletionReply(Reply):
    """Of ``/v1/completions``."""

    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._told = [0] * self._choices
        """Characters of each answer that were told."""

    def opening(self, index: int) -> None:
        return None

    def part(self, index: int, piece: Piece) -> Json:
        return {"text": piece.text, "logprobs": self._logprobs(index, [piece])}

    def ending(self, index: int) -> Json:
        return {"text": "", "logprobs": None}

    def choice(self, index: int, pieces: list[Piece]) -> Json:
        self._told[index] = 0
        text = "".join(piece.text for piece in pieces)
        return {"text": text, "logprobs": self._logprobs(index, pieces)}

    def _logprobs(self, index: int, pieces: list[Piece]) -> Json | None:
        asked = any(each.logprobs for each in pieces)
        told: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for piece in pieces:
            if piece.token is not None and self.tells_logprobs(piece):
                logprobs: TokenLogprobs = piece.logprobs  # type: ignore[assignment]
                told["tokens"].append(self.token(piece.token)[0])
                told["token_logprobs"].append(logprobs.chosen)
                # Two tokens may have one text: the likelier one counts.
                top = {self.token(t)[0]: value for t, value in reversed(logprobs.top)}
                told["top_logprobs"].append(dict(reversed(top.items())))
                told["text_offset"].append(self._told[index])
            self._told[index] += len(piece.text)
        return told if asked else None
