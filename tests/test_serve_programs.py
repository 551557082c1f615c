"""Programs that people use with such servers: curl, openai, LangChain, llm."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import pytest
from needs import needs
from pydantic import BaseModel, Field
from serving import served
from tiny import write_drafter
from tool_models import load_tool_target, scripted

from omnidraft import GenerationOptions, LoadedModel, Session, load_model
from omnidraft.serve.app import ServeOptions
from omnidraft.serve.requests import Defaults

DRAFTS = Defaults(temperature=0, draft_length=4, draft_confidence=0)
QUESTION = "What is the answer?"
TEXTS = [QUESTION, "The quick brown fox", "中文 12345"]
SAID: Any = [{"role": "user", "content": QUESTION}]
FOX = '{"name":"fox","age":3,"kind":"wild"}'


class Animal(BaseModel):
    """An animal."""

    name: str
    age: int = Field(ge=0)
    kind: Literal["wild", "tame"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, LoadedModel]:
    root = tmp_path_factory.mktemp("models")
    drafter = load_model(str(write_drafter(root / "drafter", context=2048)), threads=1)
    return load_tool_target(root / "target", "hermes"), drafter


@pytest.fixture(scope="module")
def address(models: tuple[LoadedModel, LoadedModel]) -> Iterator[str]:
    with served({"tiny": Session(*models)}, ServeOptions(DRAFTS)) as opened:
        yield opened


@pytest.fixture(scope="module")
def answer(models: tuple[LoadedModel, LoadedModel]) -> str:
    """What the model says to the question, at most 12 tokens."""
    return Session(models[0]).generate(SAID, GenerationOptions(12, draft_length=0)).text


Says = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def says(models: tuple[LoadedModel, LoadedModel]) -> Says:
    """Lets the model answer with a text, under whatever masks there are."""

    def scripting(text: str, tools: list[Any] | None = None, messages: Any = SAID) -> Any:
        prompt = len(Session(models[0]).encode(messages, tools=tools or ()))
        return scripted(models[0], prompt, text)

    return scripting


def test_curl(address: str, answer: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    asked = {"model": "tiny", "messages": SAID, "max_tokens": 12}
    words = ["curl", "--silent", "--no-buffer", address + "/v1/chat/completions"]
    words += ["-H", "Content-Type: application/json", "-d"]
    done = subprocess.run([*words, json.dumps(asked)], capture_output=True, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == answer
    streamed = json.dumps({**asked, "stream": True})
    done = subprocess.run([*words, streamed], capture_output=True, check=True)
    *events, last = done.stdout.decode().strip().split("\n\n")
    assert last == "data: [DONE]"
    deltas = [json.loads(e.removeprefix("data: "))["choices"][0]["delta"] for e in events]
    assert "".join(delta.get("content", "") for delta in deltas) == answer


def test_openai_whole_and_streamed(address: str) -> None:
    openai = needs("openai")
    with openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0) as client:
        assert [each.id for each in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"
        said: Any = [{"role": "user", "content": QUESTION}]
        whole = client.chat.completions.create(
            model="tiny", messages=said, max_tokens=12, logprobs=True, top_logprobs=2
        )
        assert whole.usage.completion_tokens == 12 and len(whole.choices[0].logprobs.content) <= 12
        streamed = client.chat.completions.create(
            model="tiny",
            messages=said,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
        *chunks, last = streamed
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.choices[0].message.content
        assert last.usage.completion_tokens == 12
        more = {"min_p": 0.05, "repetition_penalty": 1.1}
        shaped = client.completions.create(
            model="tiny", prompt=QUESTION, seed=4, temperature=0.8, extra_body=more
        )
        again = client.completions.create(
            model="tiny", prompt=QUESTION, seed=4, temperature=0.8, extra_body=more, stream=True
        )
        assert "".join(chunk.choices[0].text for chunk in again) == shaped.choices[0].text
        with pytest.raises(openai.BadRequestError, match="not supported") as refused:
            client.chat.completions.create(model="tiny", messages=said, store=True)
        assert refused.value.param == "store"
        with pytest.raises(openai.NotFoundError, match="tiny"):
            client.chat.completions.create(model="other", messages=said)


def test_openai_asynchronously(address: str) -> None:
    openai = needs("openai")

    async def talk() -> None:
        async with openai.AsyncOpenAI(base_url=address + "/v1", api_key="none") as client:

            async def ask(text: str, stream: bool) -> str:
                said: Any = [{"role": "user", "content": text}]
                answer = await client.chat.completions.create(
                    model="tiny", messages=said, max_tokens=8, stream=stream
                )
                if not stream:
                    return answer.choices[0].message.content
                return "".join([c.choices[0].delta.content or "" async for c in answer])

            wholes = await asyncio.gather(*(ask(text, False) for text in TEXTS))
            assert await asyncio.gather(*(ask(text, True) for text in TEXTS)) == wholes
            # Who leaves a stream breaks the answer off.
            stream = await client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "x"}],
                max_tokens=3000,
                stream=True,
            )
            await anext(aiter(stream))
            await stream.close()

    asyncio.run(talk())


def test_openai_parses_answers_and_calls(address: str, says: Says) -> None:
    openai = needs("openai")
    right = Animal.model_validate_json(FOX)
    tools: list[Any] = [openai.pydantic_function_tool(Animal, name="keep")]
    assert tools[0]["function"]["strict"]
    shown = [{**tools[0], "function": {**tools[0]["function"]}}]
    del shown[0]["function"]["strict"]
    with openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0) as client:
        with says(FOX):
            parsed = client.chat.completions.parse(
                model="tiny", messages=SAID, response_format=Animal
            )
        assert parsed.choices[0].message.parsed == right
        spaced = json.dumps(json.loads(FOX))
        called = f'I keep it.\n<tool_call>\n{{"name": "keep", "arguments": {spaced}}}\n</tool_call>'
        with says(called, shown):
            parsed = client.chat.completions.parse(model="tiny", messages=SAID, tools=tools)
            message = parsed.choices[0].message
            (call,) = message.tool_calls
            assert message.content == "I keep it." and call.function.parsed_arguments == right
            with client.chat.completions.stream(model="tiny", messages=SAID, tools=tools) as stream:
                kinds = {event.type for event in stream}
                final = stream.get_final_completion().choices[0]
            assert final.message.tool_calls[0].function.parsed_arguments == right
            assert final.finish_reason == "tool_calls"
            assert {"content.delta", "tool_calls.function.arguments.done"} <= kinds
        # What came of the call goes back.
        kept = {"role": "tool", "tool_call_id": call.id, "content": "kept"}
        for again in (message, message.model_dump()):
            told: Any = [*SAID, again, kept]
            more = client.chat.completions.create(
                model="tiny", messages=told, tools=tools, max_tokens=3
            )
            assert more.usage.completion_tokens == 3
        forced = client.chat.completions.create(
            model="tiny",
            messages=SAID,
            tools=[{"type": "function", "function": {"name": "now"}}],
            tool_choice="required",
            parallel_tool_calls=False,
        )
        assert forced.choices[0].message.tool_calls[0].function.name == "now"


@pytest.mark.filterwarnings("ignore")
def test_langchain(address: str, answer: str, says: Says) -> None:
    langchain = needs("langchain_openai")
    options = {"base_url": address + "/v1", "api_key": "none", "max_retries": 0}
    chat = langchain.ChatOpenAI(model="tiny", temperature=0, max_tokens=12, **options)
    assert chat.invoke(QUESTION).content == answer
    assert "".join(chunk.content for chunk in chat.stream(QUESTION)) == answer

    async def streamed() -> str:
        return "".join([chunk.content async for chunk in chat.astream(QUESTION)])

    assert asyncio.run(streamed()) == answer
    texts = [each.content for each in chat.batch([QUESTION, QUESTION])]
    assert texts == [answer] * 2

    def later(days: int) -> str:
        """What there is in some days."""
        return f"in {days}"

    chat = langchain.ChatOpenAI(model="tiny", temperature=0, **options)
    schema = {"properties": {"days": {"type": "integer"}}, "required": ["days"], "type": "object"}
    function = {"name": "later", "description": "What there is in some days.", "parameters": schema}
    tools = [{"type": "function", "function": function}]
    bound = chat.bind_tools([later])
    with says('<tool_call>\n{"name": "later", "arguments": {"days": 5}}\n</tool_call>', tools):
        for message in (bound.invoke(QUESTION), sum_of(bound.stream(QUESTION))):
            (call,) = message.tool_calls
            assert (call["name"], call["args"]) == ("later", {"days": 5})
    told = [("user", QUESTION), message, {"role": "tool", "tool_call_id": call["id"]}]
    told[-1]["content"] = later(5)  # type: ignore[index]
    assert bound.bind(max_tokens=2).invoke(told).content
    forced = chat.bind_tools([later], tool_choice="any", parallel_tool_calls=False)
    with says('<tool_call>\n{"name": "later", "arguments": {"days": 7}}\n</tool_call>', tools):
        assert forced.invoke(QUESTION).tool_calls[0]["args"] == {"days": 7}
    right = Animal.model_validate_json(FOX)
    with says(FOX):
        assert chat.with_structured_output(Animal).invoke(QUESTION) == right
    with says("{" + FOX[1:]):
        by_json = chat.with_structured_output(Animal, method="json_mode")
        assert by_json.invoke(QUESTION) == right
    by_call = chat.with_structured_output(Animal, method="function_calling")
    made = by_call.first.kwargs["tools"]
    spaced = json.dumps(json.loads(FOX))
    with says(f'<tool_call>\n{{"name": "Animal", "arguments": {spaced}}}\n</tool_call>', made):
        assert by_call.invoke(QUESTION) == right


def sum_of(chunks: Iterator[Any]) -> Any:
    first = next(chunks)
    for chunk in chunks:
        first += chunk
    return first


def test_llm(address: str, answer: str, says: Says, tmp_path: Path) -> None:
    needs("llm")
    settings = {
        "model_id": "here",
        "model_name": "tiny",
        "api_base": address + "/v1",
        "supports_schema": True,
        "supports_tools": True,
    }
    # JSON is YAML.
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([settings]))
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}

    def llm(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "llm", "-m", "here", QUESTION, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    for words in ((), ("--no-stream",)):
        said = llm("-o", "max_tokens", "12", "-o", "temperature", "0", *words)
        assert said.rstrip("\n") == answer.rstrip("\n")
    with says(FOX):
        assert json.loads(llm("--schema", "name, age int, kind")) == json.loads(FOX)
