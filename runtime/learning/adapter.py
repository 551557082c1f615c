"""What a drafter has learned for a target and a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue

from omnidraft._native import NgramCache, VocabularyPair
from omnidraft.runtime.storage.bundle import BUNDLE_FILE, Bundle
from omnidraft.runtime.storage.checkpoints import source_sha256
from omnidraft.runtime.storage.manifest import MANIFEST_FILE, Manifest, describe_files, file_sha256
from omnidraft.runtime.storage.validation import Count

SCHEMA_VERSION: Final = 1

Arrays = Mapping[str, NDArray[Any]]


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


# Times that every time zone can show.
Moment = Annotated[
    AwareDatetime,
    Field(ge=datetime(1970, 1, 1, tzinfo=UTC), le=datetime(9999, 1, 1, tzinfo=UTC)),
]


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
    created: Moment = Field(default_factory=_now)
    updated: Moment = Field(default_factory=_now)
    prompts: Count = 0
    updates: Count = 0
    rank: Count = 0
    figures: dict[str, JsonValue] = {}


@dataclass(frozen=True)
class Adapter:
    """What one drafter has learned for one target and, optionally, one task (method.md 3 and 4).

    Attributes:
        lora: ``lora.{i}.{linear}.A`` float32 [in, rank] and ``….B`` float32 [rank, out], see
            ``bundle.Lora``; one rank for all.
        ngrams: the n-gram cache, see ``NgramCache.to_bytes``; empty: none.
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
        matrices = (a for name, a in self.lora.items() if name.endswith(".A") and a.ndim == 2)
        return next((a.shape[1] for a in matrices), 0)

    def ngram_cache(self, pair: VocabularyPair) -> NgramCache:
        """The n-gram cache, an empty one where there is none.

        Raises:
            CacheDamagedError, CacheMismatchError: see ``NgramCache.from_bytes``.
        """
        return NgramCache.from_bytes(self.ngrams, pair) if self.ngrams else NgramCache(pair)
