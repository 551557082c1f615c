"""Time a target's and a drafter's passes on a phone: ``omnidraft profile --adb``.

A small program, ``omnidraft_run`` of ``kernels_native/runner/``, loads ONNX Runtime, the operators
and a model there and times passes as the engine here would make them. Nothing is drafted on the
phone: how many tokens a round brings is the same there as here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from omnidraft import __version__
from omnidraft.runtime.engines import engine_of
from omnidraft.runtime.engines.onnx import describe
from omnidraft.runtime.errors import OmniDraftError, OptionError
from omnidraft.runtime.models.catalogue import Quantization
from omnidraft.runtime.models.load import drafter_threads
from omnidraft.runtime.models.resolve import resolve
from omnidraft.runtime.profiling.adb import Adb, Phone
from omnidraft.runtime.profiling.summary import PassKind, PassSummary, summarize_passes

TARGET_TOKENS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Of the target's passes: what a round may score."""
DRAFTER_TOKENS = (1, 2, 4, 8)
"""Of the drafter's: a step, and catching up after a round."""
_KILLED = 128 + 9
_SLOWEST = 3600.0
"""Seconds that a model may take."""
_MACHINES = {183: "arm64-v8a", 62: "x86_64", 40: "armeabi-v7a", 3: "x86"}
"""Android's name of a processor, by that of ELF files."""
RUNTIME, OPERATORS, RUNNER = "libonnxruntime.so", "libomnidraft_ops.so", "omnidraft_run"
Progress = Callable[[str, float | None], None]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Device(_Part):
    """The phone, by its own words."""

    name: str
    android: str
    abi: str
    processor: str
    architecture: str
    kernel: str
    cores: int
    """Logical cores."""
    versions: dict[str, str]


class PhoneSettings(_Part):
    """How the profile was made."""

    context: int
    """Tokens that a pass follows."""
    repeats: int
    """Passes of each length."""
    target_threads: int
    drafter_threads: int
    quantization: str
    """As in ``report.Settings``."""


class ModelOnPhone(_Part):
    """One model, which had a process to itself. Milliseconds, and sizes in bytes."""

    load_ms: float
    prompt_ms: float
    """To read a text of ``context`` tokens."""
    passes: list[PassSummary]
    """Behind that text, by the number of tokens."""
    weights: int
    """On disk."""
    peak: int | None
    """Largest resident memory."""
    proportional: int | None
    """Memory at the end, where what it shares with other processes counts by its share (PSS)."""


class PhoneProfile(_Part):
    """What was measured on a phone. ``omnidraft profile --adb --json`` prints it with these keys,
    which are those of ``report.Profile`` where they mean the same."""

    schema_version: Literal[1] = 1
    created: datetime
    device: Device
    target: str
    drafter: str
    settings: PhoneSettings
    on_target: ModelOnPhone
    on_drafter: ModelOnPhone


class _Times(BaseModel):
    tokens: int
    each_ms: list[float]


class _Said(BaseModel):
    """What ``omnidraft_run`` prints, of which more may come."""

    format: Literal[1]
    processor: str
    architecture: str
    kernel: str
    versions: dict[str, str]
    load_ms: float
    prompt_ms: float
    passes: list[_Times]
    peak_bytes: int | None
    pss_bytes: int | None


@dataclass(frozen=True)
class PhoneRequest:
    """What to profile on a phone.

    Args:
        target, drafter: see ``models.resolve``.
        quantization: of a target that is converted here.
        libraries: see ``device_libraries``.
        serial: see ``Adb``.
        threads: threads for a pass of the target; None: half of the phone's cores, at most 4,
            which are the fast ones of most phones.
        context: tokens that a pass follows.
        repeats: passes of each length.
        keep: leave libraries and models on the phone, where the next run finds them.
    """

    target: str
    drafter: str
    quantization: Quantization
    libraries: Path | None
    serial: str | None = None
    threads: int | None = None
    context: int = 256
    repeats: int = 20
    keep: bool = False


def profile_on_phone(
    request: PhoneRequest, progress: Progress = lambda step, fraction: None
) -> PhoneProfile:
    """Push what is not there, time passes, and remove what was pushed.

    Raises:
        MissingDependencyError: adb is not installed.
        OmniDraftError: there is no phone or are several, a library is missing or of another
            processor, there is no room, a push breaks off, or a model does not run there.
        OptionError: the context does not hold so many tokens.
        ModelNotFoundError, DamagedFileError: see ``resolve`` and ``OnnxModel``.
    """
    libraries = device_libraries(request.libraries)
    adb = Adb(request.serial)
    phone = adb.describe()
    _check_abi(libraries, phone)
    longest = request.context + max(*TARGET_TOKENS, *DRAFTER_TOKENS)
    target = _model(
        request.target, resolve(request.target, request.quantization, progress=progress), longest
    )
    drafter = _model(request.drafter, resolve(request.drafter, progress=progress), longest)
    threads = request.threads or max(1, min(4, phone.cores // 2))
    target_threads = min(threads, target.max_threads or threads)
    folders: list[str] = []
    try:
        places = _push_all(adb, [libraries, target.files, drafter.files], folders, progress)
        said = {}
        for model, place, count, tokens, rows in (
            (target, places[1], target_threads, TARGET_TOKENS, "all"),
            (drafter, places[2], drafter_threads(threads), DRAFTER_TOKENS, "last"),
        ):
            progress(f"running {model.name} on {phone.name}", None)
            said[model] = _run(
                adb,
                places[0],
                f"{place}/{model.graph}",
                {
                    "threads": count,
                    "context": request.context,
                    "repeats": request.repeats,
                    "tokens": ",".join(map(str, tokens)),
                    "rows": rows,
                },
            )
    finally:
        if not request.keep:
            adb.remove(folders)
    first = said[target]
    return PhoneProfile(
        created=datetime.now(UTC),
        device=Device(
            name=phone.name,
            android=phone.android,
            abi=phone.abi,
            processor=first.processor,
            architecture=first.architecture,
            kernel=first.kernel,
            cores=phone.cores,
            versions={"omnidraft": __version__, **first.versions},
        ),
        target=request.target,
        drafter=request.drafter,
        settings=PhoneSettings(
            context=request.context,
            repeats=request.repeats,
            target_threads=target_threads,
            drafter_threads=drafter_threads(threads),
            quantization=request.quantization,
        ),
        on_target=_on_phone(said[target], target),
        on_drafter=_on_phone(said[drafter], drafter),
    )


def device_libraries(folder: Path | None) -> dict[str, Path]:
    """The three files that a phone needs beside the models, by their names there.

    Args:
        folder: where they are; None: nobody said.

    Raises:
        OmniDraftError: one is missing, or not for Android's processors; the message says where each
            comes from.
    """
    if folder is None:
        raise OmniDraftError(
            "--adb needs --device-libraries FOLDER, which holds what runs on the phone beside the "
            f"models. {_how()}"
        )
    files = {name: folder / name for name in (RUNTIME, OPERATORS, RUNNER)}
    missing = [name for name, path in files.items() if not path.is_file()]
    if missing:
        raise OmniDraftError(
            f"--device-libraries {folder} holds no {' and no '.join(missing)}. {_how()}"
        )
    return files


def _how(abi: str = "arm64-v8a") -> str:
    """Where the libraries come from."""
    return (
        f"{RUNTIME} is in jni/{abi}/ of the archive onnxruntime-android-VERSION.aar, a zip file, "
        f"from Maven's group com.microsoft.onnxruntime. {OPERATORS} and {RUNNER} are built by "
        f"`cmake --preset android-{abi} && cmake --build --preset android-{abi}`, with Android's "
        "NDK in ANDROID_NDK_HOME."
    )


def _abi_of(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(20)
    if head[:4] != b"\x7fELF" or len(head) < 20:
        raise OmniDraftError(f"{path} is no library or program of Android. {_how()}")
    return _MACHINES.get(int.from_bytes(head[18:20], "little"), "another processor")


def _check_abi(libraries: Mapping[str, Path], phone: Phone) -> None:
    for path in libraries.values():
        if (abi := _abi_of(path)) != phone.abi:
            raise OmniDraftError(
                f"{path} is for {abi}, and {phone.name} is {phone.abi}. {_how(phone.abi)}"
            )


@dataclass(frozen=True, eq=False)
class _Model:
    """A decoder that the phone can run, with its files."""

    name: str
    graph: str
    files: Mapping[str, Path]
    max_threads: int | None


def _model(name: str, folder: Path, longest: int) -> _Model:
    if engine_of(folder) != "onnx":
        raise OmniDraftError(
            f"{name} runs by {engine_of(folder)}, and --adb times what ONNX Runtime runs on the "
            "CPU: models that omnidraft converts, and drafters exported with --backend onnx."
        )
    description = describe(folder)
    if description.context_length < longest:
        raise OptionError(
            f"context: {name} holds {description.context_length} tokens, and passes of up to "
            f"{max(TARGET_TOKENS)} behind so long a text need {longest}"
        )
    graph = folder / description.graph
    # Beside the graph lie its weights, by whose name it asks for them.
    files = {path.name: path for path in folder.iterdir() if path.name.startswith(graph.name)}
    return _Model(name, graph.name, files, description.max_threads)


def _push_all(
    adb: Adb, parcels: list[Mapping[str, Path]], folders: list[str], progress: Progress
) -> list[str]:
    """Push files that lie together, of each parcel; ``folders`` grows as they come to be."""
    progress("comparing with what is on the phone", None)
    plans = [(files, *adb.missing(files)) for files in parcels]
    size = sum(files[name].stat().st_size for files, _, missing in plans for name in missing)
    adb.check_space(size)
    pushed = 0
    for files, folder, missing in plans:
        folders.append(folder)
        for name, digest in missing.items():
            progress(f"pushing {name}", pushed / size)
            adb.push(files[name], folder, name, digest)
            pushed += files[name].stat().st_size
    return [folder for _, folder, _ in plans]


def _run(adb: Adb, libraries: str, graph: str, options: Mapping[str, Any]) -> _Said:
    words = [
        f"{libraries}/{RUNNER}",
        *("--onnxruntime", f"{libraries}/{RUNTIME}"),
        *("--operators", f"{libraries}/{OPERATORS}"),
        *("--graph", graph),
        *(word for name, value in options.items() for word in (f"--{name}", str(value))),
    ]
    status, out, complaint = adb.run(words, _SLOWEST)
    if status:
        lines = [line for line in (complaint or out).splitlines() if line.strip()]
        said = lines[-1].strip() if lines else "it said nothing"
        if status == _KILLED:
            said += ". The phone ends a program that takes too much of its memory"
        raise OmniDraftError(
            f"{RUNNER} failed on {adb.serial} with status {status}: {said}. By hand: adb -s "
            f"{adb.serial} shell {shlex.quote(shlex.join(words))}, after --keep-on-device"
        )
    try:
        return _Said.model_validate_json(out)
    except ValidationError as error:
        raise OmniDraftError(
            f"{RUNNER} on {adb.serial} says what this version does not understand: {out[:200]!r}. "
            f"Build it anew, of the same version. {_how()}"
        ) from error


def _on_phone(said: _Said, model: _Model) -> ModelOnPhone:
    kind: PassKind = "chain"
    times = [(kind, each.tokens, ms / 1e3) for each in said.passes for ms in each.each_ms]
    return ModelOnPhone(
        load_ms=said.load_ms,
        prompt_ms=said.prompt_ms,
        passes=summarize_passes(times),
        weights=sum(path.stat().st_size for path in model.files.values()),
        peak=said.peak_bytes,
        proportional=said.pss_bytes,
    )
