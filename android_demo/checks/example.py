"""The example in the README, which is a source file of the app."""

from __future__ import annotations

from pathlib import Path

from .commands import CheckError


def compare_example(readme: Path, source: Path) -> None:
    """Check that ``readme`` shows ``source`` from its imports on.

    Raises:
        CheckError: it does not.
    """
    code = source.read_text("utf-8")
    code = code[code.index("import ") :]
    if f"```kotlin\n{code}```\n" not in readme.read_text("utf-8"):
        raise CheckError(f"{readme} does not show {source} as it is: copy it there")
