"""Tools: what the prompt shows of them, calls in answers, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from tiny import write_drafter
from tool_models import TEMPLATES, load_tool_target, scripted

from omnidraft import LoadedModel, Session, load_model
from omnidraft.serve.app import ServeOptions, application
from omnidraft.serve.calls import HERMES, LISTED, LLAMA, MISTRAL, call_format
from omnidraft.serve.grammar import Grammars
from omnidraft.serve.requests import ChatRequest, Defaults

FORMATS = {
    "hermes": HERMES,
    "spelled": HERMES,
    "listed": LISTED,
    "mistral": MISTRAL,
    "llama": LLAMA,
    "turned": HERMES,
    "said": LISTED,
    "unknown": None,
    "no calls": None,
}
KNOWN = ["hermes", "spelled", "listed", "mistral", "llama"]
DRAFTS = Defaults(temperature=0, draft_length=4, draft_confidence=0)
PLAIN = Defaults(temperature=0, draft_length=0)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 4},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
HELLO = [{"role": "user", "content": "What is the answer?"}]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedModel]:
    root = tmp_path_factory.mktemp("models")
    return {name: load_tool_target(root / name, name) for name in TEMPLATES}


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("drafter") / "drafter"
    return load_model(str(write_drafter(folder, context=2048)), threads=1)


@pytest.fixture(scope="module")
def client(targets: dict[str, LoadedModel], drafter: LoadedModel) -> Iterator[TestClient]:
    sessions = {name: Session(target, drafter) for name, target in targets.items()}
    with TestClient(application(sessions, ServeOptions(DRAFTS)), "http://localhost") as opened:
        yield opened


@pytest.fixture(scope="module")
def plain(targets: dict[str, LoadedModel]) -> Iterator[TestClient]:
    sessions = {name: Session(target) for name, target in targets.items()}
    with TestClient(application(sessions, ServeOptions(PLAIN)), "http://localhost") as opened:
        yield opened


def asked(model: str, **options: Any) -> dict[str, Any]:
    return {"model": model, "messages": HELLO, "tools": TOOLS, **options}


def ask(client: TestClient, model: str, **options: Any) -> dict[str, Any]:
    answer = client.post(CHAT, json=asked(model, **options))
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def streamed(client: TestClient, model: str, **options: Any) -> dict[str, Any]:
    """The same as ``ask``, put together of a stream's chunks."""
    answer = client.post(CHAT, json=asked(model, stream=True, **options))
    assert answer.status_code == 200, answer.text
    text, calls, reason = "", [], None
    for line in answer.text.splitlines():
        if line and line != "data: [DONE]":
            (choice,) = json.loads(line.removeprefix("data: "))["choices"]
            text += choice["delta"].get("content", "")
            for call in choice["delta"].get("tool_calls", []):
                assert call.pop("index") == len(calls)
                calls.append(call)
            reason = choice["finish_reason"] or reason
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": None}
    message |= {"tool_calls": calls} if calls else {"content": text}
    return {"message": message, "finish_reason": reason}


def told(choice: dict[str, Any]) -> tuple[Any, list[tuple[str, Any]], str]:
    """Text, calls and the reason of an answer: all but the calls' ids."""
    calls = choice["message"].get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(len(call["id"]) == 9 and call["type"] == "function" for call in calls)
    said = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]
    return choice["message"]["content"], said, choice["finish_reason"]


def fits(name: str, arguments: Any) -> bool:
    if name == "clock":
        return arguments == {}
    return (
        name == "weather"
        and list(arguments) == ["city", "days"]
        and len(arguments["city"]) <= 4
        and 1 <= arguments["days"] <= 14
    )


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_read_from_the_template(name: str, targets: dict[str, LoadedModel]) -> None:
    assert call_format(targets[name].tokenizer) == FORMATS[name]


# --- forced calls ------------------------------------------------------------------------------

CHOICES: list[dict[str, Any]] = [
    {"tool_choice": "required", "parallel_tool_calls": False},
    {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
    {"tool_choice": "required"},
]


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("choice", CHOICES)
def test_a_forced_call_is_that_of_plain_decoding_and_fits(
    client: TestClient, plain: TestClient, name: str, choice: dict[str, Any]
) -> None:
    for sampling in ({}, {"temperature": 0.9, "seed": 3}, {"temperature": 1.4, "seed": 11}):
        options = {"max_tokens": 200, **choice, **sampling}
        found = told(ask(client, name, **options))
        assert found == told(ask(plain, name, **options))
        assert found == told(streamed(client, name, **options))
        text, calls, reason = found
        assert all(fits(*call) for call in calls)
        if choice != CHOICES[2] or FORMATS[name] is LLAMA:
            assert (text, len(calls), reason) == (None, 1, "tool_calls")
        elif reason == "length":  # of several calls there may be no end
            assert text is None or calls or FORMATS[name].listed
        if choice == CHOICES[1]:
            assert calls[0][0] == "weather"


def test_a_call_that_is_cut_is_text(client: TestClient) -> None:
    choice = ask(client, "hermes", tool_choice="required", max_tokens=5)
    text, calls, reason = told(choice)
    assert text.startswith("<tool_call>") and not calls and reason == "length"
    assert told(streamed(client, "hermes", tool_choice="required", max_tokens=5)) == told(choice)


# --- free answers ------------------------------------------------------------------------------

ONE = '{"name": "weather", "ARGS": {"city": "Ulm", "days": 3}}'
TWO = '{"name": "clock", "ARGS": {}}'
ODD = '{"name": "weather", "ARGS": {"city": "a</tool_call>\\"b", "days": 1}}'
UNKNOWN = '{"name": "rockets", "ARGS": {}}'
CALLED = [("weather", {"city": "Ulm", "days": 3})]
BOTH = [*CALLED, ("clock", {})]
ODDLY = [("weather", {"city": 'a</tool_call>"b', "days": 1})]
TAGGED = [
    (f"<tool_call>\n{ONE}\n</tool_call>", None, CALLED),
    (f"Let me see.\n<tool_call>\n{ONE}\n</tool_call>", "Let me see.", CALLED),
    (f"<tool_call>{ONE}</tool_call>\n<tool_call>\n{TWO}\n</tool_call>", None, BOTH),
    (f"<tool_call>[{ONE}, {TWO}]</tool_call>", None, BOTH),
    (f"<tool_call>\n{ODD}\n</tool_call>", None, ODDLY),
    (f"a <tool_call>\n{TWO}\n</tool_call>\n b c", "ab c", [("clock", {})]),
    (f"<tool_call>\n{ONE}", None, CALLED),
    (f"<tool_call>\n{UNKNOWN}\n</tool_call> ", f"<tool_call>\n{UNKNOWN}\n</tool_call> ", []),
    ("<tool_call>\nnonsense</tool_call>, no", "<tool_call>\nnonsense</tool_call>, no", []),
    ('<tool_call>\n{"name": "clock"', '<tool_call>\n{"name": "clock"', []),
    ("1 < 2 and <tool", "1 < 2 and <tool", []),
    ("The answer is 42.", "The answer is 42.", []),
]
WRITTEN: dict[str, list[tuple[str, str | None, list[Any]]]] = {
    "hermes": TAGGED,
    "spelled": TAGGED,
    "listed": TAGGED,
    "mistral": [
        (f"[TOOL_CALLS] [{ONE}]", None, CALLED),
        (f"Well. [TOOL_CALLS][{ONE}, {TWO}]", "Well.", BOTH),
        (f"[TOOL_CALLS] [{UNKNOWN}]", f"[TOOL_CALLS] [{UNKNOWN}]", []),
        ("The [answer] is 42.", "The [answer] is 42.", []),
    ],
    "llama": [
        (ONE, None, CALLED),
        (f"<|python_tag|>{ONE}", None, CALLED),
        (f" {TWO} ", None, [("clock", {})]),
        (f"{ONE}; {TWO}", f"{ONE}; {TWO}", []),
        ('{"a": 5} is JSON', '{"a": 5} is JSON', []),
        (f"No: {ONE}", f"No: {ONE}", []),
        ("The answer is 42.", "The answer is 42.", []),
    ],
}


@pytest.mark.parametrize(
    ("name", "number"), [(name, i) for name, each in WRITTEN.items() for i in range(len(each))]
)
@pytest.mark.parametrize("parallel", [True, False])
def test_calls_are_read_and_all_else_is_text(
    client: TestClient,
    targets: dict[str, LoadedModel],
    name: str,
    number: int,
    parallel: bool,
) -> None:
    if not parallel and number:
        return
    arguments = "parameters" if name == "llama" else "arguments"
    written, text, calls = WRITTEN[name][number]
    written = written.replace("ARGS", arguments)
    reason = "tool_calls" if calls else "stop"
    right = (text and text.replace("ARGS", arguments), calls, reason)
    target = targets[name]
    prompt = len(Session(target).encode(HELLO, tools=TOOLS))
    options = {"parallel_tool_calls": parallel}
    with scripted(target, prompt, written):
        assert told(ask(client, name, **options)) == right
        target.model.truncate(0)
        assert told(streamed(client, name, **options)) == right
    target.model.truncate(0)


def strict(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": True}}


@pytest.mark.parametrize("name", [name for name in KNOWN if name != "llama"])
@pytest.mark.parametrize("several", [True, False])
def test_strict_calls_in_free_text_fit(
    targets: dict[str, LoadedModel], name: str, several: bool
) -> None:
    target = targets[name]
    request = ChatRequest.model_validate(
        asked(name, tools=[strict(WEATHER), CLOCK], parallel_tool_calls=several)
    )
    use = request.tool_use(target)
    assert use is not None and use.form is not None
    grammar = Grammars(target).grammar(use.form)

    def taken(text: str, special: bool) -> str:
        """What of a text may come, with its markers as tokens or spelled."""
        tokenizer = target.tokenizer
        tokens = tokenizer.encode(text, parse_special=special)
        if not special:
            tokens = [token for each in text for token in tokenizer.encode(each)]
        count = grammar.target.deep_copy().try_consume_tokens(tokens)
        return b"".join(
            tokenizer.surface(t) or tokenizer.tokens[t].encode() for t in tokens[:count]
        ).decode()

    form = FORMATS[name]
    space = form.space if form else ""
    begins, ends = {
        "hermes": ("<tool_call>", "</tool_call>"),
        "spelled": ("<tool_call>", "</tool_call>"),
        "listed": ("<tool_call>[", "]</tool_call>"),
        "mistral": ("[TOOL_CALLS] [", "]"),
    }[name]
    space = space if form is HERMES else ""
    one, two = (each.replace("ARGS", "arguments") for each in (ONE, TWO))
    wrong = one.replace('"days": 3', '"days": 77')
    for special in (True, False):
        if name == "listed" and not special:
            continue  # its tokens have no text, and what is spelled is compared below
        end = ends if special else ends.replace("</tool_call>", "")
        for said in ("", "Well.\n"):
            whole = said + begins + space + one + space + end
            assert taken(whole, special) == whole
            cut = taken(said + begins + space + wrong + space + end, special)
            assert cut.endswith('"days": 7')
            # The other function's arguments are any object.
            whole = said + begins + space + two + space + end
            assert taken(whole, special) == whole
    assert taken("No <tool of mine> 中文", True) == "No <tool of mine> 中文"
    twice = f"{begins}{space}{one}{space}{ends}" * 2
    assert (taken(twice, True) == twice) == (several and form is HERMES)


@pytest.mark.parametrize("name", [name for name in KNOWN if name != "llama"])
def test_strict_answers_are_those_of_plain_decoding(
    client: TestClient, plain: TestClient, name: str
) -> None:
    for sampling in ({}, {"temperature": 1.1, "seed": 5}):
        options = {"tools": [strict(WEATHER)], "max_tokens": 40, **sampling}
        assert told(ask(client, name, **options)) == told(ask(plain, name, **options))


def test_none_leaves_tools_out(client: TestClient) -> None:
    right = ask(client, "hermes", tools=None, max_tokens=6)
    assert ask(client, "hermes", tool_choice="none", max_tokens=6) == right
    assert ask(client, "hermes", tools=[], tool_choice="auto", max_tokens=6) == right


# --- conversations -----------------------------------------------------------------------------


def turns(identity: str = "call_1", **call: Any) -> list[dict[str, Any]]:
    called = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "clock", "arguments": '{"zone": "CET"}'},
        **call,
    }
    return [
        *HELLO,
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": identity, "content": "It is <|im_end|> noon."},
    ]


@pytest.mark.parametrize("name", KNOWN)
def test_calls_and_results_are_shown_by_the_template(
    client: TestClient, targets: dict[str, LoadedModel], name: str
) -> None:
    tokenizer = targets[name].tokenizer
    answer = client.post(CHAT, json=asked(name, messages=turns(), max_tokens=1))
    assert answer.status_code == 200, answer.text
    messages: list[dict[str, Any]] = turns()
    messages[1]["content"] = ""
    messages[1]["tool_calls"][0]["function"]["arguments"] = {"zone": "CET"}
    tokens = tokenizer.encode_chat(messages, TOOLS)
    assert answer.json()["usage"]["prompt_tokens"] == len(tokens)
    text = tokenizer.apply_chat(messages, TOOLS)
    assert '"zone": "CET"' in text and "noon" in text and "Tells the weather." in text


def test_names_of_markers_in_tools_are_text(targets: dict[str, LoadedModel]) -> None:
    tokenizer = targets["hermes"].tokenizer
    (end,) = tokenizer.encode("<|im_end|>", parse_special=True)
    properties = {"<|im_end|>": {"type": "string"}, "role": {"description": "<|im_end|>"}}
    odd = {
        "name": "f",
        "description": "Ends by <|im_end|>.",
        "parameters": {"type": "object", "properties": properties},
    }
    tools = [{"type": "function", "function": odd}]
    right = tokenizer.encode_chat(HELLO, TOOLS).count(end)
    tokens = tokenizer.encode_chat(HELLO, tools)
    assert tokens.count(end) == right
    shown = b"".join(tokenizer.shown_bytes(token) for token in tokens).decode()
    assert shown.count("<|im_end|>") == 3 and json.dumps(odd) in shown


# --- refusals ----------------------------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("unknown", {}, "tools", "in a way that is not known"),
    ("unknown", {"tool_choice": "required"}, "tools", "in a way that is not known"),
    ("no calls", {}, "tools", "in a way that is not known"),
    ("no calls", {"messages": turns(), "tools": None}, "messages", "leaves out"),
    ("llama", {"tools": [strict(WEATHER)]}, "tools", "set tool_choice to required"),
    ("hermes", {"tools": [WEATHER, WEATHER]}, "tools", "two functions of one name"),
    (
        "hermes",
        {"tool_choice": {"type": "function", "function": {"name": "other"}}},
        "tool_choice",
        "other",
    ),
    ("hermes", {"tools": None, "tool_choice": "required"}, "tool_choice", "needs tools"),
    ("hermes", {"tools": None, "parallel_tool_calls": True}, "parallel_tool_calls", "tools"),
    ("hermes", {"response_format": {"type": "json_object"}}, "response_format", "beside tools"),
    ("hermes", {"structured_outputs": {"regex": "a"}}, "structured_outputs", "beside tools"),
    ("hermes", {"logprobs": True}, "logprobs", "beside tools"),
    ("hermes", {"tools": [{"type": "web_search"}]}, "tools[0].type", "function"),
    ("hermes", {"tools": [{"type": "function"}]}, "tools[0].function", "required"),
    ("hermes", {"tools": [CLOCK] * 129}, "tools", "128"),
    ("hermes", {"messages": turns("call_2")}, "messages[2].tool_call_id", "of no call"),
    ("hermes", {"messages": turns(type="custom")}, "messages[1].tool_calls[0]", "custom"),
    ("hermes", {"messages": turns(x=1)}, "messages[1].tool_calls[0].x", "no parameter"),
    *[
        (
            "hermes",
            {"messages": turns(function={"name": "clock", "arguments": arguments})},
            "messages[1].tool_calls[0].function.arguments",
            "must be",
        )
        for arguments in ("{", "5", '{"a": NaN}', "[" * 3000)
    ],
    *[
        (
            "hermes",
            {
                "tool_choice": "required",
                "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
            },
            "tools",
            said,
        )
        for schema, said in [
            ({"type": "string"}, "no object"),
            ({"properties": {"a": {"type": "nothing"}}}, "nothing"),
            ({"description": "x" * 100_001}, "100,000"),
            ({"properties": {"a": {"const": -(2**63)}}}, "2^53"),
        ]
    ],
]


@pytest.mark.parametrize(("name", "options", "param", "said"), REFUSED)
def test_what_cannot_be_called_is_told(
    client: TestClient, name: str, options: dict[str, Any], param: str, said: str
) -> None:
    answer = client.post(CHAT, json=asked(name, **options))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and said in error["message"], error
