"""The recorded answers that every language replays: see vectors/README.md."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "vectors"))
import record_generations as recorded

ANSWERS = dict(recorded.read())


@pytest.mark.parametrize("name", ANSWERS)
def test_replay(name: str) -> None:
    block = ANSWERS[name]
    expected = recorded.answer(block)
    assert {key: block[key] for key in expected} == expected


@pytest.mark.parametrize("name", ANSWERS)
def test_what_follows_is_plain_decoding(name: str) -> None:
    block = ANSWERS[name]
    if block["verification"] == ["follow"]:
        plain = recorded.answer({**block, "policy": ["none"]})
        assert plain["tokens"] == block["tokens"]


def test_the_file_is_complete() -> None:
    blocks = list(ANSWERS.values())
    assert len(blocks) == 72
    origins = [origin for block in blocks for origin in block["origins"]]
    assert all(origins.count(name) >= 20 for name in ("direct", "corrected", "free", "lookup"))
    assert origins.count("merged") >= 20
    kinds = {(*block["draft"], block["policy"][0]) for block in blocks}
    assert len(kinds) >= 7, kinds
    assert {block["verification"][0] for block in blocks} == {"follow", "exact", "paper"}
