"""An Android phone by ``adb``: which one, its shell, and files that are there once and whole."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from omnidraft.runtime.errors import MissingDependencyError, OmniDraftError
from omnidraft.runtime.storage.manifest import file_sha256

# Where adb's user may write, and run programs.
_BASE = "/data/local/tmp/omnidraft"
_SHORT = 60.0
"""Seconds for commands that take none; a phone that has gone answers none of them."""


@dataclass(frozen=True)
class Phone:
    """What a phone says of itself."""

    name: str
    android: str
    """Version of Android."""
    abi: str
    """Its first choice of programs, such as arm64-v8a."""
    cores: int


class Adb:
    """A phone that is attached and lets itself be used.

    Args:
        serial: of the phone; None: the one in ``ANDROID_SERIAL``, or the only one.

    Raises:
        MissingDependencyError: adb is not installed.
        OmniDraftError: there is no such phone, there are several, or it refuses.
    """

    def __init__(self, serial: str | None = None) -> None:
        self._adb = _program()
        self.serial = _choose(self._run(["devices"]), serial or os.environ.get("ANDROID_SERIAL"))

    def describe(self) -> Phone:
        """Ask the phone what it is."""
        keys = (
            *("ro.product.manufacturer", "ro.product.model", "ro.build.version.release"),
            "ro.product.cpu.abi",
        )
        said = self.shell("; ".join([*(f"getprop {key}" for key in keys), "nproc"])).split("\n")
        if len(said) < 5 or not said[4].strip().isdigit():
            raise OmniDraftError(
                f"{self.serial} does not say what it is, as an Android phone does: {said[:5]}"
            )
        maker, model, android, abi, cores = (line.strip() for line in said[:5])
        name = model if model.lower().startswith(maker.lower()) else f"{maker} {model}"
        return Phone(name, android, abi, int(cores))

    def shell(self, command: str, timeout: float = _SHORT) -> str:
        """Run a command of the phone's shell; return what it printed.

        Raises:
            OmniDraftError: it failed, with what it said; or the phone does not answer.
        """
        return self._run(["-s", self.serial, "shell", command], timeout)

    def run(self, words: Sequence[str], timeout: float) -> tuple[int, str, str]:
        """Run a program on the phone.

        Args:
            timeout: seconds.

        Returns:
            Its exit status, its output and what it complained of.
        """
        done = self._start(["-s", self.serial, "shell", shlex.join(words)], timeout)
        return done.returncode, done.stdout, done.stderr

    def missing(self, files: Mapping[str, Path]) -> tuple[str, dict[str, str]]:
        """Which of some files, that lie together in a folder, are not yet on the phone.

        Args:
            files: where each is here, by its name there.

        Returns:
            Their folder on the phone, named by what it holds; and the sha256 of each file that is
            not there, by its name.
        """
        hashes = {name: file_sha256(path) for name, path in files.items()}
        digest = sha256(repr(sorted(hashes.items())).encode()).hexdigest()
        folder = f"{_BASE}/{digest[:16]}"
        names = shlex.join(hashes)
        listed = self.shell(f"cd {folder} 2>/dev/null && sha256sum {names} 2>/dev/null; true")
        there = {
            name: found for found, name in (line.split(None, 1) for line in listed.splitlines())
        }
        return folder, {name: each for name, each in hashes.items() if there.get(name) != each}

    def check_space(self, size: int) -> None:
        """Refuse to fill the phone.

        Args:
            size: bytes that are about to be pushed.

        Raises:
            OmniDraftError: there is less room.
        """
        words = self.shell(f"df -k {Path(_BASE).parent}").split()
        with suppress(ValueError, IndexError):
            room = int(words[-3]) * 1024  # of its last line: available, share, where
            if room < size:
                raise OmniDraftError(
                    f"{self.serial} has {room / 1e6:.0f} MB of room in {Path(_BASE).parent}, and "
                    f"{size / 1e6:.0f} MB are to be pushed. Make room on the phone, or choose a "
                    "smaller model or --quantization."
                )

    def push(self, path: Path, folder: str, name: str, digest: str) -> None:
        """Copy a file to the phone, whole or not at all.

        Args:
            digest: its sha256.

        Raises:
            OmniDraftError: it did not arrive; nothing of it is left.
        """
        target, part = f"{folder}/{name}", f"{folder}/{name}.part"
        self.shell(f"mkdir -p {shlex.quote(folder)}")
        try:
            done = self._start(["-s", self.serial, "push", str(path), part], None)
            if done.returncode:
                said = (done.stderr + done.stdout).strip()
                if "No space left" in said:
                    raise OmniDraftError(
                        f"{self.serial} has no space left for {name}. Make room on the phone, or "
                        "choose a smaller model or --quantization."
                    )
                raise OmniDraftError(
                    f"Pushing {name} to {self.serial} broke off: {_last(said)}. Check the cable, "
                    "and run the command again."
                )
            arrived = self.shell(f"sha256sum {shlex.quote(part)}", timeout=10 * _SHORT)
            if arrived.split()[:1] != [digest]:
                raise OmniDraftError(
                    f"{name} arrived on {self.serial} damaged. Check the cable, and run the "
                    "command again."
                )
            self.shell(
                f"chmod 755 {shlex.quote(part)} && mv {shlex.quote(part)} {shlex.quote(target)}"
            )
        except BaseException:
            with suppress(OmniDraftError):  # of a phone that has gone
                self.shell(f"rm -f {shlex.quote(part)}")
            raise

    def remove(self, folders: Sequence[str]) -> None:
        """Remove folders from the phone, which may have gone."""
        if folders:
            with suppress(OmniDraftError):
                self.shell(f"rm -rf {shlex.join(folders)}; rmdir {_BASE} 2>/dev/null; true")

    def _run(self, words: Sequence[str], timeout: float = _SHORT) -> str:
        done = self._start(words, timeout)
        if done.returncode:
            said = _last(done.stderr or done.stdout) or f"exit status {done.returncode}"
            raise OmniDraftError(f"adb {words[-1]:.200}: {said}")
        return done.stdout

    def _start(
        self, words: Sequence[str], timeout: float | None
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [self._adb, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as error:
            raise OmniDraftError(
                f"The phone did not answer within {timeout:.0f} seconds. Unlock it, check the "
                "cable, and run the command again."
            ) from error
        except OSError as error:
            raise OmniDraftError(f"{self._adb} cannot be run: {error}") from error


def _program() -> str:
    homes = [os.environ.get(name) for name in ("ANDROID_HOME", "ANDROID_SDK_ROOT")]
    tools = [str(Path(home) / "platform-tools") for home in homes if home]
    found = shutil.which("adb") or shutil.which("adb", path=os.pathsep.join(tools))
    if found is None:
        raise MissingDependencyError(
            "adb is not installed, which reaches phones: it is in Android's platform tools "
            "(Debian: apt-get install adb)."
        )
    return found


def _choose(listed: str, serial: str | None) -> str:
    """The phone to use, of what ``adb devices`` prints."""
    states = dict(
        line.split("\t", 1) for line in listed.splitlines() if "\t" in line and line[0] != "*"
    )
    if not states:
        raise OmniDraftError(
            "No phone is attached. Connect one by USB, switch on USB debugging in its developer "
            "options, and allow this computer there; `adb devices` lists it then."
        )
    if serial is None and len(states) > 1:
        raise OmniDraftError(
            f"Several phones are attached: {', '.join(states)}. Choose one: --serial SERIAL"
        )
    chosen = serial or next(iter(states))
    if chosen not in states:
        raise OmniDraftError(
            f"No phone {chosen} is attached, but {', '.join(states)}: --serial SERIAL"
        )
    state = states[chosen].strip()
    if state == "unauthorized":
        raise OmniDraftError(
            f"{chosen} does not allow this computer yet: unlock the phone and accept its question."
        )
    if state != "device":
        raise OmniDraftError(
            f"{chosen} is attached, but {state}. Connect it anew, or run adb kill-server."
        )
    return chosen


def _last(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
