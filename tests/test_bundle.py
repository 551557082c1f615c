"""Bundles: what their manifest promises is checked when they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from omnidraft.runtime.engines import engine_of, open_engine
from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError
from omnidraft.runtime.storage.bundle import (
    BUNDLE_FILE,
    Bundle,
    FileEntry,
    Geometry,
    Graph,
    Parity,
    WeightShare,
)
from omnidraft.runtime.storage.lora import read_adapter, write_adapter
from omnidraft.runtime.storage.manifest import describe_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.onnx").write_bytes(b"a graph, more or less")
    Bundle(
        name="tiny",
        backend="onnx",
        quantization="int8",
        geometry=Geometry(
            layers=1,
            hidden_size=32,
            feed_forward_size=64,
            heads=2,
            kv_heads=1,
            head_size=16,
            vocab_size=100,
            context_length=512,
        ),
        graphs=[Graph(role="decoder", file="model.onnx", inputs=[], outputs=[])],
        weights=[WeightShare(bits=8, products=5, elements=9_000, share=1.0)],
        source_sha256="0" * 64,
        versions={"omnidraft": "0"},
        files={name: FileEntry(**entry) for name, entry in describe_files(tmp_path).items()},
    ).save(tmp_path)
    return tmp_path


def edit(folder: Path, **changes: Any) -> None:
    path = folder / BUNDLE_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_is_saved_is_loaded(folder: Path) -> None:
    bundle = Bundle.load(folder)
    assert bundle.geometry.heads == 2 and bundle.size == (folder / "model.onnx").stat().st_size
    bundle.save(folder)
    assert Bundle.load(folder) == bundle
    assert engine_of(folder) == "onnx"
    assert Bundle.read(folder) is Bundle.read(folder)  # an unchanged manifest is parsed once


@pytest.mark.parametrize("version", [1, 99, 0, None, "2"])
def test_another_schema_version(folder: Path, version: object) -> None:
    edit(folder, schema_version=version)
    with pytest.raises(DamagedFileError, match=rf"schema version {version}.*reads 2"):
        Bundle.load(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "another"},
        {"source_sha256": "1" * 64},
        {"max_threads": 7},
        {"geometry": {"layers": 0}},
        {"graphs": []},
        {"backend": "abacus"},
        {"nonsense": 1},
        {"digest": None},
        {"files": {}},
    ],
    ids=str,
)
def test_an_edited_manifest(folder: Path, change: dict[str, object]) -> None:
    edit(folder, **change)
    with pytest.raises(DamagedFileError, match=r"edited|damaged"):
        Bundle.load(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"text"', "[" * 200_000])
def test_a_manifest_that_is_none(folder: Path, text: str) -> None:
    (folder / BUNDLE_FILE).write_text(text)
    with pytest.raises(DamagedFileError):
        Bundle.load(folder)


def test_damaged_files(folder: Path) -> None:
    graph = folder / "model.onnx"
    content = graph.read_bytes()
    graph.write_bytes(content[:-1])
    with pytest.raises(DamagedFileError, match="bytes"):
        engine_of(folder)
    graph.write_bytes(content[:-1] + b"?")
    with pytest.raises(DamagedFileError, match="checksum"):
        open_engine(folder)
    graph.write_bytes(content)
    with pytest.raises(DamagedFileError, match="cannot be loaded"):  # whole, but no graph
        open_engine(folder)
    graph.unlink()
    with pytest.raises(DamagedFileError, match="missing"):
        Bundle.load(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_figures_are_numbers(value: float) -> None:
    figures = {"top1_agreement": 1.0, "kl": 0.0, "acceptance_agreement": 1.0}
    figures |= {"largest_logit_difference": 0.0, "logit_error": 0.0}
    for name in figures:
        values = figures | {name: value}
        with pytest.raises(ValidationError, match=name):
            Parity(positions=1, measured_with="x", **values)  # type: ignore[arg-type]


def test_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="is no bundle"):
        Bundle.load(tmp_path)
    with pytest.raises(ModelNotFoundError, match="nowhere does not exist"):
        Bundle.load(tmp_path / "nowhere")


def test_adapter_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    adapter = {
        "lora.0.o.A": rng.standard_normal((32, 4)).astype(np.float32),
        "lora.0.o.B": rng.standard_normal((4, 32)).astype(np.float32),
    }
    path = tmp_path / "some.onnx_adapter"
    write_adapter(path, adapter)
    assert list(tmp_path.iterdir()) == [path]
    read = read_adapter(path)
    assert read.keys() == adapter.keys()
    assert all(np.array_equal(read[name], adapter[name]) for name in adapter)
    with pytest.raises(ModelNotFoundError):
        read_adapter(tmp_path / "another.onnx_adapter")
    for damaged in (b"", b"text", path.read_bytes()[:40]):
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError):
            read_adapter(path)
