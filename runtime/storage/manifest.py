"""``omnidraft-model.json``: what a converted model's folder holds and how it was checked."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError
from omnidraft.runtime.storage.files import whole_file
from omnidraft.runtime.storage.reading import LARGEST_JSON, inside, read_bounded, reading

MANIFEST_FILE = "omnidraft-model.json"
# Of exported bundles; here and not in bundle.py, whose library takes a while to import.
BUNDLE_FILE = "omnidraft.json"
Backend = Literal["onnx", "qnn", "executorch", "transformers", "gguf"]
CHECKPOINTS: frozenset[Backend] = frozenset({"transformers", "gguf"})
"""Those whose bundles hold no graph, but a checkpoint for programs that make their own of it."""
BundleQuantization = Literal["none", "float16", "int8", "int4", "a16w8"]
Layout = Literal["omnidraft", "genai", "llm-runner"]
"""Whose names a bundle's graphs have: ours, transformers' (which onnxruntime-genai takes), or those
of ExecuTorch's LLM runners."""
# Of the manifest and of what the conversion writes: models of another version are converted anew.
SCHEMA_VERSION = 6


@dataclass(frozen=True)
class Manifest:
    """A converted decoder.

    ``feed_forward_size`` is 0 where the conversion did not say it yet.
    ``max_threads`` is how many threads may share a pass without a row depending on the pass's size;
    None: any number.
    ``invariance`` holds what was measured last: ``batch_invariant`` (the largest difference was
    exactly 0), ``largest_difference`` (of a logit), ``measured`` (the same by number of threads),
    the context lengths and pass sizes tried, and the environment they were tried in, in which alone
    it holds: see ``engines.invariance``. It is empty for a model that was made to draft,
    which need not be invariant. ``files`` maps every other file of the folder to its size in bytes
    and its sha256. ``weights`` counts the matrices by how they are held: ``Q4_K`` as a GGUF
    has them, ``F16 → Q8_0`` or ``8bit`` quantized at the conversion. ``extra`` is the caller's.
    """

    architecture: str
    quantization: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    context_length: int
    max_threads: int | None
    source_sha256: str
    invariance: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]
    weights: Mapping[str, int] = field(default_factory=dict)
    loss: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    feed_forward_size: int = 0
    schema_version: int = SCHEMA_VERSION

    @property
    def weights_text(self) -> str:
        """The quantization, for people: of ``auto`` also what became of it."""
        if self.quantization != "auto":
            return self.quantization
        why = "" if self.loss is None else f" (4 bits: KL {self.loss:.3f})"
        return f"auto: {', '.join(self.weights)}{why}"

    @property
    def choice_text(self) -> str:
        """For people: what ``auto`` chose of 4 and 8 bits, and why."""
        four = "4bit" in self.weights
        return (
            f"auto took {4 if four else 8} bits: 4 bits differ from 8 by a KL divergence of "
            f"{self.loss:.3f}, which is {'little enough' if four else 'too much'}"
        )

    @property
    def batch_invariant(self) -> bool:
        """Whether scoring several tokens at once gave bit for bit what one at a time gave, where
        that was measured last."""
        return bool(self.invariance.get("batch_invariant", False))

    def save(self, folder: Path) -> None:
        """Write the manifest into ``folder``, replacing one that is there.

        Raises:
            OmniDraftError: see ``whole_file``.
        """
        with whole_file(folder / MANIFEST_FILE) as file:
            file.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read a folder's manifest.

        Raises:
            ModelNotFoundError: the folder has none.
            DamagedFileError: it is not a manifest of this version.
        """
        path = folder / MANIFEST_FILE
        if not path.is_file():
            raise ModelNotFoundError(f"{folder} holds no converted model ({MANIFEST_FILE}).")
        try:
            with reading(path):
                content = read_bounded(path, LARGEST_JSON)
            values = json.loads(content.decode())
            if values["schema_version"] != SCHEMA_VERSION:
                raise DamagedFileError(
                    f"{path} has schema version {values['schema_version']!s:.60}, this program "
                    f"reads {SCHEMA_VERSION}. Convert the model again."
                )
            manifest = cls(**values)
            manifest._check()
            return manifest
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise DamagedFileError(
                f"{path} is damaged: {error!r:.300}. Convert it again."
            ) from error

    def _check(self) -> None:
        """Refuse what no conversion writes."""
        counts = ("layers", "hidden_size", "heads", "kv_heads", "head_size", "vocab_size")
        limits = ("max_threads",) if self.max_threads is not None else ()
        for name in (*counts, "context_length", *limits):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value < 2**31:
                raise ValueError(f"{name} is {value!r}")
        if type(self.feed_forward_size) is not int or not 0 <= self.feed_forward_size < 2**31:
            raise ValueError(f"feed_forward_size is {self.feed_forward_size!r}")
        for name in ("architecture", "quantization", "source_sha256"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is {getattr(self, name)!r}")
        for name in ("invariance", "files", "weights", "extra"):
            if not isinstance(getattr(self, name), dict):
                raise ValueError(f"{name} is {getattr(self, name)!r}")
        if self.loss is not None and not isinstance(self.loss, float):
            raise ValueError(f"loss is {self.loss!r}")
        if not self.files:
            raise ValueError("it names no files")
        for name, entry in self.files.items():
            if type(entry["size"]) is not int or not isinstance(entry["sha256"], str):
                raise ValueError(f"{name} has the entry {entry!r}")

    def verify(self, folder: Path, *, checksums: bool = False) -> None:
        """Compare the folder's files with the manifest: their sizes, on request their sha256.

        Raises:
            DamagedFileError: a file is missing or differs.
        """
        with reading(folder):
            self._verify(folder, checksums)

    def _verify(self, folder: Path, checksums: bool) -> None:
        for name, expected in self.files.items():
            path = inside(folder, name)
            if not path.is_file():
                raise DamagedFileError(f"{path} is missing. Convert the model again.")
            if (size := path.stat().st_size) != expected["size"]:
                raise DamagedFileError(
                    f"{path} has {size} bytes, {expected['size']} expected. "
                    "Convert the model again."
                )
            if checksums and file_sha256(path) != expected["sha256"]:
                raise DamagedFileError(
                    f"{path} fails its checksum (sha256). Convert the model again."
                )


def is_outdated(folder: Path) -> bool:
    """Whether another version of this program converted the model in ``folder``."""
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text("utf-8"))
        return bool(manifest["schema_version"] != SCHEMA_VERSION)
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return False  # absent or damaged, which is for ``Manifest.load`` to say


def file_sha256(path: Path) -> str:
    """Return a file's sha256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and sha256 of every file of a folder except the manifest, by relative POSIX path."""
    return {
        path.relative_to(folder).as_posix(): {
            "size": path.stat().st_size,
            "sha256": file_sha256(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST_FILE
    }
