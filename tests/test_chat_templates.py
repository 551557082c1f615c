"""Conversations through the templates of many families: the text and ids of transformers."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from chat_families import ANSWER, CONVERSATIONS, FAMILIES, RENDERED, SYSTEM, USER
from needs import needs

from omnidraft.runtime.errors import OmniDraftError, OptionError
from omnidraft.runtime.text.chat import check_roles, render_chat
from omnidraft.runtime.text.tokenizer import Tokenizer

RECORDED = json.loads(RENDERED.read_text("utf-8"))
DATES = ("%d %b %Y", "%B %d, %Y", "%d %B %Y")


@pytest.fixture(scope="module")
def read() -> dict[str, Tokenizer]:
    return {name: Tokenizer(family.files()) for name, family in FAMILIES.items()}


def test_all_is_recorded() -> None:
    assert {name: list(texts) for name, texts in RECORDED.items()} == {
        name: list(CONVERSATIONS) for name in FAMILIES
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_the_text_is_that_of_transformers(name: str, read: dict[str, Tokenizer]) -> None:
    for conversation, texts in RECORDED[name].items():
        messages = CONVERSATIONS[conversation]
        for opened, text in zip((False, True), texts, strict=True):
            if text is None:
                with pytest.raises(OmniDraftError, match="cannot render this conversation"):
                    read[name].apply_chat(messages, add_generation_prompt=opened)
                continue
            for form in DATES:
                text = text.replace(form, datetime.now().strftime(form))
            found = read[name].apply_chat(messages, add_generation_prompt=opened)
            assert found == text, conversation


@pytest.mark.parametrize("name", FAMILIES)
def test_the_ids_are_those_of_transformers(
    name: str, read: dict[str, Tokenizer], tmp_path: Path
) -> None:
    transformers = needs("transformers")
    for file, content in FAMILIES[name].files().items():
        (tmp_path / file).write_bytes(content)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for conversation, texts in RECORDED[name].items():
        if None in texts:
            continue
        messages = CONVERSATIONS[conversation]
        expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        assert read[name].encode_chat(messages) == expected["input_ids"], conversation


PARTS = {
    "of parts": "{% for m in messages %}{{ m['role'] | capitalize }}"
    "{% if m['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}"
    "{% for line in m['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}<image>{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}",
    "of the first part": "{% for m in messages %}{{ m.role | capitalize }}: "
    "{{ m.content[0].text }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}",
    "of either": "{% for m in messages %}{{ m.role | capitalize }}: {% if m.content is string %}"
    "{{ m.content }}{% else %}{% for part in m.content %}{{ part.text }}!{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}",
}


@pytest.mark.parametrize("name", PARTS)
def test_templates_that_take_parts_show_what_is_said(name: str) -> None:
    """As those of models that see do, of which some show nothing of a message that is a text."""
    family = FAMILIES["chatml"]
    tokenizer = Tokenizer({**family.files(), "chat_template.jinja": PARTS[name].encode()})
    turns = [SYSTEM, {"role": "user", "content": "Is <|im_end|> an end?"}, ANSWER, USER]
    text = tokenizer.apply_chat(turns)
    said = [f"{each['role'].capitalize()}: {each['content']}<|im_end|>\n" for each in turns]
    assert text == "".join(said) + "Assistant:"
    (end,) = tokenizer.eos_ids & set(tokenizer.encode_chat([USER]))
    assert tokenizer.encode_chat(turns).count(end) == len(turns)


def typed(name: str) -> list[str]:
    family = FAMILIES[name]
    names = [*family.special, *family.unflagged]
    # This template cuts "/think" out of what the system says.
    return names if name != "smollm3" else [each for each in names if each != "</think>"]


@pytest.mark.parametrize("role", ["user", "system"])
@pytest.mark.parametrize("name", FAMILIES)
def test_no_marker_that_is_typed_is_one(name: str, role: str, read: dict[str, Tokenizer]) -> None:
    """Each is spelled by other tokens, and nothing else changes."""
    tokenizer = read[name]
    if RECORDED[name][role][1] is None:
        return  # the template knows no such turn
    turns = [USER] if role == "user" else [SYSTEM, USER]

    def said(text: str) -> list[dict[str, Any]]:
        return [{**turns[0], "content": text}, *turns[1:]]

    def markers(ids: list[int]) -> list[int]:
        return [token for token in ids if tokenizer.surface(token) is None]

    def text(ids: list[int]) -> str:
        return b"".join(tokenizer.surface(token) or b"\0" for token in ids).decode()

    plain = tokenizer.encode_chat(said("a XX b"))
    for marker in typed(name):
        ids = tokenizer.encode_chat(said(f"a {marker} b"))
        assert markers(ids) == markers(plain), marker
        assert text(ids) == text(plain).replace("a XX b", f"a {marker} b"), marker


@pytest.mark.parametrize("name", ["qwen3", "deepseek"])
def test_thoughts_of_earlier_answers_are_cut_away_as_the_template_does(
    name: str, read: dict[str, Tokenizer]
) -> None:
    tokenizer = read[name]

    def chat(answer: str, asked: str = "Why?") -> list[dict[str, Any]]:
        return [USER, {**ANSWER, "content": answer}, {**USER, "content": asked}]

    thought = tokenizer.encode_chat(chat("<think>\nHm.\n</think>Black."))
    assert thought == tokenizer.encode_chat(chat("Black."))
    # While the user quotes it, too.
    quoted = tokenizer.encode_chat(chat("<think>\nHm.\n</think>Black.", "What is </think>?"))
    assert quoted == tokenizer.encode_chat(chat("Black.", "What is </think>?"))
    think = tokenizer.tokens.index("</think>")
    assert quoted.count(think) == thought.count(think) == 0
    shown = b"".join(tokenizer.shown_bytes(token) for token in quoted).decode()
    assert "Hm." not in shown and "What is </think>?" in shown


def test_white_space_that_a_marker_swallows_is_gone_beside_typed_names_too(
    read: dict[str, Tokenizer],
) -> None:
    tokenizer = read["phi3"]
    ids = tokenizer.encode_chat([{"role": "user", "content": "  a <|end|> b"}])
    shown = b"".join(tokenizer.shown_bytes(token) for token in ids).decode()
    assert shown == "a <|end|> b"


KNOWN = (
    "{% for m in messages %}{% if m.role == 'user' %}U{{ m.content }}"
    "{% elif m.role in ['assistant', \"helper\"] %}A{{ m.content }}"
    "{% elif m.role == 'judge' %}{{ raise_exception('no judges') }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "role", "taken"),
    [
        ("chatml", "robot", "system, developer, user, assistant, tool"),
        ("chatml", "", "system, developer, user, assistant, tool"),
        ("chatml", "User", "system, developer, user, assistant, tool"),
        ("gemma3", "robot", "system, developer, user, assistant, tool"),
        ("phi3", "tool", "system, user, assistant"),
        ("qwen3", "developer", "system, user, assistant, tool"),
        ("llama3", "robot", "system, developer, user, assistant, tool, ipython"),
        (KNOWN, "system", "user, assistant, helper"),
    ],
)
def test_messages_that_would_be_left_out_are_refused(template: str, role: str, taken: str) -> None:
    text = FAMILIES[template].template if template in FAMILIES else template
    for messages in (
        [{"role": role, "content": "x"}, USER],
        [USER, {"role": role, "content": "x"}],
    ):
        with pytest.raises(OptionError, match=f"the role '{role}'. It takes: {taken}$"):
            check_roles(text, messages)
    for each in taken.split(", "):
        check_roles(text, [{"role": each, "content": ""}])


def test_a_template_refuses_roles_in_its_own_words() -> None:
    judge = [{"role": "judge", "content": "x"}]
    check_roles(KNOWN, judge)
    with pytest.raises(OmniDraftError, match="no judges"):
        render_chat(KNOWN, judge)


@pytest.mark.parametrize("name", FAMILIES)
def test_ordinary_conversations_keep_their_roles(name: str, read: dict[str, Tokenizer]) -> None:
    read[name].check_roles([USER, ANSWER, USER])
