"""What native code writes is not heard, and everything else is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from omnidraft.runtime.quiet import quiet

CODE = """
import os, sys
from omnidraft.runtime.quiet import quiet
def say(what):
    os.write(1, f"native {what};".encode())
    os.write(2, f"native {what};".encode())
    print("python", what, end=";")
    print("python", what, end=";", file=sys.stderr)
say("before")
try:
    with quiet():
        say("within")
        with quiet():
            say("deep within")
        say("within again")
        raise ValueError("surfaces")
except ValueError as error:
    print(error, end=";", file=sys.stderr)
say("after")
"""


def heard() -> tuple[set[str], set[str]]:
    done = subprocess.run([sys.executable, "-u", "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {*done.stdout.split(";")}, {*done.stderr.split(";")}


def test_only_native_writing_is_kept_from_the_terminal() -> None:
    out, err = heard()
    python = {f"python {when}" for when in ("before", "within", "deep within", "within again")}
    expected = {*python, "python after", "native before", "native after", ""}
    assert out == expected and err == {*expected, "surfaces"}


@pytest.mark.parametrize("closing", ["1>&-", "2>&-", ">&- 2>&-"])
def test_where_nothing_is_open(closing: str) -> None:
    code = "from omnidraft.runtime.quiet import quiet\nwith quiet(): pass\nraise SystemExit(7)"
    command = f"exec {sys.executable} -c '{code}' {closing}"
    assert subprocess.run(["sh", "-c", command], capture_output=True).returncode == 7


def test_streams_that_are_no_files_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with quiet():
        print("captured")
    assert capsys.readouterr().out == "captured\n"
