"""Native libraries and programs, by the presets that the native tests are built by."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

_ROOT = Path(__file__).parents[1]
# The environment's own CMake and Ninja.
_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def built(preset: str, *targets: str) -> Path:
    """The build folder, with these targets as the sources now say; skips without CMake or Ninja."""
    for tool in ("cmake", "ninja"):
        if shutil.which(tool, path=_PATH) is None:
            pytest.skip(f"{tool} is not installed; `make test` has it")
    configure = ["cmake", "--preset", preset, "-DCMAKE_MESSAGE_LOG_LEVEL=ERROR"]
    build = ["cmake", "--build", "--preset", preset]
    build += [word for name in targets for word in ("-t", name)]
    environment = {**os.environ, "PATH": _PATH}
    (_ROOT / "build").mkdir(exist_ok=True)
    # Another process may build for its tests.
    with FileLock(_ROOT / "build" / f"{preset}.lock"):
        for command in (configure, build):
            done = subprocess.run(
                command, cwd=_ROOT, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout + done.stderr
    return _ROOT / "build" / preset
