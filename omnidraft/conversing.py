"""A conversation with a model, which keeps its messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from typing import TYPE_CHECKING, Unpack

from omnidraft.runtime.answer import Answer, Piece
from omnidraft.runtime.text.chat import Message
from omnidraft.streams import AsyncStream, Stream

if TYPE_CHECKING:
    from omnidraft.model import Model, Options


class Chat:
    """A conversation: see ``Model.chat``.

    chat = model.chat(system="Be brief.")
    print(chat.ask("Why is the sky blue?").text)
    print(chat.ask("And at sunset?").text)

    Attributes:
        messages: what was said so far, each with a role and a content. It may be changed between
            answers. An answer that failed, was cancelled or broken off leaves it as it was.
    """

    def __init__(self, model: Model, messages: Sequence[Message], options: Options) -> None:
        self.messages: list[Message] = list(messages)
        self._model = model
        self._options = options

    def ask(self, text: str, **options: Unpack[Options]) -> Answer:
        """The whole answer to a message; options stand for those of the conversation.

        Raises:
            See ``Model.generate``.
        """
        asked = self._asked(text)
        answer = self._model.generate(asked, **(self._options | options))
        self._keep(asked, answer.text, answer.finish_reason)
        return answer

    def stream(self, text: str, **options: Unpack[Options]) -> Stream:
        """The answer piece by piece: see ``Model.stream``."""
        asked = self._asked(text)
        stream = self._model.stream(asked, **(self._options | options))

        def pieces() -> Generator[Piece, None, None]:
            said = ""
            try:
                for piece in stream:
                    said += piece.text
                    yield piece
            finally:
                stream.close()
            self._keep(asked, said, stream.finish_reason)

        return Stream(pieces(), stream.decoders)

    def astream(self, text: str, **options: Unpack[Options]) -> AsyncStream:
        """The same for asyncio: see ``Model.astream``."""
        asked = self._asked(text)
        stream = self._model.astream(asked, **(self._options | options))

        async def pieces() -> AsyncGenerator[Piece, None]:
            said = ""
            try:
                async for piece in stream:
                    said += piece.text
                    yield piece
            finally:
                await stream.aclose()
            self._keep(asked, said, stream.finish_reason)

        return AsyncStream(pieces(), stream.decoders)

    def _asked(self, text: str) -> list[Message]:
        return [*self.messages, {"role": "user", "content": text}]

    def _keep(self, asked: list[Message], said: str, reason: str | None) -> None:
        if reason in ("stop", "length"):
            self.messages = [*asked, {"role": "assistant", "content": said}]
