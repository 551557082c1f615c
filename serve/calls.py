"""How models write calls of functions, and calls read from what they write."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from omnidraft.runtime.text.tokenizer import Tokenizer
from omnidraft.runtime.text.tool_probes import PROBE_ARGUMENTS, PROBE_NAME
from omnidraft.serve.json_text import read_json


@dataclass(frozen=True)
class CallFormat:
    """How calls stand in an answer.

    Attributes:
        opening: what begins a call; "": the whole answer is one.
        closing: what ends it; "": the end of the answer.
        space: white space between them and the JSON.
        listed: the JSON is a list of calls.
        arguments: the arguments' name in it.
    """

    opening: str
    closing: str
    space: str
    listed: bool
    arguments: str = "arguments"


HERMES = CallFormat("<tool_call>", "</tool_call>", "\n", False)
"""Of Hermes, Qwen 2.5 and 3, SmolLM3."""
LISTED = CallFormat("<tool_call>", "</tool_call>", "", True)
"""Of SmolLM2."""
MISTRAL = CallFormat("[TOOL_CALLS]", "", " ", True)
LLAMA = CallFormat("", "", "", False, "parameters")
"""Of Llama 3.1 to 3.3."""
PYTHON_TAG = "<|python_tag|>"
"""May stand before a call of Llama's."""

# Where templates put a call, and white space before it.
_SHOWN = (
    (HERMES, r"<tool_call>(\s*)(?=\{)"),
    (LISTED, r"<tool_call>(\s*)\[\s*(?=\{)"),
    (MISTRAL, r"\[TOOL_CALLS\](\s*)\[(?=\{)"),
    (LLAMA, rf'()(?=\{{\s*"name": "{PROBE_NAME}")'),
)
# What templates that show no calls say of them.
_SAID = ((LISTED, r"<tool_call>\s*\["), (HERMES, r"<tool_call>"))


def call_format(tokenizer: Tokenizer) -> CallFormat | None:
    """How a model writes calls, by its chat template; None: in no way that is known."""
    text = tokenizer.call_text or ""
    for each, pattern in _SHOWN:
        found = re.search(pattern, text)
        if found and _is_call(text[found.end() :], each):
            return replace(each, space=found[1])
    said = (each for each, pattern in _SAID if re.search(pattern, tokenizer.tools_text or ""))
    return next(said, None)


def _is_call(text: str, form: CallFormat) -> bool:
    """Whether a text begins with the call that was shown to a template."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    shown = {"name": PROBE_NAME, form.arguments: PROBE_ARGUMENTS}
    return isinstance(value, dict) and value.items() >= shown.items()


class Call(NamedTuple):
    """A call of a function.

    Attributes:
        arguments: a JSON object, as text.
    """

    name: str
    arguments: str


class CallReader:
    """Reads an answer as it comes, and finds the calls in it.

    What may yet become a call is held back. What does not is text, of which nothing is lost: a call
    that is broken off, that is no JSON, or of a function that nobody offered. White space between a
    call and text is left out.

    Args:
        form: how calls are written.
        names: the functions that may be called.
    """

    def __init__(self, form: CallFormat, names: Collection[str]) -> None:
        self._form = form
        self._names = names
        self._held = ""
        self._space = ""
        """That would be lost if a call follows."""
        self._within = not form.opening
        self._fresh = False
        """Nothing was said since a call."""
        self._looked = 0
        """Of a call that has begun, the characters in which its end was looked for."""
        self.calls = 0

    def push(self, text: str) -> Iterator[str | Call]:
        """Text and calls that are certain now."""
        self._held += text
        if not self._form.opening:
            start = self._held.lstrip()
            begins = any(each.startswith(start[: len(each)]) for each in ("{", PYTHON_TAG))
            self._within = self._within and begins
            if not self._within:
                yield from self._told(self._take(len(self._held)))
            return
        while self._held:
            if not self._within:
                found = self._held.find(self._form.opening)
                if found < 0:
                    certain = len(self._held) - _overlap(self._held, self._form.opening)
                    yield from self._told(self._take(certain))
                    return
                yield from self._told(self._take(found))
                self._within, self._looked = True, len(self._form.opening)
            if not self._form.closing:
                return
            end = self._held.find(self._form.closing, self._looked)
            if end < 0:
                least = len(self._form.opening)
                self._looked = max(least, len(self._held) - len(self._form.closing))
                return
            # It may stand in an argument.
            self._looked = end + len(self._form.closing)
            calls = self._read(self._held[len(self._form.opening) : end])
            if calls is None and self._begins():
                continue
            yield from self._ended(calls, self._looked)

    def finish(self) -> Iterator[str | Call]:
        """What is certain when the answer has ended."""
        calls = None
        if self._within:
            calls = self._read(self._held.removeprefix(self._form.opening))
        yield from self._ended(calls, len(self._held))
        if self._space:
            yield self._space

    def _begins(self) -> bool:
        """Whether what is held looks like a call whose end is still to come."""
        text = self._held[len(self._form.opening) : self._looked].lstrip()
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            # A string in which the closing stands is not ended.
            return error.msg.startswith("Unterminated string")
        except (ValueError, RecursionError):
            return False
        return False

    def _ended(self, calls: list[Call] | None, length: int) -> Iterator[str | Call]:
        self._within = False
        text = self._take(length)
        if calls is None:
            yield from self._told(text)
        else:
            self._space, self._fresh = "", True
            self.calls += len(calls)
            yield from calls

    def _take(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text

    def _told(self, text: str) -> Iterator[str]:
        if self._fresh:
            text = text.lstrip()
        whole = self._space + text
        said = whole.rstrip()
        self._space = whole[len(said) :]
        if said:
            self._fresh = False
            yield said

    def _read(self, text: str) -> list[Call] | None:
        """The calls that a text is; None: it is none."""
        text = text.strip()
        if not self._form.opening:
            text = text.removeprefix(PYTHON_TAG).strip()
        try:
            value = read_json(text)
        except ValueError:
            return None
        values = value if isinstance(value, list) and self._form.opening else [value]
        calls = [self._call(each) for each in values]
        found = [each for each in calls if each is not None]
        return found if found and len(found) == len(calls) else None

    def _call(self, value: object) -> Call | None:
        if not isinstance(value, dict) or value.get("name") not in list(self._names):
            return None
        others = {"name", "id", "type", "arguments", "parameters"}
        arguments = value.get(self._form.arguments, value.get("arguments", {}))
        if isinstance(arguments, str):
            try:
                arguments = read_json(arguments)
            except ValueError:
                return None
        if not isinstance(arguments, dict) or not value.keys() <= others:
            return None
        return Call(value["name"], json.dumps(arguments, ensure_ascii=False))


def _overlap(text: str, name: str) -> int:
    """How many characters at the end of a text may begin a name."""
    longest = min(len(text), len(name) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(name[:n])), 0)
