"""Real clients of a real server: turns and disconnects."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest
from serving import send, served
from tiny import write_drafter, write_target

from omnidraft import GenerationOptions, LoadedModel, Session, load_model
from omnidraft.runtime.decoding.kept_texts import KeptTexts
from omnidraft.serve.answering import Answering, Work
from omnidraft.serve.app import ServeOptions
from omnidraft.serve.errors import ApiError
from omnidraft.serve.models import Models
from omnidraft.serve.preparing import Choice, Prepared
from omnidraft.serve.replies import ChatReply
from omnidraft.serve.requests import Defaults

DRAFTS = Defaults(temperature=0, draft_length=4, draft_confidence=0)
PLAIN = Defaults(temperature=0, draft_length=0)
SAID = ["The quick brown fox", "def add(a, b):", "What is the answer?", "中文 12345"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, LoadedModel]:
    root = tmp_path_factory.mktemp("models")
    target = load_model(str(write_target(root / "target", context=4096)), threads=1)
    return target, load_model(str(write_drafter(root / "drafter", context=4096)), threads=1)


@pytest.fixture(scope="module")
def session(models: tuple[LoadedModel, LoadedModel]) -> Session:
    return Session(*models)


def asked(content: str, **options: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], **options}


def conversation(address: str, number: int, turns: int) -> list[str]:
    """What is answered in one, greedy or with a seed; every second one streams."""
    chance = random.Random(number)
    messages: list[dict[str, str]] = []
    answers = []
    sampling = {"temperature": chance.choice([0, 0, 0.7, 1.1]), "seed": number}
    with httpx.Client(base_url=address, headers={"User-Agent": f"test {number}"}) as client:
        for _ in range(turns):
            messages.append({"role": "user", "content": chance.choice(SAID)})
            request = {"model": "tiny", "messages": messages, "max_tokens": 12, **sampling}
            if number % 2:
                lines = client.post(
                    "/v1/chat/completions", json={**request, "stream": True}, timeout=300
                ).text.splitlines()
                chunks = [json.loads(line[6:]) for line in lines if line and "[DONE]" not in line]
                deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
                text = "".join(delta.get("content", "") for delta in deltas)
            else:
                answer = client.post("/v1/chat/completions", json=request, timeout=300)
                text = answer.json()["choices"][0]["message"]["content"]
            answers.append(text)
            messages.append({"role": "assistant", "content": text})
    return answers


def break_off(address: str, number: int) -> None:
    """Ask for a long answer, and go away while it waits, is read or is made."""
    chance = random.Random(number)
    content = "gone " * chance.choice([1, 900])
    request = asked(content, max_tokens=2000, stream=chance.random() < 0.5)
    with httpx.Client(base_url=address, headers={"User-Agent": f"gone {number}"}) as client:
        try:
            client.post(
                "/v1/chat/completions",
                json=request,
                timeout=httpx.Timeout(60, read=chance.choice([0.01, 0.1, 0.5])),
            )
        except httpx.ReadTimeout:
            return


@pytest.mark.parametrize("kept", [False, True], ids=["one after the other", "in turns"])
def test_conversations_are_those_of_plain_decoding(
    models: tuple[LoadedModel, LoadedModel], kept: bool
) -> None:
    """With other clients at the same time, and clients that go away."""
    count, turns = 12, 3
    with served({"tiny": Session(models[0])}, ServeOptions(PLAIN)) as address:
        right = [conversation(address, number, turns) for number in range(count)]
    session = keeping(*models) if kept else Session(*models)
    with (
        served({"tiny": session}, ServeOptions(DRAFTS, turn=0)) as address,
        ThreadPoolExecutor(6) as pool,
    ):
        answers = [pool.submit(conversation, address, i, turns) for i in range(count)]
        gone = [pool.submit(break_off, address, i) for i in range(6)]
        assert [each.result() for each in answers] == right
        for each in gone:
            each.result()


def keeping(target: LoadedModel, drafter: LoadedModel | None = None) -> Session:
    """A session whose answers can be paused."""
    return Session(target, drafter, kept=KeptTexts(target.model, 200_000_000))


def test_a_short_answer_does_not_wait_for_the_end_of_a_long_one(
    models: tuple[LoadedModel, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = keeping(models[0])
    held = Held(monkeypatch, session)
    right = Session(models[0])

    def ask(content: str, most: int) -> str:
        request = asked(content, max_tokens=most)
        answer = httpx.post(address + "/v1/chat/completions", json=request, timeout=300)
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    with (
        served({"tiny": session}, ServeOptions(PLAIN, turn=0)) as address,
        ThreadPoolExecutor(8) as pool,
    ):
        long = pool.submit(ask, "long", 2000)
        assert held.begun.acquire(timeout=60)
        short = [pool.submit(ask, content, 5) for content in SAID]
        wait_until(address, 1, len(SAID))
        while not all(each.done() for each in short):
            held.may.release()
            time.sleep(0.001)
        assert not long.done() and held.passes < 1000
        held.let_all_go()
        texts = [long.result(), *(each.result() for each in short)]
    monkeypatch.undo()
    for content, most, text in zip(["long", *SAID], [2000, 5, 5, 5, 5], texts, strict=True):
        options = GenerationOptions(most, draft_length=0)
        assert text == right.generate([{"role": "user", "content": content}], options).text


def figure(address: str, name: str) -> float:
    lines = httpx.get(address + "/metrics").text.splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(name + " ")))


def wait_until(address: str, running: int, waiting: int) -> None:
    deadline = time.monotonic() + 60
    while (
        figure(address, "omnidraft_running_requests"),
        figure(address, "omnidraft_waiting_requests"),
    ) != (running, waiting):
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Held:
    """A target that waits before each pass until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, session: Session) -> None:
        self.passes = 0
        self.begun = threading.Semaphore(0)
        self.may = threading.Semaphore(0)
        model = session.target.model
        forward = model.forward

        def held(*arguments: Any, **options: Any) -> Any:
            self.passes += 1
            self.begun.release()
            assert self.may.acquire(timeout=60)
            return forward(*arguments, **options)

        monkeypatch.setattr(model, "forward", held)

    def let_all_go(self) -> None:
        self.may.release(1_000_000)


@pytest.mark.parametrize("where", ["prompt", "answer"])
@pytest.mark.parametrize("stream", [False, True])
def test_who_goes_away_frees_the_place_within_a_round(
    models: tuple[LoadedModel, LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    stream: bool,
) -> None:
    session = Session(models[0])
    session.forget()
    held = Held(monkeypatch, session)
    long = "wombat " * 400 if where == "prompt" else "x"  # several passes, one
    assert len(session.encode([{"role": "user", "content": long}])) > 256 * 3 or where == "answer"
    with served({"tiny": session}, ServeOptions(PLAIN)) as address:
        with send(address, asked(long, max_tokens=50, stream=stream)):
            assert held.begun.acquire(timeout=60)
            held.may.release()
            assert held.begun.acquire(timeout=60)  # in its second pass
        with send(address, asked("waits", max_tokens=5), agent="b"):
            wait_until(address, 1, 1)
        wait_until(address, 1, 0)  # who waits and goes away leaves at once
        held.may.release()
        wait_until(address, 0, 0)
        assert held.passes <= 3
        held.let_all_go()
        right = Session(models[0])
        answer = httpx.post(address + "/v1/chat/completions", json=asked("next", max_tokens=5))
        text = answer.json()["choices"][0]["message"]["content"]
    monkeypatch.undo()
    prompt = [{"role": "user", "content": "next"}]
    assert text == right.generate(prompt, GenerationOptions(5, draft_length=0)).text


def test_who_cannot_be_paused_keeps_nobody_waiting(
    models: tuple[LoadedModel, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(models[0], kept=KeptTexts(models[0].model, 200_000_000), wait=0)
    held = Held(monkeypatch, session)

    def fails(kept: KeptTexts, model: object) -> None:
        raise MemoryError

    def ask(content: str, most: int) -> int:
        request = asked(content, max_tokens=most)
        return httpx.post(address + "/v1/chat/completions", json=request, timeout=300).status_code

    monkeypatch.setattr(KeptTexts, "text_of", fails)
    with (
        served({"tiny": session}, ServeOptions(PLAIN, turn=0)) as address,
        ThreadPoolExecutor(2) as pool,
    ):
        long = pool.submit(ask, "long", 2000)
        assert held.begun.acquire(timeout=60)
        short = pool.submit(ask, "short", 5)
        wait_until(address, 1, 1)
        held.let_all_go()
        assert (long.result(), short.result()) == (503, 200)


@pytest.mark.parametrize("told", [True, False], ids=["length told", "in chunks"])
def test_who_sends_too_much_reads_why(models: tuple[LoadedModel, LoadedModel], told: bool) -> None:
    """Also one that reads nothing until it has sent all."""
    data = json.dumps(asked("a" * 20_000_000)).encode()
    parts = (data[begin : begin + 65536] for begin in range(0, len(data), 65536))
    with served({"tiny": Session(*models)}, ServeOptions(max_body=1000)) as address:
        client = HTTPConnection(address.removeprefix("http://"), timeout=60)
        client.request(
            "POST",
            "/v1/chat/completions",
            data if told else parts,
            {"Content-Type": "application/json"},
        )
        answer = client.getresponse()
        assert answer.status == 413 and b"--max-body" in answer.read()
        client.close()


def test_a_full_queue_refuses_who_asks_for_most(
    models: tuple[LoadedModel, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(models[0])
    held = Held(monkeypatch, session)
    order: list[str] = []
    stream = session.stream

    def noted(tokens: Any, *arguments: Any, **options: Any) -> Any:
        text = session.target.tokenizer.decode(tokens)
        order.extend(name for name in ("a0", "a1", "a2", "a3", "a4", "b1") if name in text)
        return stream(tokens, *arguments, **options)

    # By the server: answers are read by threads, in any order.
    monkeypatch.setattr(session, "stream", noted)

    def ask(name: str) -> int:
        answer = httpx.post(
            address + "/v1/chat/completions",
            json=asked(name, max_tokens=1),
            headers={"User-Agent": name[0]},
            timeout=300,
        )
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["type"] == "rate_limit_error"
        return answer.status_code

    with (
        served({"tiny": session}, ServeOptions(PLAIN, places=3)) as address,
        ThreadPoolExecutor(8) as pool,
    ):
        first = pool.submit(ask, "a0")
        assert held.begun.acquire(timeout=60)
        waiting = []
        for place, name in enumerate(["a1", "a2", "a3"]):
            waiting.append(pool.submit(ask, name))
            wait_until(address, 1, place + 1)
        assert pool.submit(ask, "a4").result() == 429  # it asks for most itself
        other = pool.submit(ask, "b1")
        assert waiting.pop().result() == 429  # a's last one gives way
        held.let_all_go()
        assert [each.result() for each in [first, *waiting, other]] == [200] * 4
    assert order == ["a0", "a1", "b1", "a2"]


def test_the_end_of_the_server_breaks_answers_off(
    models: tuple[LoadedModel, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(models[0])
    held = Held(monkeypatch, session)

    async def end() -> None:
        answering = Answering(4, 1, 0.25, 60)
        options = GenerationOptions(100, draft_length=0)
        models = Models.of({"tiny": session})
        prepared = Prepared(
            [Choice([5, 6, 7], options)], ChatReply("tiny", session.target.tokenizer, 1, False)
        )
        works = [Work("tiny", models, lambda _: prepared) for _ in range(2)]
        for work in works:
            answering.join("a", work)
        await asyncio.to_thread(held.begun.acquire)
        answering.cancel_all()
        held.let_all_go()
        await answering.close()
        assert held.passes <= 2
        running = [works[0].events.get_nowait() for _ in range(works[0].events.qsize())]
        assert running[-2].reason == "cancelled" and running[-1] is None  # type: ignore[union-attr]
        assert works[1].events.get_nowait().error.status == 503  # type: ignore[union-attr]
        with pytest.raises(ApiError, match="ending"):
            answering.join("a", works[0])

    asyncio.run(end())
