"""What a drafter has learned for a target and a task, and where that is kept on disk.

    store = AdapterStore(adapters_folder())
    store.save("math", Adapter(Metadata(drafter=drafter, target=target), lora, ngrams))
    adapter = store.load("math", drafter, target)

An adapter is one safetensors file. Its header holds the metadata and a CRC-32 of every tensor: on
CPUs without SHA instructions a stronger hash would cost most of the time that a switch may take,
and it is damage that is to be found, not forgery. A reader that wants to generate need not read the
optimizer's state. The same file is what ``export`` writes and ``import_`` reads; it holds no paths.

What is promised: a save is written beside the old file, flushed (fsync), renamed over it, and the
folder flushed. Whenever the process is killed, the store opens with the old adapter or the new one,
whole; once ``save`` has returned, the new one outlives a loss of power as far as the disk honours
fsync. Processes take turns at changing a store by a lock; readers need none. Of two processes that
save under one name, the later wins.
"""

from __future__ import annotations

import json
import os
import re
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
import platformdirs
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from omnidraft._native import NgramCache, VocabularyPair
from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.storage.bundle import BUNDLE_FILE, Bundle
from omnidraft.runtime.storage.checkpoints import source_sha256
from omnidraft.runtime.storage.files import expanded, whole_file
from omnidraft.runtime.storage.folders import is_disk_full
from omnidraft.runtime.storage.lora import write_adapter
from omnidraft.runtime.storage.manifest import MANIFEST_FILE, Manifest, describe_files, file_sha256

SCHEMA_VERSION: Final = 1
SUFFIX = ".adapter"
DEFAULT_MAX_BYTES = 500_000_000

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_LORA_NAME = re.compile(r"lora\.\d+\.\w+\.[AB]")
_LOCK_FILE = ".lock"
_LOCK_TIMEOUT = 60.0
# Keys of the safetensors header.
_METADATA, _CHECKSUMS, _HEADER_CHECKSUM = "omnidraft_adapter", "crc32", "header_crc32"

Arrays = Mapping[str, NDArray[Any]]
Names = list[str]
ExportFormat = Literal["omnidraft", "onnx-adapter"]


def adapters_folder() -> Path:
    """Where adapters are kept: ``adapters`` in ``$OMNIDRAFT_DATA`` or in the user's data folder.

    Not in the cache folder: what was learned cannot be fetched again.
    """
    chosen = os.environ.get("OMNIDRAFT_DATA")
    data = expanded(chosen) if chosen else platformdirs.user_data_path("omnidraft")
    return data / "adapters"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelKey(_Part):
    """A model that an adapter belongs to: a name to show, and the sha256 of its weights' source.

    Two keys mean the same model when their ``sha256`` agree, whatever the precision it was
    converted to.
    """

    name: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    def __str__(self) -> str:
        return f"{self.name} ({self.sha256[:12]})"


def model_key(name: str, path: Path) -> ModelKey:
    """The key of the model at ``path``.

    Converted models and bundles know the sha256 of what they were made of; for anything else the
    files are read.

    Args:
        name: to show.
        path: as ``LoadedModel.path``.
    """
    digest = ""
    if (path / BUNDLE_FILE).is_file():
        digest = Bundle.load(path, checksums=False).source_sha256
    elif (path / MANIFEST_FILE).is_file():
        digest = Manifest.load(path).source_sha256
    elif path.is_file():
        digest = file_sha256(path)
    elif any(path.glob("*.safetensors")):
        digest = source_sha256(path)
    if not digest:
        digests = "".join(entry["sha256"] for entry in describe_files(path).values())
        digest = sha256(digests.encode()).hexdigest()
    return ModelKey(name=name, sha256=digest)


def _now() -> datetime:
    return datetime.now(UTC)


class Metadata(_Part):
    """Whose an adapter is and how it came about.

    ``updated`` and ``rank`` (of the LoRA, 0 without one) are set by ``AdapterStore.save``.
    ``prompts`` counts prompts learned from, ``updates`` steps of the optimizer. ``figures`` is the
    learner's own, say its history of acceptance: anything JSON can hold.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    drafter: ModelKey
    target: ModelKey
    created: AwareDatetime = Field(default_factory=_now)
    updated: AwareDatetime = Field(default_factory=_now)
    prompts: Annotated[int, Field(ge=0)] = 0
    updates: Annotated[int, Field(ge=0)] = 0
    rank: Annotated[int, Field(ge=0)] = 0
    figures: dict[str, JsonValue] = {}


@dataclass(frozen=True)
class Adapter:
    """What one drafter has learned for one target and, optionally, one task (method.md 3 and 4).

    Attributes:
        lora: ``lora.{i}.{linear}.A`` float32 [in, rank] and ``….B`` float32 [rank, out], see
            ``bundle.Lora``; one rank for all.
        ngrams: the n-gram cache, see ``pack_ngrams``; empty: none.
        head: the acceptance head's arrays, by names of its own.
        optimizer: the optimizer's state, likewise.
    """

    metadata: Metadata
    lora: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    ngrams: bytes = b""
    head: Arrays = field(default_factory=dict)
    optimizer: Arrays = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The rank of the LoRA, 0 without one."""
        return next((a.shape[-1] for name, a in self.lora.items() if name.endswith(".A")), 0)


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
        metadata = adapter.metadata.model_copy(update={"updated": _now()})
        content = _serialize(adapter, metadata)
        with self._changing():
            # A damaged file has no owner left to protect; a newer version's has, and raises.
            with suppress(ModelNotFoundError, DamagedFileError), _open(path) as (_, there, _):
                _check_owner(name, there, metadata.drafter, metadata.target)
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
        adapter = _read(path, optimizer=optimizer)
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
        return _read(self._path(name))

    def list(self) -> list[StoredAdapter]:
        """What is stored, the most recently used first; tensors are not read."""
        entries = []
        for path, status in self._files():
            metadata, problem = None, ""
            try:
                with _open(path) as (_, metadata, _):
                    pass
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
            raise _missing(self._path(name))

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
            file.write_bytes(_serialize(adapter, adapter.metadata))

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
            adapter = _read(path)
        except DamagedFileError as error:
            raise DamagedFileError(
                f"{str(error).removesuffix(_MEND)}. Nothing was imported: it has to be a file that "
                "`omnidraft adapters export` wrote."
            ) from error
        content = _serialize(adapter, adapter.metadata)
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


def pack_ngrams(cache: NgramCache) -> bytes:
    """An n-gram cache as ``NgramCache.save`` writes it."""
    return cache.to_bytes()


def unpack_ngrams(data: bytes, pair: VocabularyPair) -> NgramCache:
    """The cache that ``pack_ngrams`` packed; an empty one from no bytes.

    Raises:
        CacheDamagedError, CacheMismatchError: see ``NgramCache.from_bytes``.
    """
    return NgramCache.from_bytes(data, pair) if data else NgramCache(pair)


def _serialize(adapter: Adapter, metadata: Metadata) -> bytes:
    """The file of an adapter.

    Raises:
        OmniDraftError: the adapter does not hold together.
    """
    _check_lora(adapter)
    tensors = {
        **adapter.lora,
        **{f"head.{name}": values for name, values in adapter.head.items()},
        **{f"optimizer.{name}": values for name, values in adapter.optimizer.items()},
    }
    if adapter.ngrams:
        tensors["ngrams"] = np.frombuffer(adapter.ngrams, np.uint8)
    tensors = {name: np.asarray(values, order="C") for name, values in tensors.items()}
    text = metadata.model_copy(update={"rank": adapter.rank}).model_dump_json()
    checksums = json.dumps({name: _checksum(name, values) for name, values in tensors.items()})
    header = {
        _METADATA: text,
        _CHECKSUMS: checksums,
        _HEADER_CHECKSUM: str(zlib.crc32((text + checksums).encode())),
    }
    try:
        return bytes(to_safetensors(tensors, header))
    except (SafetensorError, KeyError, ValueError) as error:
        raise OmniDraftError(f"The adapter cannot be written: {error}.") from error


def _check_lora(adapter: Adapter) -> None:
    for name, values in adapter.lora.items():
        if not _LORA_NAME.fullmatch(name):
            raise OmniDraftError(f"{name!r} names no LoRA input: lora.LAYER.LINEAR.A or .B does.")
        stem, part = name[:-1], name[-1]
        if f"{stem}{'B' if part == 'A' else 'A'}" not in adapter.lora:
            raise OmniDraftError(f"The adapter has {name} without its other half.")
        if values.dtype != np.float32 or values.ndim != 2:
            raise OmniDraftError(
                f"{name} is {values.dtype} {list(values.shape)}, a float32 matrix is expected."
            )
        if (rank := values.shape[1 if part == "A" else 0]) != adapter.rank:
            raise OmniDraftError(f"{name} has rank {rank}, other inputs have {adapter.rank}.")
        if not np.isfinite(values).all():
            raise OmniDraftError(f"{name} holds values that are not finite: learning diverged.")


def _read(path: Path, *, optimizer: bool = True) -> Adapter:
    """Read a file that ``_serialize`` made, and compare every tensor with its checksum."""
    parts: dict[str, dict[str, NDArray[Any]]] = {"lora": {}, "head": {}, "optimizer": {}}
    ngrams = b""
    with _open(path) as (tensors, metadata, checksums):
        for name, expected in checksums.items():
            part, _, rest = name.partition(".")
            if part == "optimizer" and not optimizer:
                continue
            values = tensors.get_tensor(name)
            if _checksum(name, values) != expected:
                raise _damaged(path, f"{name} fails its checksum")
            if name == "ngrams":
                ngrams = values.tobytes()
            elif part == "lora":
                parts[part][name] = values
            elif part in parts:
                parts[part][rest] = values
            else:
                raise _damaged(path, f"it holds a tensor {name!r}")
    return Adapter(metadata, parts["lora"], ngrams, parts["head"], parts["optimizer"])


@contextmanager
def _open(path: Path) -> Iterator[tuple[Any, Metadata, dict[str, int]]]:
    """Open an adapter's file: its tensors (read one by one), metadata and tensors' checksums."""
    if not path.is_file():
        raise _missing(path)
    try:
        with safe_open(path, framework="numpy") as tensors:
            metadata, checksums = _parse_header(path, tensors.metadata() or {})
            if set(tensors.keys()) != set(checksums):
                raise _damaged(path, "its list of tensors is not the one that was written")
            yield tensors, metadata, checksums
    except FileNotFoundError as error:
        raise _missing(path) from error
    except OSError as error:
        raise OmniDraftError(f"{path} cannot be read ({error.strerror or error}).") from error
    except SafetensorError as error:
        raise _damaged(path, str(error)) from error


def _parse_header(path: Path, header: Mapping[str, str]) -> tuple[Metadata, dict[str, int]]:
    text, sums = header.get(_METADATA), header.get(_CHECKSUMS)
    if text is None or sums is None:
        raise DamagedFileError(f"{path} is no adapter of omnidraft.")
    if header.get(_HEADER_CHECKSUM) != str(zlib.crc32((text + sums).encode())):
        raise _damaged(path, "its metadata fail their checksum")
    try:
        version = json.loads(text)["schema_version"]
        if version > SCHEMA_VERSION:
            raise OmniDraftError(
                f"{path} was written by a newer omnidraft (schema version {version}, this one "
                f"reads {SCHEMA_VERSION}). Update omnidraft."
            )
        return Metadata.model_validate_json(text), dict(json.loads(sums))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _damaged(path, f"{place}: {first['msg']}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, repr(error)) from error


def _checksum(name: str, values: NDArray[Any]) -> int:
    """CRC-32 of a tensor with its name, dtype and shape, which a header might get wrong."""
    start = zlib.crc32(f"{name} {values.dtype.str} {values.shape}".encode())
    return zlib.crc32(values.reshape(-1).view(np.uint8).data, start)


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


def _missing(path: Path) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"There is no adapter {path}. `omnidraft adapters list` shows which there are."
    )


def _damaged(path: Path, reason: str) -> DamagedFileError:
    return DamagedFileError(f"{path} is damaged: {reason}{_MEND}")


_MEND: Final = (
    ". Delete it, or put a whole copy in its place (`omnidraft adapters import COPY --replace`)."
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
