"""Sampled text on the disk: Parquet files, each there as a whole or not at all.

A row is a document. Tokens are the teacher's, as numbers of a file's own list of surfaces, which is
in the file's metadata: text of a server, whose vocabulary nobody knows, has the same form.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnidraft.distill.files import file_in_folder
from omnidraft.runtime.errors import DamagedFileError

TOP = 8
"""Probabilities that are kept of each position."""
FORCED, USER, ANSWER = 0, 1, 2
"""Who chose a token: the template, the user's side, the answering side."""
_SURFACES = b"omnidraft.surfaces"
_SOURCE = b"omnidraft.source"


@dataclass(frozen=True)
class Document:
    """Tokens that were written in one go.

    Args:
        tokens: int32 [n], numbers of the shard's surfaces.
        kinds: int8 [n], FORCED, USER or ANSWER.
        top: int32 [n, TOP], the likeliest tokens at each position, before it was written.
        shares: float16 [n, TOP], their probabilities; zeros where they are not known.
        likelihoods: float32 [n], log-probability of each token at temperature 1; NaN: not known.
    """

    tokens: NDArray[np.int32]
    kinds: NDArray[np.int8]
    top: NDArray[np.int32]
    shares: NDArray[np.float16]
    likelihoods: NDArray[np.float32]


@dataclass(frozen=True)
class Shard:
    """A file's documents.

    Args:
        surfaces: the bytes of each token; None: a control token.
    """

    surfaces: list[bytes | None]
    documents: list[Document]


def shard_path(folder: Path, number: int) -> Path:
    """Where a teacher's part lies."""
    return folder / f"part-{number:05}.parquet"


def write_shard(path: Path, shard: Shard, source: str) -> None:
    """Write a shard, whole or not at all.

    Args:
        source: what the text comes from and how it was sampled; a reader compares it.

    Raises:
        OmniDraftError: it cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    documents = shard.documents
    columns: dict[str, Any] = {
        "tokens": pa.array([each.tokens for each in documents], pa.list_(pa.int32())),
        "kinds": pa.array([each.kinds for each in documents], pa.list_(pa.int8())),
        "top": pa.array([each.top.ravel() for each in documents], pa.list_(pa.int32())),
        "shares": pa.array([each.shares.ravel() for each in documents], pa.list_(pa.float16())),
        "likelihoods": pa.array([each.likelihoods for each in documents], pa.list_(pa.float32())),
    }
    surfaces = [None if each is None else each.hex() for each in shard.surfaces]
    metadata = {_SURFACES: json.dumps(surfaces).encode(), _SOURCE: source.encode()}
    table = pa.table(columns).replace_schema_metadata(metadata)
    with file_in_folder(path) as file:
        pq.write_table(table, file, compression="zstd")


def read_shard(path: Path) -> Shard:
    """Read a shard.

    Raises:
        DamagedFileError: it is none, or a part of one.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        surfaces = json.loads(table.schema.metadata[_SURFACES])
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        documents = [_document(columns, row) for row in range(table.num_rows)]
    except (OSError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
        raise DamagedFileError(
            f"{path} is no part of sampled text: {error}. Delete it; it is sampled again."
        ) from error
    return Shard([None if each is None else bytes.fromhex(each) for each in surfaces], documents)


def shard_source(path: Path) -> str:
    """What a shard says of its source; empty where it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return str((pq.read_schema(path).metadata or {}).get(_SOURCE, b"").decode())
    except (OSError, ValueError, pa.ArrowException):
        return ""


def count_shard(path: Path) -> tuple[int, int]:
    """Documents and tokens of a shard.

    Raises:
        DamagedFileError: see ``read_shard``.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        column = pq.read_table(path, columns=["tokens"])["tokens"]
        return len(column), int(pc.sum(pc.list_value_length(column)).as_py() or 0)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DamagedFileError(
            f"{path} is no part of sampled text: {error}. Delete it; it is sampled again."
        ) from error


def shards_of(folder: Path) -> list[Path]:
    """A teacher's parts, in order."""
    return sorted(folder.glob("part-*.parquet"))


def _document(columns: dict[str, Any], row: int) -> Document:
    def values(name: str, dtype: Any) -> NDArray[Any]:
        return np.asarray(columns[name][row].values.to_numpy(zero_copy_only=False), dtype)

    tokens = values("tokens", np.int32)
    count = len(tokens)
    document = Document(
        tokens,
        values("kinds", np.int8),
        values("top", np.int32).reshape(count, TOP),
        values("shares", np.float16).reshape(count, TOP),
        values("likelihoods", np.float32),
    )
    if not count == len(document.kinds) == len(document.likelihoods):
        raise ValueError(f"document {row} has columns of different lengths")
    return document
