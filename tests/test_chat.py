"""``omnidraft chat`` as a person and as a script use it, on tiny models."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import write_drafter, write_target

from omnidraft import GenerationOptions, SamplingParameters, Session, load_model
from omnidraft.cli.output import harmless

QUESTIONS = ["What is the answer?", "The quick brown fox", "中文 😀", "def add(a, b):\\", "Why?"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("chat")
    return {
        "cache": str(root / "cache"),
        "target": str(write_target(root / "target", context=8192)),
        "drafter": str(write_drafter(root / "drafter", seed=1)),
    }


@pytest.fixture(scope="module")
def plain(world: dict[str, str]) -> Session:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIDRAFT_CACHE", world["cache"])
        return Session(load_model(world["target"]))


def command(world: dict[str, str], *arguments: str) -> list[str]:
    models = ("--target", world["target"], "--drafter", world["drafter"])
    return [sys.executable, "-m", "omnidraft", "chat", *models, *arguments]


def environment(world: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "OMNIDRAFT_CACHE": world["cache"], "OMNIDRAFT_DATA": world["cache"]}


def chat(
    world: dict[str, str], lines: list[str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    return run(command(world, *arguments), world, "".join(line + "\n" for line in lines))


def run(
    arguments: list[str], world: dict[str, str], stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        arguments,
        input=stdin.encode(),
        capture_output=True,
        timeout=120,
        env=environment(world),
    )
    # Each carriage return of an answer stays one.
    streams = (done.stdout.decode(), done.stderr.decode())
    return subprocess.CompletedProcess(arguments, done.returncode, *streams)


def saved(path: Path) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return messages


@pytest.mark.parametrize("temperature", [0.0, 1.1])
def test_answers_are_those_of_plain_decoding(
    world: dict[str, str], plain: Session, tmp_path: Path, temperature: float
) -> None:
    lines, told = [], []
    for number in range(10):
        asked = [f"{QUESTIONS[(number + turn) % len(QUESTIONS)]} {number}" for turn in range(3)]
        lines += [*asked, f"/save {tmp_path}/{number}.json", "/new"]
    done = chat(
        world,
        lines,
        *("--max-new-tokens", "16", "--temperature", str(temperature), "--seed", "3"),
    )
    assert done.returncode == 0, done.stderr
    sampling = SamplingParameters(temperature)
    options = GenerationOptions(16, sampling, seed=3, draft_length=0)
    for number in range(10):
        messages = saved(tmp_path / f"{number}.json")
        assert [each["role"] for each in messages] == ["user", "assistant"] * 3
        for index in (1, 3, 5):
            plain.forget()
            answer = plain.generate(messages[:index], options)
            assert messages[index]["content"] == answer.text
            told.append(answer.text + "\n" if answer.token_ids else "")
    assert done.stdout == "".join(told)


def test_earlier_turns_are_not_read_again(
    world: dict[str, str], plain: Session, tmp_path: Path
) -> None:
    lines: list[str] = []
    for question in QUESTIONS[:3]:
        lines += [question, "/stats"]
    done = chat(world, [*lines, f"/save {tmp_path}/a"], "--max-new-tokens", "12")
    figures = re.findall(r"^(\d+) tokens? of prompts read, (\d+) tokens? kept", done.stderr, re.M)
    messages = saved(tmp_path / "a")
    read, totals = 0, []
    held: list[int] = []
    for index in (1, 3, 5):
        prompt = plain.encode(messages[:index])
        pairs = zip(held, prompt[:-1], strict=False)
        kept = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        read += len(prompt) - kept
        totals.append(read)
        answer = plain.generate(messages[:index], GenerationOptions(12, draft_length=0))
        held = prompt + answer.token_ids[:-1]
    assert [int(each) for each, _ in figures] == totals
    assert int(figures[2][1]) > len(plain.encode(messages[:3]))
    used = re.findall(r"^(\d+) of 8,192 tokens of context used", done.stderr, re.M)
    assert int(used[2]) == len(plain.encode(messages))


def test_commands(world: dict[str, str], plain: Session, tmp_path: Path) -> None:
    lines = [
        "One\\",
        "message.",
        f"/save {tmp_path}/a",
        "/retry",
        "/retry",
        f"/save {tmp_path}/b",
        "/undo",
        "/system Be brief.",
        "Why?",
        f"/save {tmp_path}/c",
        "/system\\",
        "Be brief.\\",
        "Be kind.",
        f"/save\t{tmp_path}/e",
        "/system",
        "",
        "/help",
        f"/save {tmp_path}/d",
        "/quit",
        "/nothing",
    ]
    limits = ("--max-new-tokens", "8", "--temperature", "1.5", "--seed", str(2**64 - 1))
    done = chat(world, lines, *limits)
    assert done.returncode == 0, done.stderr
    first, again, second, third = (saved(tmp_path / name) for name in "abcd")
    assert first[0] == {"role": "user", "content": "One\nmessage."}
    sampling = SamplingParameters(1.5)
    retried = plain.generate(first[:1], GenerationOptions(8, sampling, seed=1, draft_length=0))
    assert again == [first[0], {"role": "assistant", "content": retried.text}] != first
    assert "Taken back: One message.\n" in done.stderr
    assert second[:2] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
    ]
    told = {"role": "system", "content": "Be brief.\nBe kind."}
    assert saved(tmp_path / "e") == [told, *second[1:]]
    assert third == second[1:]
    for name in ("/system TEXT", "/undo", "/retry", "/new", "/save FILE", "/learn", "/stats"):
        assert f"\n{name} " in done.stderr


def test_a_saved_conversation_goes_on(world: dict[str, str], tmp_path: Path) -> None:
    limit = ("--max-new-tokens", "8")
    chat(world, ["Why?", f"/save {tmp_path}/a", "What?", f"/save {tmp_path}/b"], *limit)
    lines = ["What?", f"/save {tmp_path}/c"]
    assert chat(world, lines, *limit, "--messages", f"{tmp_path}/a").returncode == 0
    whole = saved(tmp_path / "b")
    assert saved(tmp_path / "c") == whole
    # What is open is answered.
    (tmp_path / "open").write_text(json.dumps(whole[:3]))
    done = chat(world, [f"/save {tmp_path}/c"], *limit, "--messages", f"{tmp_path}/open")
    assert saved(tmp_path / "c") == whole and done.stdout == whole[3]["content"] + "\n"
    arguments = command(world, "--messages", f"{tmp_path}/open", *limit)
    generated = run([{"chat": "generate"}.get(part, part) for part in arguments], world)
    assert generated.stdout == done.stdout


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["/nothing at all"], "there is no command /nothing; /help lists them"),
        (["/undo"], "there is no message to take back"),
        (["/retry"], "there is no message to answer again"),
        (["/save"], "/save needs the name of a file"),
        (["/save x"], "there is nothing to save yet"),
        (["Why?", "/save /no/such/folder/x"], "No file can be written to /no/such/folder/x"),
        (["Why?", "/save a\0b"], "No file can be written to a␀b"),
        (["/learn on"], "nothing learns in this conversation: begin it with --adapter"),
        (["/learn"], "/learn is on or off, not ''"),
    ],
)
def test_mistakes_are_told(world: dict[str, str], lines: list[str], message: str) -> None:
    done = chat(world, [*lines, "not reached"], "--max-new-tokens", "4")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"error: {message}" in done.stderr


@given(st.text())
def test_no_text_commands_a_terminal(text: str) -> None:
    shown = harmless(text)
    assert not [each for each in shown if unicodedata.category(each) == "Cc" and each not in "\n\t"]
    assert len(shown) == len(text)
    for one, other in zip(text, shown, strict=True):
        assert one == other or unicodedata.category(one) == "Cc"


@pytest.mark.parametrize("command", ["/undo", "/undo now", "/x\x1b]0;title\x07"])
def test_messages_hold_no_commands_for_a_terminal(world: dict[str, str], command: str) -> None:
    done = chat(world, ["a\x1b]0;title\x07\x9b2J", command], "--max-new-tokens", "2")
    assert not {"\x1b", "\x07", "\x9b"} & set(done.stderr), done.stderr
    assert "title" in done.stderr


def test_only_answers_go_to_a_file_from_a_terminal(world: dict[str, str], tmp_path: Path) -> None:
    with (
        (tmp_path / "out").open("wb") as out,
        terminal(world, "--max-new-tokens", "4", stdout=out.fileno()) as shown,
    ):
        shown.asks()
        shown.type("Why?\r")
        shown.asks()
        shown.type(f"/save {tmp_path}/a\r")
        shown.asks()
        shown.type("\x04")
        assert shown.exit_code() == 0
    answer = saved(tmp_path / "a")[1]["content"]
    assert (tmp_path / "out").read_bytes().decode() == f"{answer}\n"


def test_text_that_is_no_utf8_is_told(world: dict[str, str]) -> None:
    done = subprocess.run(
        command(world), input=b"Why?\nW\xff\n", capture_output=True, env=environment(world)
    )
    assert done.returncode == 2
    assert b"stdin, line 2 is not valid UTF-8: byte 1 is 0xff" in done.stderr


def test_a_target_that_knows_no_conversation_or_no_system_message(
    world: dict[str, str], tmp_path: Path
) -> None:
    target = write_target(tmp_path / "target")
    settings = target / "tokenizer_config.json"
    config = json.loads(settings.read_text())
    users = "{% if message.role == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
    template = config["chat_template"].replace("%}", "%}" + users, 1)
    settings.write_text(json.dumps({**config, "chat_template": template}))
    limit = ("--max-new-tokens", "4", "--target", str(target))
    done = chat(world, ["/system x"], *limit)
    assert done.returncode == 2 and "No system role" in done.stderr
    done = chat(world, ["Why?"], *limit, "--system", "x")
    assert done.returncode == 2 and "No system role" in done.stderr and not done.stdout
    done = chat(world, ["Why?"], "--target", world["drafter"], "--no-draft")
    assert done.returncode == 2 and "has no chat template" in done.stderr


def test_a_full_context_loses_nothing(world: dict[str, str], tmp_path: Path) -> None:
    limit = ("--max-new-tokens", "4", "--context", "64")
    done = chat(world, ["Why?", "quick " * 60], *limit)
    assert done.returncode == 2
    assert "raise it with --context" in done.stderr and "/undo takes the last" in done.stderr
    with terminal(world, *limit) as shown:
        shown.asks()
        shown.type("Why?\r")
        shown.asks()
        shown.type(f"{'quick ' * 60}\r")
        assert "/undo takes the last" in shown.asks()
        shown.type(f"/save {tmp_path}/a\r")
        shown.asks()
        assert [each["role"] for each in saved(tmp_path / "a")] == ["user", "assistant"]
        shown.type("\x04")
        assert shown.exit_code() == 0


def test_learning_is_turned_off_and_on(world: dict[str, str]) -> None:
    lines = ["Why?", "/learn off", "What?", "/learn on", "Who?"]
    done = chat(world, lines, "--max-new-tokens", "8", "--adapter", "talk", "--learn")
    assert done.returncode == 0, done.stderr
    show = ["-m", "omnidraft", "adapters", "show", "talk", "--json"]
    shown = run([sys.executable, *show], world)
    assert json.loads(shown.stdout)["metadata"]["prompts"] == 2
    # Without an answer nothing begins.
    chat(world, ["/help"], "--adapter", "none", "--learn")
    assert not (Path(world["cache"]) / "adapters/none.adapter").exists()


class Terminal:
    """A pseudo-terminal in which the command runs."""

    def __init__(self, leader: int, follower: int, process: subprocess.Popen[bytes]) -> None:
        self.follower = follower
        self.process = process
        self._leader = leader
        self._shown = b""

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def until(self, text: bytes, seconds: float = 60.0) -> str:
        """What is shown up to a text, from where the last one ended."""
        ends = time.monotonic() + seconds
        while text not in self._shown:
            assert time.monotonic() < ends, self._shown.decode(errors="replace")
            if select.select([self._leader], [], [], 0.1)[0]:
                self._shown += os.read(self._leader, 65536)
        before, self._shown = self._shown.split(text, 1)
        return before.decode(errors="replace")

    def asks(self) -> str:
        """Wait for a prompt; returns what was shown before it."""
        return self.until(b"\x1b[?2004h")  # where pasted text begins is to be told

    def exit_code(self) -> int:
        ends = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < ends:
            if select.select([self._leader], [], [], 0.1)[0]:
                with suppress(OSError):
                    self._shown += os.read(self._leader, 65536)
        return self.process.wait(1)


@contextmanager
def terminal(
    world: dict[str, str], *arguments: str, stdout: int | None = None
) -> Iterator[Terminal]:
    if sys.platform == "win32":
        pytest.skip("needs a pseudo-terminal")
    leader, follower = os.openpty()

    def enter() -> None:
        kept = None if stdout is None else os.dup(stdout)
        os.login_tty(follower)  # its Ctrl-C becomes a signal
        if kept is not None:
            os.dup2(kept, 1)

    process = subprocess.Popen(
        command(world, *arguments),
        pass_fds=[] if stdout is None else [stdout],
        preexec_fn=enter,
        env={**environment(world), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
    )
    try:
        yield Terminal(leader, follower, process)
    finally:
        process.kill()
        process.wait()
        os.close(leader)
        os.close(follower)


def test_lines_are_typed_pasted_and_taken_from_the_history(
    world: dict[str, str], tmp_path: Path
) -> None:
    with terminal(world, "--max-new-tokens", "4") as shown:
        assert "/help lists the commands" in shown.asks()
        for typed in (
            "One\x1b\rmessage.\r",  # Alt-Enter
            "Two\\\rlines.\r",
            "\x1b[200~Pasted\r\n\r\ntext\x1b[201~ here.\r",
            "/nothing\r",
            "\x1b[A\x1b[A\x1b[A\x1b[A\r",  # up, past the lines of the one that was pasted
            "thrown away\x03kept\r",
        ):
            shown.type(typed)
            said = shown.asks()
            assert ("there is no command /nothing" in said) == ("/nothing" in typed)
        shown.type(f"/save {tmp_path}/a\r")
        shown.asks()
        shown.type("\x04")
        assert shown.exit_code() == 0
    asked = [each["content"] for each in saved(tmp_path / "a") if each["role"] == "user"]
    pasted = "Pasted\n\ntext here."
    assert asked == ["One\nmessage.", "Two\nlines.", pasted, pasted, "kept"]


def test_ctrl_c_stops_an_answer_and_twice_leaves(world: dict[str, str], tmp_path: Path) -> None:
    with terminal(world, "--max-new-tokens", "8000") as shown:
        shown.asks()
        shown.type("Why?\r")
        shown.until(b"\x1b[?2004l")
        shown.until(b"\x1b[")  # a coloured token
        shown.type("\x03")
        assert "Stopped. /retry answers again" in shown.asks()
        shown.type(f"/save {tmp_path}/a\r")
        shown.asks()
        shown.type("\x03")
        assert "Ctrl-C again leaves" in shown.asks()
        shown.type("\x03")
        shown.until(b"interrupted")
        assert shown.exit_code() == 130
    asked, answer = saved(tmp_path / "a")
    assert asked["content"] == "Why?" and answer["stopped"] is True
    assert [path.name for path in (Path(world["cache"]) / "ngrams").iterdir()]
    # A conversation with a stopped answer can be answered.
    done = chat(world, ["And?"], "--messages", f"{tmp_path}/a", "--max-new-tokens", "4")
    assert done.returncode == 0, done.stderr


INTERRUPTED_TWICE = """
import signal
from omnidraft.cli.app import main
from omnidraft.runtime.session import Session
stream = Session.stream
def interrupting(*arguments, **options):
    for piece in stream(*arguments, **options):
        yield piece
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
Session.stream = interrupting
main()
"""


def test_ctrl_c_twice_in_an_answer_leaves(world: dict[str, str]) -> None:
    models = ("--target", world["target"], "--drafter", world["drafter"])
    done = run([sys.executable, "-c", INTERRUPTED_TWICE, "chat", *models], world, "Why?\nWhat?\n")
    assert done.returncode == 130
    assert "interrupted" in done.stderr and "Traceback" not in done.stderr


def test_ctrl_c_between_lines_of_a_pipe_leaves(world: dict[str, str]) -> None:
    process = subprocess.Popen(
        command(world, "--max-new-tokens", "8000"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(world),
    )
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(b"Why?\n")
    process.stdin.flush()
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert any(line.startswith(b"Stopped. /retry") for line in process.stderr)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    said = process.stderr.read()
    assert b"interrupted" in said and b"Traceback" not in said


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_terminal_is_left_as_it_was(world: dict[str, str], signum: int) -> None:
    with terminal(world) as shown:
        before = termios.tcgetattr(shown.follower)
        shown.asks()
        shown.type("half a message")
        shown.process.send_signal(signum)
        assert shown.exit_code() == 128 + signum
        assert termios.tcgetattr(shown.follower) == before
