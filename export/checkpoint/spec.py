"""What a checkpoint says of its decoder, and the names under which its weights are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.checkpoint.config import LARGEST_SIZE
from omnidraft.export.checkpoint.rope import Rope
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError

LINEAR_PARTS = {"qkv": ("q", "k", "v"), "o": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}
"""The linears of a layer, those of one input joined, and their parts as a checkpoint names them."""

Activation = Literal["silu", "gelu_tanh"]
QkNorm = Literal["", "head", "row"]


@dataclass(frozen=True)
class Decoder:
    """What a decoder computes; sizes in elements, lengths in tokens.

    What writes graphs reads the capabilities; ``architecture`` is a name for people.
    """

    architecture: str
    layers: int
    hidden_size: int
    feed_forward_size: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    context_length: int
    norm_epsilon: float
    query_scale: float
    tied_embeddings: bool
    # For each layer its rotation, and its sliding window in tokens (a token sees itself and
    # window - 1 before it).
    ropes: tuple[Rope, ...]
    windows: tuple[int | None, ...]
    embedding_scale: float = 1.0
    activation: Activation = "silu"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    # Queries and keys are normed head by head, or a row of all heads at once.
    qk_norm: QkNorm = ""
    # Norms before attention and feed-forward network, and after them.
    pre_norms: bool = True
    post_norms: bool = False
    # Scores of attention and logits are cap * tanh(value / cap); 0: they are not capped.
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    # How many elements of a head are rotated, the first half of them with the second. The rows of
    # queries and keys are read in an order in which a head's first half meets its second.
    rotary_size: int | None = None  # all
    # By part: what its weights and biases are multiplied by when they are read.
    folded: Mapping[str, float] = field(default_factory=dict)
    # A drafter's: its tokens are in the order of how often it proposes them, and those after the
    # first so many are not worth a row of the head.
    drafted_tokens: int | None = None


def windows_of(
    layers: int, window: int, slides: Callable[[int], bool], types: Sequence[str] = ()
) -> tuple[int | None, ...]:
    """The window of each layer.

    Args:
        window: in tokens; 0: no layer has one.
        slides: whether a layer has it; not asked if ``types`` names the kind of every layer.

    Raises:
        OmniDraftError: a layer is of a kind that is not known.
    """
    if unknown := set(types) - {"full_attention", "sliding_attention"}:
        raise OmniDraftError(f"Layers of the type '{unknown.pop()}' are not supported.")
    if not window:
        return (None,) * layers
    if types:
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    return tuple(window if slides(layer) else None for layer in range(layers))


def with_windows(decoder: Decoder, windows: tuple[int | None, ...], local: Rope) -> Decoder:
    """A decoder of full attention with windows, whose layers rotate by ``local``."""
    full = decoder.ropes[0]
    ropes = tuple(full if window is None else local for window in windows)
    return replace(decoder, windows=windows, ropes=ropes)


@contextmanager
def said_of(source: str) -> Iterator[None]:
    """Put where it was found before what is wrong."""
    try:
        yield
    except OmniDraftError as error:
        raise type(error)(f"{source}: {error}") from error


class Checkpoint(Protocol):
    """A decoder's description and its weights.

    Tensors: ``embedding`` [vocab, hidden], ``head`` [vocab, hidden], ``norm`` [hidden], and for
    layer i ``i.q`` ``i.k`` ``i.v`` ``i.o`` ``i.gate`` ``i.up`` ``i.down`` [out, in], each linear's
    ``….bias`` [out], ``i.input_norm``, ``i.mlp_norm`` and where the decoder has them ``i.q_norm``,
    ``i.k_norm``, ``i.post_attention_norm``, ``i.post_mlp_norm``. Norm weights are factors
    (Gemma's are returned with their 1 added).
    """

    @property
    def decoder(self) -> Decoder: ...

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """Rows ``start:stop`` of a tensor.

        Raises:
            DamagedFileError: the tensor cannot be read, or holds NaN or infinity.
            OmniDraftError: it is of a type that is not read.
        """


def row_blocks(
    checkpoint: Checkpoint, name: str, count: int, size: int
) -> Iterable[NDArray[np.float32]]:
    """Yield a tensor's ``count`` rows in blocks of at most ``size``."""
    for start in range(0, count, size):
        yield checkpoint.rows(name, start, min(start + size, count))


def joined_weight(checkpoint: Checkpoint, layer: int, linear: str) -> NDArray[np.float32]:
    """The weight of one of ``LINEAR_PARTS``, float32 [out, in], its parts one after another."""
    return np.concatenate([checkpoint.rows(f"{layer}.{part}") for part in LINEAR_PARTS[linear]])


def joined_bias(checkpoint: Checkpoint, layer: int, linear: str) -> NDArray[np.float32] | None:
    """Its bias, float32 [out], if it has one."""
    if not _has_bias(checkpoint.decoder, linear):
        return None
    parts = LINEAR_PARTS[linear]
    return np.concatenate([checkpoint.rows(f"{layer}.{part}.bias") for part in parts])


def lora_shapes(decoder: Decoder, rank: int) -> dict[str, tuple[int, int]]:
    """Names and shapes of the LoRA inputs, in the order in which graphs take them.

    See ``omnidraft.runtime.storage.bundle.Lora`` for what they mean.
    """
    d = decoder
    sizes = {
        "qkv": (d.hidden_size, (d.heads + 2 * d.kv_heads) * d.head_size),
        "o": (d.heads * d.head_size, d.hidden_size),
        "gate_up": (d.hidden_size, 2 * d.feed_forward_size),
        "down": (d.feed_forward_size, d.hidden_size),
    }
    shapes = {}
    for layer in range(d.layers):
        for linear in LINEAR_PARTS:
            shapes[f"lora.{layer}.{linear}.A"] = (sizes[linear][0], rank)
            shapes[f"lora.{layer}.{linear}.B"] = (rank, sizes[linear][1])
    return shapes


def _has_bias(decoder: Decoder, linear: str) -> bool:
    d = decoder
    return {"qkv": d.qkv_bias, "o": d.output_bias}.get(linear, d.mlp_bias)


def tensor_names(decoder: Decoder) -> Iterator[str]:
    """Everything that a graph asks of a checkpoint: see ``Checkpoint``."""
    d = decoder
    yield from ("embedding", "norm") if d.tied_embeddings else ("embedding", "norm", "head")
    parts = [part for linear in LINEAR_PARTS.values() for part in linear]
    for linear, biased in LINEAR_PARTS.items():
        parts += [f"{part}.bias" for part in biased if _has_bias(d, linear)]
    parts += ["input_norm", "mlp_norm"] if d.pre_norms else []
    parts += ["q_norm", "k_norm"] if d.qk_norm else []
    parts += ["post_attention_norm", "post_mlp_norm"] if d.post_norms else []
    yield from (f"{layer}.{part}" for layer in range(d.layers) for part in parts)


def split_name(name: str) -> tuple[str, str, str]:
    """A name's layer, or nothing, its part, and ``weight`` or ``bias``."""
    bias = name.endswith(".bias")
    layer, _, part = name.removesuffix(".bias").rpartition(".")
    return layer, part, "bias" if bias else "weight"


def check_sound(decoder: Decoder, source: str) -> None:
    """Demand that a decoder's sizes fit each other.

    Raises:
        DamagedFileError: they do not.
    """
    d = decoder
    reason = ""
    if min(d.layers, d.hidden_size, d.feed_forward_size, d.heads, d.kv_heads, d.vocab_size) < 1:
        reason = "a size is not positive"
    elif d.heads % d.kv_heads:
        reason = f"num_key_value_heads = {d.kv_heads} does not divide {d.heads} attention heads"
    elif d.head_size % 2 or d.head_size < 2:
        reason = f"head_dim = {d.head_size} is not even, as rotation needs it"
    elif d.rotary_size is not None and (d.rotary_size % 2 or d.rotary_size < 2):
        reason = f"head_dim x partial_rotary_factor = {d.rotary_size} is not even, or 0"
    elif not all(window is None or 0 < window <= LARGEST_SIZE for window in d.windows):
        reason = "a sliding window is no number of tokens"
    elif not all(np.isfinite(rope.inverse_frequencies).all() for rope in set(d.ropes)):
        reason = "a rotary base is no number that rotates"
    elif not (math.isfinite(d.norm_epsilon) and d.norm_epsilon >= 0):
        reason = f"the norm's epsilon is {d.norm_epsilon}"
    elif len(d.windows) != d.layers:
        reason = f"layer_types names {len(d.windows)} of {d.layers} layers"
    if reason:
        raise DamagedFileError(f"{source}: {reason}.")


def check_drafts(decoder: Decoder, source: Path | str) -> None:
    """Demand that a decoder computes what a Llama does, biases included.

    Raises:
        OmniDraftError: it does more; ``source`` is where it comes from.
    """
    d = decoder
    more = {
        "GELU": d.activation != "silu",
        "normed queries and keys": bool(d.qk_norm),
        "norms after its blocks": d.post_norms,
        "soft caps": d.attention_cap > 0 or d.logit_cap > 0,
        "sliding windows": any(d.windows),
        "layers that rotate differently": len(set(d.ropes)) > 1,
        "scaled rotation": any(rope.amplitude != 1 for rope in d.ropes),
        "scaled embeddings": d.embedding_scale != 1,
    }
    if found := [name for name, present in more.items() if present]:
        raise OmniDraftError(
            f"{source} is a {d.architecture} model with {', '.join(found)}. A drafter must be a "
            "Llama, or compute what a Llama does: take another one."
        )
