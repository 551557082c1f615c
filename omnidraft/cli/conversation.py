"""A conversation: its messages, and what can be done with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from omnidraft import GenerationOptions, Session
from omnidraft.cli.interruption import stopping
from omnidraft.cli.streaming import print_answer
from omnidraft.runtime.errors import ContextOverflowError, OmniDraftError
from omnidraft.runtime.statistics import Statistics
from omnidraft.runtime.storage.files import whole_file
from omnidraft.runtime.text.chat import Message

_SEEDS = 2**64


class Conversation:
    """Messages of a user and the answers to them, the printing of which Ctrl-C stops.

    What goes wrong changes no message.

    Args:
        messages: what was said before.
    """

    def __init__(
        self, session: Session, options: GenerationOptions, messages: list[Message]
    ) -> None:
        self.session = session
        self.messages = messages
        self.statistics = Statistics()
        """Of all answers, those that were taken back included."""
        self.answers = 0
        """How many these are."""
        self._options = options
        self._retries = 0

    @property
    def stopped(self) -> bool:
        """Whether the last answer was stopped."""
        return bool(self.messages and self.messages[-1].get("stopped"))

    def ask(self, text: str) -> None:
        """Print the answer to a message.

        Raises:
            OmniDraftError: see ``Session.stream``.
        """
        self._answer([*self.messages, {"role": "user", "content": text}], self._options)
        self._retries = 0

    def retry(self) -> None:
        """Answer the last message again, sampling with another seed.

        Raises:
            OmniDraftError: there is none; or see ``Session.stream``.
        """
        asked = self.messages[: self._last_asked("answer again") + 1]
        options, retries = self._options, self._retries + 1
        if options.seed is not None:
            options = replace(options, seed=(options.seed + retries) % _SEEDS)
        self._answer(asked, options)
        self._retries = retries

    def undo(self) -> str:
        """Take the last message and its answer back; returns the message.

        Raises:
            OmniDraftError: there is none.
        """
        last = self._last_asked("take back")
        text: str = self.messages[last]["content"]
        del self.messages[last:]
        self._retries = 0
        return text

    def set_system(self, text: str) -> None:
        """Set what the model is told first; an empty text: nothing.

        Raises:
            OmniDraftError: the model's chat template has no place for it.
        """
        told: list[Message] = [{"role": "system", "content": text}] if text else []
        self.session.encode([*told, {"role": "user", "content": "?"}])
        rest = self.messages[1:] if self._has_system() else self.messages
        self.messages = told + rest

    def begin_anew(self) -> None:
        """Drop all messages but what the model is told first."""
        self.messages = self.messages[:1] if self._has_system() else []
        self._retries = 0

    def save(self, path: Path) -> None:
        """Write the messages as JSON, which ``read_messages`` reads.

        Raises:
            OmniDraftError: there are none; or see ``whole_file``.
        """
        if not self.messages:
            raise OmniDraftError("there is nothing to save yet: say something first")
        text = json.dumps(self.messages, ensure_ascii=False, indent=2)
        with whole_file(path) as temporary:
            temporary.write_text(text + "\n", "utf-8")

    def context_used(self) -> int:
        """Tokens of the messages.

        Raises:
            OmniDraftError: see ``Session.encode``.
        """
        return len(self.session.encode(self.messages)) if self.messages else 0

    def _answer(self, asked: list[Message], options: GenerationOptions) -> None:
        try:
            with stopping() as stopped:
                text = print_answer(self.session, asked, options, stopped)
        except ContextOverflowError as error:
            if not self.messages:
                raise
            raise ContextOverflowError(
                f"{error}. Nothing of the conversation is lost: /undo takes the last message and "
                "its answer back, /save FILE keeps all, /new begins anew"
            ) from error
        decoder = self.session.last
        assert decoder is not None
        self.statistics += decoder.statistics
        self.answers += 1
        answer: dict[str, object] = {"role": "assistant", "content": text}
        if decoder.finish_reason == "cancelled":
            answer["stopped"] = True
        self.messages = [*asked, answer]

    def _has_system(self) -> bool:
        return bool(self.messages) and self.messages[0]["role"] == "system"

    def _last_asked(self, what: str) -> int:
        for index in range(len(self.messages) - 1, -1, -1):
            if self.messages[index]["role"] == "user":
                return index
        raise OmniDraftError(f"there is no message to {what}")
