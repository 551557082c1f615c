"""Models that are opened when they are asked, and closed for others."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from memory_rounds import check_memory_is_given_back
from serving import send, served
from starlette.testclient import TestClient
from tiny import write_drafter, write_target

from omnidraft import GenerationOptions, Session, load_model
from omnidraft.cli.loading import keep_what_was_learned
from omnidraft.export.learnable import learnable_drafter
from omnidraft.runtime.errors import DamagedFileError
from omnidraft.runtime.learning.learner import AdapterChoice
from omnidraft.runtime.learning.store import AdapterStore
from omnidraft.runtime.learning.trainer import LearningOptions
from omnidraft.runtime.models.progress import Progress
from omnidraft.serve.answering import Answering
from omnidraft.serve.app import ServeOptions, application
from omnidraft.serve.models import Described, Models, Target
from omnidraft.serve.requests import Defaults

DRAFTS = ServeOptions(Defaults(temperature=0, draft_length=4, draft_confidence=0))
TEXTS = ["The quick brown fox", "def add(a, b):", "What is the answer?", "中文 12345"]
NAMES = ("a", "b", "c")
SIZE = 1_000_000_000  # beside which KV caches are nothing
ONE, TWO = SIZE * 3 // 2, SIZE * 5 // 2


@dataclass
class World:
    targets: Mapping[str, Path]
    drafter: Path
    root: Path
    right: Mapping[tuple[str, str], str]
    """What each target says to each text, by plain decoding."""

    def sessions(self, name: str, adapter: AdapterChoice | None = None) -> dict[str, Session]:
        target = load_model(str(self.targets[name]), threads=1)
        drafter = load_model(str(self.drafter), threads=1, drafts=True)
        sessions = {name: Session(target, drafter)}
        if adapter is not None:
            sessions[f"{name}:work"] = Session(target, drafter, adapter=adapter)
        return sessions


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("models")
    targets = {n: write_target(root / n, seed=seed) for seed, n in enumerate(NAMES)}
    right = {}
    for name, folder in targets.items():
        plain = Session(load_model(str(folder), threads=1))
        for text in TEXTS:
            answer = plain.generate(text, GenerationOptions(12, draft_length=0, raw=True))
            right[name, text] = answer.text
    assert len({right[name, TEXTS[0]] for name in NAMES}) == 3
    drafter = learnable_drafter(str(write_drafter(root / "drafter", seed=1)))
    return World(targets, drafter, root, right)


@dataclass
class Opener:
    """Opens the targets of a world, and tells which, in their order."""

    world: World
    opened: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda name: None
    """Called before one is opened."""
    adapter: AdapterChoice | None = None
    """Of a."""

    def models(self, budget: int | None, keep: Callable[[Session], None] | None = None) -> Models:
        targets = []
        for name in self.world.targets:
            described = {name: Described(name, "default")}
            if name == "a" and self.adapter is not None:
                described["a:work"] = Described("a", "default", "work", True)
            targets.append(Target(described, SIZE, partial(self._open, name)))
        return Models(targets, budget, keep or (lambda session: None))

    def _open(self, name: str, progress: Progress) -> dict[str, Session]:
        self.before(name)
        self.opened.append(name)
        return self.world.sessions(name, self.adapter if name == "a" else None)


@pytest.fixture
def opener(world: World) -> Opener:
    return Opener(world)


def body(model: str, text: str = TEXTS[0], **options: Any) -> dict[str, Any]:
    return {"model": model, "prompt": text, "max_tokens": 12, **options}


def ask(client: httpx.Client, model: str, text: str = TEXTS[0]) -> str:
    answer = client.post("/v1/completions", json=body(model, text))
    assert answer.status_code == 200, answer.text
    said: str = answer.json()["choices"][0]["text"]
    return said


def open_targets(client: httpx.Client) -> tuple[float, float]:
    """How many are open, and the bytes that they take."""
    lines = client.get("/metrics").text.splitlines()
    count, size = (
        next(float(line.split()[1]) for line in lines if line.startswith(f"omnidraft_{name} "))
        for name in ("open_targets", "open_bytes")
    )
    return count, size


def test_a_budget_that_holds_one_of_three(
    world: World, opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "omnidraft.serve")
    models = opener.models(ONE)
    with TestClient(application(models, DRAFTS), "http://localhost") as client:
        listed = client.get("/v1/models").json()
        assert [each["id"] for each in listed["data"]] == [*NAMES]
        assert open_targets(client) == (0, 0)
        for name in ("a", "a", "b", "c", "a", "c"):
            assert ask(client, name) == world.right[name, TEXTS[0]]
            count, size = open_targets(client)
            assert count == 1 and SIZE < size < ONE
        assert client.get("/v1/models").json() == listed
    assert opener.opened == ["a", "b", "c", "a", "c"]
    told = [each.split(":")[0] for each in caplog.messages if each[2:8] in ("opened", "closed")]
    order = ["a opened", "a closed", "b opened", "b closed", "c opened", "c closed", "a opened"]
    assert told == [*order, "a closed", "c opened"]
    models.close()
    assert models.count == models.nbytes == 0


def test_the_one_used_longest_ago_is_closed(opener: Opener) -> None:
    with TestClient(application(opener.models(TWO), DRAFTS), "http://localhost") as client:
        for name in ("a", "b", "a", "c", "a", "b"):
            ask(client, name)
            assert open_targets(client)[0] <= 2
    # c takes the place of b, and b that of c.
    assert opener.opened == ["a", "b", "c", "b"]


def test_one_alone_may_take_more_than_there_is(world: World, opener: Opener) -> None:
    models = opener.models(1)
    gone = weakref.ref(models.open("a").target.model)
    with TestClient(application(models, DRAFTS), "http://localhost") as client:
        for name in ("a", "a", "b"):
            assert ask(client, name) == world.right[name, TEXTS[0]]
            assert open_targets(client)[0] == 1
        assert gone() is None
    assert opener.opened == ["a", "b"]


def test_without_a_budget_nothing_is_closed(opener: Opener) -> None:
    with TestClient(application(opener.models(None), DRAFTS), "http://localhost") as client:
        for name in (*NAMES, *NAMES):
            ask(client, name)
    assert opener.opened == [*NAMES]


def test_kv_caches_count(opener: Opener) -> None:
    models = opener.models(2 * SIZE)  # the weights of two, and nothing else
    for name in ("a", "b"):
        models.open(name)
    assert models.count == 2
    with TestClient(application(models, DRAFTS), "http://localhost") as client:
        ask(client, "b")
        ask(client, "b")
        assert open_targets(client)[0] == 1
    assert opener.opened == ["a", "b"]


def test_what_is_closed_is_gone(opener: Opener) -> None:
    models = opener.models(ONE)
    gone = weakref.ref(models.open("a").target.model)
    models.open("b")
    assert gone() is None


def test_requests_to_all_at_once(world: World, opener: Opener) -> None:
    asked = [(name, text) for text in TEXTS for name in NAMES]
    with (
        served(opener.models(ONE), DRAFTS) as address,
        httpx.Client(base_url=address, timeout=300) as client,
        ThreadPoolExecutor(6) as pool,
    ):
        answers = [pool.submit(ask, client, *each) for each in asked]
        assert [each.result() for each in answers] == [world.right[each] for each in asked]


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released by each request that begins to wait."""
    told = threading.Semaphore(0)
    join = Answering.join

    def tell(self: Answering, *arguments: Any) -> None:
        join(self, *arguments)
        told.release()

    monkeypatch.setattr(Answering, "join", tell)
    return told


def wait(told: threading.Semaphore) -> None:
    assert told.acquire(timeout=120)


def test_several_requests_open_a_model_once(
    world: World, opener: Opener, joined: threading.Semaphore
) -> None:
    # It is opened when all of them wait for it.
    opener.before = lambda name: [wait(joined) for _ in range(3)] and None
    with (
        served(opener.models(ONE), DRAFTS) as address,
        httpx.Client(base_url=address, timeout=300) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        answers = list(pool.map(partial(ask, client, "a"), TEXTS[:3]))
    assert answers == [world.right["a", text] for text in TEXTS[:3]]
    assert opener.opened == ["a"]


def test_a_model_that_is_closed_while_a_request_waits_for_it(
    world: World, opener: Opener, joined: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = opener.models(ONE)
    model = models.open("a").target.model
    begun, may = threading.Semaphore(0), threading.Semaphore(0)
    forward = model.forward

    def held(*arguments: Any, **options: Any) -> Any:
        begun.release()
        wait(may)
        return forward(*arguments, **options)

    monkeypatch.setattr(model, "forward", held)
    with (
        served(models, DRAFTS) as address,
        httpx.Client(base_url=address, timeout=300) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        answers = [pool.submit(ask, client, "a")]
        wait(joined)
        wait(begun)
        for name in ("b", "a"):  # the second one is read by the model that is open now
            answers.append(pool.submit(ask, client, name, TEXTS[1]))
            wait(joined)
        may.release(1_000_000)
        said = [each.result() for each in answers]
    right = [("a", TEXTS[0]), ("b", TEXTS[1]), ("a", TEXTS[1])]
    assert said == [world.right[each] for each in right]
    assert opener.opened == ["a", "b", "a"]


def test_who_goes_away_while_a_model_is_opened_frees_the_place(
    world: World, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, may, left = (threading.Semaphore(0) for _ in range(3))
    leave = Answering.leave

    def tell(self: Answering, *arguments: Any) -> None:
        leave(self, *arguments)
        left.release()

    def before(name: str) -> None:
        opening.release()
        wait(may)

    monkeypatch.setattr(Answering, "leave", tell)
    opener.before = before
    with (
        served(opener.models(ONE), DRAFTS) as address,
        httpx.Client(base_url=address, timeout=300) as client,
    ):
        with send(address, body("a", max_tokens=400), path="/v1/completions"):
            wait(opening)
        wait(left)
        may.release()
        assert ask(client, "a") == world.right["a", TEXTS[0]]
        figures = client.get("/metrics").text
    assert 'omnidraft_answers_total{finish_reason="length",model="a"} 1.0' in figures
    assert 'finish_reason="cancelled"' not in figures
    assert opener.opened == ["a"]


def test_the_end_of_the_server_while_a_model_is_opened(
    opener: Opener, joined: threading.Semaphore
) -> None:
    opening, may = threading.Semaphore(0), threading.Semaphore(0)

    def before(name: str) -> None:
        opening.release()
        wait(may)

    opener.before = before
    app = application(opener.models(ONE), DRAFTS)
    with (
        TestClient(app, "http://localhost") as client,
        ThreadPoolExecutor(2) as pool,
    ):
        answers = []
        for name in ("a", "b"):
            answers.append(pool.submit(client.post, "/v1/completions", json=body(name)))
            wait(joined)
        wait(opening)
        assert client.portal is not None
        client.portal.call(app.state.service.stop)
        may.release()
        assert [each.result().status_code for each in answers] == [503, 503]
    assert opener.opened == ["a"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [DamagedFileError("b.gguf is damaged"), RuntimeError("wombat")])
def test_a_model_that_cannot_be_opened(
    world: World, opener: Opener, error: Exception, stream: bool
) -> None:
    def fail(name: str) -> None:
        if name == "b":
            raise error

    opener.before = fail
    with TestClient(application(opener.models(ONE), DRAFTS), "http://localhost") as client:
        ask(client, "a")
        answer = client.post("/v1/completions", json=body("b", stream=stream))
        assert answer.status_code == 503
        told = answer.json()["error"]
        assert told["code"] == "model_not_opened"
        foreseen = isinstance(error, DamagedFileError)
        assert ("b.gguf is damaged" if foreseen else "log says why") in told["message"]
        assert "wombat" not in told["message"]
        assert ask(client, "a") == world.right["a", TEXTS[0]]
        opener.before = lambda name: None
        assert ask(client, "b") == world.right["b", TEXTS[0]]


def test_a_model_whose_learning_cannot_be_kept_stays_open(world: World, opener: Opener) -> None:
    full = True

    def keep(session: Session) -> None:
        if full:
            raise DamagedFileError("the disk is full")

    with TestClient(application(opener.models(ONE, keep), DRAFTS), "http://localhost") as client:
        ask(client, "a")
        answer = client.post("/v1/completions", json=body("b"))
        assert answer.status_code == 503 and "the disk is full" in answer.text
        assert ask(client, "a") == world.right["a", TEXTS[0]]
        assert opener.opened == ["a"]
        full = False
        assert ask(client, "b") == world.right["b", TEXTS[0]]


@pytest.mark.parametrize("stream", [False, True])
def test_mistakes_are_told_with_a_status_open_or_closed(opener: Opener, stream: bool) -> None:
    schema = {"structured_outputs": {"grammar": "start: no_such_rule"}}
    told_early: Sequence[tuple[dict[str, Any], int, str]] = [
        (body("no-such-model"), 404, "no-such-model"),
        (body("b", temperature=-1), 400, "temperature"),
        (body("b", top_p=2), 400, "top_p"),
    ]
    told_by_the_model = [
        (body("b", structured_outputs={"regex": "("}), 400, "regex"),
        (body("b", "fox " * 2000), 400, "512"),
        (body("b", **schema), 400, "structured_outputs.grammar"),
    ]
    with TestClient(application(opener.models(ONE), DRAFTS), "http://localhost") as client:
        ask(client, "a")
        for asked, status, said in told_early:
            answer = client.post("/v1/completions", json={**asked, "stream": stream})
            assert answer.status_code == status and said in answer.text
        assert opener.opened == ["a"]
        for asked, status, said in [*told_by_the_model, *told_by_the_model]:
            answer = client.post("/v1/completions", json={**asked, "stream": stream})
            assert answer.status_code == status and said in answer.text
        assert opener.opened == ["a", "b"]


def test_an_adapter_loses_nothing(world: World, tmp_path: Path) -> None:
    """It learns what it learns where nothing is closed."""
    learned = []
    for number, budget in enumerate((None, ONE)):
        store = AdapterStore(tmp_path / str(number))
        choice = AdapterChoice(store, "work", LearningOptions(interval=2))
        opener = Opener(world, adapter=choice)
        models = opener.models(budget, partial(keep_what_was_learned, learn=True))
        with TestClient(application(models, DRAFTS), "http://localhost") as client:
            listed = client.get("/v1/models/a:work").json()["omnidraft"]
            expected = {"target": "a", "drafter": "default", "adapter": "work", "learns": True}
            assert listed == expected
            for text in TEXTS:
                assert ask(client, "a:work", text) == world.right["a", text]
                assert ask(client, "a", text) == world.right["a", text]
                assert ask(client, "b", text) == world.right["b", text]
            assert client.get("/v1/models/a:work").json()["omnidraft"] == expected
        assert opener.opened == (["a", "b"] if budget is None else ["a", "b"] * len(TEXTS))
        models.close()
        learner = world.sessions("a", choice)["a:work"].learner
        assert learner is not None and learner.trainer is not None
        weights, state, progress = learner.trainer.state()
        assert progress.prompts == len(TEXTS)
        arrays = {name: values.tobytes() for name, values in {**weights, **state}.items()}
        progress.seconds = 0.0
        learned.append((arrays, progress, learner.cache.to_bytes()))
        learner.close()
    assert learned[0] == learned[1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process takes")
def test_closing_gives_the_memory_back(tmp_path: Path) -> None:
    large = write_target(tmp_path / "large", padding=100_000)
    small = write_target(tmp_path / "small")
    code = f"""
from omnidraft import GenerationOptions, Session, load_model
from omnidraft.serve.models import Described, Models, Target
def target(name, folder, drafts):
    def opened(progress):
        drafter = load_model("default", threads=1, drafts=True) if drafts else None
        return {{name: Session(load_model(folder, threads=1), drafter)}}
    return Target({{name: Described(name, None)}}, 1, opened)
large = target("large", {str(large)!r}, True)
models = Models([large, target("small", {str(small)!r}, False)], 1)
for _ in range(5):
    models.open("large").generate("Hi", GenerationOptions(3))
    loaded = megabytes()
    models.open("small").generate("Hi", GenerationOptions(3))
    print(loaded, megabytes())
"""
    check_memory_is_given_back(code)
