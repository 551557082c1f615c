"""Adapters come from strangers too: what one says of itself is believed as far as it can be."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from omnidraft.runtime.errors import DamagedFileError, OmniDraftError
from omnidraft.runtime.learning.adapter_file import read_adapter, read_metadata
from omnidraft.runtime.learning.head import AcceptanceHead
from omnidraft.runtime.learning.head_trainer import HeadProgress, HeadTrainer
from omnidraft.runtime.learning.lessons import Lessons
from omnidraft.runtime.learning.trial import Progress
from omnidraft.runtime.storage.lora import complete_adapter

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from fuzz.adapter import file_of  # noqa: E402

DESCRIBED = json.loads((REPOSITORY / "fuzz" / "corpus" / "adapter" / "lora").read_bytes())
WHOLE = DESCRIBED["metadata"]


def _written(folder: Path, **changes: Any) -> Path:
    path = folder / "a.adapter"
    path.write_bytes(file_of({**DESCRIBED, **changes}))
    return path


@pytest.mark.parametrize("depth", [900, 5000, 100_000])
def test_a_header_that_is_nested_too_deep_is_told_of_the_file(depth: int, tmp_path: Path) -> None:
    for text in ("[" * depth + "]" * depth, '{"figures":' * depth + "1" + "}" * depth):
        path = _written(tmp_path, metadata_text=text)
        for read in (read_metadata, read_adapter):
            with pytest.raises(OmniDraftError, match=r"a\.adapter "):
                read(path)


@pytest.mark.parametrize("name", ["created", "updated"])
@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59Z"]
)
def test_times_that_no_zone_can_show_are_refused(name: str, moment: str, tmp_path: Path) -> None:
    path = _written(tmp_path, metadata={**WHOLE, name: moment})
    with pytest.raises(DamagedFileError, match=f"is damaged: {name} must be "):
        read_metadata(path)


@pytest.mark.parametrize(
    "tensors",
    [
        {"lora.0.o.A": ["F32", []], "lora.0.o.B": ["F32", []]},
        {"lora.0.o.A": ["F32", [2]], "lora.0.o.B": ["F32", [3]]},
        {"lora.0.o.A": ["F32", [2, 1]], "lora.0.o.B": ["F32", [2, 3]]},
        {"lora.0.o.A": ["F16", [2, 1]], "lora.0.o.B": ["F16", [1, 3]]},
        {"lora.0.o.A": ["F32", [2, 1]]},
        {"lora.A": ["F32", [2, 1]], "lora.B": ["F32", [1, 3]]},
        {"other": ["F32", [2, 1]]},
        {"lora.0.o.A": ["BF16", [2, 1]], "lora.0.o.B": ["BF16", [1, 3]]},
        {"optimizer.a": ["F8_E4M3", [2]]},
    ],
    ids=str,
)
def test_a_lora_that_does_not_hold_together_is_not_read(
    tensors: dict[str, Any], tmp_path: Path
) -> None:
    path = _written(tmp_path, tensors=tensors)
    with pytest.raises(DamagedFileError, match=r"a\.adapter is damaged"):
        read_adapter(path)


def test_an_adapter_whose_arrays_have_no_shape_does_not_fit() -> None:
    scalar = np.zeros((), np.float32)
    for odd in ({"lora.0.o.A": scalar}, {"lora.0.o.B": scalar}):
        adapter = {"lora.0.o.A": np.zeros((2, 1), np.float32)}
        adapter |= {"lora.0.o.B": np.zeros((1, 3), np.float32), **odd}
        with pytest.raises(OmniDraftError, match="does not fit"):
            complete_adapter(adapter, {"lora.0.o.A": 2, "lora.0.o.B": 3})


def test_a_head_of_other_arrays_is_damaged() -> None:
    state = AcceptanceHead(4).state()
    for name, values in state.items():
        for odd in (values.reshape(-1, 1, 1), values[:0], values[0]):
            with pytest.raises(DamagedFileError, match="head is damaged"):
                AcceptanceHead.from_state({**state, name: np.asarray(odd)})


def test_a_head_that_cannot_be_used_is_damaged() -> None:
    state = AcceptanceHead(4).state()
    for name, value in (("w1", np.nan), ("second.w2", np.inf), ("steps", -1), ("steps", np.nan)):
        odd = {**state, name: np.full_like(state[name], value)}
        with pytest.raises(DamagedFileError, match="head is damaged"):
            AcceptanceHead.from_state(odd)


def test_rows_that_are_no_lessons_are_none() -> None:
    def rows(count: int) -> dict[str, NDArray[Any]]:
        ones = np.ones(count, np.float32)
        return Lessons(np.ones((count, 4), np.float16), ones, ones, ones).arrays()

    def kept(given: dict[str, NDArray[Any]]) -> int:
        return len(HeadTrainer(AcceptanceHead(4), "joint", rows=given).rows)

    assert kept(rows(3)) == 3
    for name, values in rows(3).items():
        for odd in (values[:2], values[0], values[..., None], np.ones(()), values > 0):
            assert kept({**rows(3), name: np.asarray(odd)}) == 0


@pytest.mark.parametrize(
    ("kind", "figures"),
    [
        *(
            (kind, {name: -1})
            for kind in (Progress, HeadProgress)
            for name in ("updates", "pending")
        ),
        *((Progress, {"steps": -1}), (Progress, {"trial": {"squares": -1.0}})),
        *((Progress, {"rows": float("nan")}), (Progress, {"recent": 3})),
        (HeadProgress, {"tests": [[1.0]]}),
    ],
    ids=str,
)
def test_progress_that_cannot_be_is_refused(kind: type, figures: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(figures)
