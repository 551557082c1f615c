"""What the Kotlin engine's tests compare with is what Python makes of texts today."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from chat_families import FAMILIES

from omnidraft.runtime.models.catalogue import default_drafter_folder
from omnidraft.runtime.text import template
from omnidraft.runtime.text.tokenizer import Tokenizer

TESTS = Path(__file__).parents[1] / "android_demo" / "engine" / "src" / "test"
RECORDED = TESTS / "resources" / "text"
ANEW = "record it anew: python android_demo/engine/src/test/python/record_text.py"


@pytest.fixture(scope="module")
def recorder() -> dict[str, Any]:
    return runpy.run_path(str(TESTS / "python" / "record_text.py"))


def as_read(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_of_the_default_drafter(recorder: dict[str, Any]) -> None:
    made = recorder["recorded"](Tokenizer.load(default_drafter_folder()), 60)
    assert as_read(made) == json.loads((RECORDED / "drafter.json").read_text("utf-8")), ANEW


@pytest.mark.parametrize("name", FAMILIES)
def test_of_a_family(recorder: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "datetime", recorder["Then"])
    files = FAMILIES[name].files()
    kept = json.loads((RECORDED / "families" / f"{name}.json").read_text("utf-8"))
    assert {key: value.decode() for key, value in files.items()} == kept["files"], ANEW
    assert as_read(recorder["recorded"](Tokenizer(files), -1)) == kept["recorded"], ANEW
