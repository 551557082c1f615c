"""Running what the checks call, and saying in words what is missing or failed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

DEBIAN = {
    "aapt": "aapt",
    "aapt2": "aapt",
    "apksigner": "apksigner",
    "zipalign": "zipalign",
    "dexdump": "dexdump",
    "java": "openjdk-17-jdk-headless",
    "javac": "openjdk-17-jdk-headless",
    "keytool": "openjdk-17-jdk-headless",
    "mvn": "maven",
    "readelf": "binutils",
    "cmake": "cmake",
    "ninja": "ninja-build",
    "g++": "g++",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
}
"""Each command that the checks call, and Debian's package that brings it."""


class MissingError(Exception):
    """Something that the checks need is not on this machine. The message says how to get it."""


class CheckError(Exception):
    """A check failed. The message says what was found."""


def require_tools() -> None:
    """Find every command in ``DEBIAN``.

    Raises:
        MissingError: some are missing; the message has the line that installs them.
    """
    missing = [name for name in DEBIAN if shutil.which(name) is None]
    if missing:
        packages = " ".join(sorted({DEBIAN[name] for name in missing}))
        raise MissingError(
            f"not found: {', '.join(missing)}. On Debian: apt-get install {packages}"
        )


def run(command: Sequence[str | Path], *, cwd: Path | None = None, what: str) -> str:
    """Run a command and return its standard output.

    Raises:
        CheckError: it failed; the message names ``what`` and ends with its last lines.
    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        text=True,
        errors="replace",  # dexdump writes some characters in a way of its own
        capture_output=True,
        check=False,
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise CheckError(f"{what} failed ({done.returncode}):\n" + "\n".join(lines[-40:]))
    return done.stdout


def expect(facts: Mapping[str, bool]) -> None:
    """Check statements.

    Raises:
        CheckError: some are not true; the message lists these.
    """
    wrong = [statement for statement, true in facts.items() if not true]
    if wrong:
        raise CheckError("not so: " + "; ".join(wrong))
