"""Passes that are timed on a phone: a folder of this machine, by a stand-in for adb."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import onnxruntime as ort
import pytest
from native_build import built
from tiny import write_drafter, write_target

from omnidraft.export.pipeline import export
from omnidraft.export.recipes import Options
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models.resolve import resolve
from omnidraft.runtime.profiling.on_phone import (
    DRAFTER_TOKENS,
    OPERATORS,
    RUNNER,
    RUNTIME,
    TARGET_TOKENS,
    PhoneProfile,
    PhoneRequest,
    profile_on_phone,
)

ROOT = Path(__file__).parents[1]
ABIS = {"x86_64": "x86_64", "aarch64": "arm64-v8a"}
BASE = "data/omnidraft"
EMULATOR = "qemu-aarch64"
SYSROOT = Path("/usr/aarch64-linux-gnu")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A converted target, and a drafter's bundle for any program."""
    root = tmp_path_factory.mktemp("models")
    target = resolve(str(write_target(root / "target", context=200)), "8bit")
    export(str(write_drafter(root / "drafter")), root / "bundle", options=Options("int8"))
    return target, root / "bundle"


def gather(folder: Path, runtime: Path, build: Path) -> Path:
    folder.mkdir()
    for name, source in {
        RUNTIME: runtime,
        OPERATORS: build / OPERATORS,
        RUNNER: build / RUNNER,
    }.items():
        (folder / name).symlink_to(source)
    return folder


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a phone with this machine's processor needs."""
    if sys.platform != "linux" or platform.machine() not in ABIS:
        pytest.skip("64-bit Linux has libraries as Android's are")
    own = sorted((Path(ort.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    if not own:
        pytest.skip("64-bit Linux: the installed ONNX Runtime has no library of its own")
    build = built("release", "omnidraft_ops", "omnidraft_run")
    return gather(tmp_path_factory.mktemp("x") / "libraries", own[0], build)


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the phone, whose adb is the first."""
    tools = tmp_path / "tools"
    tools.mkdir()
    adb = tools / "adb"
    adb.write_text(f"#!{sys.executable}\n{(ROOT / 'tests/fake_adb.py').read_text('utf-8')}")
    adb.chmod(0o755)
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_ADB_ROOT", str(folder))
    monkeypatch.setenv("FAKE_ADB_ABI", ABIS.get(platform.machine(), "arm64-v8a"))
    monkeypatch.delenv("ANDROID_SERIAL", raising=False)
    return folder


def request(models: tuple[Path, Path], libraries: Path, **options: object) -> PhoneRequest:
    target, drafter = map(str, models)
    values = {"quantization": "8bit", "context": 100, "repeats": 3, **options}
    return PhoneRequest(target, drafter, libraries=libraries, **values)  # type: ignore[arg-type]


def pushed(phone: Path) -> list[str]:
    """Names of the files that were pushed, in order."""
    lines = Path(f"{phone}.log").read_text().splitlines()
    return [Path(line.split()[4]).stem for line in lines if line.split()[2:3] == ["push"]]


def check(profile: PhoneProfile, abi: str) -> None:
    assert (profile.device.name, profile.device.android) == ("Acme Phone 3", "15")
    assert profile.device.abi == abi and profile.device.cores == 8
    assert profile.settings.target_threads == 4 and profile.settings.drafter_threads == 2
    for model, tokens in (
        (profile.on_target, TARGET_TOKENS),
        (profile.on_drafter, DRAFTER_TOKENS),
    ):
        assert [each.tokens for each in model.passes] == list(tokens)
        assert {(each.kind, each.count) for each in model.passes} == {("chain", 3)}
        assert all(0 < each.min_ms <= each.p50_ms <= each.p95_ms for each in model.passes)
        assert model.load_ms > 0 and model.prompt_ms > 0
        assert model.peak is not None and model.peak > model.weights > 0
    assert PhoneProfile.model_validate_json(profile.model_dump_json()) == profile


def test_passes_are_timed_and_nothing_is_left(
    models: tuple[Path, Path], libraries: Path, phone: Path
) -> None:
    profile = profile_on_phone(request(models, libraries))
    check(profile, ABIS[platform.machine()])
    assert profile.device.versions["onnxruntime"] == ort.__version__
    assert profile.device.architecture == platform.machine()
    assert sorted(pushed(phone)) == sorted(
        [RUNTIME, OPERATORS, RUNNER, *["model.onnx", "model.onnx.data"] * 2]
    )
    assert list(phone.iterdir()) == []


def test_what_is_on_the_phone_is_not_pushed_again(
    models: tuple[Path, Path], libraries: Path, phone: Path
) -> None:
    kept = request(models, libraries, keep=True, threads=1)
    assert profile_on_phone(kept).settings.target_threads == 1
    assert len(pushed(phone)) == 7
    profile_on_phone(kept)
    assert len(pushed(phone)) == 7
    # A file that changed there is pushed again.
    (runner,) = phone.glob(f"omnidraft/*/{RUNNER}")
    runner.write_bytes(runner.read_bytes()[:-1])
    profile_on_phone(kept)
    assert pushed(phone)[7:] == [RUNNER]
    profile_on_phone(request(models, libraries))
    assert len(pushed(phone)) == 8 and list(phone.iterdir()) == []


@pytest.mark.parametrize(
    ("devices", "serial", "message"),
    [
        ("", None, "No phone is attached.* USB debugging"),
        ("PHONE1\tdevice\nPHONE2\tdevice", None, "Several phones .*PHONE1, PHONE2.*--serial"),
        ("PHONE1\tdevice\nPHONE2\tdevice", "PHONE3", "No phone PHONE3 .* PHONE1, PHONE2"),
        ("PHONE1\tunauthorized", None, "PHONE1 does not allow this computer"),
        ("PHONE1\toffline", None, "PHONE1 is attached, but offline"),
        ("PHONE1\tno permissions (user in plugdev group)", "PHONE1", "but no permissions"),
    ],
)
def test_phones_that_cannot_be_used(
    models: tuple[Path, Path],
    libraries: Path,
    phone: Path,
    monkeypatch: pytest.MonkeyPatch,
    devices: str,
    serial: str | None,
    message: str,
) -> None:
    monkeypatch.setenv("FAKE_ADB_DEVICES", devices)
    with pytest.raises(OmniDraftError, match=message):
        profile_on_phone(request(models, libraries, serial=serial))


def test_one_of_several_phones(
    models: tuple[Path, Path], libraries: Path, phone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ADB_DEVICES", "PHONE0\tdevice\nPHONE1\tdevice")
    monkeypatch.setenv("ANDROID_SERIAL", "PHONE1")
    check(profile_on_phone(request(models, libraries)), ABIS[platform.machine()])


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("cable", r"Pushing libonnxruntime.so to PHONE1 broke off: .*device offline"),
        ("full", "PHONE1 has no space left for libonnxruntime.so"),
        ("room", r"PHONE1 has 0 MB of room in /data/local/tmp, and \d+ MB are to be pushed"),
        ("damage", "libonnxruntime.so arrived on PHONE1 damaged"),
        ("crash", "omnidraft_run failed on PHONE1 with status 139"),
        ("nonsense", "omnidraft_run on PHONE1 says what this version does not understand"),
    ],
)
def test_what_goes_wrong_is_said_and_nothing_is_left(
    models: tuple[Path, Path],
    libraries: Path,
    phone: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: str,
    message: str,
) -> None:
    monkeypatch.setenv("FAKE_ADB_FAIL", failure)
    with pytest.raises(OmniDraftError, match=message):
        profile_on_phone(request(models, libraries))
    assert list(phone.iterdir()) == []


def test_what_the_runner_complains_of_is_told(
    models: tuple[Path, Path], libraries: Path, phone: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(libraries, broken)
    (broken / RUNTIME).unlink()
    shutil.copy(broken / OPERATORS, broken / RUNTIME)
    with pytest.raises(OmniDraftError, match=r"status 1: .*libonnxruntime.so is not ONNX Runtime"):
        profile_on_phone(request(models, broken))
    assert list(phone.iterdir()) == []


def test_libraries_of_another_processor(
    models: tuple[Path, Path], libraries: Path, phone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ADB_ABI", "armeabi-v7a")
    message = r"libonnxruntime.so is for \S+, and Acme Phone 3 is armeabi-v7a.*jni/armeabi-v7a/"
    with pytest.raises(OmniDraftError, match=message):
        profile_on_phone(request(models, libraries))


def test_a_folder_without_the_libraries(
    models: tuple[Path, Path], phone: Path, tmp_path: Path
) -> None:
    (tmp_path / RUNTIME).write_bytes(b"")
    message = "holds no libomnidraft_ops.so and no omnidraft_run.*cmake --preset android-arm64-v8a"
    with pytest.raises(OmniDraftError, match=message):
        profile_on_phone(request(models, tmp_path))
    for name in (OPERATORS, RUNNER):
        (tmp_path / name).write_bytes(b"#!/bin/sh\n")
    with pytest.raises(OmniDraftError, match=f"{RUNTIME} is no library or program of Android"):
        profile_on_phone(request(models, tmp_path))


def test_a_context_that_the_models_do_not_hold(
    models: tuple[Path, Path], libraries: Path, phone: Path
) -> None:
    with pytest.raises(OmniDraftError, match=r"context: .* holds 200 tokens.* need 206"):
        profile_on_phone(request(models, libraries, context=190))


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "omnidraft", "profile", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "COLUMNS": "100"},
    )


def test_the_command(models: tuple[Path, Path], libraries: Path, phone: Path) -> None:
    target, drafter = models
    options = ["--target", target, "--drafter", drafter, "--adb", "--device-context", "64"]
    options += ["--device-libraries", libraries, "--repeat", "1", "--quantization", "8bit"]
    done = run(*options)
    assert done.returncode == 0, done.stderr
    # The sentence begins with the models' paths, and is wrapped behind them.
    words = " ".join(done.stdout.split())
    assert "on Acme Phone 3: 10 passes of each length behind 64 tokens" in words
    assert f"Android 15, {platform.system()}" in done.stdout
    for line in (r"tokens +draft steps +target chains", r"16 +\d+\.\d\d \(10\)", r"peak +\d+\.\d"):
        assert re.search(line, done.stdout), done.stdout
    done = run(*options, "--json")
    assert done.stderr == "" and done.stdout.count("\n") == 1
    values = json.loads(done.stdout)
    assert PhoneProfile.model_validate(values).model_dump(mode="json") == values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--adb"], "--device-libraries FOLDER, which holds what runs on the phone"),
        (["--adb", "--html", "x.html"], "--adb times passes and answers no prompts"),
        (["--adb", "--device-libraries", "none"], "holds no libonnxruntime.so and no"),
        (["--serial", "X"], "belong to --adb"),
    ],
)
def test_mistakes_end_with_exit_code_2(arguments: list[str], message: str) -> None:
    done = run("--target", "smollm2-135m", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert message in re.sub(r"\s+", " ", done.stderr)
    assert "Traceback" not in done.stderr


def test_without_adb(
    models: tuple[Path, Path],
    libraries: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ANDROID_HOME", "ANDROID_SDK_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OmniDraftError, match="adb is not installed"):
        profile_on_phone(request(models, libraries))


@pytest.fixture(scope="module")
def arm_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the emulator shows in place of this machine's files.

    ONNX Runtime reads /proc/cpuinfo, and breaks down where it finds an x86 processor's lines.
    """
    root = tmp_path_factory.mktemp("root")
    (root / "lib").symlink_to(SYSROOT / "lib")
    (root / "proc").mkdir()
    lines = ("Features\t: fp asimd", "CPU implementer\t: 0x41", "CPU architecture: 8")
    lines += ("CPU variant\t: 0x0", "CPU part\t: 0xd03", "CPU revision\t: 4", "")
    cores = os.cpu_count() or 1
    text = "\n".join("\n".join((f"processor\t: {core}", *lines)) for core in range(cores))
    (root / "proc/cpuinfo").write_text(text)
    return root


@pytest.fixture(scope="module")
def arm_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a phone needs, for Linux on 64-bit Arm."""
    for tool in (EMULATOR, "aarch64-linux-gnu-g++"):
        if shutil.which(tool) is None:
            pytest.skip(f"64-bit Arm: {tool} is not installed (g++-aarch64-linux-gnu, qemu-user)")
    if not Path("/usr/src/googletest").is_dir():
        pytest.skip("64-bit Arm: the preset builds /usr/src/googletest, which is not there")
    wheels = sorted((ROOT / "build").glob("onnxruntime-*_aarch64.whl"))
    if not wheels:
        pytest.skip(
            "64-bit Arm: there is no build/onnxruntime-*_aarch64.whl; pip download --no-deps "
            "--only-binary=:all: --platform manylinux_2_28_aarch64 -d build onnxruntime brings it"
        )
    folder = tmp_path_factory.mktemp("arm")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        (name,) = (n for n in wheel.namelist() if re.search(r"/libonnxruntime\.so\.[\d.]+$", n))
        runtime = Path(wheel.extract(name, folder))
    build = built("aarch64", "omnidraft_ops", "omnidraft_run")
    return gather(folder / "libraries", runtime, build)


@pytest.mark.parametrize("processor", ["max", "cortex-a53"])
def test_a_phone_with_an_arm_processor(
    models: tuple[Path, Path],
    arm_libraries: Path,
    arm_root: Path,
    phone: Path,
    monkeypatch: pytest.MonkeyPatch,
    processor: str,
) -> None:
    monkeypatch.setenv("FAKE_ADB_ABI", "arm64-v8a")
    monkeypatch.setenv("FAKE_ADB_EMULATOR", f"{EMULATOR} -cpu {processor} -L {arm_root}")
    profile = profile_on_phone(request(models, arm_libraries))
    check(profile, "arm64-v8a")
    assert profile.device.architecture == "aarch64"
    assert list(phone.iterdir()) == []
