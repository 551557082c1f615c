"""python docs/picture.py: docs/terminal.svg anew, from real runs in a pseudo-terminal.

Take it on a quiet machine: it shows speeds. It needs the default target, 93 MB at first use.
"""

from __future__ import annotations

import io
import os
import pty
import shlex
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).parent
COLUMNS = 96
PROMPT = "Write a Python function that adds two numbers."
COMMANDS = (
    ("generate", "--target", "smollm2-135m", "--max-new-tokens", "90", PROMPT),
    ("bench", "demo/prompts.jsonl", "--target", "smollm2-135m", "--max-new-tokens", "64"),
)


def run(command: tuple[str, ...]) -> str:
    """What a command shows in a terminal; of stderr only the line of figures, no progress."""
    variables = {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    ours, theirs = pty.openpty()
    shown = b""
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "omnidraft", *command],
            stdout=theirs,
            stderr=errors,
            cwd=FOLDER.parent,
            env=os.environ | variables,
        )
        os.close(theirs)
        # Linux ends a pseudo-terminal that nobody writes to any more with an error.
        with suppress(OSError):
            while part := os.read(ours, 4096):
                shown += part
        code = child.wait()
        errors.seek(0)
        said = errors.read().decode()
    if code:
        sys.exit(said)
    figures = [line for line in said.splitlines() if " tokens, " in line]
    return "\n".join([shown.decode().replace("\r\n", "\n"), *figures])


def main() -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    for command in COMMANDS:
        console.print(Text(f"$ omnidraft {shlex.join(command)}", "bold"))
        console.print(Text.from_ansi(run(command)))
    console.save_svg(str(FOLDER / "terminal.svg"), title="omnidraft")


if __name__ == "__main__":
    main()
