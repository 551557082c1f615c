"""The command as a person runs it, on tiny models: output, errors, exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import typer
from tiny import write_drafter, write_target

import omnidraft
from omnidraft.cli import output
from omnidraft.cli.app import app
from omnidraft.cli.output import count

NASTY = [
    "emoji 😀👩‍👩‍👧 end",
    "中文字符，标点。",
    "مرحبا بالعالم",
    "tabs\tand\r\nCRLF\r\n",
    "def f(x):\n    if x:\n        return [1,\n                2]\n",
    "NUL \0 inside",
    "quick" * 2_000,
    "",
    " ",
    "\ufeffBOM and \u200b zero width",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A cache folder, a target and a drafter."""
    root = tmp_path_factory.mktemp("cli")
    return {
        "cache": str(root / "cache"),
        "target": str(write_target(root / "target", context=8192)),
        "drafter": str(write_drafter(root / "drafter", seed=1)),
    }


def run(
    world: dict[str, str],
    *arguments: str,
    stdin: bytes = b"",
    environment: Mapping[str, str] = {},
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "omnidraft", *arguments],
        input=stdin,
        capture_output=True,
        timeout=120,
        env={**os.environ, "OMNIDRAFT_CACHE": world["cache"], "COLUMNS": "100", **environment},
    )


def generate(world: dict[str, str], *arguments: str, stdin: bytes = b"") -> dict:
    done = run(
        world,
        "generate",
        *("--target", world["target"], "--drafter", world["drafter"], "--json"),
        *arguments,
        stdin=stdin,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.count(b"\n") == 1
    return json.loads(done.stdout)


def test_json_holds_the_answer_and_its_statistics(world: dict[str, str]) -> None:
    answer = generate(world, "--prompt", "What is the answer?", "--max-new-tokens", "40")
    assert set(answer) == {"text", "token_ids", "finish_reason", "stats"}
    stats = answer["stats"]
    assert stats["target_tokens"] == len(answer["token_ids"]) <= 40
    assert stats["block_efficiency"] == stats["target_tokens"] / stats["rounds"]
    assert 0 <= stats["acceptance_rate"] <= 1
    assert stats["ngram_accepted"] <= stats["ngram_hits"]
    assert stats["tokens_per_second"] == pytest.approx(stats["target_tokens"] / stats["seconds"])
    plain = generate(
        world, "--prompt", "What is the answer?", "--max-new-tokens", "40", "--no-draft"
    )
    assert plain["token_ids"] == answer["token_ids"]
    assert plain["text"] == answer["text"]
    assert plain["stats"]["rounds"] == plain["stats"]["target_tokens"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a full device")
@pytest.mark.parametrize("json", [[], ["--json"]])
def test_output_that_cannot_be_written_is_told(world: dict[str, str], json: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "omnidraft", "generate", "--target", world["target"]),
                *("--drafter", world["drafter"], "--prompt", "The", "--max-new-tokens", "4", *json),
            ],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=120,
            env={**os.environ, "OMNIDRAFT_CACHE": world["cache"]},
        )
    assert done.returncode == 2
    *_, last = done.stderr.splitlines()
    assert last == b"error: the output cannot be written: No space left on device"


def shell(
    world: dict[str, str], line: str, environment: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[bytes]:
    """A line of Bash, in which ``omnidraft`` is the command and ``$T`` the target."""
    return subprocess.run(
        ["bash", "-c", f'omnidraft() {{ {sys.executable} -m omnidraft "$@"; }}; {line}'],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        env={
            **os.environ,
            "OMNIDRAFT_CACHE": world["cache"],
            "OMNIDRAFT_DATA": world["cache"],
            "T": f"--no-draft --target {world['target']}",
            **environment,
        },
    )


@pytest.mark.skipif(sys.platform == "win32", reason="closes streams by Bash")
@pytest.mark.parametrize(
    "command", ["generate Why $T", "generate Why $T --json", "doctor", "models list", "--version"]
)
def test_a_closed_stdout_is_told(world: dict[str, str], command: str) -> None:
    done = shell(world, f"omnidraft {command} >&-")
    assert done.returncode == 2
    assert done.stderr == b"error: stdout is closed: there is nowhere to print to\n"


@pytest.mark.skipif(sys.platform == "win32", reason="pipes by Bash")
@pytest.mark.parametrize(
    "command",
    [
        "generate Why $T --max-new-tokens 400",
        "generate Why $T --json",
        "chat $T <<< Why",
        "models list",
        "models list --json",
        "adapters list",
        "--help",
        "--version",
    ],
)
def test_a_pipe_that_closes_ends_every_command_in_the_same_way(
    world: dict[str, str], command: str
) -> None:
    run(world, "models", "pull", world["target"])  # which tells its steps
    # The reader has gone before anything is written.
    done = shell(world, f"(sleep 0.3; omnidraft {command}) | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a full device")
@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"])
def test_messages_that_cannot_be_written_change_no_answer(
    world: dict[str, str], stderr: str
) -> None:
    command = "omnidraft generate Why $T --max-new-tokens 4"
    done = shell(world, f"{command} {stderr}")
    assert done.returncode == 0
    assert done.stdout == shell(world, command).stdout != b""


@pytest.mark.parametrize("quantization", ["4bit", "8bit", "float32"])
def test_nasty_text_comes_out_the_same_with_and_without_a_drafter(
    world: dict[str, str], tmp_path: Path, quantization: str
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"task": "t", "prompt": p}) + "\n" for p in NASTY))
    done = run(
        world,
        *("bench", str(prompts), "--target", world["target"], "--drafter", world["drafter"]),
        *("--max-new-tokens", "24", "--json", "--quantization", quantization),
    )
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stdout)
    assert report["overall"]["prompts"] == len(NASTY)
    assert report["overall"]["identical"] == len(NASTY)
    assert set(report) >= {"target", "drafter", "overall", "tasks"}
    assert report["tasks"]["t"] == report["overall"]


def test_streamed_text_is_the_text(world: dict[str, str]) -> None:
    arguments = ("--target", world["target"], "--drafter", world["drafter"], "--prompt", "-")
    stdin = "😀 The quick\r\n".encode()
    streamed = run(world, "generate", *arguments, "--max-new-tokens", "30", stdin=stdin)
    answer = run(world, "generate", *arguments, "--max-new-tokens", "30", "--json", stdin=stdin)
    assert streamed.stdout.decode() == json.loads(answer.stdout)["text"] + "\n"
    assert json.loads(answer.stdout)["finish_reason"] == "length" and answer.stderr == b""
    cut = b"The answer was cut after 30 tokens; --max-new-tokens allows more.\n"
    assert streamed.stderr == cut


def test_an_answer_that_fills_the_context_says_so(world: dict[str, str]) -> None:
    models = ("--target", world["target"], "--drafter", world["drafter"])
    done = run(world, "generate", "The", *models, "--raw", "--context", "16")
    assert done.returncode == 0
    assert b"the context of 16 is full; --context allows more" in done.stderr
    done = run(world, "generate", "The", *models, "--raw", "--context", "16", "--stop", "e")
    assert done.returncode == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_characters_that_the_output_cannot_encode_end_nothing(
    world: dict[str, str], tmp_path: Path, encoding: str
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"task": "中文", "prompt": "The"}))
    command = [sys.executable, "-m", "omnidraft"]
    models = ["--target", world["target"], "--drafter", world["drafter"]]
    environment = {**os.environ, "OMNIDRAFT_CACHE": world["cache"], "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [*command, "bench", str(prompts), *models, "--max-new-tokens", "8"],
        capture_output=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert b"??" in done.stdout and b"accepted" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_that_cannot_show_a_character_shows_the_rest(world: dict[str, str]) -> None:
    whole = generate(world, "Ünïcödé", "--max-new-tokens", "30")["text"]
    assert not whole.isascii()
    leader, follower = os.openpty()
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "omnidraft", "generate", "Ünïcödé", "--max-new-tokens", "30"),
            *("--target", world["target"], "--drafter", world["drafter"]),
        ],
        stdout=follower,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMNIDRAFT_CACHE": world["cache"], "PYTHONIOENCODING": "ascii"},
    ) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                data = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            shown += data
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(60) == 0, said
    os.close(leader)
    assert b"?" in shown and b"Traceback" not in said


def test_names_that_look_like_markup_are_printed_as_they_are(
    world: dict[str, str], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    tasks = ["[red]a[/b]", "[/]", "[bold]", ":smile:", "back\\[slash]"]
    prompts.write_text("".join(json.dumps({"task": t, "prompt": "The"}) + "\n" for t in tasks))
    models = ("--target", world["target"], "--drafter", world["drafter"])
    done = run(world, "bench", str(prompts), *models, "--max-new-tokens", "6")
    assert done.returncode == 0, done.stderr
    for task in tasks:
        assert f"\n{task} " in done.stdout.decode()
    done = run(world, "generate", "x", "--target", "[red]a[/b]")
    assert done.returncode == 2 and b"[red]a[/b]" in done.stderr


def test_progress_in_a_pipe_is_lines(world: dict[str, str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "The"}\n' * 4)
    target = str(write_target(tmp_path / "new", seed=5))
    models = ("--target", target, "--drafter", world["drafter"])
    done = run(world, "bench", str(prompts), *models, "--max-new-tokens", "6")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.decode().splitlines()
    stages = ["calibrating", "converting", "computing checksums", "checking batch invariance"]
    assert [s for s in stages if any(line.startswith(s) for line in lines)] == stages
    answering = [line for line in lines if line.startswith("answering")]
    counts = [line.split(", ")[1] for line in answering]
    assert counts == [f"{n} of 4 prompts" for n in (1, 2, 3, 4)]
    assert answering[1].startswith("answering: 50 %, ") and "tokens a round" in answering[1]
    assert "\x1b" not in done.stderr.decode() and "\r" not in done.stderr.decode()


INTERRUPTING = """
import os, signal, sys
from omnidraft.cli.app import main
from omnidraft.runtime.session import Session
generate, count, answers = Session.generate, int(sys.argv.pop(1)), []
def interrupting(*arguments, **options):
    answers.append(generate(*arguments, **options))
    if len(answers) == count:
        os.kill(os.getpid(), signal.SIGINT)
    return answers[-1]
Session.generate = interrupting
main()
"""


def interrupted(
    world: dict[str, str], answers: int, *arguments: str
) -> subprocess.CompletedProcess[bytes]:
    """The command, which gets Ctrl-C when it has made so many answers."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTING, str(answers), *arguments],
        capture_output=True,
        timeout=120,
        env={**os.environ, "OMNIDRAFT_CACHE": world["cache"], "OMNIDRAFT_DATA": world["cache"]},
    )
    assert done.returncode == 130, done.stderr
    assert b"interrupted" in done.stderr and b"Traceback" not in done.stderr
    return done


def test_ctrl_c_in_a_bench_prints_the_figures_so_far(world: dict[str, str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"task": "t", "prompt": "The"}\n' * 9)
    command = ("bench", str(prompts), "--target", world["target"], "--max-new-tokens", "8")
    # Two warm up, then there are two for each prompt.
    done = interrupted(world, 9, *command)
    assert b"of the first 3 of 9 prompts" in done.stderr
    assert b"tok/round" in done.stdout and b"\nall " in done.stdout
    done = interrupted(world, 8, *command, "--json")
    assert json.loads(done.stdout)["overall"]["prompts"] == 2
    assert interrupted(world, 3, *command).stdout == b""


def test_ctrl_c_while_adapting_says_what_is_kept(world: dict[str, str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "The quick brown fox"}\n' * 9)
    command = ("adapt", str(prompts), "--target", world["target"], "--drafter", world["drafter"])
    options = ("--adapter", "kept", "--interval", "1", "--max-new-tokens", "8")
    done = interrupted(world, 4, *command, *options)
    assert b"3 of 9 prompts were answered" in done.stderr and b"adapter kept" in done.stderr
    printed = re.search(rb"kept: (\d+) updates from (\d+) prompts", done.stdout)
    assert printed is not None and int(printed[1]) >= 1
    data = {"OMNIDRAFT_DATA": world["cache"]}
    shown = run(world, "adapters", "show", "kept", "--json", environment=data)
    assert json.loads(shown.stdout)["metadata"]["updates"] == int(printed[1])


def test_the_prompt_can_be_given_in_several_ways(world: dict[str, str], tmp_path: Path) -> None:
    prompt = "The quick\r\n brown 😀\n"
    file = tmp_path / "prompt.txt"
    file.write_bytes(prompt.encode())
    marked = tmp_path / "marked.txt"
    marked.write_bytes(prompt.encode("utf-8-sig"))
    ways: list[tuple[list[str], str]] = [
        ([prompt], ""),
        (["--prompt", prompt], ""),
        (["-"], prompt),
        (["--prompt", "-"], prompt),
        (["--prompt-file", "-"], prompt),
        (["--prompt-file", str(file)], ""),
        (["--prompt-file", str(marked)], ""),
        ([], prompt),
        ([], "\ufeff" + prompt),
    ]
    answers = [
        generate(world, *given, "--max-new-tokens", "12", stdin=stdin.encode())
        for given, stdin in ways
    ]
    assert [answer["token_ids"] for answer in answers] == [answers[0]["token_ids"]] * len(ways)
    assert len({answer["stats"]["prompt_tokens"] for answer in answers}) == 1


def test_a_conversation(world: dict[str, str], tmp_path: Path) -> None:
    asked = {"role": "user", "content": "What is the answer?"}
    told = {"role": "system", "content": "Be brief."}
    file = tmp_path / "messages.json"
    made = []
    for messages in (
        [asked],
        [told, asked],
        [told, asked, {"role": "assistant", "content": "42."}, asked],
    ):
        file.write_text(json.dumps(messages))
        made.append(generate(world, "--messages", str(file), "--max-new-tokens", "8"))
    piped = json.dumps([told, asked]).encode()
    answer = generate(world, "--messages", "-", "--max-new-tokens", "8", stdin=piped)
    assert answer["token_ids"] == made[1]["token_ids"]
    ways = [asked["content"], "--max-new-tokens", "8"]
    assert generate(world, *ways)["token_ids"] == made[0]["token_ids"]
    ways += ["--system", told["content"]]
    assert generate(world, *ways)["token_ids"] == made[1]["token_ids"]
    lengths = [answer["stats"]["prompt_tokens"] for answer in made]
    assert lengths == sorted(set(lengths))


CONVERSATION = '[{"role": "user", "content": "x"}]'


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (f"{CONVERSATION}\n{CONVERSATION}\n", [], "holds more than one conversation"),
        ("[1", [], "is no JSON"),
        ("[]", [], "expected a list of messages"),
        ('{"role": "user", "content": "x"}', [], "expected a list of messages"),
        ('[{"role": "user"}]', [], "it holds {'role': 'user'}"),
        ('[{"role": "user", "content": 3}]', [], "it holds"),
        ('[{"role": "user", "content": "\\ud800"}]', [], "half a surrogate pair"),
        (CONVERSATION, ["--system", "y"], "--system goes with a prompt"),
        (CONVERSATION, ["--raw"], "--raw is without a chat template"),
        (CONVERSATION, ["y"], "--messages are instead of a prompt"),
    ],
)
def test_messages_that_cannot_be_answered(
    world: dict[str, str], tmp_path: Path, content: str, arguments: list[str], message: str
) -> None:
    file = tmp_path / "messages.json"
    file.write_text(content)
    given = ["--target", world["target"], "--messages", str(file), *arguments]
    done = run(world, "generate", *given)
    assert done.returncode == 2 and done.stdout == b""
    said = re.sub(r"\s+", " ", done.stderr.decode())
    assert message in said and ("no JSON" in said) == ("JSON" in message)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_at_a_terminal_a_missing_prompt_is_asked_for(world: dict[str, str]) -> None:
    leader, follower = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "omnidraft", "generate", "--target", world["target"]],
            stdin=follower,
            capture_output=True,
            timeout=120,
            env={**os.environ, "OMNIDRAFT_CACHE": world["cache"]},
        )
    finally:
        os.close(leader)
        os.close(follower)
    assert done.returncode == 2 and done.stdout == b""
    assert b"there is no prompt" in done.stderr and b"--prompt-file" in done.stderr


def test_a_prompt_may_fill_the_models_own_context(world: dict[str, str], tmp_path: Path) -> None:
    target = str(write_target(tmp_path / "long", context=16384))
    answer = generate(world | {"target": target}, "q" * 9000, "--raw", "--max-new-tokens", "2")
    assert answer["stats"]["prompt_tokens"] > 8192 and len(answer["token_ids"]) == 2


def commands() -> list[list[str]]:
    """Every command and group of commands."""
    click = typer.main.get_command(app)
    found: list[list[str]] = [[]]
    for name, command in click.commands.items():
        found.append([name])
        found += [[name, each] for each in getattr(command, "commands", {})]
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_wraps_at_the_terminals_width_and_breaks_no_word(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {}
    for width in (200, 100, 80, 60):
        monkeypatch.setenv("COLUMNS", str(width))
        with pytest.raises(SystemExit) as ended:
            app([*command, "--help"], prog_name="omnidraft")
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        *_, longest = sorted(map(len, shown.splitlines()))
        assert longest <= max(width, 80)  # examples are lines to copy
        words[width] = re.sub(r"-\n\s+", "-", shown).split()
        # A value goes by what it means in capitals, or by what it may be.
        usage, *lines = shown.splitlines()
        assert re.fullmatch(r"[^{}<>]*(\[OPTIONS\])( \[?[A-Z][\w.]+\]?)*( \[ARGS\]...)?", usage)
        for line in lines:
            if option := re.match(r"  --\S+ (?! |/)(\S+)", line):
                assert re.fullmatch(r"[A-Z]+(\.[a-z]+)?|N\|auto|(\w|\|)+\|\S+", option[1]), line
        assert width < 80 or "[default:\n" not in shown
    assert words[60] == words[80] == words[100] == words[200]
    if not command or command[0] in ("generate", "bench", "adapt", "profile", "export", "inspect"):
        assert {"Example:", "Examples:"} & set(words[80])


def test_the_version(world: dict[str, str]) -> None:
    done = run(world, "--version")
    assert done.returncode == 0 and done.stdout.decode() == f"omnidraft {omnidraft.__version__}\n"


def test_stop_strings_end_the_answer_and_are_not_streamed(world: dict[str, str]) -> None:
    arguments = ("--prompt", "What is the answer?", "--max-new-tokens", "30")
    whole = generate(world, *arguments)["text"]
    cut = min(whole.index(whole[9:12]), whole.index(whole[12:15]))
    stops = ("--stop", whole[12:15], "--stop", whole[9:12], "--stop", "no such text")
    answer = generate(world, *arguments, *stops)
    assert answer["text"] == whole[:cut] and answer["finish_reason"] == "stop"
    assert answer["stats"]["target_tokens"] == len(answer["token_ids"])
    models = ("--target", world["target"], "--drafter", world["drafter"])
    streamed = run(world, "generate", *models, *arguments, *stops)
    assert streamed.stdout.decode() == whole[:cut] + "\n"


def test_sampling_options_and_seed(world: dict[str, str]) -> None:
    sampled = ("--prompt", "The", "--raw", "--temperature", "0.9", "--top-p", "0.95", "--top-k")
    options = (*sampled, "50", "--min-p", "0.01", "--repetition-penalty", "1.1")
    one, two, other = (
        generate(world, *options, "--seed", seed, "--max-new-tokens", "30")["token_ids"]
        for seed in ("1", "1", "2")
    )
    assert one == two != other
    generate(world, *options, "--verification", "paper", "--max-new-tokens", "10")


def test_the_ngram_cache_survives_and_a_damaged_one_is_set_aside(world: dict[str, str]) -> None:
    arguments = ("--prompt", "The quick brown fox", "--max-new-tokens", "60")
    first = generate(world, *arguments)
    files = list(Path(world["cache"]).glob("ngrams/*.ngrams"))
    assert len(files) == 1
    again = generate(world, *arguments)
    assert again["token_ids"] == first["token_ids"]
    assert again["stats"]["ngram_inserted"] == 0
    content = files[0].read_bytes()
    files[0].write_bytes(content[: len(content) // 2] + b"?" + content[len(content) // 2 + 1 :])
    done = run(
        world,
        *("generate", "--target", world["target"], "--drafter", world["drafter"]),
        *("--json", *arguments),
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["token_ids"] == first["token_ids"]
    assert b"checksum" in done.stderr and b"a new n-gram cache begins" in done.stderr
    assert files[0].read_bytes() != content[: len(content) // 2]
    assert generate(world, *arguments)["stats"]["ngram_inserted"] == 0


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["--prompt", "-"], b"abc \xff\xfe", r"stdin is not valid UTF-8: byte 4 is 0xff"),
        ([], b"", "there is no prompt, and nothing came from stdin"),
        (["x", "--prompt", "y"], b"", "more than once"),
        (["--prompt-file", "/no/such/file"], b"", "cannot be read from /no/such/file"),
        (["--prompt", "x", "--temperature", "-1"], b"", "temperature must be between"),
        (["--prompt", "x", "--temperature", "nan"], b"", "must be a number, not nan"),
        (["--prompt", "x", "--temperature", "warm"], b"", "must be a number, not warm"),
        (["--prompt", "x", "--top-p", "0"], b"", "top-p must be"),
        (["--prompt", "x", "--repetition-penalty", "1e-300"], b"", "penalty must be between 0.01"),
        (["--prompt", "x", "--min-p", "2"], b"", "min-p must be between 0 and 1, not 2 $"),
        (["--prompt", "x", "--temperature", "1e300"], b"", r"and 100, not 1e\+300 $"),
        (["--prompt", "x", "--threads", "9999"], b"", "threads must be at most .*, not 9999"),
        (["--prompt", "x", "--engine", "external-onnx"], b"", "holds a model for the engine onnx"),
        (["--prompt", "x", "--engine", "qnn"], b"", "holds a model for the engine onnx"),
        (["--prompt", "x", "--verification", "fast"], b"", "one of exact, paper, not fast"),
        (["--prompt", "x", "--quantization", "3bit"], b"", "one of auto, 4bit, 8bit, float32, not"),
        (["--prompt", "x", "--draft-length", "99"], b"", "draft-length"),
        (["--prompt", "x", "--seed", str(2**64)], b"", "seed must be"),
        (["--prompt", "x", "--max-new-tokens", "0"], b"", "max-new-tokens.* from 1 on, not 0"),
        (["--prompt", "x", "--max-new-tokens", "1.5"], b"", "must be a whole number"),
        (["--prompt", "x", "--draft-confidence", "nan"], b"", "from 0 to 1, not nan"),
        (["--prompt", "word " * 9000], b"", r"context holds \d+; shorten the prompt by"),
        (["--prompt", "word " * 9000, "--context", "64"], b"", "limited to 64 .* 8192.*--context"),
        (["--prompt", "x", "--context", "9000"], b"", "context must be at most 8192"),
        (["--prompt", "", "--raw"], b"", "there is no prompt: what was given is empty"),
        ([""], b"", "there is no prompt: what was given is empty"),
        (["-"], b"", "there is no prompt: what was given is empty"),
        (["--prompt-file", os.devnull], b"", "there is no prompt: what was given is empty"),
        (["--prompt", "x", "--stop", ""], b"", "stop must hold no empty text"),
        (["--prompt", "x", "--drafter", "no-such-drafter"], b"", "no-such-drafter"),
    ],
)
def test_what_a_user_can_mend_is_said_with_exit_code_2(
    world: dict[str, str], arguments: list[str], stdin: bytes, message: str
) -> None:
    base = ["generate", "--target", world["target"]]
    if "--drafter" not in arguments:
        base += ["--drafter", world["drafter"]]
    done = run(world, *base, *arguments, stdin=stdin)
    assert done.returncode == 2
    assert done.stdout == b""
    flat = re.sub(r"\s+", " ", done.stderr.decode())
    assert re.search(message, flat)
    assert "Traceback" not in flat


@pytest.mark.skipif(sys.platform == "win32", reason="an argument there is always text")
@pytest.mark.parametrize("form", ["$'abc \\xff\\xfe bad'", "--prompt $'abc \\xff'"])
def test_an_argument_that_is_no_text_is_refused(world: dict[str, str], form: str) -> None:
    done = shell(world, f"omnidraft generate {form} $T")
    assert done.returncode == 2 and done.stdout == b""
    assert b"cannot be read as text at character 4" in done.stderr
    assert b"--prompt-file" in done.stderr and b"UTF-8 locale" in done.stderr


@pytest.mark.parametrize("name", ["x" * 5000, "x/" * 3000, "x" * 5000 + "/" + "y" * 5000])
@pytest.mark.parametrize("option", ["--target", "--drafter"])
def test_a_name_that_no_file_can_have_is_told_shortened(
    world: dict[str, str], name: str, option: str
) -> None:
    given = ["--target", world["target"], option, name] if option == "--drafter" else [option, name]
    done = run(world, "generate", "x", *given)
    *_, last = done.stderr.splitlines()
    assert done.returncode == 2 and len(last) < 400
    assert last.startswith(b"error: There is no model") and b"Errno" not in last


def test_an_unknown_target_and_a_damaged_model(world: dict[str, str], tmp_path: Path) -> None:
    done = run(world, "generate", "--target", "no-such-model", "--prompt", "x")
    assert done.returncode == 2 and b"no-such-model" in done.stderr
    folder = write_target(tmp_path / "broken")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    done = run(world, "generate", "--target", str(folder), "--no-draft", "--prompt", "x")
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"model.safetensors" in done.stderr.replace(b"\n", b"")


FAILING = """
import sys
import onnxruntime
from omnidraft.cli.app import main
stage, message = sys.argv.pop(1), sys.argv.pop(1)
def fail(*arguments, **options):
    raise (MemoryError if message == "MemoryError" else RuntimeError)(message)
if stage == "load":
    onnxruntime.InferenceSession = fail
else:
    onnxruntime.InferenceSession.run_with_iobinding = fail
main()
"""


@pytest.mark.parametrize("stage", ["load", "run"])
@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("std::bad_alloc", "There is not enough memory"),
        ("MemoryError", "There is not enough memory"),
        ("[ONNXRuntimeError] : 1 : FAIL : Failed to allocate memory for", "not enough memory"),
        ("[ONNXRuntimeError] : 1 : FAIL : such is life.\nat a.cc:3", r": such is life\."),
    ],
)
def test_what_an_engine_says_comes_in_words(
    world: dict[str, str], stage: str, raw: str, message: str
) -> None:
    generate(world, "x", "--max-new-tokens", "1")  # is converted by now
    done = subprocess.run(
        [
            *(sys.executable, "-c", FAILING, stage, raw, "generate", "x", "--no-draft"),
            *("--target", world["target"]),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMNIDRAFT_CACHE": world["cache"]},
    )
    assert done.returncode == 2 and done.stdout == ""
    assert re.search(message, done.stderr)
    for word in ("Traceback", "bad_alloc", "ONNXRuntimeError", "a.cc"):
        assert word not in done.stderr
    assert not ("memory" in message and "models pull" in done.stderr)


def test_a_name_that_does_not_exist_leaves_nothing_behind(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    for engine in ("onnx", "transformers"):
        done = run(
            {"cache": str(cache)},
            *("generate", "x", "--target", "nobody/nothing", "--engine", engine, "--no-draft"),
            environment=offline,
        )
        assert done.returncode == 2
        # Without PyTorch the other engine is refused before anything is looked for.
        assert b"nobody/nothing" in done.stderr or b"needs torch" in done.stderr
        assert not [path for path in cache.rglob("*") if path.is_file()]
    assert not [path for path in cache.rglob("*nothing*")]


def test_a_cache_folder_that_takes_no_lock_is_said(tmp_path: Path) -> None:
    (tmp_path / "models" / "smollm2-135m-auto.lock").mkdir(parents=True)
    done = run({"cache": str(tmp_path)}, "generate", "x", "--target", "smollm2-135m")
    assert done.returncode == 2
    assert b"Nothing can be prepared in" in done.stderr and b"OMNIDRAFT_CACHE" in done.stderr
    assert b"Errno" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("width", [40, 80])
def test_tables_in_a_narrow_terminal_cut_neither_names_nor_numbers(
    world: dict[str, str], tmp_path: Path, width: int
) -> None:
    task = "a-task-with-a-name-of-which-nobody-should-have-to-guess-the-end"
    (tmp_path / "p.jsonl").write_text(
        "".join(json.dumps({"task": t, "prompt": "The"}) + "\n" for t in (task, "b"))
    )
    run(world, "models", "pull", world["target"])
    bench = f"bench {tmp_path}/p.jsonl $T --max-new-tokens 4 --drafter {world['drafter']}"
    bench = bench.replace("$T", f"--target {world['target']}")
    for command, name in [
        ("models list", world["target"]),
        ("doctor", world["target"]),
        (bench, task),
    ]:
        command = f"stty cols {width} && {sys.executable} -m omnidraft {command}"
        leader, follower = os.openpty()
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        process = subprocess.Popen(
            ["bash", "-c", command],
            stdin=follower,
            stdout=follower,
            stderr=subprocess.DEVNULL,
            env={**environment, "OMNIDRAFT_CACHE": world["cache"], "TERM": "xterm"},
        )
        os.close(follower)
        shown = b""
        with suppress(OSError):  # that is how a terminal ends
            while part := os.read(leader, 65536):
                shown += part
        os.close(leader)
        assert process.wait(60) in (0, 1)
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).splitlines()
        assert "…" not in "".join(lines)
        # The beginnings of the lines, read downwards, hold all of the name.
        start = 3 if command.endswith("doctor") else 0
        column = "".join(line[start:].split(" ")[0] for line in lines)
        assert name in column, "\n".join(lines)
        if "bench" in command:
            assert any(line.rstrip().endswith("1/1") for line in lines)


def test_prompts_without_a_task_make_one_row(world: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "The"}\n')
    models = ("--target", world["target"], "--drafter", world["drafter"])
    done = run(world, "bench", str(tmp_path / "p.jsonl"), *models, "--max-new-tokens", "4")
    assert re.findall(r"^all ", done.stdout.decode(), re.M) == ["all "]


def test_doctor_uses_words_where_there_are_no_marks(world: dict[str, str]) -> None:
    done = run(world, "doctor", environment={"PYTHONIOENCODING": "ascii"})
    assert re.search(rb"^ok +Python ", done.stdout, re.M)
    done = run(world, "doctor", environment={"PYTHONIOENCODING": "utf-8"})
    assert re.search("^✓ +Python ", done.stdout.decode(), re.M)


def test_bad_prompt_files(world: dict[str, str], tmp_path: Path) -> None:
    for content, message in [
        ("", "holds no prompts"),
        ('{"prompt": "x"}\n{"task": 1}\n', "line 2"),
        ("not json\n", "line 1"),
        ('{"messages": [{"role": "user"}]}\n', "line 1: expected a list of messages"),
        ('{"messages": [], "prompt": "x"}\n', "line 1: it has a prompt or messages"),
        ('{"prompt": "x"}\n{"task": 1, "messages": []}\n', "line 2"),
    ]:
        path = tmp_path / "prompts.jsonl"
        path.write_text(content)
        done = run(world, "bench", str(path), "--target", world["target"])
        assert done.returncode == 2
        assert message in re.sub(r"\s+", " ", done.stderr.decode())
    done = run(world, "bench", "/no/such.jsonl", "--target", world["target"])
    assert done.returncode == 2
    assert done.stderr == (
        b"error: the prompts cannot be read from /no/such.jsonl: No such file or directory\n"
    )


def test_what_is_no_bundle_is_told_from_what_is_not_there(
    world: dict[str, str], tmp_path: Path
) -> None:
    for folder, problem in [(tmp_path / "none", "does not exist"), (tmp_path, "is no bundle")]:
        done = run(world, "inspect", str(folder))
        assert done.returncode == 2
        assert f"{folder} {problem}" in done.stderr.decode()
        assert b"`omnidraft export`" in done.stderr


def test_an_ngram_cache_that_cannot_be_kept_costs_no_answer(
    world: dict[str, str], tmp_path: Path
) -> None:
    models = ("--target", world["target"], "--drafter", world["drafter"])
    run(world, "generate", "The", *models, "--max-new-tokens", "1")
    (tmp_path / "models").symlink_to(Path(world["cache"]) / "models")
    (tmp_path / "ngrams").write_text("no folder")
    done = run({"cache": str(tmp_path)}, "generate", "The", *models, "--max-new-tokens", "9")
    assert done.returncode == 0 and done.stdout
    said = done.stderr.decode()
    assert "the n-gram cache cannot be kept: " in said and "OMNIDRAFT_CACHE" in said
    assert "Errno" not in said


def test_a_removal_that_is_refused_is_called_one(world: dict[str, str], tmp_path: Path) -> None:
    run(world, "models", "pull", world["target"])
    shutil.copytree(Path(world["cache"]) / "models", tmp_path / "models")
    for lock in list((tmp_path / "models").glob("*.lock")):
        lock.unlink()
    for folder in list((tmp_path / "models").iterdir()):
        folder.with_name(f"{folder.name}.lock").mkdir()
    done = run({"cache": str(tmp_path)}, "models", "rm", world["target"])
    assert done.returncode == 2 and b"Nothing can be removed in" in done.stderr


def test_ctrl_c_in_mid_stream(world: dict[str, str]) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "omnidraft", "generate", "--target", world["target"]),
            *("--drafter", world["drafter"], "--prompt", "The", "--max-new-tokens", "8000"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMNIDRAFT_CACHE": world["cache"]},
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert b"Traceback" not in process.stderr.read()
    ngrams = Path(world["cache"]) / "ngrams"
    assert not [path for path in ngrams.iterdir() if "tmp" in path.name]


def test_models_and_doctor(world: dict[str, str]) -> None:
    listed = json.loads(run(world, "models", "list", "--json").stdout)["models"]
    assert {"smollm2-135m", "gemma3-270m"} <= {model["name"] for model in listed}
    done = run(world, "models", "path", "gemma3-270m")
    assert done.returncode == 2 and b"models pull gemma3-270m" in done.stderr.replace(b"\n", b" ")
    done = run(world, "models", "pull", world["target"], "--quantization", "8bit")
    folder = Path(done.stdout.decode().strip())
    assert done.returncode == 0 and (folder / "omnidraft-model.json").is_file()
    # However small, it is not nothing.
    shown = run(world, "models", "list").stdout.decode()
    assert re.search(r"\b0\.\d\d MB +ready", shown) and " 0.00 MB" not in shown
    done = run(world, "doctor", "--json")
    findings = {finding["subject"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert findings["ONNX Runtime"]["state"] == "ok"
    assert run(world, "--help").returncode == 0


PROMPT_LINES = '{"task": "t", "prompt": "The quick"}\r\n\r\n{"prompt": "What? 😀"}\n'.encode()


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("command", ["bench", "adapt", "profile"])
def test_prompts_from_stdin_are_those_of_a_file(
    world: dict[str, str], tmp_path: Path, command: str, limit: int | None
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(PROMPT_LINES)
    arguments = ["--target", world["target"], "--drafter", world["drafter"], "--json"]
    arguments += ["--max-new-tokens", "4", *(["--limit", str(limit)] if limit else [])]
    found = []
    for number, source in enumerate((str(file), "-")):
        more = ["--adapter", f"{tmp_path.name}{number}"] if command == "adapt" else []
        done = run(
            world,
            *(command, source, *arguments, *more),
            stdin=PROMPT_LINES if source == "-" else b"",
            environment={"OMNIDRAFT_DATA": str(tmp_path / "data")},
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        held = {"bench": "overall", "profile": "settings"}.get(command)
        found.append((report[held] if held else report)["prompts"])
    assert found == [limit or 2] * 2


@pytest.mark.parametrize("command", ["bench", "adapt", "profile"])
@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        (b"", "stdin holds no prompts"),
        (b"{}", "stdin, line 1: it has neither"),
        (b'{"prompt": "x"}\nx', "stdin, line 2: it is not JSON"),
        (b"\xff", "stdin is not valid UTF-8"),
    ],
)
def test_prompts_from_stdin_that_are_none(
    world: dict[str, str], command: str, stdin: bytes, message: str
) -> None:
    more = ["--adapter", "a"] if command == "adapt" else []
    done = run(world, command, "-", "--target", world["target"], *more, stdin=stdin)
    assert done.returncode == 2 and done.stdout == b""
    assert message in done.stderr.decode() and b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        *(["bench", "-"], ["profile", "-"], ["generate", "-"], ["generate", "--messages", "-"]),
        ["chat"],
    ],
    ids=" ".join,
)
def test_closed_stdin_is_said(world: dict[str, str], arguments: list[str]) -> None:
    done = shell(world, f"omnidraft {' '.join(arguments)} --target {world['target']} <&-")
    assert done.returncode == 2 and done.stdout == b""
    assert b"stdin is closed" in done.stderr and b"Traceback" not in done.stderr


def test_stdin_is_read_once(world: dict[str, str]) -> None:
    arguments = ["adapt", "-", "--test", "-", "--adapter", "a", "--target", world["target"]]
    done = run(world, *arguments, stdin=PROMPT_LINES)
    assert done.returncode == 2 and b"stdin is read once" in done.stderr


def test_what_inspect_is_given_instead_of_a_bundle(world: dict[str, str], tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    pulled = run(world, "models", "pull", world["target"])
    converted = pulled.stdout.decode().strip()
    for given, what in {
        "default": "is the name of a model, no bundle. `omnidraft export default --output",
        "smollm2-135m": "is the name of a model, no bundle. `omnidraft export smollm2-135m",
        converted: "is a converted model, no bundle. `omnidraft doctor`",
        world["drafter"]: f"is a checkpoint, no bundle. `omnidraft export {world['drafter']} --",
        str(gguf): f"is a checkpoint, no bundle. `omnidraft export {gguf} --output FOLDER`",
        str(tmp_path): "has no omnidraft.json. Give a folder",
        str(tmp_path / "none"): "does not exist. Give a folder",
    }.items():
        done = run(world, "inspect", given)
        assert done.returncode == 2 and done.stdout == b""
        assert f"error: {given} " in done.stderr.decode() and what in done.stderr.decode()


def test_one_of_a_thing_is_named_so() -> None:
    assert [count(n, "token") for n in (0, 1, 2, 1234)] == [
        *("0 tokens", "1 token"),
        *("2 tokens", "1,234 tokens"),
    ]
    things = "update|prompt|answer|token|thread|core|step|layer|head|position|repeat|time|n-gram"
    bare = re.compile(rf"\{{[^{{}}:]*(?::,)?\}} (?:{things})s\b")
    code = Path(output.__file__).parent.glob("*.py")
    found = [
        line for path in code for line in path.read_text("utf-8").splitlines() if bare.search(line)
    ]
    # The size of a vocabulary, of which there is none of one token.
    assert [line.strip() for line in found if "vocab_size" not in line] == []
