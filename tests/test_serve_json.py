"""Answers that are JSON: valid, and those of plain decoding under the same masks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from serving import SAID, drafting_client, plain_and_drafted
from starlette.testclient import TestClient

from omnidraft import GenerationOptions, LoadedModel, Session
from omnidraft.runtime.options import sampling_parameters
from omnidraft.serve.forms import json_form
from omnidraft.serve.grammar import Grammars

# Random weights would write white space for ever.
TIGHT = {"x-guidance": {"whitespace_flexible": False}}
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 999},
            "kind": {"enum": ["fox", "dog", "中文"]},
        },
        "required": ["name", "age", "kind"],
        "additionalProperties": False,
        **TIGHT,
    },
    {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 5, **TIGHT},
    {"enum": ["a", 5, None, {"b": [1]}], **TIGHT},
]


@pytest.fixture(scope="module")
def client(models: tuple[LoadedModel, LoadedModel]) -> Iterator[TestClient]:
    with drafting_client(models) as opened:
        yield opened


def fits(schema: dict[str, Any], value: Any) -> bool:
    if "enum" in schema:
        return value in schema["enum"]
    if schema["type"] == "array":
        return 3 <= len(value) <= 5 and all(isinstance(each, bool) for each in value)
    return (
        list(value) == ["name", "age", "kind"]
        and len(value["name"]) <= 6
        and 0 <= value["age"] <= 999
        and value["kind"] in ["fox", "dog", "中文"]
    )


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
@pytest.mark.parametrize("drafts", [{"draft_length": 4, "draft_confidence": 0.0}, {"tree": 8}, {}])
@pytest.mark.parametrize("steered", [True, False])
def test_drafted_json_is_that_of_plain_decoding(
    models: tuple[LoadedModel, LoadedModel], number: int, drafts: dict[str, Any], steered: bool
) -> None:
    schema = SCHEMAS[number]
    grammars = Grammars(*models) if steered else Grammars(models[0])
    grammar = grammars.grammar(json_form(schema))
    proposed = 0
    for right, found in plain_and_drafted(models, grammars, grammar, drafts, logprobs=1):
        assert found.token_ids == right.token_ids
        assert found.logprobs == right.logprobs
        assert found.finish_reason == "stop" and fits(schema, json.loads(found.text))
        proposed += found.stats.proposed
    assert proposed > 0 or not drafts


def test_sampled_json_without_a_seed_is_valid(models: tuple[LoadedModel, LoadedModel]) -> None:
    """By rejection sampling, where what is drafted does matter."""
    grammars = Grammars(*models)
    grammar = grammars.grammar(json_form(SCHEMAS[1]))
    session = Session(*models)
    options = GenerationOptions(60, sampling_parameters(1.0), draft_length=4, draft_confidence=0.0)
    for _ in range(10):
        found = session.generate(SAID[0], replace(options, constraint=grammars.constraint(grammar)))
        assert fits(SCHEMAS[1], json.loads(found.text))


@pytest.mark.parametrize("number", [0, 1])
def test_a_mask_allows_what_the_grammar_does(
    models: tuple[LoadedModel, LoadedModel], number: int
) -> None:
    """Token by token, against all texts that the grammar has.

    The second vocabulary has several tokens of the same bytes.
    """
    target = models[number]
    grammars = Grammars(target)
    texts = [b"true", b"tru1", b"17"]
    schema = {"enum": [True, 17], **TIGHT}
    constraint = grammars.constraint(grammars.grammar(json_form(schema)))
    tokenizer, width = target.tokenizer, target.model.vocab_size
    chain = [tokenizer.segment(each.encode())[0] for each in "tru1"]
    rows = constraint.masked(np.zeros((5, width), np.float32), chain, range(4))
    for row, begun in zip(rows, ["", "t", "tr", "tru"], strict=False):
        allowed = {token for token in range(width) if row[token] == 0}
        right = {
            token
            for token in range(width)
            if (surface := tokenizer.surface(token))
            and any(t.startswith(begun.encode() + surface) for t in (texts[0], texts[2]))
        }
        assert allowed == right
    assert (rows[4] == 0).all()  # behind what may not come
    constraint.advance(tokenizer.segment(b"17"))
    (row,) = constraint.masked(np.zeros((1, width), np.float32), [], [])
    assert {t for t in range(width) if row[t] == 0} == set(tokenizer.eos_ids)


def test_what_must_come_may_be_spelled_in_any_way(
    models: tuple[LoadedModel, LoadedModel],
) -> None:
    """As the target would: not character by character."""
    grammars = Grammars(models[0])
    tokenizer, width = models[0].tokenizer, models[0].model.vocab_size
    schema = {"const": {"quick brown": "the lazy fox"}, **TIGHT}
    text = json.dumps(schema["const"], separators=(",", ":"))
    usual, bytewise = tokenizer.encode(text), [tokenizer.encode(each)[0] for each in text]
    assert len(usual) < len(bytewise) - 5
    for tokens in (usual, bytewise):
        constraint = grammars.constraint(grammars.grammar(json_form(schema)))
        rows = constraint.masked(
            np.zeros((1 + len(tokens), width), np.float32), tokens, range(len(tokens))
        )
        assert all(row[token] == 0 for row, token in zip(rows, tokens, strict=False))
        constraint.advance(tokens)
        (row,) = constraint.masked(np.zeros((1, width), np.float32), [], [])
        assert {t for t in range(width) if row[t] == 0} == set(tokenizer.eos_ids)


def test_a_draft_mask_allows_what_the_grammar_does(
    models: tuple[LoadedModel, LoadedModel],
) -> None:
    """Draft token by draft token, in a tree, and behind an answer that target tokens spelled."""
    target, drafter = models
    grammars = Grammars(*models)
    texts = ['["true"]', '["tru1"]', "[17]", '["中"]']
    schema = {"enum": [json.loads(each) for each in texts], **TIGHT}
    constraint = grammars.constraint(grammars.grammar(json_form(schema)))
    drafts = constraint.drafts
    assert drafts is not None
    width, said = drafter.model.vocab_size, ""

    def right(begun: str) -> set[int]:
        surfaces = {token: drafter.tokenizer.surface(token) for token in range(width)}
        return {
            token
            for token, surface in surfaces.items()
            if surface and any(t.encode().startswith(begun.encode() + surface) for t in texts)
        }

    def drafted(tokens: list[int], parents: list[int]) -> list[set[int]]:
        rows = drafts.masked(np.zeros((max(1, len(tokens)), width), np.float32), tokens, parents)
        return [{token for token in range(width) if row[token] == 0} for row in rows]

    for more in ("", '["', "t"):
        constraint.advance(target.tokenizer.segment(more.encode()) or [])
        said += more
        drafts.begin()
        assert drafted([], []) == [right(said)]
    r, u, bad = (drafter.tokenizer.segment(each)[0] for each in (b"r", b"u", b"x"))
    allowed, all_tokens = drafted([r, bad], [0, 0])
    assert allowed == right(said + "r")
    assert len(all_tokens) == width, "what is behind what may not come is of no matter"
    assert drafted([u], [1]) == [right(said + "ru")]


@pytest.mark.parametrize("drafts", [{"draft_length": 4, "draft_confidence": 0.0}, {"tree": 8}])
def test_no_draft_leaves_the_form(
    models: tuple[LoadedModel, LoadedModel], drafts: dict[str, Any]
) -> None:
    grammars = Grammars(*models)
    grammar = grammars.grammar(json_form(SCHEMAS[0]))
    session = Session(*models)
    seen: list[bool] = []

    class Watched:
        def __init__(self) -> None:
            self._constraint = grammars.constraint(grammar)
            self.drafts = self._constraint.drafts

        def masked(self, logits: Any, tokens: Any, parents: Any) -> Any:
            rows = self._constraint.masked(logits, tokens, parents)
            for token, parent in zip(tokens, parents, strict=True):
                allowed = np.flatnonzero(rows[parent] == logits[parent])
                if not set(allowed) <= models[0].tokenizer.eos_ids:  # which nothing drafts
                    seen.append(token in allowed)
            return rows

        def advance(self, tokens: Any) -> None:
            self._constraint.advance(tokens)

    for said in SAID:
        session.generate(said, GenerationOptions(150, constraint=Watched(), **drafts))
    assert len(seen) > 20 and all(seen)


def ask(client: TestClient, form: Any, **options: Any) -> Any:
    return client.post(
        "/v1/chat/completions",
        json={
            "model": "tiny",
            "messages": [{"role": "user", "content": SAID[0]}],
            "response_format": form,
            **options,
        },
    )


def test_json_over_http(client: TestClient) -> None:
    for schema in SCHEMAS:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        answer = ask(client, form, n=2, seed=1, temperature=1)
        assert answer.status_code == 200, answer.text
        for choice in answer.json()["choices"]:
            assert fits(schema, json.loads(choice["message"]["content"]))
    some = ask(client, {"type": "json_object"}, max_tokens=20).json()["choices"][0]
    assert some["message"]["content"].lstrip().startswith("{")


@pytest.mark.parametrize(
    "form",
    [
        {"type": "grammar"},
        {"type": "json_schema"},
        {"type": "json_object", "json_schema": {"schema": {}}},
        {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}},
        {"type": "json_schema", "json_schema": {"schema": {"enum": ["x" * 100_000]}}},
        {"type": "json_schema", "json_schema": {"schema": [], "name": "x"}},
        {"type": "text", "more": 1},
        "json",
    ],
)
def test_forms_that_are_none(client: TestClient, form: Any) -> None:
    answer = ask(client, form)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("response_format")
