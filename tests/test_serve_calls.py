"""Calls are read from answers however these are cut into pieces, and nothing else is lost."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnidraft.serve.calls import HERMES, LISTED, LLAMA, MISTRAL, Call, CallFormat, CallReader

NAMES = ["weather", "clock"]
FORMATS = {"hermes": HERMES, "listed": LISTED, "mistral": MISTRAL, "llama": LLAMA}
ARGUMENTS = st.dictionaries(
    st.sampled_from(["a", "b", "</tool_call>", '"', "{"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text('a<>{}[]"\\/\n é_lot', max_size=9),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=4,
    ),
    max_size=3,
)
CALLS = st.tuples(st.sampled_from(NAMES), ARGUMENTS)
TEXTS = st.text('ab<>{}[]"\\/ \nLT_', max_size=12) | st.sampled_from(
    ["<tool_call", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", '{"name": "clock"', "{}"]
)


def written(form: CallFormat, calls: list[tuple[str, Any]]) -> str:
    values = [{"name": name, form.arguments: arguments} for name, arguments in calls]
    shown = [json.dumps(each, ensure_ascii=False) for each in values]
    if form.listed:
        shown = [f"[{', '.join(shown)}]"]
    return "\n".join(form.opening + form.space + s + form.space + form.closing for s in shown)


def read(form: CallFormat, text: str, cuts: list[int]) -> list[str | Call]:
    reader = CallReader(form, NAMES)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    parts: list[str | Call] = []
    for start, end in pairwise(places):
        parts += reader.push(text[start:end])
    parts += reader.finish()
    assert reader.calls == sum(isinstance(each, Call) for each in parts)
    return parts


def joined(parts: list[str | Call]) -> list[str | Call]:
    """Neighbouring texts as one."""
    found: list[str | Call] = []
    for part in parts:
        if found and isinstance(part, str) and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return found


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_pieces_do_not_matter(name: str, data: st.DataObject) -> None:
    form = FORMATS[name]
    pieces = data.draw(
        st.lists(TEXTS | st.lists(CALLS, min_size=1, max_size=2).map(lambda c: written(form, c)))
    )
    text = "".join(pieces)
    whole = joined(read(form, text, []))
    assert joined(read(form, text, data.draw(st.lists(st.integers(0, 500))))) == whole
    if not any(isinstance(part, Call) for part in whole):
        assert whole == ([text] if text else [])


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_calls_come_back(name: str, data: st.DataObject) -> None:
    form = FORMATS[name]
    most = 1 if form is LLAMA else 3
    calls = data.draw(st.lists(CALLS, min_size=1, max_size=most))
    before = data.draw(st.sampled_from(["", "Well. ", " \n"])) if form.opening else ""
    parts = joined(
        read(form, before + written(form, calls), data.draw(st.lists(st.integers(0, 500))))
    )
    said, found = (parts[:1], parts[1:]) if before.strip() else ([], parts)
    assert said == ([before.rstrip()] if before.strip() else [])
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls  # type: ignore[union-attr]


def test_text_is_told_as_soon_as_it_is_no_call() -> None:
    reader = CallReader(HERMES, NAMES)
    assert "".join(map(str, reader.push("a < b"))) == "a < b"
    assert list(reader.push(" <tool")) == []
    assert "".join(map(str, reader.push("s> c"))) == " <tools> c"
    reader = CallReader(LLAMA, NAMES)
    assert list(reader.push("{")) == []
    assert list(reader.finish()) == ["{"]
    reader = CallReader(LLAMA, NAMES)
    assert [list(reader.push(each)) for each in ("Yes", ", {", "}")] == [["Yes"], [", {"], ["}"]]
