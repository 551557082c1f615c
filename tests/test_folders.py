"""Folders that appear whole or not at all, also when their writer is killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from omnidraft.runtime.storage.folders import scratch_folder, whole_folder


def write(output: Path, text: str) -> None:
    with whole_folder(output) as folder:
        (folder / "file").write_text(text)


@contextmanager
def writer(output: Path, ending: str = "pass") -> Iterator[subprocess.Popen[str]]:
    """Another process in the midst of writing ``output``; it ends when its input does."""
    code = f"""
import os, signal, sys
from pathlib import Path
from types import FrameType
from typing import Any
from omnidraft.runtime.storage.folders import whole_folder
with whole_folder(Path(sys.argv[1])) as folder:
    (folder / "file").write_text("theirs")
    print(folder, flush=True)
    sys.stdin.read()
    {ending}
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(output)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert Path(child.stdout.readline().strip(), "file").is_file()
        yield child


@pytest.mark.parametrize("name", ["out", "[out]*?"])
def test_a_killed_writer_s_folder_goes_with_the_next_write(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    for _ in range(2):
        with writer(out) as child:
            child.kill()
    assert len(list(tmp_path.iterdir())) > 0
    write(out, "ours")
    assert list(tmp_path.iterdir()) == [out]


def test_a_living_writer_s_folder_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with writer(out) as child:
        write(out, "ours")
        assert (out / "file").read_text() == "ours"
        with pytest.raises(ZeroDivisionError), whole_folder(out):
            raise ZeroDivisionError
        child.communicate()
    assert child.returncode == 0
    assert (out / "file").read_text() == "theirs" and list(tmp_path.iterdir()) == [out]


def test_a_scratch_folder_in_a_scratch_folder(tmp_path: Path) -> None:
    """One process may have several for the same output."""
    with scratch_folder(tmp_path / "out") as outer, scratch_folder(tmp_path / "out") as inner:
        assert outer.is_dir() and inner.is_dir() and outer != inner
    assert list(tmp_path.iterdir()) == []


def test_what_others_left_stays(tmp_path: Path) -> None:
    """Folders of that kind of name without our lock, and those of other outputs."""
    with writer(tmp_path / "out-2") as child:
        child.kill()
    for name in (".out-notes", ".out-personal", ".out-abcdefgh"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "letter.txt").write_text("dear")
    (tmp_path / ".out-12345678").write_text("dear")
    before = set(tmp_path.rglob("*"))
    write(tmp_path / "out", "ours")
    assert set(tmp_path.rglob("*")) == before | {tmp_path / "out", tmp_path / "out" / "file"}
    assert any(path.name.startswith(".out-2-") for path in before)


def test_what_a_killed_writer_was_replacing_comes_back(tmp_path: Path) -> None:
    """Killed when the old is out of the way and the new not yet in its place."""
    out = tmp_path / "out"
    write(out, "old")
    kill = "Path.rename = lambda a, b: (os.rename(a, b), os.kill(os.getpid(), signal.SIGKILL))"
    with writer(out, kill) as child:
        child.communicate()
    assert not out.exists()
    with pytest.raises(ZeroDivisionError), whole_folder(out):
        raise ZeroDivisionError
    assert (out / "file").read_text() == "old" and list(tmp_path.iterdir()) == [out]


def test_sweeps_and_starts_at_once(tmp_path: Path) -> None:
    """A folder that is swept in the moment before its lock is held is made again."""

    def work(number: int) -> None:
        for _ in range(100):
            with scratch_folder(tmp_path / "out") as scratch:
                (scratch / "mine").write_text(str(number))
                assert [path.name for path in scratch.iterdir()].count("mine") == 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert list(tmp_path.iterdir()) == []


UNTOUCHED = ("contextlib", "filelock", "threading", "weakref")


def test_an_interruption_of_the_start_leaves_nothing(tmp_path: Path) -> None:
    """At any line, of the library's functions too, until the folder is there to write into."""

    def interrupted(at: int) -> bool:
        lines, begun = 0, False

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal lines
            # Not where a library takes a lock of its own: it would be taken for ever.
            if begun or any(name in frame.f_code.co_filename for name in UNTOUCHED):
                return None
            lines += event == "line"
            if lines == at:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with whole_folder(tmp_path / "new" / "out"):
                begun = True
                sys.settrace(before)
                raise ValueError  # done
        except KeyboardInterrupt:
            return True
        except ValueError:
            return False
        finally:
            sys.settrace(before)

    # What is done once for a process is over.
    assert not interrupted(-1) and not interrupted(-1)
    at = 1
    while interrupted(at):
        assert list(tmp_path.iterdir()) == [], at
        at += 1
    assert at > 100
