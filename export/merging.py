"""Add an adapter to the weights that are exported, and find out whether quantization keeps it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.checkpoint import Checkpoint, Decoder
from omnidraft.export.checkpoint.spec import LINEAR_PARTS, lora_shapes, split_name
from omnidraft.export.parity import Reference, likeliest_logits
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError
from omnidraft.runtime.learning.adapter_file import exported_name, read_adapter
from omnidraft.runtime.learning.store import AdapterStore, adapters_folder
from omnidraft.runtime.storage.bundle import Bundle, Merged
from omnidraft.runtime.storage.checkpoints import source_sha256
from omnidraft.runtime.storage.files import expanded
from omnidraft.runtime.storage.lora import LoraWeights, check_adapter, sizes_beside_rank

# What weights keep of an adapter is estimated from logits; rounding alone moves that by a little.
LEAST_KEPT = 0.75


def find_adapter(name: str, source: Path, decoder: Decoder) -> tuple[Merged, LoraWeights]:
    """The adapter that is to be merged: whose it is, and its weights.

    Args:
        name: one of the user's store, or a file that ``omnidraft adapters export`` wrote.
        source: the drafter's checkpoint.

    Raises:
        ModelNotFoundError, DamagedFileError: there is none, or it cannot be read.
        OmniDraftError: it is another drafter's, has no LoRA, or does not fit.
    """
    path = expanded(name)
    if path.is_file():
        try:
            adapter = read_adapter(path, optimizer=False)
        except DamagedFileError as error:
            raise DamagedFileError(
                f"{path} cannot be merged: {error} --adapter takes an adapter's name, or a file of "
                "`omnidraft adapters export` in its own format, which says whose it is."
            ) from error
    else:
        adapter = AdapterStore(adapters_folder()).read(name)
    owner = adapter.metadata.drafter
    if owner.sha256 != source_sha256(source):
        raise OmniDraftError(
            f"Adapter {name} belongs to the drafter {owner}, not to {source}. Export that drafter, "
            "or choose an adapter of this one."
        )
    if not adapter.lora:
        raise OmniDraftError(
            f"Adapter {name} has learned no LoRA weights yet, and nothing else of it can be merged."
        )
    check_adapter(adapter.lora, sizes_beside_rank(lora_shapes(decoder, 0)))
    name = exported_name(path) if path.is_file() else name
    return Merged(adapter=name, target=adapter.metadata.target.name), adapter.lora


@dataclass(frozen=True)
class MergedCheckpoint:
    """A ``Checkpoint`` with (A @ B)ᵀ added to each linear's weight."""

    base: Checkpoint
    lora: LoraWeights

    @property
    def decoder(self) -> Decoder:
        return self.base.decoder

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """See ``Checkpoint.rows``."""
        rows = self.base.rows(name, start, stop)
        layer, part, kind = split_name(name)
        for linear, parts in LINEAR_PARTS.items():
            stem = f"lora.{layer}.{linear}"
            if kind == "bias" or part not in parts or f"{stem}.A" not in self.lora:
                continue
            a, b = self.lora[f"{stem}.A"], self.lora[f"{stem}.B"]
            first = sum(_heights(self.decoder)[p] for p in parts[: parts.index(part)])
            rows = rows + (a @ b[:, first + start : first + start + len(rows)]).T
        return rows


def _heights(decoder: Decoder) -> Mapping[str, int]:
    """How many rows each part of a layer has."""
    d = decoder
    heads, kv = d.heads * d.head_size, d.kv_heads * d.head_size
    feed = d.feed_forward_size
    return {
        "q": heads,
        "k": kv,
        "v": kv,
        "o": d.hidden_size,
        "gate": feed,
        "up": feed,
        "down": d.hidden_size,
    }


def prove_merged(
    bundle: Bundle,
    exported: CausalModel,
    lora: LoraWeights,
    base: NDArray[np.float32],
    reference: Reference,
) -> Bundle:
    """The bundle with how much of an adapter's change its weights have kept.

    Its source is then another one than the checkpoint's, so that nothing that belongs to the
    drafter without the adapter is used with it.

    Args:
        base: the float32 model's logits without the adapter: see ``likeliest_logits``.
        reference: what the float32 model says with it.

    Raises:
        OmniDraftError: the adapter changes nothing, or too much of it is lost.
    """
    assert bundle.merged is not None
    name, change = bundle.merged.adapter, _centred(reference.logits - base)
    size = float(np.square(change).sum())
    if not size > 0:
        raise OmniDraftError(f"Adapter {name} changes nothing. Leave --adapter out.")
    found = _centred(likeliest_logits(exported, reference) - base)
    kept = float((found * change).sum()) / size
    if kept < LEAST_KEPT:
        raise OmniDraftError(
            f"{bundle.quantization} keeps {max(kept, 0):.0%} of what adapter {name} changes in the "
            f"logits, {LEAST_KEPT:.0%} are needed: the rest is rounded away. Nothing was kept. "
            "Choose a finer --quantization, or leave --adapter out and give the bundle the adapter "
            "when it runs."
        )
    digest = hashlib.sha256(bundle.source_sha256.encode())
    for key in sorted(lora):
        digest.update(f"{key} {lora[key].shape}".encode())
        digest.update(np.ascontiguousarray(lora[key]).data)
    merged = bundle.merged.model_copy(update={"kept": kept})
    return bundle.model_copy(update={"merged": merged, "source_sha256": digest.hexdigest()})


def _centred(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Each row without its mean, which softmax does not see."""
    values = rows.astype(np.float64)
    centred: NDArray[np.float64] = values - values.mean(axis=1, keepdims=True)
    return centred
