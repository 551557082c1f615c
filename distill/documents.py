"""Shards in the drafter's tokens, with what it is to learn of each position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnidraft.distill.files import file_in_folder
from omnidraft.distill.shards import ANSWER, FORCED, TOP, USER, Document, Shard
from omnidraft.distill.spellings import Alignment, Speller, align
from omnidraft.runtime.errors import DamagedFileError

UNKNOWN = math.inf
"""Of a chunk whose likelihood the teacher did not give."""
# Shares below this in all say nothing: the teacher was about to say a control token.
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Documents:
    """Documents one after another, each of which begins with the token that begins a text.

    Args:
        tokens: int32 [n].
        labels: int32 [n, TOP], shares: float16 [n, TOP]: the distribution that is wanted for this
            token, given those before it.
        weights: float16 [n]; 0: no loss.
        chunks: float32 [n], the teacher's log-likelihood of all bytes since the last token that has
            one; infinite: not known; NaN: none ends here.
        starts, lengths: int64 [documents].
        cuts: int32 [documents, 3], tokens before the user's header, the user's words, the answer.
    """

    tokens: NDArray[np.int32]
    labels: NDArray[np.int32]
    shares: NDArray[np.float16]
    weights: NDArray[np.float16]
    chunks: NDArray[np.float32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    cuts: NDArray[np.int32]


def build(
    shard: Shard, speller: Speller, *, canonical: float, user_weight: float, longest: int, seed: int
) -> Documents:
    """A shard's documents.

    Args:
        canonical: the share of them that are spelled in the drafter's own segmentation; their
            labels are certain.
        longest: draft tokens of a document; what is behind is left out.
    """
    alignment = align(shard.surfaces, speller)
    controls = np.array([surface is None for surface in shard.surfaces])
    random = np.random.default_rng(seed)
    head = _common_head(shard.documents)
    header = max(np.flatnonzero(controls[head]), default=len(head))
    parts = []
    for document in shard.documents:
        spelled = (
            _canonical(document, shard.surfaces, speller)
            if random.random() < canonical
            else _aligned(document, alignment, controls)
        )
        parts.append(
            _finish(spelled, document, (int(header), len(head)), speller, user_weight, longest)
        )
    lengths = np.array([len(part[0]) for part in parts], np.int64)
    tokens, labels, shares, weights, chunks = (
        np.concatenate([part[i] for part in parts]) for i in range(5)
    )
    cuts = np.stack([part[5] for part in parts]).astype(np.int32)
    starts = np.cumsum(lengths) - lengths
    return Documents(tokens, labels, shares, weights, chunks, starts, lengths, cuts)


@dataclass(frozen=True)
class _Spelled:
    """A document's draft tokens. ``owners``: the teacher's token that each begins in."""

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    shares: NDArray[np.float32]
    owners: NDArray[np.int64]
    learned: NDArray[np.bool_]
    chunks: NDArray[np.float32]


def _aligned(document: Document, alignment: Alignment, controls: NDArray[np.bool_]) -> _Spelled:
    draft, owner, piece = alignment.expand(document.tokens)
    labels, shares = _certain(draft)
    likely = document.shares.astype(np.float32) * ~controls[document.top]
    total = likely.sum(axis=1)
    soft = (piece == 0) & (total > _LEAST_SHARE)[owner]
    labels[soft] = alignment.firsts[document.top[owner[soft]]]
    shares[soft] = likely[owner[soft]] / total[owner[soft], None]
    last = piece == alignment.counts[document.tokens][owner] - 1
    known = np.where(np.isnan(document.likelihoods), UNKNOWN, document.likelihoods)
    chunks = np.where(last, known[owner], np.nan).astype(np.float32)
    return _Spelled(draft, labels, shares, owner, ~controls[document.tokens][owner], chunks)


def _canonical(document: Document, surfaces: Sequence[bytes | None], speller: Speller) -> _Spelled:
    """Runs of one author, spelled anew; control tokens as they always are."""
    tokens: list[int] = []
    owners: list[int] = []
    learned: list[bool] = []
    chunks: list[float] = []
    for start, end in _runs(document, surfaces):
        said = [surfaces[token] for token in document.tokens[start:end]]
        if said[0] is None:
            ids, sizes = speller.control, [0] * len(speller.control)
        else:
            text = b"".join(each or b"" for each in said)
            ids = speller.segment(text)
            sizes = speller.lengths(ids)
        ends = np.cumsum([len(each or b"") for each in said])
        likelihood = np.cumsum(document.likelihoods[start:end])
        mine = np.cumsum(sizes)
        before = 0.0
        for place, token in zip(mine, ids, strict=True):
            i = int(np.searchsorted(ends, place))
            tokens.append(token)
            owners.append(start + min(i, end - start - 1))
            learned.append(said[0] is not None)
            if said[0] is not None and i < len(ends) and ends[i] == place:
                value = float(likelihood[i] - before)
                chunks.append(UNKNOWN if math.isnan(value) else value)
                before = float(likelihood[i])
            else:
                chunks.append(float("nan"))
    draft = np.array(tokens, np.int64)
    return _Spelled(
        draft, *_certain(draft), np.array(owners, np.int64), np.array(learned, np.bool_),
        np.array(chunks, np.float32),
    )  # fmt: skip


def _runs(document: Document, surfaces: Sequence[bytes | None]) -> list[tuple[int, int]]:
    """Stretches of one author without control tokens, and control tokens by themselves."""
    control = np.array([surfaces[token] is None for token in document.tokens])
    changes = (np.diff(document.kinds) != 0) | control[1:] | control[:-1]
    cuts = [0, *(np.flatnonzero(changes) + 1), len(document.tokens)]
    return [(int(a), int(b)) for a, b in pairwise(cuts)]


def _finish(
    spelled: _Spelled,
    document: Document,
    heads: tuple[int, int],
    speller: Speller,
    user_weight: float,
    longest: int,
) -> tuple[NDArray[Any], ...]:
    weight = np.zeros(3, np.float16)
    weight[USER], weight[ANSWER] = user_weight, 1
    kinds = document.kinds[spelled.owners]
    weights = weight[kinds] * spelled.learned
    answers = np.flatnonzero(kinds == ANSWER)
    cuts = [
        *(int(np.searchsorted(spelled.owners, head)) for head in heads),
        int(answers[0]) if len(answers) else 0,
    ]
    keep = slice(0, longest - 1)

    def behind(first: object, values: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([np.full((1, *values.shape[1:]), first, values.dtype), values[keep]])

    return (
        behind(speller.begin, spelled.tokens.astype(np.int32)),
        behind(0, spelled.labels.astype(np.int32)),
        behind(0, spelled.shares.astype(np.float16)),
        behind(0, weights.astype(np.float16)),
        behind(np.nan, spelled.chunks),
        np.array(cuts),
    )


def _certain(draft: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    shares = np.zeros((len(draft), TOP), np.float32)
    shares[:, 0] = 1
    return np.repeat(draft[:, None], TOP, axis=1), shares


def _common_head(documents: Sequence[Document]) -> NDArray[np.int32]:
    """The forced tokens that all documents begin with: the template's."""
    first = documents[0]
    length = int(np.argmax(np.append(first.kinds != FORCED, True)))
    for document in documents:
        other = document.tokens[:length]
        differ = first.tokens[: len(other)] != other
        length = int(np.argmax(differ)) if differ.any() else len(other)
    return first.tokens[:length]


def save_documents(path: Path, documents: Documents) -> None:
    """Write documents, whole or not at all.

    Raises:
        OmniDraftError: they cannot be written.
    """
    from safetensors.numpy import save_file

    arrays = {each.name: getattr(documents, each.name) for each in fields(documents)}
    with file_in_folder(path) as file:
        save_file(arrays, file)


def load_documents(path: Path) -> Documents:
    """Read documents.

    Raises:
        DamagedFileError: they cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return Documents(**load_file(path))
    except (OSError, SafetensorError, TypeError) as error:
        raise DamagedFileError(
            f"{path} is damaged: {error}. Delete it; it is made again."
        ) from error
