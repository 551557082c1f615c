"""The operators as a library of their own, as a JVM loads them: bit for bit the module's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from native_build import built
from numpy.typing import NDArray
from tiny import write_drafter, write_target

from omnidraft import _native
from omnidraft.export.pipeline import export
from omnidraft.export.recipes import Options
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.models.catalogue import Quantization
from omnidraft.runtime.models.resolve import resolve

pytestmark = pytest.mark.usefixtures("all_cores")


@pytest.fixture(scope="module")
def library() -> Path:
    """libomnidraft_ops.so of the preset that the native tests are built by."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return built("release", "omnidraft_ops") / f"libomnidraft_ops.{suffix}"


def test_only_the_entry_is_exported(library: Path) -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm (binutils) is not installed")
    flags, prefix = (["-gU"], "_") if sys.platform == "darwin" else (["-D", "--defined-only"], "")
    listed = subprocess.run([nm, *flags, str(library)], capture_output=True, text=True, check=True)
    names = {line.split()[-1].removeprefix(prefix) for line in listed.stdout.splitlines()}
    assert names == {"RegisterCustomOps"}


def logits(folder: Path) -> list[NDArray[np.float32]]:
    """Of a prompt, of a tree behind it, and with an adapter where the graph takes one."""
    model = OnnxModel(folder, threads=2)
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, model.vocab_size, 60)
    found = [model.forward(tokens).copy(), model.forward(tokens[:1]).copy()]
    found.append(model.forward_tree(tokens[:3], [60, 60, 61]).copy())
    if model.hidden_size:  # a drafter's
        pairs = {
            f"{name}.{half}": rng.normal(scale=0.1, size=shape).astype(np.float32)
            for name, (width, height) in {"lora.0.o": (64, 64), "lora.1.down": (96, 64)}.items()
            for half, shape in {"A": (width, 4), "B": (4, height)}.items()
        }
        model.set_adapter(pairs)
        found.append(model.forward(tokens).copy())
    return found


@pytest.mark.parametrize("kind", ["8bit", "4bit", "drafter"])
def test_a_model_gives_the_same_bits(
    library: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "drafter":
        folder = tmp_path / "bundle"
        checkpoint = write_drafter(tmp_path / "checkpoint")
        export(str(checkpoint), folder, options=Options("int8", own=True))
    else:
        quantization: Quantization = "8bit" if kind == "8bit" else "4bit"
        folder = resolve(str(write_target(tmp_path / "target")), quantization)
    own = logits(folder)
    monkeypatch.setattr(_native, "__file__", str(library))
    for ours, others in zip(own, logits(folder), strict=True):
        assert np.array_equal(ours.view(np.uint32), others.view(np.uint32))
