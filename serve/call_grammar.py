"""Grammars of answers that call functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from omnidraft.runtime.models import LoadedModel
from omnidraft.serve.calls import CallFormat


def call_grammar(
    form: CallFormat,
    schemas: Mapping[str, Mapping[str, Any]],
    target: LoadedModel,
    *,
    free: bool,
    several: bool,
) -> str:
    """Lark for llguidance: an answer whose calls are JSON that fits the schemas.

    Args:
        form: how calls are written; in free text it has an opening.
        schemas: of the arguments, by the functions' names.
        free: the answer is any text, in which calls may stand; otherwise it is calls only.
        several: there may be several calls.
    """
    items = {
        f"item_{i}": f"{_quoted(_head(form, name))} %json {json.dumps(schema)} {_quoted('}')}"
        for i, (name, schema) in enumerate(schemas.items())
    }
    rules = {"item": " | ".join(items), **items}
    more = several and bool(form.opening)
    repeated = f" ({_quoted(', ')} item)*" if more else ""
    json_part = f"{_quoted('[')} item{repeated} {_quoted(']')}" if form.listed else "item"
    opening, closing = (_marker(name, target) for name in (form.opening, form.closing))
    rules["body"] = _sequence(_quoted(form.space), json_part, _quoted(form.space), closing)
    # A list has room for several.
    many = more and not form.listed
    if free:
        rules["start"] = "(text begin body)* text" if many else "text (begin body)?"
        # What spells the name of a marker begins a call as the marker does.
        marked = opening != _quoted(form.opening)
        rules["begin"] = f"{opening} | spelled" if marked else "spelled"
        rules["spelled[lazy]"] = f"/(.|\\n)*{_pattern(form.opening)}/"
        special = _special(target, form.opening)
        rules["text"] = f"(TEXT | {special})*" if special else "TEXT?"
        rules["TEXT"] = "/(.|\\n)+/"
    else:
        rules["call"] = _sequence(opening, "body")
        rules["start"] = f"call ({_quoted(chr(10))} call)*" if many else "call"
    return "".join(f"{name}: {rule}\n" for name, rule in rules.items())


def _head(form: CallFormat, name: str) -> str:
    return f'{{"name": "{name}", "{form.arguments}": '


def _sequence(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _quoted(text: str) -> str:
    return json.dumps(text) if text else ""


def _pattern(text: str) -> str:
    return re.sub(r"[^\w<>]", r"\\\g<0>", text)


def _marker(name: str, target: LoadedModel) -> str:
    """A marker as its token, or as text where it is none."""
    tokens = target.tokenizer.tokens
    if name in tokens and target.tokenizer.surface(token := tokens.index(name)) is None:
        return f"<[{token}]>"
    return _quoted(name)


def _special(target: LoadedModel, opening: str) -> str:
    """All special tokens but those that end a text, and the opening of calls."""
    tokenizer = target.tokenizer
    names = tokenizer.tokens
    found = (
        token
        for token in range(target.model.vocab_size)
        if not tokenizer.surface(token)
        and token not in tokenizer.eos_ids
        and (token >= len(names) or names[token] != opening)
    )
    ranges = ",".join(_ranges(found))
    return f"<[{ranges}]>" if ranges else ""


def _ranges(numbers: Iterable[int]) -> Iterable[str]:
    start = last = None
    for number in numbers:
        if last is not None and number == last + 1:
            last = number
            continue
        if start is not None:
            yield f"{start}-{last}"
        start = last = number
    if start is not None:
        yield f"{start}-{last}"
