"""Where in a teacher's chat format the user's words and the answers stand."""

from __future__ import annotations

from dataclasses import dataclass

from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.text.tokenizer import Tokenizer

_USER, _ANSWER, _NEXT = "UserSaysThis", "AnswerIsThis", "UserGoesOn"


@dataclass(frozen=True)
class Turns:
    """The teacher's tokens around a conversation's messages.

    Args:
        before: the system prompt and the user's header.
        to_answer: the end of the user's message and the answer's header.
        to_user: the end of the answer and the user's next header; None: the format has no second
            turn, or drops earlier answers.
        ends: tokens after any of which a message is over.
    """

    before: list[int]
    to_answer: list[int]
    to_user: list[int] | None
    ends: frozenset[int]


def turns_of(tokenizer: Tokenizer) -> Turns:
    """The turns of a tokenizer's chat template.

    Raises:
        OmniDraftError: it has none, or one that changes the words it is given.
    """
    if not tokenizer.has_chat_template:
        raise OmniDraftError(
            "A teacher has to be a chat model, and this one's tokenizer has no chat template. "
            'Take its instruct version, or text that is there (kind = "text").'
        )
    first = tokenizer.apply_chat([{"role": "user", "content": _USER}])
    before, found, to_answer = first.partition(_USER)
    if not found:
        raise OmniDraftError("The teacher's chat template does not show what the user says.")
    second = tokenizer.apply_chat(
        [
            {"role": "user", "content": _USER},
            {"role": "assistant", "content": _ANSWER},
            {"role": "user", "content": _NEXT},
        ]
    )
    _, answered, rest = second.partition(_ANSWER)
    to_user, again, _ = rest.partition(_NEXT)
    goes_on = second.startswith(first) and answered and again
    return Turns(
        _ids(tokenizer, before),
        _ids(tokenizer, to_answer),
        _ids(tokenizer, to_user) if goes_on else None,
        frozenset(tokenizer.eos_ids),
    )


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, parse_special=True, add_bos=False)
