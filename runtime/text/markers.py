"""Markers: tokens that structure a conversation, and have names that people may type.

Names of markers that stand in messages are text; only the template's own are markers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omnidraft.runtime.text.chat import Message

END_TOKENS = frozenset(
    {
        "</s>",
        "<eos>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|EOT|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<turn|>",
        "<|end_of_turn|>",
        "<|endofturn|>",
        "<end_of_utterance>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)
"""Tokens that end a turn or a text, whatever a model's configuration forgets to say."""


def looks_like_marker(content: str) -> bool:
    return len(content) > 2 and (content[0], content[-1]) in {("<", ">"), ("[", "]")}


@dataclass(frozen=True)
class Marker:
    """A token that a name in a rendered conversation stands for.

    Attributes:
        index: its id.
        lstrip, rstrip: whether it swallows the white space before it, and behind it.
        spoken: it is a part of what the model answers, such as ``<think>``, and readers see it.
    """

    index: int
    name: str
    lstrip: bool
    rstrip: bool
    spoken: bool


@dataclass(frozen=True)
class Segment:
    """A part of a rendered conversation.

    Attributes:
        marker: the marker before it; None at the beginning.
        text: what stands between that marker and the next, without what they swallow.
        typed: ``text`` holds names of markers, which a message brought in.
    """

    marker: Marker | None
    text: str
    typed: bool


def segments(
    render: Callable[[Sequence[Message], Sequence[Mapping[str, Any]]], str],
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    markers: Mapping[str, Marker],
) -> list[Segment] | None:
    """Render a conversation and cut it at the template's markers.

    A character that nobody uses is put into the names that stand in messages and tools, so that
    those which are found in the rendered text are the template's. What an answer of the model says
    of its thoughts and calls was markers, and is left alone.

    Args:
        render: the text of a conversation, and of the tools in it.
        markers: by name.

    Returns:
        None if no message and no tool holds such a name, so that every one in the text is the
        template's.
    """
    typed = "".join(_texts([*map(_without_role, messages), tools]))
    present = {name for name in markers if name in typed}
    if not present:
        return None
    seam = unused_character(typed)
    unspoken = {name for name in present if not markers[name].spoken}
    text = render(
        [
            _sealed(each, seam, unspoken if each.get("role") == "assistant" else present)
            for each in messages
        ],
        _sealed(tools, seam, present),
    )
    # A template may have written it as JSON.
    text = text.replace(json.dumps(seam)[1:-1], seam)
    pieces = re.split(f"({_any(markers)})", text)
    found = [markers[name] for name in pieces[1::2]]
    made = []
    for before, piece, behind in zip([None, *found], pieces[::2], [*found, None], strict=True):
        text = piece.replace(seam, "")
        text = text.lstrip() if before and before.rstrip else text
        text = text.rstrip() if behind and behind.lstrip else text
        made.append(Segment(before, text, seam in piece))
    return made


def unused_character(text: str) -> str:
    """One of Unicode's private ones that a text does not hold."""
    return next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in text)


def _sealed(value: Any, seam: str, names: Collection[str]) -> Any:
    """A message or tools, with a character in the names that stand there."""
    if not names:
        return value
    found = re.compile(_any(names))
    sealed = _mapped(value, lambda x: found.sub(lambda m: m[0][0] + seam + m[0][1:], x))
    if isinstance(value, Mapping) and "role" in value:
        sealed["role"] = value["role"]
    return sealed


def _any(names: Collection[str]) -> str:
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True)))


def _without_role(message: Message) -> Message:
    return {key: part for key, part in message.items() if key != "role"}


def _texts(value: object) -> Iterator[str]:
    """All texts of a value, the names in mappings included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _texts(key)
            yield from _texts(part)
    elif isinstance(value, Sequence):
        for part in value:
            yield from _texts(part)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """The same value with its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(part, change) for key, part in value.items()}
    return [_mapped(part, change) for part in value] if isinstance(value, Sequence) else value
