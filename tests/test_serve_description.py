"""The description that the server gives of itself is true: requests by it, and against it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings
from needs import needs
from serving import served
from tiny import write_target

from omnidraft import Session, load_model
from omnidraft.serve.app import ServeOptions, application
from omnidraft.serve.description import description
from omnidraft.serve.requests import ChatRequest, CompletionRequest, Defaults

schemathesis = needs("schemathesis")


PLAIN = {"role": {"enum": ["system", "user", "assistant"]}, "content": {"type": "string"}}
RARE = ("stream_options", "structured_outputs", "response_format", "top_logprobs", "tool_choice")


def narrowed(described: dict[str, Any]) -> dict[str, Any]:
    """The description of requests more of which are answered."""
    described = copy.deepcopy(described)
    schemas = described["components"]["schemas"]
    for name in ("ChatRequest", "CompletionRequest"):
        schemas[name]["properties"]["model"] = {"const": "tiny"}
        for rare in RARE:
            schemas[name]["properties"].pop(rare, None)
    schemas["Message"] |= {"properties": PLAIN, "required": ["role", "content"]}
    return described


APIS = [schemathesis.openapi.from_dict(each(description())) for each in (copy.deepcopy, narrowed)]
BOUNDED = settings(
    max_examples=20,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
# Whether a pattern or a template can be used no schema tells.
UNTOLD = [schemathesis.specs.openapi.checks.positive_data_acceptance]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("models") / "target"
    session = Session(load_model(str(write_target(folder, context=160)), threads=1))
    defaults = Defaults(temperature=0, draft_length=0)
    with served({"tiny": session}, ServeOptions(defaults)) as opened:
        yield opened


@APIS[0].parametrize()
@BOUNDED
def test_the_server_does_as_it_says(case: Any, address: str) -> None:
    case.validate_response(case.call(base_url=address), excluded_checks=UNTOLD)


@APIS[1].include(method="POST").parametrize()
@BOUNDED
def test_what_is_answered_is_as_it_says(case: Any, address: str) -> None:
    case.validate_response(case.call(base_url=address), excluded_checks=UNTOLD)


def test_the_description_is_served_and_names_all_parameters(address: str) -> None:
    described = httpx.get(address + "/openapi.json").json()
    assert described == description()
    schemas = described["components"]["schemas"]
    for kind in (ChatRequest, CompletionRequest):
        assert schemas[kind.__name__]["properties"].keys() > kind.model_fields.keys()
    app = application({}, ServeOptions())
    paths = {route.path.replace(":path", "") for route in app.routes}  # type: ignore[attr-defined]
    page = {path for path in paths if path == "/" or path.startswith("/page/")}
    assert paths - page == {*described["paths"], "/openapi.json"}
