"""Penalties: what they take, and that drafted answers are those of plain decoding with them."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import chisquare
from serving import drafting_client
from starlette.testclient import TestClient
from toy import ToyModel, toy_pair

from omnidraft import GenerationOptions, LoadedModel, SamplingParameters, Session
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.options import sampling_parameters
from omnidraft.serve.penalties import PenalisedAnswer, Penalties

SAID = ["The quick brown fox", "What is the answer?"]
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.2},
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 40, "repetition_penalty": 1.1},
]
PENALTIES = [
    Penalties(0.7, 0.3),
    Penalties(-1.1, 0.0, {20: 4.5, 30: -100.0}),
    Penalties(0.0, 1.9, {7: 1.0}),
    Penalties(0.0, 0.0, {40: 100.0}),
]
WIDTH = 12
NUMBERS = st.floats(-2, 2, width=32)


@pytest.fixture(scope="module")
def client(models: tuple[LoadedModel, LoadedModel]) -> Iterator[TestClient]:
    with drafting_client(models) as opened:
        yield opened


@given(
    st.builds(Penalties, NUMBERS, NUMBERS, st.dictionaries(st.integers(0, WIDTH - 1), NUMBERS)),
    st.lists(st.integers(0, WIDTH - 1), max_size=6),
    st.lists(st.tuples(st.integers(0, WIDTH - 1), st.integers(0, 99)), max_size=8),
    st.integers(0, 99),
)
def test_a_row_of_a_tree_is_that_of_its_path(
    penalties: Penalties, answer: list[int], nodes: list[tuple[int, int]], seed: int
) -> None:
    """Bit for bit, and as OpenAI defines it."""
    tokens = [token for token, _ in nodes]
    parents = [parent % (i + 1) for i, (_, parent) in enumerate(nodes)]
    logits = np.random.default_rng(seed).standard_normal((1 + len(nodes), WIDTH)).astype("f4")
    given = logits.copy()
    together = PenalisedAnswer(penalties)
    together.advance(answer)
    rows = together.masked(logits, tokens, parents)
    assert (logits == given).all()
    paths: list[list[int]] = [[]]
    for token, parent in zip(tokens, parents, strict=True):
        paths.append([*paths[parent], token])
    for row, before, path in zip(rows, logits, paths, strict=True):
        alone = PenalisedAnswer(penalties)
        for token in [*answer, *path]:
            alone.advance([token])
        assert (alone.masked(before[None], [], [])[0] == row).all()
        counts = Counter([*answer, *path])
        right = [
            before[token]
            + penalties.bias.get(token, 0)
            - penalties.presence * (counts[token] > 0)
            - penalties.frequency * counts[token]
            for token in range(WIDTH)
        ]
        np.testing.assert_allclose(row, right, atol=1e-5)


@pytest.mark.parametrize("number", range(len(PENALTIES)))
@pytest.mark.parametrize("drafts", [{"draft_length": 4, "draft_confidence": 0.0}, {"tree": 8}, {}])
def test_a_drafted_answer_is_that_of_plain_decoding(
    models: tuple[LoadedModel, LoadedModel], number: int, drafts: dict[str, Any]
) -> None:
    penalties = PENALTIES[number]
    plain, drafting = Session(models[0]), Session(*models)
    proposed = accepted = changed = 0
    for seed, sampling in enumerate(SAMPLING):
        for said in SAID:
            options = GenerationOptions(40, sampling_parameters(**sampling), seed=seed, **drafts)
            free = plain.generate(said, options)
            right = plain.generate(said, replace(options, constraint=PenalisedAnswer(penalties)))
            found = drafting.generate(said, replace(options, constraint=PenalisedAnswer(penalties)))
            assert found.token_ids == right.token_ids
            changed += right.token_ids != free.token_ids
            proposed += found.stats.proposed
            accepted += found.stats.accepted
    assert changed > 0
    assert (proposed > 0 and accepted < proposed) or not drafts


def test_greedy_answers_are_what_the_definition_says(
    models: tuple[LoadedModel, LoadedModel],
) -> None:
    penalties = Penalties(0.8, 0.4, {25: 2.0})
    target = models[0]
    session = Session(target)
    prompt = session.encode(SAID[0])
    target.model.truncate(0)
    row = target.model.forward(prompt, rows=1)[0].copy()
    right: list[int] = []
    while len(right) < 24:
        counts = Counter(right)
        row[25] += np.float32(2)
        for token, count in counts.items():
            row[token] -= np.float32(0.8 + 0.4 * count)
        right.append(int(np.argmax(row)))
        if right[-1] in target.tokenizer.eos_ids:
            break
        row = target.model.forward(right[-1:])[0].copy()
    target.model.truncate(0)
    options = GenerationOptions(24, draft_length=4, constraint=PenalisedAnswer(penalties))
    assert Session(*models).generate(SAID[0], options).token_ids == right


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_penalties_over_http(
    client: TestClient, models: tuple[LoadedModel, LoadedModel], path: str
) -> None:
    raw = path == "/v1/completions"
    prompt: Any = SAID[0] if raw else [{"role": "user", "content": SAID[0]}]
    asked = {
        "presence_penalty": 0.7,
        "frequency_penalty": 0.5,
        "logit_bias": {"20": 3.5},
        "max_tokens": 20,
    }
    named = {"prompt": prompt} if raw else {"messages": prompt}
    answer = client.post(path, json={"model": "tiny", **named, **asked, "n": 2}).json()["choices"]
    constraint = PenalisedAnswer(Penalties(0.7, 0.5, {20: 3.5}))
    options = GenerationOptions(20, draft_length=0, raw=raw, constraint=constraint)
    right = Session(models[0]).generate(prompt, options).text
    assert [each.get("text") or each["message"]["content"] for each in answer] == [right] * 2


def test_penalties_leave_a_form_alone(client: TestClient) -> None:
    asked = {
        "model": "tiny",
        "messages": [{"role": "user", "content": SAID[1]}],
        "structured_outputs": {"regex": "[ab]{30}"},
        "frequency_penalty": 2,
        "logit_bias": {"30": 100},
    }
    text = client.post("/v1/chat/completions", json=asked).json()["choices"][0]
    assert set(text["message"]["content"]) == {"a", "b"} and len(text["message"]["content"]) == 30


def test_sampled_tokens_are_distributed_as_the_penalised_target_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By rejection sampling, where drafts decide which random numbers are drawn."""
    monkeypatch.setattr(secrets, "randbits", random.Random(0).getrandbits)
    pair = toy_pair(3)
    width = len(pair.target)
    target = ToyModel(width, 3)
    found: Counter[int] = Counter()
    for _ in range(4000):
        decoder = SpeculativeDecoder(
            target,
            pair.drafting(4, 3),
            sampling=SamplingParameters(1.0),
            constraint=PenalisedAnswer(Penalties(1.5, 0.5)),
        )
        first, second = (each.token for each in decoder.generate([1], 2))
        found[first * width + second] += 1
    wanted = np.zeros((width, width))
    firsts = softmax(target.logits([1]).astype(np.float64))
    for first in range(width):
        logits = target.logits([1, first]).astype(np.float64)
        logits[first] -= 2
        wanted[first] = firsts[first] * softmax(logits)
    expected = wanted.ravel() * found.total()
    observed = np.array([found[each] for each in range(width * width)])
    likely = expected >= 5
    assert likely.sum() > 20
    assert (
        chisquare(
            [*observed[likely], observed[~likely].sum()],
            [*expected[likely], expected[~likely].sum()],
        ).pvalue
        > 1e-6
    )
