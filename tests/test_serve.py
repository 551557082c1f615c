"""The server's interface: answers, refusals, and who may ask."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tiny import write_drafter

from omnidraft import GenerationOptions, LoadedModel, Session, load_model
from omnidraft.runtime.options import sampling_parameters
from omnidraft.serve.app import ServeOptions, application
from omnidraft.serve.requests import Defaults

DRAFTS = Defaults(temperature=0, draft_length=4, draft_confidence=0)
HELLO = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def session(models: tuple[LoadedModel, LoadedModel]) -> Session:
    return Session(*models)


@pytest.fixture(scope="module")
def client(session: Session) -> Iterator[TestClient]:
    app = application({"tiny": session}, ServeOptions(DRAFTS, max_body=20_000))
    with TestClient(app, "http://localhost") as opened:
        yield opened


@pytest.fixture(scope="module")
def plain(models: tuple[LoadedModel, LoadedModel]) -> Session:
    return Session(models[0])


def ask(client: TestClient, path: str = CHAT, **options: Any) -> dict[str, Any]:
    asked = {"messages": HELLO} if path == CHAT else {}
    answer = client.post(path, json={"model": "tiny", **asked, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(client: TestClient, path: str = CHAT, **options: Any) -> list[dict[str, Any]]:
    asked = {"messages": HELLO} if path == CHAT else {}
    answer = client.post(path, json={"model": "tiny", "stream": True, **asked, **options})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_what_is_there(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    listed = client.get("/v1/models").json()
    assert [each["id"] for each in listed["data"]] == ["tiny"]
    assert client.get("/v1/models/tiny").json() == listed["data"][0]
    assert client.get("/v1/models/other").status_code == 404


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.9, "seed": 7},
        {"temperature": 1.3, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "seed": 2**63},
        {"temperature": 0.8, "repetition_penalty": 1.3, "seed": -1},
    ],
)
def test_an_answer_is_that_of_plain_decoding(
    client: TestClient, plain: Session, asked: dict[str, Any]
) -> None:
    shaping = {name: value for name, value in asked.items() if name != "seed"}
    seed = asked.get("seed")
    options = GenerationOptions(
        24,
        sampling_parameters(**shaping),
        seed=None if seed is None else seed % 2**64,
        draft_length=0,
        logprobs=2,
    )
    right = plain.generate(HELLO, options)
    for limit in ("max_tokens", "max_completion_tokens"):
        answer = ask(client, logprobs=True, top_logprobs=2, **{limit: 24}, **asked)
        choice = answer["choices"][0]
        assert choice["message"]["content"] == right.text
        assert choice["finish_reason"] == right.finish_reason
        assert answer["usage"]["completion_tokens"] == len(right.token_ids)
        told = choice["logprobs"]["content"]
        kept = [
            each
            for token, each in zip(right.token_ids, right.logprobs or [], strict=True)
            if token not in plain.target.tokenizer.eos_ids
        ]
        assert [each["logprob"] for each in told] == [each.chosen for each in kept]
        tops = [[top["logprob"] for top in each["top_logprobs"]] for each in told]
        assert tops == [[value for _, value in each.top] for each in kept]
        shown = b"".join(bytes(each["bytes"] or []) for each in told)
        assert shown.decode("utf-8", "replace") == right.text


def test_a_stream_is_the_same_answer(client: TestClient) -> None:
    options = {"max_tokens": 20, "seed": 5, "temperature": 1, "logprobs": True}
    whole = ask(client, **options)
    chunks = stream(client, stream_options={"include_usage": True}, **options)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    first, *parts, last, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(part["choices"][0]["delta"]["content"] for part in parts)
    assert text == whole["choices"][0]["message"]["content"]
    # The piece that an unfinished character leaves has no token.
    told = [
        each for part in parts for each in (part["choices"][0]["logprobs"] or {}).get("content", [])
    ]
    assert told == whole["choices"][0]["logprobs"]["content"]
    assert last["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert usage["choices"] == [] and all(chunk["usage"] is None for chunk in chunks[:-1])
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage["usage"][name] == whole["usage"][name]
    assert all("usage" not in chunk for chunk in stream(client, **options))


def test_texts_go_on(client: TestClient, plain: Session) -> None:
    prompts = ["def add(a, b):", "What is the answer?"]
    options = {"max_tokens": 9, "logprobs": 1}
    answer = ask(client, TEXT, prompt=prompts, **options)
    wanted = GenerationOptions(9, draft_length=0, raw=True)
    right = [plain.generate(prompt, wanted) for prompt in prompts]
    assert [each["text"] for each in answer["choices"]] == [each.text for each in right]
    assert answer["usage"]["prompt_tokens"] == sum(len(plain.encode(p, raw=True)) for p in prompts)
    tokens = [plain.encode(prompt, raw=True) for prompt in prompts]
    again = ask(client, TEXT, prompt=tokens, **options)
    assert again["choices"] == answer["choices"]
    assert ask(client, TEXT, prompt=tokens[1], **options)["choices"][0]["text"] == right[1].text
    chunks = stream(client, TEXT, prompt=prompts, **options)
    for index, choice in enumerate(answer["choices"]):
        parts = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(part["text"] for part in parts) == choice["text"]
        told = [part["logprobs"] or {} for part in parts]
        offsets = [offset for each in told for offset in each.get("text_offset", [])]
        assert offsets == choice["logprobs"]["text_offset"]
    assert ask(client, TEXT, prompt="Hello")["usage"]["completion_tokens"] == 16


def test_several_answers(client: TestClient) -> None:
    options = {"max_tokens": 8, "temperature": 1.2}
    answers = ask(client, n=3, seed=10, **options)
    texts = [each["message"]["content"] for each in answers["choices"]]
    assert [each["index"] for each in answers["choices"]] == [0, 1, 2]
    single = [ask(client, seed=10 + i, **options) for i in range(3)]
    assert texts == [each["choices"][0]["message"]["content"] for each in single]
    assert answers["usage"]["prompt_tokens"] == single[0]["usage"]["prompt_tokens"]
    assert answers["usage"]["completion_tokens"] == sum(
        each["usage"]["completion_tokens"] for each in single
    )
    streamed = [""] * 3
    for chunk in stream(client, n=3, seed=10, **options):
        choice = chunk["choices"][0]
        streamed[choice["index"]] += choice["delta"].get("content", "")
    assert streamed == texts


def test_stop_strings(client: TestClient) -> None:
    text = ask(client, max_tokens=24)["choices"][0]["message"]["content"]
    for stop in (text[5:7], [text[5:7], text[9:10]], "nowhere", []):
        given = [stop] if isinstance(stop, str) else stop
        cut = min((text.find(each) for each in given if each in text), default=None)
        choice = ask(client, max_tokens=24, stop=stop)["choices"][0]
        assert choice["message"]["content"] == text[:cut]
        assert choice["finish_reason"] == ("length" if cut is None else "stop")
        chunks = stream(client, max_tokens=24, stop=stop)
        shown = "".join(each["choices"][0]["delta"].get("content", "") for each in chunks)
        assert shown == text[:cut]


def test_what_says_nothing_is_taken(client: TestClient) -> None:
    nothing = {
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "tools": None,
        "store": False,
        "n": 1,
        "stop": None,
        "user": "somebody",
        "top_k": -1,
    }
    parts = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}],
        }
    ]
    right = ask(client, max_tokens=5)["choices"]
    assert ask(client, max_tokens=5, **nothing)["choices"] == right
    assert ask(client, max_tokens=5, messages=parts)["choices"] == right


def test_an_earlier_turn_is_not_read_again(client: TestClient) -> None:
    first = ask(client, max_tokens=8)
    said = first["choices"][0]["message"]
    more = [*HELLO, {"role": "user", "content": said["content"]}, *HELLO]
    usage = ask(client, messages=more, max_tokens=4)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 5


# --- refusals ----------------------------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], int, str | None]] = [
    *[
        (CHAT, {name: value}, 400, name)
        for name, value in {
            "presence_penalty": 2.1,
            "frequency_penalty": -3,
            "logit_bias": {"5": 101},
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "required",
            "functions": [{"name": "f"}],
            "response_format": {"type": "grammar"},
            "modalities": ["text", "audio"],
            "audio": {"voice": "alloy", "format": "wav"},
            "prediction": {"type": "content", "content": "x"},
            "reasoning_effort": "low",
            "parallel_tool_calls": True,
            "web_search_options": {},
            "store": True,
            "echo": 0,
            "best_of": True,
            "metadata": {"a": "b"},
            "service_tier": "priority",
            "no_such_thing": None,
            "temperature": -0.1,
            "top_p": 0,
            "top_k": -2,
            "min_p": 2,
            "repetition_penalty": 0,
            "seed": 2**64,
            "max_tokens": 0,
            "max_completion_tokens": 0,
            "n": 17,
            "stop": [""],
            "messages": [],
            "stream": "yes",
            "stream_options": {"include_usage": True},
            "top_logprobs": 3,
            "user": 5,
        }.items()
    ],
    (CHAT, {"stop": ["a"] * 17}, 400, "stop"),
    (CHAT, {"logit_bias": {"999999": 1}}, 400, "logit_bias"),
    (CHAT, {"logit_bias": {"a": 1}}, 400, "logit_bias.a"),
    (CHAT, {"max_tokens": 3, "max_completion_tokens": 4}, 400, "max_tokens"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    (CHAT, {"stream": True, "stream_options": {"x": 1}}, 400, "stream_options.x"),
    (CHAT, {"model": "gpt-5"}, 404, "model"),
    (CHAT, {"model": None}, 400, "model"),
    (CHAT, {"prompt": "Hello"}, 400, "prompt"),
    (CHAT, {"messages": [{"role": "user", "content": "long " * 600}]}, 400, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "name": "y"}]}, 400, "messages[0].name"),
    (CHAT, {"messages": [{"role": "user", "content": None}]}, 400, "messages[0].content"),
    (CHAT, {"messages": [{"content": "x"}]}, 400, "messages[0].role"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        400,
        "messages[0].content[0]",
    ),
    (
        CHAT,
        {"messages": [*HELLO, {"role": "assistant", "content": None, "tool_calls": [{}]}]},
        400,
        "messages[1].tool_calls[0].id",
    ),
    (TEXT, {"prompt": ""}, 400, "prompt"),
    (TEXT, {"prompt": []}, 400, "prompt"),
    (TEXT, {"prompt": ["a"] * 9, "n": 2}, 400, "prompt"),
    (TEXT, {"prompt": [5, 10**6]}, 400, "prompt"),
    (TEXT, {"prompt": {"a": "b"}}, 400, "prompt"),
    (TEXT, {"prompt": "long " * 600}, 400, "prompt"),
    *[
        (TEXT, {"prompt": "a", name: value}, 400, name)
        for name, value in {
            "echo": True,
            "best_of": 2,
            "suffix": "end",
            "logprobs": 21,
            "messages": HELLO,
        }.items()
    ],
]


@pytest.mark.parametrize(("path", "asked", "status", "param"), REFUSED)
def test_what_is_not_supported_is_refused_by_its_name(
    client: TestClient, path: str, asked: dict[str, Any], status: int, param: str | None
) -> None:
    whole = {"model": "tiny", **({"messages": HELLO} if path == CHAT else {}), **asked}
    answer = client.post(path, json=whole)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and error["message"]


@pytest.mark.parametrize(
    ("path", "asked", "said"),
    [
        (CHAT, {"stop": ["a"] * 17}, "at most 16"),
        (CHAT, {"stop": ["a", 5]}, "valid string"),
        (CHAT, {"stop": 5}, "valid string"),
        (CHAT, {"messages": [{"role": "user", "content": ["Hello"]}]}, "an object"),
        (CHAT, {"draft_length": []}, "valid integer"),
        (TEXT, {"prompt": [1, 2.5]}, "valid integer"),
        (TEXT, {"prompt": [1, "a"]}, "valid integer"),
    ],
)
def test_what_is_wrong_with_a_value_of_several_kinds_is_told(
    client: TestClient, path: str, asked: dict[str, Any], said: str
) -> None:
    base = {"messages": HELLO} if path == CHAT else {}
    answer = client.post(path, json={"model": "tiny", **base, **asked})
    assert answer.status_code == 400 and said in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b'{"model": "tiny", "messages": "\xff"}', b"[" * 10_000),
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "tiny", "messages": [{"role":"user","content":"a"}], "temperature": NaN}',
    ],
)
def test_what_is_no_request(client: TestClient, body: bytes) -> None:
    answer = client.post(CHAT, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_limits_of_a_body(client: TestClient) -> None:
    large = {"model": "tiny", "messages": [{"role": "user", "content": "a" * 20_000}]}
    parts = iter([json.dumps(large).encode()])
    for content in (json.dumps(large), parts):  # with its length told before, and without
        answer = client.post(CHAT, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413, answer.text
        assert answer.json()["error"]["code"] == "request_too_large"


def test_paths_and_methods(client: TestClient) -> None:
    for method, path, status in [
        ("GET", "/v1/nothing", 404),
        ("GET", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("OPTIONS", CHAT, 405),
    ]:
        answer = client.request(method, path)
        assert answer.status_code == status
        assert answer.json()["error"]["message"]


# --- who may ask -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "127.0.0.1:8017"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "192.168.0.7"}, 200),
        ({"Host": "LOCALHOST:1"}, 200),
        ({"Host": "box.lan:8017"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "127.0.0.1@evil.example"}, 403),
        ({"Host": "localhost:80evil"}, 403),
        ({"Host": "[::1].evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://localhost"}, 200),
        ({"Origin": "https://localhost"}, 403),
        ({"Host": "box.lan", "Origin": "https://box.lan"}, 200),
        ({"Host": "box.lan:8017", "Origin": "https://box.lan"}, 403),
        ({"Host": "localhost", "Origin": "https://box.lan"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_pages_of_other_sites_may_not(
    session: Session, headers: dict[str, str], status: int
) -> None:
    app = application({"tiny": session}, ServeOptions(DRAFTS, hosts=["box.lan"]))
    body = json.dumps({"model": "tiny", "messages": HELLO, "max_tokens": 1})
    with TestClient(app, "http://localhost") as client:
        answer = client.post(
            CHAT, content=body, headers={"Content-Type": "application/json", **headers}
        )
        assert answer.status_code == status, answer.text
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        if status != 200:
            assert answer.json()["error"]["message"]


@pytest.mark.parametrize("shown", [None, "Bearer", "Bearer ", "Bearer secre", "Bearer secret2"])
def test_a_key_is_asked_for(session: Session, shown: str | None) -> None:
    app = application({"tiny": session}, ServeOptions(key="secret"))
    with TestClient(app, "http://localhost") as client:
        for path in ("/v1/models", "/metrics", "/nothing"):
            answer = client.get(path, headers={} if shown is None else {"Authorization": shown})
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
        assert client.get("/health").status_code == 200
        right = {"Authorization": "bearer secret"}
        assert client.get("/v1/models", headers=right).status_code == 200
        odd = {"Authorization": b"Bearer secret\xff"}
        assert client.get("/v1/models", headers=odd).status_code == 401
    assert "secret" not in repr(ServeOptions(key="secret"))


def test_the_log_and_the_figures_hold_nothing_of_what_is_said(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    word = "wombat"
    said = [{"role": "user", "content": word}]
    with caplog.at_level(logging.DEBUG):
        ask(client, messages=said, max_tokens=2)
        client.post(CHAT, json={"model": word, "messages": said})
        client.post(CHAT, json={"model": "tiny", "messages": said, word: 1})
        client.get("/" + word)
        for forged in ("%0a", "%1b[2J", "%e2%80%ae"):
            for path in (f"/v1/models/{forged}forged", f"/{forged}forged"):
                client.get(path, headers={"Host": "other.example"})
                client.post(path)
        figures = client.get("/metrics").text
    own = [each for each in caplog.messages if "HTTP Request" not in each]  # httpx's own
    assert any("2 of answer, length" in each for each in own)
    assert any("404" in each for each in own)
    assert word not in "\n".join(own)
    assert all(each.isprintable() for each in own), own
    assert word not in figures
    assert 'omnidraft_answers_total{finish_reason="length",model="tiny"}' in figures


@pytest.mark.parametrize("kind", [RuntimeError, OSError])
def test_a_failure_is_told_without_its_words(
    kind: type[Exception],
    client: TestClient,
    session: Session,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise kind("wombat")

    monkeypatch.setattr(session.target.model, "forward", fail)
    asked = {"model": "tiny", "messages": HELLO}
    answer = client.post(CHAT, json=asked)
    assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
    # A stream has begun by then.
    streamed = client.post(CHAT, json={**asked, "stream": True})
    assert json.loads(streamed.text.splitlines()[-2].removeprefix("data: "))["error"]["message"]
    assert "[DONE]" not in streamed.text
    assert kind.__name__ in caplog.text and "wombat" not in caplog.text
    assert "wombat" not in answer.text + streamed.text
    monkeypatch.undo()
    assert ask(client, max_tokens=2)["usage"]["completion_tokens"] == 2


def test_a_model_without_a_template_continues_texts(tmp_path: Path) -> None:
    model = load_model(str(write_drafter(tmp_path / "m")), threads=1)
    app = application({"m": Session(model)}, ServeOptions())
    with TestClient(app, "http://localhost") as client:
        refused = client.post(CHAT, json={"model": "m", "messages": HELLO})
        assert refused.status_code == 400 and "template" in refused.json()["error"]["message"]
        asked = {"model": "m", "prompt": "Hello", "max_tokens": 3, "temperature": 0}
        assert client.post(TEXT, json=asked).status_code == 200


def test_an_answer_is_cut_when_its_time_is_over(session: Session) -> None:
    app = application({"tiny": session}, ServeOptions(DRAFTS, time_limit=0))
    with TestClient(app, "http://localhost") as client:
        choice = ask(client, max_tokens=400)["choices"][0]
        assert choice["finish_reason"] == "length"
        # What has come of it is the beginning of the whole answer.
    with TestClient(application({"tiny": session}, ServeOptions(DRAFTS)), "http://localhost") as c:
        whole = ask(c, max_tokens=400)["choices"][0]["message"]["content"]
    assert whole.startswith(choice["message"]["content"].rstrip("\ufffd"))
