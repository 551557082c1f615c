"""Exports with an adapter in their weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from test_export import TEXTS, random_adapter
from tiny import write_drafter

from omnidraft.export.graphs.quantize import BLOCK
from omnidraft.export.parity import make_reference, measure_parity
from omnidraft.export.pipeline import export
from omnidraft.export.recipes import Options
from omnidraft.export.recipes import onnx as recipe
from omnidraft.runtime.engines import open_engine
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.learning.adapter import Adapter, Metadata, ModelKey
from omnidraft.runtime.learning.store import AdapterStore, adapters_folder
from omnidraft.runtime.storage.bundle import Bundle, Quantization
from omnidraft.runtime.storage.checkpoints import source_sha256
from omnidraft.runtime.storage.lora import write_adapter

TARGET = ModelKey(name="some-target", sha256="1" * 64)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter") / "checkpoint", seed=1)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AdapterStore:
    monkeypatch.setenv("OMNIDRAFT_DATA", str(tmp_path / "data"))
    return AdapterStore(adapters_folder())


def adapter_of(source: Path, lora: dict[str, NDArray[np.float32]]) -> Adapter:
    drafter = ModelKey(name="tiny", sha256=source_sha256(source))
    return Adapter(Metadata(drafter=drafter, target=TARGET), lora)


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_a_merged_export_is_the_base_with_the_adapter(
    source: Path, tmp_path: Path, store: AdapterStore, quantization: Quantization
) -> None:
    lora = {name: 2 * values for name, values in random_adapter(4).items()}
    del lora["lora.1.o.A"], lora["lora.1.o.B"]  # an adapter may leave linears out
    store.save("math", adapter_of(source, lora))
    export(str(source), tmp_path / "base", options=Options("none"))
    base = OnnxModel(tmp_path / "base", threads=1)
    without = make_reference(base, TEXTS, 100)
    base.set_adapter(lora)
    reference = make_reference(base, TEXTS, 100)
    options = Options(quantization, lora_rank=2)
    bundle = export(str(source), tmp_path / "merged", options=options, adapter="math")
    assert bundle == Bundle.load(tmp_path / "merged")
    assert bundle.thresholds is not None and bundle.merged is not None
    allowed = bundle.thresholds.largest_logit_error
    assert allowed is not None
    merged = open_engine(tmp_path / "merged", threads=1)
    assert measure_parity(merged, reference).logit_error <= allowed
    assert measure_parity(merged, without).logit_error > 2 * allowed
    assert (bundle.merged.adapter, bundle.merged.target) == ("math", "some-target")
    assert bundle.merged.kept == pytest.approx(1, abs=0.1)
    # What belongs to the base is not taken for this drafter's.
    assert bundle.source_sha256 != Bundle.load(tmp_path / "base").source_sha256
    assert "with adapter math" in (tmp_path / "merged" / "README.md").read_text("utf-8")


def test_the_command_takes_a_name_and_a_file(
    source: Path, tmp_path: Path, store: AdapterStore
) -> None:
    store.save("math", adapter_of(source, random_adapter(4)))
    store.export("math", tmp_path / "copy.adapter")
    command = [sys.executable, "-m", "omnidraft", "export", str(source), "--output"]
    digests = []
    for number, name in enumerate(("math", str(tmp_path / "copy.adapter"))):
        out = str(tmp_path / f"out{number}")
        done = subprocess.run([*command, out, "--adapter", name], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        shown = " ".join(done.stdout.split())
        assert "adapter math, learned for some-target" in shown and "parity is with" in shown
        digests.append(Bundle.load(Path(out)).source_sha256)
    assert digests[0] == digests[1]
    assert str(tmp_path) not in json.dumps(Bundle.load(tmp_path / "out1").model_dump()["merged"])


def test_what_cannot_be_merged(source: Path, tmp_path: Path, store: AdapterStore) -> None:
    other = write_drafter(tmp_path / "other", seed=5)
    narrow = {name: values[:8] for name, values in random_adapter(4).items() if ".o." in name}
    store.save("others", adapter_of(other, random_adapter(4)))
    store.save("empty", adapter_of(source, {}))
    store.save("zeros", adapter_of(source, {n: a * 0 for n, a in random_adapter(4).items()}))
    store.save("narrow", adapter_of(source, narrow))
    write_adapter(tmp_path / "lora.onnx_adapter", random_adapter(4))
    before = sorted(tmp_path.iterdir())
    for name, error, match in (
        ("others", OmniDraftError, "belongs to the drafter tiny"),
        ("empty", OmniDraftError, "no LoRA weights yet"),
        ("zeros", OmniDraftError, "changes nothing"),
        ("narrow", OmniDraftError, "does not fit this drafter"),
        ("nobody", ModelNotFoundError, "no adapter"),
        (str(tmp_path / "lora.onnx_adapter"), DamagedFileError, "says whose it is"),
    ):
        with pytest.raises(error, match=match):
            export(str(source), tmp_path / "out", options=Options("none"), adapter=name)
        assert sorted(tmp_path.iterdir()) == before


def on_a_grid(source: Path) -> None:
    """Round the weights to 4 bits in blocks, as a drafter has them that was trained so."""
    weights = load_file(source / "model.safetensors")
    for name, values in weights.items():
        if values.ndim == 2:
            blocks = values.reshape(len(values), -1, BLOCK)
            step = np.abs(blocks).max(axis=-1, keepdims=True) / 7
            weights[name] = (np.rint(blocks / step) * step).reshape(values.shape)
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})


def test_an_adapter_that_rounding_takes_away_is_refused(
    tmp_path: Path, store: AdapterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps are much smaller than those of the 4-bit grid on which the weights lie."""
    source = write_drafter(tmp_path / "source", seed=3)
    on_a_grid(source)
    small = {name: values * np.float32(0.4) for name, values in random_adapter(4).items()}
    store.save("small", adapter_of(source, small))
    monkeypatch.setattr(recipe, "FOUR_BIT_BUDGET", 1e9)
    with pytest.raises(OmniDraftError, match=r"int4 keeps \d+% of what adapter small changes"):
        export(str(source), tmp_path / "out", options=Options("int4"), adapter="small")
    assert not (tmp_path / "out").exists()
    bundle = export(str(source), tmp_path / "out", options=Options("int8"), adapter="small")
    assert bundle.merged is not None and bundle.merged.kept == pytest.approx(1, abs=0.25)
