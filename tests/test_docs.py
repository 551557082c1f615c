"""The documentation's programs run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from needs import needs
from tiny import write_drafter, write_target

import omnidraft

PAGE = Path(__file__).parent.parent / "docs/python.md"


def programs() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return write_target(root / "target", context=600), write_drafter(root / "drafter", context=600)


def run(*arguments: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "OMNIDRAFT_DATA": str(cwd), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_program(number: int, models: tuple[Path, Path], cwd: Path) -> str:
    """What a program says that loads by a name, here with tiny models."""
    text = programs()[number]
    opened = 'omnidraft.load("smollm2-135m")'
    assert opened in text
    target, drafter = (str(path) for path in models)
    (cwd / "program.py").write_text(
        text.replace(opened, f"omnidraft.load({target!r}, {drafter!r})")
    )
    return run("program.py", cwd=cwd)


def test_the_first_program(tmp_path: Path, models: tuple[Path, Path]) -> None:
    assert re.search(r"^(stop|length) \d+ \d", run_program(0, models, tmp_path), re.M)


def test_the_conversation(tmp_path: Path, models: tuple[Path, Path]) -> None:
    said = run_program(1, models, tmp_path)
    first, second = re.findall(r"^(\d+) of (\d+) tokens were kept$", said, re.M)
    assert first[0] == "0" and int(second[0]) > int(first[1]) - 3


def test_the_program_that_embeds_it(tmp_path: Path, models: tuple[Path, Path]) -> None:
    (tmp_path / "embed.py").write_text(programs()[-1], "utf-8")
    said = run("embed.py", *models, cwd=tmp_path)
    assert re.search(r"^(stop|length) after \d+ tokens$", said, re.M)
    assert re.search(r"^\d+ tokens were drafted$", said, re.M)
    assert len(re.findall(r"^(?:length|stop): ['\"]", said, re.M)) == 3
    assert said.splitlines()[-1] in ("cancelled", "stop", "length")
    assert (tmp_path / "adapters/work.adapter").stat().st_size, "what was learned was kept"


def test_its_types_are_known(tmp_path: Path) -> None:
    """Of the package as it is installed here: from a wheel, or as this checkout."""
    needs("mypy")
    (tmp_path / "embed.py").write_text(programs()[-1], "utf-8")
    (tmp_path / "wrong.py").write_text(
        "import omnidraft\n\nomnidraft.load(3).generate('x', seed='1')\n"
    )
    run("-m", "mypy", "--strict", "embed.py", cwd=tmp_path)
    with pytest.raises(
        AssertionError, match=r"(?s)arg-type.*\[typeddict-item\]|arg-type.*arg-type"
    ):
        run("-m", "mypy", "--strict", "wrong.py", cwd=tmp_path)


def test_what_an_answer_has_is_described() -> None:
    text = PAGE.read_text("utf-8")
    kinds = (omnidraft.Answer, omnidraft.TokenLogprobs)
    names = [name for kind in kinds for name in kind.__annotations__]
    assert [name for name in names if f"`{name}`" not in text] == []
