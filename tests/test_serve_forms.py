"""Answers of a form: patterns, choices and grammars, those of plain decoding under the masks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from serving import SAID, drafting_client, plain_and_drafted
from starlette.testclient import TestClient

from omnidraft import LoadedModel
from omnidraft.serve.forms import StructuredOutputs
from omnidraft.serve.grammar import Grammars

LARK = """
start: "(" item ("," item)~1..3 ")"
item: NUMBER | "[" item "]"
NUMBER: /[0-9]{1,3}/
"""
FORMS: list[tuple[dict[str, Any], str]] = [
    ({"regex": r"(The|A) (quick|lazy) \p{L}{3,5}, [0-9]{2}/[^a]{2}\."}, ""),
    ({"choice": ["yes", "yes please", 'n"o\n', "中文 😀"]}, r'yes( please)?|n"o\n|中文 😀'),
    ({"grammar": LARK}, r"\(.*\)"),
    ({"json": {"enum": ["a", 5]}}, '"a"|5'),
]
HI = [{"role": "user", "content": SAID[0]}]
PATTERNS = [shown or asked["regex"].replace(r"\p{L}", r"[^\W\d_]") for asked, shown in FORMS]


@pytest.fixture(scope="module")
def client(models: tuple[LoadedModel, LoadedModel]) -> Iterator[TestClient]:
    with drafting_client(models) as opened:
        yield opened


@pytest.mark.parametrize("number", range(len(FORMS)))
@pytest.mark.parametrize("drafts", [{"draft_length": 4, "draft_confidence": 0.0}, {"tree": 8}, {}])
def test_a_drafted_form_is_that_of_plain_decoding(
    models: tuple[LoadedModel, LoadedModel], number: int, drafts: dict[str, Any]
) -> None:
    grammars = Grammars(*models)
    grammar = grammars.grammar(StructuredOutputs(**FORMS[number][0]).form())
    proposed = 0
    for right, found in plain_and_drafted(models, grammars, grammar, drafts):
        assert found.token_ids == right.token_ids
        if found.finish_reason == "stop":
            assert re.fullmatch(PATTERNS[number], found.text, re.DOTALL), found.text
        else:  # a grammar may nest for ever
            assert "grammar" in FORMS[number][0]
        proposed += found.stats.proposed
    assert proposed > 0 or not drafts


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("number", range(len(FORMS)))
def test_forms_over_http(client: TestClient, path: str, number: int) -> None:
    asked: dict[str, Any] = {"model": "tiny", "n": 3, "seed": 1, "temperature": 1}
    if path.endswith("/chat/completions"):
        asked["messages"] = [{"role": "user", "content": SAID[0]}]
    else:
        asked["prompt"] = SAID[0]
    asked |= {"structured_outputs": FORMS[number][0], "max_tokens": 200}
    answer = client.post(path, json=asked)
    assert answer.status_code == 200, answer.text
    texts = [each.get("text") or each["message"]["content"] for each in answer.json()["choices"]]
    assert all(re.fullmatch(PATTERNS[number], text, re.DOTALL) for text in texts), texts


def forms(name: str, value: Any) -> dict[str, Any]:
    return {"structured_outputs": {name: value}}


@pytest.mark.parametrize(
    ("asked", "param", "said"),
    [
        (forms("regex", "a("), "structured_outputs.regex", "unclosed group"),
        (forms("regex", "(?=a)b"), "structured_outputs.regex", "look-around"),
        (forms("regex", ""), "structured_outputs.regex", "at least 1"),
        (forms("regex", "a" * 100_001), "structured_outputs.regex", "100,000 characters"),
        (forms("choice", []), "structured_outputs.choice", "at least 1"),
        (forms("choice", ["a", ""]), "structured_outputs.choice[1]", "at least 1"),
        (forms("choice", ["a" * 60_000] * 2), "structured_outputs.choice", "100,000 characters"),
        (forms("grammar", "start: b"), "structured_outputs.grammar", "unknown name"),
        (forms("grammar", "(" * 3000), "structured_outputs.grammar", ""),
        (forms("grammar", 'root ::= "a"'), "structured_outputs.grammar", "GBNF"),
        (forms("grammar", 'start: a\na[temperature=2]: "b"'), "structured_outputs.grammar", "temp"),
        (forms("grammar", " " * 100_001), "structured_outputs.grammar", "100,000 characters"),
        (forms("json", {"type": "nothing"}), "structured_outputs.json", "nothing"),
        (forms("structural_tag", "x"), "structured_outputs.structural_tag", "not permitted"),
        (forms("json", {"$ref": "#"}), "structured_outputs.json", "fits no text"),
        (forms("json", {"anyOf": [{"$ref": "#"}]}), "structured_outputs.json", "fits no text"),
        ({"structured_outputs": {}}, "structured_outputs", "not none"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs",
            "regex and choice",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "give one",
        ),
        ({"guided_regex": "a"}, "guided_regex", "use structured_outputs.regex"),
        ({"guided_grammar": "a"}, "guided_grammar", "use structured_outputs.grammar"),
        ({"grammar": "a"}, "grammar", "use structured_outputs.grammar"),
        ({"json_schema": {}}, "json_schema", "use response_format"),
    ],
)
def test_what_is_no_form_is_told(
    client: TestClient, asked: dict[str, Any], param: str, said: str
) -> None:
    messages = [{"role": "user", "content": SAID[0]}]
    whole = {"model": "tiny", "messages": messages, **asked}
    answer = client.post("/v1/chat/completions", json=whole)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and said in error["message"], error


def chained(link: Callable[[int], Any], count: int) -> dict[str, Any]:
    names = {str(each): link(each + 1) for each in range(count)}
    return {"$defs": {**names, str(count): {"type": "boolean"}}, "$ref": "#/$defs/0"}


def rules(name: str, count: int) -> str:
    links = "".join(f"{name}{n}:{name}{n + 1}\n" for n in range(count))
    return f'start: {name}0\n{links}{name}{count}: "x"\n'


def ref(number: int) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{number}"}


@pytest.mark.parametrize(
    "asked",
    [
        forms("json", chained(ref, 2700)),
        forms("json", chained(lambda n: {"type": "array", "items": ref(n)}, 1500)),
        forms("json", chained(lambda n: {"anyOf": [ref(n), {}]}, 1900)),
        forms("json", chained(lambda n: {"properties": {"": ref(n)}, "required": [""]}, 1300)),
        forms("grammar", rules("a", 7000)),
        forms("grammar", rules("A", 7000)),
    ],
)
def test_a_long_chain_takes_nobody_with_it(client: TestClient, asked: dict[str, Any]) -> None:
    whole = {"model": "tiny", "messages": HI, "max_tokens": 4, **asked}
    answer = client.post("/v1/chat/completions", json=whole)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("number", [-(2**63), -float(2**63), 2**53 + 1, 2**70, -1e300, 2**53])
def test_numbers_that_are_not_kept_exactly_are_refused(
    client: TestClient, number: int | float
) -> None:
    shape = {"type": "object", "properties": {"a": {"enum": ["x", {"b": [number]}]}}}
    grammar = f'start: "a" %json {json.dumps({"const": number})}'
    for asked in (
        forms("json", {"const": number}),
        forms("json", shape),
        forms("grammar", grammar),
        {"response_format": {"type": "json_schema", "json_schema": {"schema": shape}}},
    ):
        told = client.post("/v1/chat/completions", json={"model": "tiny", "messages": HI, **asked})
        assert told.status_code == 400 and "2^53" in told.json()["error"]["message"], told.text


@pytest.mark.parametrize("number", [2**53 - 1, 1 - 2**53, 0.1, 1e-7, -2.5])
def test_numbers_of_a_schema_are_kept(client: TestClient, number: int | float) -> None:
    whole = {"model": "tiny", "messages": HI, "max_tokens": 400, **forms("json", {"const": number})}
    answer = client.post("/v1/chat/completions", json=whole)
    assert answer.status_code == 200, answer.text
    assert json.loads(answer.json()["choices"][0]["message"]["content"]) == number


@pytest.mark.parametrize(
    "asked",
    [
        forms("choice", [f"choice number {number}" for number in range(3000)]),
        forms("json", {"enum": [f"value number {number}" for number in range(3000)]}),
        forms("json", {"type": "string", "minLength": 20, "maxLength": 50_000}),
        forms("regex", "[a-z]{1,10000}"),
    ],
)
def test_what_is_long_and_simple_is_a_form(client: TestClient, asked: dict[str, Any]) -> None:
    whole = {"model": "tiny", "messages": HI, "max_tokens": 4, **asked}
    answer = client.post("/v1/chat/completions", json=whole)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "asked",
    [
        forms("regex", "(a{1000}){1000}"),
        forms("regex", "(a|b)*a(a|b){30}"),
        forms("regex", "(.*a){60}|" * 200 + "b"),
        forms("regex", "a?" * 20_000),
        forms("grammar", 'start: start start | "a" | "b" | "ab"'),
        forms("grammar", 'start: a{1000000}\na: "a" | a'),
        forms("json", {"type": "array", "items": {"$ref": "#"}}),
    ],
)
def test_a_form_that_costs_much_ends(client: TestClient, asked: dict[str, Any]) -> None:
    """With an answer, or an error that says why."""
    messages = [{"role": "user", "content": SAID[0]}]
    whole = {"model": "tiny", "messages": messages, "max_tokens": 20, **asked}
    answer = client.post("/v1/chat/completions", json=whole)
    assert answer.status_code == 200 or answer.json()["error"]["message"], answer.text
    plain = client.post("/v1/chat/completions", json={**whole, "structured_outputs": None})
    assert plain.status_code == 200
