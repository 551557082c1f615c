"""What a program embeds: ``omnidraft.load`` and what it gives."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import json
import logging
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_rounds import check_memory_is_given_back
from tiny import write_drafter, write_target

import omnidraft
from omnidraft import Model, ModelInUseError, OmniDraftError, OptionError
from omnidraft.runtime.decoding import decoder
from omnidraft.runtime.learning.store import AdapterStore

PROMPTS = ["The quick brown fox", "What is the answer?"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return write_target(root / "target"), write_drafter(root / "drafter")


@pytest.fixture(scope="module")
def model(folders: tuple[Path, Path]) -> Model:
    return omnidraft.load(folders[0], folders[1], threads=1)


def test_an_answer_says_what_it_is(model: Model) -> None:
    plain = model.generate(PROMPTS[0], max_new_tokens=12, draft_length=0)
    answer = model.generate(PROMPTS[0], max_new_tokens=12)
    assert answer.token_ids == plain.token_ids and answer.text == plain.text
    assert answer.finish_reason == "length" and answer.stats.target_tokens == 12
    assert answer.statistics is answer.stats
    assert model.decode(answer.token_ids) == answer.text
    assert "".join(p.text for p in model.stream(PROMPTS[0], max_new_tokens=12)) == answer.text


@pytest.mark.parametrize("draft_length", [0, 4])
def test_an_answer_ends_before_the_first_stop_string(model: Model, draft_length: int) -> None:
    options = {"max_new_tokens": 24, "draft_length": draft_length, "draft_confidence": 0.0}
    whole = model.generate(PROMPTS[0], **options)
    text = whole.text
    assert len(text) > 12
    stops = [[text[at : at + length]] for at in range(len(text)) for length in (1, 3)]
    stops += [[text[5:7], text[4:9]], [text[5:7] + "nowhere", text[8:10]], ["nowhere"], [text]]
    for stop in stops:
        cut = min((text.find(s) for s in stop if s in text), default=None)
        answer = model.generate(PROMPTS[0], stop=stop, **options)
        assert answer.text == text[:cut], stop
        assert answer.finish_reason == ("length" if cut is None else "stop")
        count = len(answer.token_ids)
        assert answer.token_ids == whole.token_ids[:count]
        assert answer.stats.target_tokens == count
        # The last one is that with which the text is there.
        assert model.decode(answer.token_ids).startswith(answer.text.rstrip("\ufffd"))
        if cut is not None:
            assert len(model.decode(whole.token_ids[: max(count - 1, 0)])) <= cut
        pieces = list(model.stream(PROMPTS[0], stop=stop, **options))
        assert "".join(piece.text for piece in pieces) == answer.text
        assert [p.token for p in pieces if p.token is not None] == answer.token_ids


def test_one_stop_string_needs_no_list(model: Model) -> None:
    text = model.generate(PROMPTS[0], max_new_tokens=12).text
    answer = model.generate(PROMPTS[0], max_new_tokens=12, stop=text[3:6])
    assert answer.text == text[: text.index(text[3:6])]


@pytest.mark.parametrize("stop", ["", ["a", ""], 3, b"a", ["a", 3], None, {"a": 1}])
def test_stop_strings_that_are_none_are_refused(model: Model, stop: Any) -> None:
    with pytest.raises(OptionError, match=r"^stop must"):
        model.generate(PROMPTS[0], stop=stop)


def test_the_end_is_no_part_of_the_text(folders: tuple[Path, Path]) -> None:
    """Whatever else its token means: here it is an ordinary one."""
    with omnidraft.load(folders[0], folders[1], threads=1) as model:
        whole = model.generate(PROMPTS[0], max_new_tokens=12)
        tokenizer = model._session.target.tokenizer
        end = whole.token_ids[7]
        first = whole.token_ids.index(end)
        tokenizer.eos_ids |= {end}
        answer = model.generate(PROMPTS[0], max_new_tokens=12)
        assert answer.finish_reason == "stop" and answer.token_ids == whole.token_ids[: first + 1]
        assert answer.text == model.decode(answer.token_ids[:-1])
        assert model.decode([end]), "elsewhere it is a token like any"


def test_a_prompt_is_a_text_messages_or_tokens(model: Model) -> None:
    text = model.generate(PROMPTS[0], max_new_tokens=6)
    message = {"role": "user", "content": PROMPTS[0]}
    assert model.generate([message], max_new_tokens=6).token_ids == text.token_ids
    tokens = model.encode(PROMPTS[0])
    assert model.generate(tokens, max_new_tokens=6).token_ids == text.token_ids
    assert model.encode([message]) == tokens != model.encode(PROMPTS[0], raw=True)
    longer = [message, {"role": "assistant", "content": "Yes."}, message]
    assert len(model.encode(longer)) > 2 * len(tokens)


@pytest.mark.parametrize(
    "prompt",
    [
        [{"role": "user"}],
        [{"content": "x"}],
        [{"role": "user", "content": 3}],
        [1, {"role": "user", "content": "x"}],
        ["x"],
        [True],
        [-1],
        [10**9],
        [],
    ],
)
def test_a_prompt_that_is_none_of_these(model: Model, prompt: Any) -> None:
    with pytest.raises(OmniDraftError):
        model.generate(prompt, max_new_tokens=2)


@pytest.mark.parametrize("prompt", [b"abc", bytearray(b"a"), None, 5, {"role": "user"}, 1.5])
def test_a_prompt_of_another_kind_is_refused(model: Model, prompt: Any) -> None:
    for call in (model.generate, model.encode):
        with pytest.raises(OptionError, match="a prompt must be"):
            call(prompt)


@pytest.mark.parametrize("ids", ["x", b"x", None, 5, [1.5], ["x"], [None], [True], [10**9], [-1]])
def test_what_are_no_token_ids_is_refused(model: Model, ids: Any) -> None:
    with pytest.raises(OptionError, match="token_ids"):
        model.decode(ids)


def test_token_ids_may_come_from_an_array(model: Model) -> None:
    tokens = model.encode(PROMPTS[0], raw=True)
    assert model.decode(tokens) == PROMPTS[0]
    assert model.decode(np.array(tokens)) == model.decode(iter(tokens)) == PROMPTS[0]


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_model_cannot_be_copied(model: Model, take: Callable[[Model], object]) -> None:
    with pytest.raises(TypeError, match="neither pickled nor copied"):
        take(model)


@pytest.mark.parametrize("draft_length", ["auto", 4, 0])
@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_a_seed_repeats_whatever_was_asked_before(
    folders: tuple[Path, Path], temperature: float, draft_length: Any
) -> None:
    options: Any = {
        "max_new_tokens": 40,
        "temperature": temperature,
        "seed": 7,
        "draft_length": draft_length,
    }
    with omnidraft.load(folders[0], folders[1], threads=1) as model:
        first = model.generate(PROMPTS[0], **options).token_ids
        for other in ({"draft_length": 0}, {"draft_length": "auto", "tree": 9}):
            assert model.generate(PROMPTS[0], **options | other).token_ids == first
        for _ in range(3):
            model.generate(PROMPTS[1], max_new_tokens=40, temperature=1.0)
            assert model.generate(PROMPTS[0], **options).token_ids == first
        assert model.generate(PROMPTS[0], **options | {"seed": 8}).token_ids != first


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("max_new_tokens", [-4, 0, 1.5, "12", None, True]),
        ("draft_length", [99, -1, "4", 2.0, None]),
        ("draft_confidence", [-0.1, 1.1, "x", None, float("nan")]),
        ("temperature", [-1, float("nan"), "hot", None, True, 10**400]),
        ("top_k", [-1, 1.5, "x", 10**400]),
        ("top_p", [0, 1.5, "x", 10**400]),
        ("min_p", [-0.1, 1.1, -(10**400)]),
        ("repetition_penalty", [0, -1, 10**400]),
        ("seed", [-1, 2**64, 1.5, "x"]),
        ("tree", [0, 65, 1.5, "12", True]),
        ("raw", [1, "yes"]),
        ("max_tokens", [12]),
        ("stopp", [["x"]]),
    ],
)
def test_wrong_options_are_refused_by_name_before_anything_is_computed(
    model: Model, option: str, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("something was computed")

    monkeypatch.setattr(decoder.SpeculativeDecoder, "generate", never)
    for value in values:
        for call in (model.generate, model.stream, model.astream):
            with pytest.raises(OptionError, match=option):
                call(PROMPTS[0], **{option: value})


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"quantization": "3bit"}, "quantization"),
        ({"threads": 0}, "threads"),
        ({"threads": "2"}, "threads"),
        ({"context": 1}, "context"),
        ({"context": 10**6}, "context must be at most 512"),
        ({"learn": True}, "adapter"),
        ({"adapter": "x", "drafter": None}, "adapter"),
        ({"engine": "steam"}, "engine"),
        ({"threads": 10**6}, "threads must be at most"),
        ({"wait": "long"}, "wait"),
        ({"wait": -1}, "wait"),
        ({"wait": 10**400}, "wait"),
        ({"context": 10**400}, "context"),
        ({"wait": float("nan")}, "wait"),
        ({"adapter": 5}, "adapter"),
        ({"drafter": 5}, "drafter"),
    ],
)
def test_wrong_options_of_loading(
    folders: tuple[Path, Path], options: dict[str, Any], name: str
) -> None:
    with pytest.raises(OptionError, match=name):
        omnidraft.load(folders[0], **{"drafter": folders[1], **options})


def test_the_context_can_be_said(folders: tuple[Path, Path]) -> None:
    with omnidraft.load(folders[0], None, threads=1, context=40) as model:
        assert len(model.generate([5] * 30, max_new_tokens=100).token_ids) == 11


def test_cancelling_from_another_thread(model: Model) -> None:
    stream = model.stream(PROMPTS[0], max_new_tokens=400)
    got = [next(stream) for _ in range(3)]
    threading.Thread(target=model.cancel).start()
    rest = list(stream)
    assert len(got) + len(rest) < 400
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(model.generate, PROMPTS[0], max_new_tokens=450)
        while not model._running:
            pass
        model.cancel()
        answer = waiting.result()
    assert answer.finish_reason == "cancelled" and len(answer.token_ids) < 450
    assert model.generate(PROMPTS[0], max_new_tokens=4).finish_reason == "length"


def test_streaming_for_asyncio(model: Model) -> None:
    expected = model.generate(PROMPTS[1], max_new_tokens=10)

    async def read() -> list[str]:
        return [piece.text async for piece in model.astream(PROMPTS[1], max_new_tokens=10)]

    async def broken_off() -> int:
        count = 0
        pieces = model.astream(PROMPTS[0], max_new_tokens=400)
        async for _ in pieces:
            count += 1
            if count == 3:
                break
        await pieces.aclose()
        return count

    async def all_of_them() -> None:
        # They wait for each other without keeping the loop.
        answers = await asyncio.gather(*(read() for _ in range(8)))
        assert {"".join(answer) for answer in answers} == {expected.text}
        assert await broken_off() == 3
        assert "".join(await read()) == expected.text
        task = asyncio.create_task(broken_off())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(OmniDraftError):
            async for _ in model.astream([-1], max_new_tokens=3):
                pass

    asyncio.run(all_of_them())
    assert model.generate(PROMPTS[1], max_new_tokens=10).token_ids == expected.token_ids


def test_what_waits_can_be_cancelled(model: Model) -> None:
    """At once, not when its turn has come."""
    stream = model.stream(PROMPTS[0], max_new_tokens=400)
    next(stream)

    async def wait_and_go() -> None:
        task = asyncio.create_task(anext(model.astream(PROMPTS[1])))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(wait_and_go())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(model.generate, PROMPTS[1])
        while len(model._running) < 2:
            pass
        model.cancel()
        answer = waiting.result()
    assert answer.finish_reason == "cancelled" and answer.token_ids == []
    stream.close()


def test_a_loop_that_is_closed_ends_its_answers_quietly(
    model: Model, capfd: pytest.CaptureFixture[str]
) -> None:
    loop = asyncio.new_event_loop()
    pieces = model.astream(PROMPTS[0], max_new_tokens=400)
    loop.run_until_complete(anext(pieces))
    loop.close()
    assert len(model.generate(PROMPTS[1], max_new_tokens=4).token_ids) == 4
    assert "Traceback" not in capfd.readouterr().err


def test_closing_ends_what_is_under_way(folders: tuple[Path, Path]) -> None:
    with pytest.raises(KeyError, match="mine"), omnidraft.load(*folders, threads=1) as model:
        paused = model.stream(PROMPTS[0])
        next(paused)
        raise KeyError("mine")
    assert list(paused) == []
    model = omnidraft.load(*folders, threads=1)
    paused, fresh = model.stream(PROMPTS[0]), model.stream(PROMPTS[1])
    next(paused)
    thread = threading.Thread(target=model.close)
    thread.start()
    thread.join(30)
    assert not thread.is_alive() and list(paused) == []
    assert paused.finish_reason == "cancelled" and len(paused.token_ids) == 1
    with pytest.raises(OmniDraftError, match="closed"):
        list(fresh)
    model.close()


def test_a_stream_says_why_it_ended(model: Model) -> None:
    whole = model.generate(PROMPTS[0], max_new_tokens=12)
    stop = whole.text[4:7]
    for options in ({}, {"stop": stop}, {"stop": whole.text[0]}):
        answer = model.generate(PROMPTS[0], max_new_tokens=12, **options)
        stream = model.stream(PROMPTS[0], max_new_tokens=12, **options)
        assert (stream.finish_reason, stream.stats, stream.token_ids) == (None, None, [])
        assert "".join(piece.text for piece in stream) == answer.text
        assert model.generate(PROMPTS[1], max_new_tokens=3).finish_reason == "length"
        assert stream.finish_reason == answer.finish_reason
        assert stream.token_ids == answer.token_ids and stream.stats is not None
        assert stream.stats.target_tokens == len(answer.token_ids)
        stream.close()
        assert stream.finish_reason == answer.finish_reason, "it had ended"


def test_a_stream_that_is_broken_off_was_cancelled(model: Model) -> None:
    def read_some(stream: omnidraft.Stream) -> None:
        for _ in range(3):
            next(stream)

    closed, cancelled, fresh = (model.stream(PROMPTS[0], max_new_tokens=400) for _ in range(3))
    read_some(closed)
    closed.close()
    read_some(cancelled)
    model.cancel()
    rest = list(cancelled)
    fresh.close()
    for stream, count in ((closed, 3), (cancelled, 3 + len(rest)), (fresh, 0)):
        assert stream.finish_reason == "cancelled" and list(stream) == []
        assert len(stream.token_ids) == count and stream.stats is not None
    failed = model.stream([-1])
    with pytest.raises(OmniDraftError):
        next(failed)
    assert list(failed) == [] and (failed.finish_reason, failed.stats) == (None, None)


def test_a_stream_that_is_dropped_gives_the_model_back(folders: tuple[Path, Path]) -> None:
    """At once, not when garbage is collected."""
    with omnidraft.load(*folders, threads=1, wait=0) as model:
        gc.disable()
        try:
            stream = model.stream(PROMPTS[0])
            next(stream)
            del stream
            assert model.generate(PROMPTS[0], max_new_tokens=3).token_ids
        finally:
            gc.enable()


def test_a_stream_for_asyncio_says_why_it_ended(model: Model) -> None:
    async def read() -> None:
        answer = await asyncio.to_thread(model.generate, PROMPTS[0], max_new_tokens=12)
        stream = model.astream(PROMPTS[0], max_new_tokens=12)
        assert (stream.finish_reason, stream.stats, stream.token_ids) == (None, None, [])
        assert "".join([piece.text async for piece in stream]) == answer.text
        assert (stream.finish_reason, stream.token_ids) == ("length", answer.token_ids)
        assert stream.stats is not None and stream.stats.target_tokens == 12
        broken = model.astream(PROMPTS[0], max_new_tokens=400)
        await anext(broken)
        await broken.aclose()
        assert broken.finish_reason == "cancelled" and len(broken.token_ids) == 1

    asyncio.run(read())


def test_a_stream_read_by_two_at_once_has_not_ended(model: Model) -> None:
    stream = model.stream(PROMPTS[0], max_new_tokens=400)
    next(stream)

    async def read() -> None:
        pieces = model.astream(PROMPTS[0], max_new_tokens=400)
        first = asyncio.create_task(pieces.__anext__())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already running"):
            await anext(pieces)
        assert pieces.finish_reason is None
        stream.close()
        await first
        await pieces.aclose()

    asyncio.run(read())
    assert stream.finish_reason == "cancelled"

    two: list[omnidraft.Stream] = []

    class Prompt(list[int]):
        """Read within the stream, which it reads itself."""

        def __iter__(self) -> Any:
            with pytest.raises(ValueError, match="already executing"):
                next(two[0])
            assert two[0].finish_reason is None
            return super().__iter__()

    two.append(model.stream(Prompt(model.encode(PROMPTS[0])), max_new_tokens=3))
    assert len(list(two[0])) == 3 and two[0].finish_reason == "length"


def test_closing_the_model_ends_streams_for_asyncio(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = omnidraft.load(*folders, threads=1)
    target = model._session.target.model
    forward = target.forward

    def slowly(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.02)  # or the answer might end first
        return forward(*arguments, **options)

    monkeypatch.setattr(target, "forward", slowly)

    async def read() -> None:
        pieces = model.astream(PROMPTS[0], max_new_tokens=400)
        await anext(pieces)
        await asyncio.to_thread(model.close)
        assert len([piece async for piece in pieces]) < 399
        assert pieces.finish_reason == "cancelled"

    asyncio.run(read())


def test_closing(folders: tuple[Path, Path]) -> None:
    with omnidraft.load(folders[0], folders[1], threads=1, wait=0) as model:
        stream = model.stream(PROMPTS[0])
        next(stream)
        with pytest.raises(ModelInUseError):
            model.generate(PROMPTS[0])
        stream.close()
    model.close()
    for call in (model.generate, model.stream, model.encode):
        with pytest.raises(OmniDraftError, match="closed"):
            call(PROMPTS[0])
    with pytest.raises(OmniDraftError, match="closed"), model:
        raise AssertionError("it was entered")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process takes")
def test_closing_gives_the_memory_back(tmp_path: Path) -> None:
    folder = write_target(tmp_path / "large", padding=100_000)
    code = f"""
import omnidraft
for _ in range(5):
    with omnidraft.load({str(folder)!r}, threads=1) as model:
        model.generate("Hi", max_new_tokens=3)
        loaded = megabytes()
    print(loaded, megabytes())
"""
    check_memory_is_given_back(code)


def test_what_loading_does_is_told_to_a_logger(
    folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.INFO, "omnidraft"):
        omnidraft.load(write_target(tmp_path / "new", seed=3), None, threads=1).close()
    assert any("convert" in record.message for record in caplog.records)


def test_everything_public_is_there_and_documented() -> None:
    for name in omnidraft.__all__:
        value = getattr(omnidraft, name)
        assert name == "Prompt" or inspect.getdoc(value), name
    for name, member in vars(Model).items():
        if not name.startswith("_"):
            assert inspect.getdoc(member), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = omnidraft.nothing


def test_importing_is_light() -> None:
    code = (
        "import omnidraft, sys; print(sorted({'numpy', 'onnxruntime', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_adapter_begins_with_an_answer(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed without one, or after one that was broken off, there is none."""
    monkeypatch.setenv("OMNIDRAFT_DATA", str(tmp_path))
    store = AdapterStore(tmp_path / "adapters")

    def load() -> Model:
        return omnidraft.load(*folders, threads=1, adapter="work", learn=True)

    with load():
        assert not store.list()
    assert not store.list()
    with load() as model:
        stream = model.stream(PROMPTS[0], max_new_tokens=12)
        next(stream)
        stream.close()
    assert not store.list()
    with load() as model:
        model.generate(PROMPTS[0], max_new_tokens=12)
    (kept,) = store.list()
    assert kept.name == "work"
    learned = kept.path.read_bytes()
    with load():
        pass
    assert kept.path.read_bytes() == learned


@pytest.mark.parametrize(
    ("context", "argument", "option"),
    [(20, "raise it with context=…,", "raise it with --context,"), (None, "raw=True", "--raw")],
)
def test_errors_speak_of_arguments_and_the_command_of_options(
    context: int | None,
    argument: str,
    option: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from omnidraft.cli.app import main

    target = write_target(tmp_path / "target")
    settings = target / "tokenizer_config.json"
    if context is None:  # a conversation for a model that was not trained to have any
        values = json.loads(settings.read_text())
        del values["chat_template"]
        settings.write_text(json.dumps(values))
    messages = [{"role": "user", "content": "word " * 40}]
    with (
        omnidraft.load(target, None, threads=1, context=context) as model,
        pytest.raises(OmniDraftError) as refused,
    ):
        model.generate(messages)
    assert argument in str(refused.value) and "--" not in str(refused.value)
    file = tmp_path / "messages.json"
    file.write_text(json.dumps(messages))
    command = ["omnidraft", "generate", "--no-draft", "--target", str(target), "--threads", "1"]
    command += ["--messages", str(file), *(["--context", str(context)] if context else [])]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and option in said and argument not in said


def test_the_runtime_names_no_option_of_generate() -> None:
    """Commands to type are another thing: their options are meant."""
    named = re.compile(r"--(?:context|raw|engine|drafter|tree|threads|stop|seed|top-|min-p)\b")
    runtime = Path(decoder.__file__).parents[1]
    found = {
        str(path): lines
        for path in runtime.rglob("*.py")
        if (lines := [each for each in path.read_text("utf-8").splitlines() if named.search(each)])
    }
    assert found == {}


def said(*texts: str) -> list[dict[str, str]]:
    roles = ["user", "assistant"] * len(texts)
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


def test_a_chat_keeps_what_was_said(model: Model) -> None:
    system = [{"role": "system", "content": "Be brief."}]
    chat = model.chat(system="Be brief.", max_new_tokens=8)
    first = chat.ask(PROMPTS[0])
    assert first.text == model.generate([*system, *said(PROMPTS[0])], max_new_tokens=8).text
    assert chat.messages == [*system, *said(PROMPTS[0], first.text)]
    second = chat.ask(PROMPTS[1], max_new_tokens=5)
    asked = [*system, *said(PROMPTS[0], first.text, PROMPTS[1])]
    assert second.token_ids == model.generate(asked, max_new_tokens=5).token_ids
    assert len(second.token_ids) == 5
    again = model.chat(messages=chat.messages, max_new_tokens=8)
    stream = chat.stream("Why?")
    text = "".join(piece.text for piece in stream)
    assert stream.finish_reason == "length" and stream.stats is not None
    assert chat.messages[-1] == {"role": "assistant", "content": text}
    assert again.ask("Why?").text == text and again.messages == chat.messages

    async def told() -> str:
        return "".join([piece.text async for piece in again.astream("And?")])

    assert asyncio.run(told()) == chat.ask("And?").text
    assert again.messages == chat.messages


def test_a_chat_takes_up_no_answer_that_was_broken_off(model: Model) -> None:
    chat = model.chat(max_new_tokens=30)
    stream = chat.stream(PROMPTS[0])
    next(stream)
    stream.close()
    assert stream.finish_reason == "cancelled" and chat.messages == []
    dropped = chat.stream(PROMPTS[0])
    next(dropped)
    del dropped
    stream = chat.stream(PROMPTS[0])
    next(stream)
    model.cancel()
    assert list(stream) is not None and stream.finish_reason == "cancelled"
    assert chat.messages == []

    async def leave() -> None:
        stream = chat.astream(PROMPTS[0])
        async for _ in stream:
            break
        await stream.aclose()

    asyncio.run(leave())
    assert chat.messages == []
    with pytest.raises(OptionError, match="max_new_tokens"):
        chat.ask("?", max_new_tokens=0)
    assert chat.messages == [] and chat.ask(PROMPTS[0]).text


def test_a_chat_that_cannot_be_is_refused_at_once(folders: tuple[Path, Path], model: Model) -> None:
    with pytest.raises(OptionError, match="no option colour"):
        model.chat(colour="red")  # type: ignore[call-arg]
    with pytest.raises(OptionError, match="messages"):
        model.chat(messages="Hello")  # type: ignore[arg-type]
    drafter = omnidraft.load(folders[1], None, threads=1)
    with pytest.raises(OmniDraftError, match="chat template"):
        drafter.chat()
