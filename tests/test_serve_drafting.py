"""What the server tells of drafting, and how a request chooses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from omnidraft import LoadedModel, Session
from omnidraft.serve.app import ServeOptions, application
from omnidraft.serve.requests import Defaults

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
ORIGINS = {"direct", "merged", "corrected", "free", "lookup"}


@pytest.fixture(scope="module")
def client(
    models: tuple[LoadedModel, LoadedModel], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIDRAFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        sessions = {"tiny": Session(*models), "plain": Session(models[0])}
        app = application(sessions, ServeOptions(Defaults(temperature=0, draft_confidence=0)))
        with TestClient(app, "http://localhost") as opened:
            yield opened


def stream(client: TestClient, told: bool = True, **options: Any) -> list[dict[str, Any]]:
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 24, "stream": True, **options}
    asked["stream_options"] = {"include_drafting": told}
    answer = client.post(CHAT, json=asked)
    assert answer.status_code == 200, answer.text
    return [json.loads(each[6:]) for each in answer.text.split("\n\n")[:-2]]


def without(chunk: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in chunk.items() if k not in ("id", "created", "omnidraft")}


def pieces_of(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [piece for chunk in chunks for piece in chunk.get("omnidraft", {}).get("pieces", [])]


def rounds_of(pieces: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    rounds: list[list[dict[str, Any]]] = []
    for piece in pieces:
        if "round" in piece:
            rounds.append([])
        rounds[-1].append(piece)
    return rounds


@pytest.mark.parametrize("length", ["auto", 0, 5, 32])
@pytest.mark.parametrize("sampled", [{}, {"temperature": 1.1, "seed": 3}])
def test_it_changes_nothing_of_the_answer(
    client: TestClient, length: int | str, sampled: dict[str, Any]
) -> None:
    plain = stream(client, False, draft_length=0, **sampled)
    assert all("omnidraft" not in chunk for chunk in plain)
    told = stream(client, draft_length=length, **sampled)
    assert [without(chunk) for chunk in told] == [without(chunk) for chunk in plain]


@pytest.mark.parametrize("length", ["auto", 5])
def test_every_token_has_an_origin_and_every_round_its_proposal(
    client: TestClient, length: int | str
) -> None:
    chunks = stream(client, draft_length=length)
    first, *parts, last = chunks
    assert "omnidraft" not in first
    for part in parts:
        text = "".join(piece["text"] for piece in part["omnidraft"]["pieces"])
        assert text == part["choices"][0]["delta"]["content"]
    pieces = pieces_of(chunks)
    assert {piece["origin"] for piece in pieces} <= ORIGINS
    figures = last["omnidraft"]["figures"]
    rounds = rounds_of(pieces)
    assert figures["rounds"] == len(rounds) and figures["seconds"] > 0
    assert figures["tokens_per_round"] == figures["tokens"] / len(rounds)
    for pieces in rounds:
        proposal = pieces[0]["round"]
        tokens, parents = proposal["tokens"], proposal["parents"]
        assert len(parents) == len(tokens)
        assert all(-1 <= parent < place for place, parent in enumerate(parents))
        # What stood is a path from the text on, and is what the answer goes on with.
        at = -1
        for place, piece in zip(proposal["accepted"], pieces, strict=False):
            assert parents[place] == at
            assert piece["origin"] not in ("corrected", "free")
            at = place
            if piece["text"] and "\ufffd" not in tokens[place] + piece["text"]:
                assert tokens[place] == piece["text"]
    assert sum(len(each[0]["round"]["tokens"]) for each in rounds) == figures["proposed"] > 0
    assert sum(len(each[0]["round"]["accepted"]) for each in rounds) == figures["accepted"]
    assert figures["tokens"] == 24
    seconds = [each[0]["round"]["seconds"] for each in rounds]
    assert seconds == sorted(seconds) and seconds[-1] <= figures["seconds"]


def test_what_plain_decoding_would_take(client: TestClient) -> None:
    measured = stream(client, draft_length=0)[-1]["omnidraft"]["figures"]
    assert measured["plain_tokens_per_second"] == measured["tokens_per_second"] > 0
    assert measured["proposed"] == 0 and measured["tokens_per_round"] == 1
    expected = stream(client, draft_length="auto")
    assert expected[-1]["omnidraft"]["figures"]["plain_tokens_per_second"] > 0
    for piece in pieces_of(expected):
        if "round" in piece:
            assert piece["round"]["plain_tokens_per_second"] > 0


def test_a_stop_string_takes_tokens_with_it(client: TestClient) -> None:
    whole = "".join(piece["text"] for piece in pieces_of(stream(client)))
    chunks = stream(client, stop=whole[5:8])
    assert "".join(piece["text"] for piece in pieces_of(chunks)) == whole[: whole.find(whole[5:8])]


def test_texts_are_told_of_too(client: TestClient) -> None:
    asked = {"model": "tiny", "prompt": "The quick", "max_tokens": 12, "stream": True}
    options = {"include_drafting": True}
    answer = client.post("/v1/completions", json={**asked, "stream_options": options})
    chunks = [json.loads(each[6:]) for each in answer.text.split("\n\n")[:-2]]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert "".join(piece["text"] for piece in pieces_of(chunks)) == text
    assert chunks[-1]["omnidraft"]["figures"]["tokens"] == 12


def test_several_answers_have_figures_of_their_own(client: TestClient) -> None:
    chunks = stream(client, n=2, seed=1, temperature=1)
    for index in range(2):
        own = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in own)
        assert "".join(piece["text"] for piece in pieces_of(own)) == text
        assert own[-1]["omnidraft"]["figures"]["tokens"] > 0


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"stream_options": {"include_drafting": True}}, "stream_options"),
        (
            {"stream": True, "stream_options": {"include_drafting": 1}},
            "stream_options.include_drafting",
        ),
        *[({"draft_length": value}, "draft_length") for value in (-1, 33, "4", "all", [], True)],
        ({"draft_length": 4, "model": "plain"}, "draft_length"),
    ],
)
def test_what_is_refused(client: TestClient, asked: dict[str, Any], param: str) -> None:
    answer = client.post(CHAT, json={"model": "tiny", "messages": HELLO, **asked})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_models_tell_how_they_draft(client: TestClient, models: tuple[LoadedModel, ...]) -> None:
    told = {each["id"]: each["omnidraft"] for each in client.get("/v1/models").json()["data"]}
    assert told["tiny"] == {
        "target": "tiny",
        "drafter": models[1].name,
        "adapter": None,
        "learns": False,
    }
    assert told["plain"]["drafter"] is None
