"""Maven: compiles the Kotlin sources and runs the JVM tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .commands import CheckError, MissingError

_OFFLINE = ("Could not transfer", "Unknown host", "Connection refused", "Could not resolve")


def maven(pom: Path, *goals: str, environment: Mapping[str, str] | None = None) -> str:
    """Run Maven's goals on a POM, with ``environment`` added to the present one. Its output goes to
    the screen as it comes.

    Returns:
        The output.

    Raises:
        MissingError: an artefact could not be fetched.
        CheckError: the build or a test failed.
    """
    command = ["mvn", "--batch-mode", "--no-transfer-progress", "--file", str(pom), *goals]
    # A daemon would be shared with other builds on the machine, and go with them.
    command += ["-Dkotlin.compiler.daemon=false"]
    lines = []
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            print(line, end="", flush=True)
    output = "".join(lines)
    if process.returncode == 0:
        return output
    if any(sign in output for sign in _OFFLINE):
        raise MissingError(
            f"Maven could not fetch what {pom} names: see above. "
            "The first run needs the network; about 1.2 GB go into Maven's own folder."
        )
    raise CheckError(f"mvn {' '.join(goals)} failed for {pom}: see above")
