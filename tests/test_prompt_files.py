"""A prompt that does not fit is left out and named; the rest is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import write_drafter, write_target

from omnidraft import GenerationOptions, Session
from omnidraft.runtime.bench import Prompt, compare, fitting
from omnidraft.runtime.errors import ContextOverflowError
from omnidraft.runtime.models import load_model
from omnidraft.runtime.profiling.profiler import Request, profile

LONG = Prompt("t", "1 2 3 4 5 6 7 8 9 " * 20)
SHORT = [Prompt("t", text) for text in ("What?", "The answer", "fox")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return write_target(root / "target", context=96), write_drafter(root / "drafter")


@pytest.mark.parametrize("place", range(4))
def test_it_is_left_out_wherever_it_stands(folders: tuple[Path, Path], place: int) -> None:
    target, drafter = (load_model(str(folder), threads=1) for folder in folders)
    session = Session(target, drafter)
    prompts = [*SHORT[:place], LONG, *SHORT[place:]]
    with pytest.warns(UserWarning, match=rf"prompt {place + 1} is left out: the prompt has \d+"):
        kept = fitting(session, prompts, raw=True)
    assert kept == SHORT
    report = compare(session, kept, GenerationOptions(4, draft_length=2, raw=True))
    assert (report.overall.prompts, report.overall.identical) == (3, 3)


def test_none_fits(folders: tuple[Path, Path]) -> None:
    session = Session(load_model(str(folders[0]), threads=1))
    with pytest.warns(UserWarning), pytest.raises(ContextOverflowError, match="no prompt is left"):
        fitting(session, [LONG, LONG], raw=True)


def test_the_profiler_leaves_it_out(folders: tuple[Path, Path]) -> None:
    request = Request(
        *map(str, folders), "8bit", prompts=[SHORT[0], LONG, SHORT[1]], repeats=1, max_new_tokens=4
    )
    with pytest.warns(UserWarning, match="prompt 2 is left out"):
        found = profile(request)
    assert found.settings.prompts == 2


@pytest.mark.parametrize("command", ["bench", "adapt"])
def test_the_commands_leave_it_out(
    folders: tuple[Path, Path],
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from omnidraft.cli.app import main

    file = tmp_path / "prompts.jsonl"
    lines = [{"task": "t", "prompt": each.prompt} for each in (SHORT[0], LONG, SHORT[1])]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setenv("OMNIDRAFT_DATA", str(tmp_path / "data"))
    arguments = [command, str(file), "--raw", "--json", "--max-new-tokens", "4"]
    arguments += ["--target", str(folders[0]), "--drafter", str(folders[1]), "--threads", "1"]
    arguments += ["--adapter", "a"] if command == "adapt" else []
    monkeypatch.setattr("sys.argv", ["omnidraft", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert ended.value.code in (0, None), err
    report = json.loads(out)
    assert (report["overall"]["prompts"] if command == "bench" else report["prompts"]) == 2
    assert "prompt 2 is left out" in err
