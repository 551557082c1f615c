"""The extension must not lend its symbols to other libraries in the process."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from omnidraft import _native


def test_only_the_entries_are_exported() -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm (binutils) is not installed")
    flags, prefix = (["-gU"], "_") if sys.platform == "darwin" else (["-D", "--defined-only"], "")
    listed = subprocess.run(
        [nm, *flags, _native.__file__], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1].removeprefix(prefix) for line in listed.stdout.splitlines()}
    assert names == {"PyInit__native", "RegisterCustomOps"}  # Python's, ONNX Runtime's


def test_onnxruntime_can_be_imported_after_it() -> None:
    code = "import omnidraft._native, onnxruntime; print(onnxruntime.__version__)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
