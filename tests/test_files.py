"""Files that a user names: written whole or not at all, and nothing else is touched."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from omnidraft.runtime.bench import read_prompts
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.storage.files import check_place, expanded, whole_file


def test_a_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    for text in ("first", "second"):
        with whole_file(path) as file:
            file.write_text(text)
            assert file.parent == tmp_path and not (path.exists() and path.read_text() == text)
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_what_was_there(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    expected = OmniDraftError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected), whole_file(path) as file:
        file.write_text("half")
        raise error
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder" / "file")
    (tmp_path / "folder" / "file").write_text("before")
    with whole_file(link) as file:
        file.write_text("after")
    assert link.is_symlink() and (tmp_path / "folder" / "file").read_text() == "after"


def test_what_is_no_place_for_a_file_is_told_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    places = [
        tmp_path,
        tmp_path / "none" / "file",
        tmp_path / ("x" * 300),
        tmp_path / "a\0b",
        tmp_path / "half of a pair \ud800",
        tmp_path / "pipe",
        tmp_path / "circle",
        Path("/dev/null"),
        Path("/proc/x.png"),
    ]
    for place in places:
        if sys.platform != "linux" and place.parts[:2] == ("/", "proc"):
            continue
        with (
            pytest.raises(OmniDraftError, match="be written"),
            whole_file(place) as file,
        ):
            file.write_text("x")
    with pytest.raises(OmniDraftError, match="can be written"):
        check_place(places[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "pipe"]


def test_an_unknown_users_home_is_told() -> None:
    assert expanded("~") == Path.home()
    with pytest.raises(OmniDraftError, match="home folder"):
        expanded("~no-such-user/x")


# --- prompt files -----------------------------------------------------------------------------


def test_prompts_hold_any_text(tmp_path: Path) -> None:
    texts = ["a\u2028b", "\u2029", "\x85", "\r\n", "😀", " "]
    path = tmp_path / "p.jsonl"
    lines = [json.dumps({"prompt": text}, ensure_ascii=False) for text in texts]
    for end in ("\n", "\r\n"):
        for mark in ("", "\ufeff"):
            path.write_bytes((mark + end.join([*lines, ""])).encode())
            assert [entry.prompt for entry in read_prompts(path)] == texts


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a"}\n{"prompt": "\\ud800"}\n', "line 2"),
        (b"[" * 200_000, "line 1"),
        (b'["a"]', "line 1: it is JSON, but no object"),
        (b'{"text": "a"}', "line 1: it has neither a field `prompt`"),
        (b'{"prompt": "a"}\n{"prompt": 3}', "line 2: its field `prompt` is not a text"),
        (b'{"prompt": "a", "task": null}', "line 1: its field `task` is not a text"),
        (b'{"prompt": "a"}\n\xff\n', "p.jsonl is not valid UTF-8: byte 16 is 0xff"),
        (b"\n\n", "holds no prompts"),
    ],
)
def test_a_prompt_file_that_cannot_be_read_is_told(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(OmniDraftError, match=message):
        read_prompts(path)
