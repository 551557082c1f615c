"""One answer at a time: from several threads, tasks and streams, over models that are shared."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from toy import ToyModel, plain_greedy, toy_pair

from omnidraft import GenerationOptions, Session
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.decoding.lease import Lease
from omnidraft.runtime.errors import ModelInUseError, OmniDraftError
from omnidraft.runtime.models import LoadedModel

pytestmark = pytest.mark.usefixtures("all_cores")

PROMPTS = ["The quick brown fox", "def add(a, b):", "What is the answer?", "中文 12345"]
OPTIONS = GenerationOptions(12, draft_length=3, draft_confidence=0.0, raw=True)


@pytest.fixture(scope="module")
def right(models: tuple[LoadedModel, LoadedModel]) -> dict[str, list[int]]:
    plain = Session(models[0])
    options = replace(OPTIONS, draft_length=0)
    return {prompt: plain.generate(prompt, options).token_ids for prompt in PROMPTS}


def one_session(target: LoadedModel, drafter: LoadedModel) -> list[Session]:
    return [Session(target, drafter)]


def two_sessions(target: LoadedModel, drafter: LoadedModel) -> list[Session]:
    return [Session(target, drafter), Session(target)]


def crossed(target: LoadedModel, drafter: LoadedModel) -> list[Session]:
    """Each of the two models is target here and drafter there."""
    return [Session(target, drafter), Session(drafter, target)]


@pytest.mark.parametrize("make", [one_session, two_sessions, crossed])
def test_threads_that_answer_and_break_off(
    make: Callable[[LoadedModel, LoadedModel], list[Session]],
    models: tuple[LoadedModel, LoadedModel],
    right: dict[str, list[int]],
) -> None:
    sessions = make(*models)
    answered = threading.Barrier(12)

    def work(number: int) -> list[str]:
        chance = random.Random(number)
        answered.wait()
        wrong = []
        for _ in range(6):
            session, prompt = chance.choice(sessions), chance.choice(PROMPTS)
            if session.target is not models[0]:
                session.generate(prompt, OPTIONS)
            elif (kept := chance.randrange(-8, 8)) > 0:
                stream = session.stream(prompt, OPTIONS)
                found = [next(stream).token for _ in range(kept)]
                if chance.random() < 0.5:
                    stream.close()
                del stream
                if found != right[prompt][:kept]:
                    wrong.append(f"{prompt}: began as {found}")
            else:
                answer = session.generate(prompt, OPTIONS)
                if answer.token_ids != right[prompt]:
                    wrong.append(f"{prompt}: {answer.text}")
                if answer.statistics.target_tokens != len(answer.token_ids):
                    wrong.append(f"{prompt}: the statistics of another answer")
        return wrong

    with ThreadPoolExecutor(12) as pool:
        assert [wrong for found in pool.map(work, range(12)) for wrong in found] == []


def test_tasks_that_take_turns(
    models: tuple[LoadedModel, LoadedModel], right: dict[str, list[int]]
) -> None:
    """Each answer is read in whatever thread is free; some tasks are cancelled."""
    session = Session(*models)

    async def ask(prompt: str, cancelled: bool) -> list[int]:
        stream = session.stream(prompt, OPTIONS)
        tokens = []
        try:
            while (piece := await asyncio.to_thread(next, stream, None)) is not None:
                if piece.token is not None:
                    tokens.append(piece.token)
                if cancelled and len(tokens) == 3:
                    raise asyncio.CancelledError
        finally:
            stream.close()
        return tokens

    async def all_of_them() -> None:
        # Those that wait take a thread each, and whoever they wait for needs one, too.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(20))
        asked = [(PROMPTS[i % 4], i % 3 == 2) for i in range(16)]
        answers = await asyncio.gather(*(ask(*each) for each in asked), return_exceptions=True)
        for (prompt, cancelled), answer in zip(asked, answers, strict=True):
            if cancelled:
                assert isinstance(answer, asyncio.CancelledError | ModelInUseError)
            elif not isinstance(answer, ModelInUseError):
                assert answer == right[prompt]
        assert sum(isinstance(answer, list) for answer in answers) >= 1

    asyncio.run(all_of_them())
    assert session.generate(PROMPTS[0], OPTIONS).token_ids == right[PROMPTS[0]]


def test_a_stream_that_is_not_finished_refuses_its_own_thread_at_once(
    models: tuple[LoadedModel, LoadedModel], right: dict[str, list[int]]
) -> None:
    session, other = Session(*models), Session(models[0])
    stream = session.stream(PROMPTS[0], OPTIONS)
    first = next(stream)
    for asked in (session, other):
        with pytest.raises(ModelInUseError, match="close it first"):
            asked.generate(PROMPTS[1], OPTIONS)
        with pytest.raises(ModelInUseError):
            next(asked.stream(PROMPTS[1], OPTIONS))
    with pytest.raises(ModelInUseError):
        session.save()
    assert [piece.token for piece in [first, *stream]] == right[PROMPTS[0]]
    assert other.generate(PROMPTS[1], OPTIONS).token_ids == right[PROMPTS[1]]


def dropped(stream: Iterator[object]) -> None:
    del stream
    gc.collect()


@pytest.mark.parametrize(
    "end", [lambda stream: stream.close(), dropped, list], ids=["closed", "dropped", "read"]
)
def test_whoever_waits_gets_the_models_when_a_stream_ends(
    end: Callable[[Iterator[object]], object],
    models: tuple[LoadedModel, LoadedModel],
    right: dict[str, list[int]],
) -> None:
    session = Session(*models)
    streams = [session.stream(PROMPTS[0], OPTIONS)]
    next(streams[0])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(session.generate, PROMPTS[1], OPTIONS)
        assert not waiting.done()
        end(streams.pop())
        assert waiting.result(timeout=60).token_ids == right[PROMPTS[1]]


def test_waiting_has_an_end(models: tuple[LoadedModel, LoadedModel]) -> None:
    stream = Session(*models).stream(PROMPTS[0], OPTIONS)
    next(stream)
    impatient = Session(*models, wait=0.01)
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ModelInUseError, match=r"did not end within 0\.01 s"):
            pool.submit(impatient.generate, PROMPTS[1], OPTIONS).result()
        stream.close()
        pool.submit(impatient.generate, PROMPTS[1], OPTIONS).result()


def test_an_error_gives_the_models_back(models: tuple[LoadedModel, LoadedModel]) -> None:
    session = Session(*models)
    for _ in range(2):
        with pytest.raises(OmniDraftError, match="UTF-8"):
            session.generate("\ud800", OPTIONS)
    session.generate(PROMPTS[0], OPTIONS)


def test_decoders_over_one_model() -> None:
    pair = toy_pair(1)
    target = ToyModel(len(pair.target), 2)
    first = SpeculativeDecoder(target, pair.drafting()).generate([1], 20)
    second = SpeculativeDecoder(target).generate([2], 20)
    tokens = [next(first).token]
    with pytest.raises(ModelInUseError):
        next(second)
    tokens += [emitted.token for emitted in first]
    assert tokens == plain_greedy(target, [1], 20)
    again = [emitted.token for emitted in SpeculativeDecoder(target).generate([2], 20)]
    assert again == plain_greedy(target, [2], 20)


def test_one_model_cannot_be_both(models: tuple[LoadedModel, LoadedModel]) -> None:
    with pytest.raises(OmniDraftError, match="load it twice"):
        Session(models[0], models[0])


def test_a_lease_is_of_the_model_and_goes_with_it() -> None:
    model = ToyModel(4)
    with Lease([model]) as lease, lease:
        with pytest.raises(ModelInUseError):
            Lease([model], wait=0).__enter__()
        # A model made where another one has gone is free.
        with Lease([ToyModel(4), ToyModel(4)]):
            pass
    with Lease([model]):
        pass
