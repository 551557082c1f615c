"""Adapters by name in a folder.

    store = AdapterStore(adapters_folder())
    store.save("math", Adapter(Metadata(drafter=drafter, target=target), lora, ngrams))
    adapter = store.load("math", drafter, target)

A save is written beside the old file and flushed (fsync); then it is renamed over the old file, and
the folder is flushed. Whenever the process is killed, the store opens with the old adapter or the
new one, whole. Once ``save`` has returned, the new one outlives a loss of power, as far as the disk
honours fsync. Processes take turns at changing a store by a lock; readers need none. Of two
processes that save under one name, the later wins.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import platformdirs
from filelock import FileLock, Timeout

from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.learning.adapter import Adapter, Metadata, ModelKey
from omnidraft.runtime.learning.adapter_file import (
    MEND,
    missing,
    read_adapter,
    read_metadata,
    to_bytes,
)
from omnidraft.runtime.storage.files import expanded, whole_file
from omnidraft.runtime.storage.folders import is_disk_full
from omnidraft.runtime.storage.lora import write_adapter

SUFFIX = ".adapter"
DEFAULT_MAX_BYTES = 500_000_000

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_LOCK_FILE = ".lock"
_LOCK_TIMEOUT = 60.0

Names = list[str]
ExportFormat = Literal["omnidraft", "onnx-adapter"]


def adapters_folder() -> Path:
    """Where adapters are kept: ``adapters`` in ``$OMNIDRAFT_DATA`` or in the user's data folder.

    Not in the cache folder: what was learned cannot be fetched again.
    """
    chosen = os.environ.get("OMNIDRAFT_DATA")
    data = expanded(chosen) if chosen else platformdirs.user_data_path("omnidraft")
    return data / "adapters"


@dataclass(frozen=True)
class StoredAdapter:
    """An entry of ``AdapterStore.list``.

    ``metadata`` is None where the file cannot be used; ``problem`` says why. ``used`` is when it
    was last saved or loaded, ``size`` its bytes on disk.
    """

    name: str
    path: Path
    size: int
    used: datetime
    metadata: Metadata | None
    problem: str = ""


class AdapterStore:
    """Adapters by name in one folder.

    After every save the files take at most ``max_bytes``: the least recently saved or loaded
    adapters are removed, never the one being saved.

    Args:
        folder: made at the first save. What a killed save left in it is removed now.
        max_bytes: bound on the sum of the files' sizes.
    """

    def __init__(self, folder: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._lock_file = FileLock(folder / _LOCK_FILE)
        self._remove_leftovers()

    def save(self, name: str, adapter: Adapter) -> Names:
        """Keep an adapter, replacing one of the same name, drafter and target.

        Returns:
            The names of the adapters that were removed to stay within ``max_bytes``.

        Raises:
            OmniDraftError: the name cannot be used or is taken by another drafter's or target's
                adapter, the adapter does not hold together, it is larger than the store may be, or
                it cannot be written. What was stored stays as it was.
        """
        path = self._path(name)
        metadata = adapter.metadata.model_copy(update={"updated": datetime.now(UTC)})
        content = to_bytes(adapter, metadata)
        with self._changing():
            # A damaged file has no owner left to protect; a newer version's has, and raises.
            with suppress(ModelNotFoundError, DamagedFileError):
                _check_owner(name, read_metadata(path), metadata.drafter, metadata.target)
            return self._write(path, content)

    def load(
        self, name: str, drafter: ModelKey, target: ModelKey, *, optimizer: bool = True
    ) -> Adapter:
        """Read an adapter, and note that it was used.

        Args:
            name: as it was saved.
            drafter, target: the models that are to use it.
            optimizer: read the optimizer's state too. Without, loading is faster, and saving what
                was loaded would lose it.

        Raises:
            ModelNotFoundError: there is none of that name.
            DamagedFileError: it fails a checksum or cannot be read.
            OmniDraftError: it is another drafter's or target's, or a newer version's.
        """
        path = self._path(name)
        adapter = read_adapter(path, optimizer=optimizer)
        _check_owner(name, adapter.metadata, drafter, target)
        # A store that cannot be written can still be read.
        with suppress(OSError):
            _touch(path)
        return adapter

    def read(self, name: str) -> Adapter:
        """Read an adapter to look at it, whoever it belongs to.

        Raises:
            See ``load``.
        """
        return read_adapter(self._path(name))

    def list(self) -> list[StoredAdapter]:
        """What is stored, the most recently used first; tensors are not read."""
        entries = []
        for path, status in self._files():
            metadata, problem = None, ""
            try:
                metadata = read_metadata(path)
            except ModelNotFoundError:
                continue  # another process has removed it
            except OmniDraftError as error:
                problem = str(error)
            used = datetime.fromtimestamp(status.st_mtime, UTC)
            name = path.name.removesuffix(SUFFIX)
            entries.append(StoredAdapter(name, path, status.st_size, used, metadata, problem))
        return entries[::-1]

    def check(self, name: str) -> None:
        """Raise ModelNotFoundError where there is none of that name."""
        if not self._path(name).is_file():
            raise missing(self._path(name))

    def check_writable(self, name: str) -> None:
        """Raise OmniDraftError where ``save`` could not write: before much is learned."""
        path = self._path(name)
        if path.exists() and not path.is_file():
            raise OmniDraftError(f"{path} is no file. Choose another name, or remove it.")
        with self._changing():
            pass

    def delete(self, name: str) -> None:
        """Remove an adapter, a damaged one too.

        Raises:
            ModelNotFoundError: there is none of that name.
            OmniDraftError: it cannot be removed.
        """
        self.check(name)
        with self._changing():
            self._path(name).unlink(missing_ok=True)
            _flush_folder(self.folder)

    def export(self, name: str, path: Path, format: ExportFormat = "omnidraft") -> None:
        """Write an adapter to one file, replacing one that is there.

        Args:
            name: as it was saved.
            path: the file to write.
            format: ``omnidraft`` holds everything and can be imported again; ``onnx-adapter`` the
                LoRA alone, as ONNX Runtime's ``.onnx_adapter``.

        Raises:
            OmniDraftError: see ``load``; or there is no LoRA, or the file cannot be written.
        """
        adapter = self.read(name)
        if format == "onnx-adapter" and not adapter.lora:
            raise OmniDraftError(
                f"Adapter {name!r} has no LoRA yet, and an .onnx_adapter file holds nothing else."
            )
        if format == "onnx-adapter":
            write_adapter(path, adapter.lora)
            return
        with whole_file(path) as file:
            file.write_bytes(to_bytes(adapter, adapter.metadata, name))

    def import_(self, path: Path, name: str, *, replace: bool = False) -> Names:
        """Keep an adapter that ``export`` wrote.

        Everything in the file is checked before anything is stored.

        Args:
            path: the file.
            name: to keep it under.
            replace: take the place of one that has this name, whoever it belongs to.

        Returns:
            See ``save``.

        Raises:
            ModelNotFoundError: there is no such file.
            DamagedFileError: it is damaged or no adapter.
            OmniDraftError: a newer version wrote it, or the name is taken; also see ``save``.
        """
        output = self._path(name)
        if not path.is_file():
            raise ModelNotFoundError(f"There is no file {path}.")
        try:
            adapter = read_adapter(path)
        except DamagedFileError as error:
            raise DamagedFileError(
                f"{str(error).removesuffix(MEND)}. Nothing was imported: it has to be a file that "
                "`omnidraft adapters export` wrote."
            ) from error
        content = to_bytes(adapter, adapter.metadata)
        with self._changing():
            if output.exists() and not replace:
                raise OmniDraftError(
                    f"There is an adapter {name!r} already. Import under another name (--name), or "
                    "replace it (--replace)."
                )
            return self._write(output, content)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise OmniDraftError(
                f"{name!r} cannot name an adapter. Use up to 64 lower-case letters, digits, dots, "
                "hyphens and underscores, a letter or digit first."
            )
        return self.folder / f"{name}{SUFFIX}"

    def _files(self) -> Sequence[tuple[Path, os.stat_result]]:
        """The stored files, the least recently used first."""
        found = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            if _NAME.fullmatch(path.name.removesuffix(SUFFIX)):
                with suppress(OSError):  # another process has removed it, or it is no file
                    found.append((path, path.stat()))
        return sorted(found, key=lambda entry: (entry[1].st_mtime_ns, entry[0].name))

    def _write(self, path: Path, content: bytes) -> Names:
        if len(content) > self.max_bytes:
            raise OmniDraftError(
                f"The adapter takes {len(content):,} bytes, the whole store may take "
                f"{self.max_bytes:,}. Allow it more, or learn with a smaller rank."
            )
        _replace(path, content)
        # Only now: a save that fails costs nobody their adapter.
        files = self._files()
        total = sum(status.st_size for _, status in files)
        evicted = []
        for other, status in files:
            if total <= self.max_bytes:
                break
            if other != path:
                other.unlink(missing_ok=True)
                total -= status.st_size
                evicted.append(other.name.removesuffix(SUFFIX))
        return evicted

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with _writing(self.folder):
            # Only the user's own: what was learned from prompts tells about them.
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._lock_file.acquire(timeout=_LOCK_TIMEOUT)
            except Timeout as error:
                raise OmniDraftError(
                    f"Another process has been changing {self.folder} for a minute. Try again when "
                    "it is done."
                ) from error
            try:
                yield
            finally:
                self._lock_file.release()

    def _remove_leftovers(self) -> None:
        if not any(self.folder.glob(".*.tmp")):
            return
        # While another process holds the lock, the file is its own and in use.
        with suppress(Timeout, OSError), self._lock_file.acquire(timeout=0):
            for leftover in self.folder.glob(".*.tmp"):
                leftover.unlink(missing_ok=True)


def _check_owner(name: str, metadata: Metadata, drafter: ModelKey, target: ModelKey) -> None:
    for role, owner, user in (
        ("drafter", metadata.drafter, drafter),
        ("target", metadata.target, target),
    ):
        if owner.sha256 != user.sha256:
            raise OmniDraftError(
                f"Adapter {name!r} belongs to the {role} {owner}, not to {user}. Use it with that "
                f"{role}, or choose another name for this one's."
            )


def _touch(path: Path) -> None:
    # The time of change stands for the last use: reading a file leaves it alone, and no index has
    # to agree with the files. File systems' own clock is too coarse to order two saves.
    now = time.time_ns()
    os.utime(path, ns=(now, now))


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _touch(temporary)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    if os.name == "nt":
        return  # folders cannot be opened there
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise OmniDraftError(
                f"The disk of {folder} is full; what was there stays as it was. Free space and try "
                "again."
            ) from error
        raise OmniDraftError(
            f"Nothing can be written to {folder} ({error.strerror or error})."
        ) from error
