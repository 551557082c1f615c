"""A Llama decoder in torch whose graph exports well: few operations, no data-dependent branch.

Linears that read the same input are one (``qkv``, ``gate_up``), LoRA factors are inputs, and the
caller says by ``positions`` and ``mask`` what is where, so that cutting the sequence back costs
nothing. Only for export: it holds whole weights, which the runtime never does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from omnidraft.export.checkpoint.spec import (
    LINEAR_PARTS,
    Checkpoint,
    check_drafts,
    joined_bias,
    joined_weight,
    lora_shapes,
)


class RmsNorm(nn.Module):
    """x / sqrt(mean(x²) + ε) · weight; a division, as not every backend gets rsqrt right."""

    weight: Tensor

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.epsilon) * self.weight


class Layer(nn.Module):
    """Attention and feed-forward network; keys and values are [kv_heads, length, head_size]."""

    keys: Tensor
    values: Tensor

    def __init__(self, checkpoint: Checkpoint, index: int, context: int) -> None:
        super().__init__()
        d = self.decoder = checkpoint.decoder
        self.index = index
        self.input_norm = RmsNorm(_tensor(checkpoint, f"{index}.input_norm"), d.norm_epsilon)
        self.mlp_norm = RmsNorm(_tensor(checkpoint, f"{index}.mlp_norm"), d.norm_epsilon)
        for linear in LINEAR_PARTS:
            weight = joined_weight(checkpoint, index, linear)
            setattr(self, linear, _linear(weight, joined_bias(checkpoint, index, linear)))
        if context:
            # One more than is ever read: export refuses a slice that may be the whole, and passes
            # of a fixed length write there what only fills them up.
            shape = (d.kv_heads, context + 1, d.head_size)
            self.register_buffer("keys", torch.zeros(shape), persistent=False)
            self.register_buffer("values", torch.zeros(shape), persistent=False)
        self.cached = context > 0

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        mask: Tensor,
        rotation: tuple[Tensor, Tensor],
        lora: Mapping[str, Tensor],
    ) -> Tensor:
        d = self.decoder
        qkv = self._project("qkv", self.input_norm(x), lora)
        # One split by heads: queries, keys, values.
        heads = _by_head(qkv, d.heads + 2 * d.kv_heads, d.head_size)
        turned = _rotate(heads[: d.heads + d.kv_heads], rotation)
        queries, keys = turned[: d.heads], turned[d.heads :]
        values = heads[d.heads + d.kv_heads :]
        if self.cached:
            self.keys[:, positions] = keys
            self.values[:, positions] = values
            keys, values = self.keys[:, : mask.shape[1]], self.values[:, : mask.shape[1]]
        count = mask.shape[0]
        group = d.heads // d.kv_heads
        if group > 1:
            # The query heads that share a key head are rows of one product: no copies of the keys.
            queries = queries.reshape(d.kv_heads, group * count, d.head_size)
            mask = mask.repeat(group, 1)
        scores = torch.bmm(queries * d.query_scale, keys.transpose(1, 2)) + mask
        weights = torch.softmax(scores, dim=-1)
        mixed = torch.bmm(weights, values)
        if group > 1:
            mixed = mixed.view(d.kv_heads, group, count, d.head_size).permute(2, 0, 1, 3)
        else:
            mixed = mixed.transpose(0, 1)
        mixed = mixed.reshape(count, d.heads * d.head_size)
        x = x + self._project("o", mixed, lora)
        gate, up = self._project("gate_up", self.mlp_norm(x), lora).chunk(2, dim=-1)
        # Not functional.silu: the training export has no derivative for it.
        return x + self._project("down", gate * torch.sigmoid(gate) * up, lora)

    def _project(self, linear: str, x: Tensor, lora: Mapping[str, Tensor]) -> Tensor:
        y: Tensor = getattr(self, linear)(x)
        name = f"lora.{self.index}.{linear}"
        return y + (x @ lora[f"{name}.A"]) @ lora[f"{name}.B"] if lora else y


class Llama(nn.Module):
    """A Llama decoder with frozen weights.

    Args:
        checkpoint: the weights, read as float32.
        context: longest sequence in tokens; the size of the rotation's table.
        cached: keep keys and values of ``context`` positions in buffers. Otherwise a pass stands
            alone and its mask is [T, T].

    Raises:
        OmniDraftError: see ``check_drafts``.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(self, checkpoint: Checkpoint, context: int, *, cached: bool = True) -> None:
        super().__init__()
        d = self.decoder = checkpoint.decoder
        check_drafts(d, "The checkpoint")
        self.embedding = nn.Embedding(d.vocab_size, d.hidden_size, device="meta")
        self.embedding.weight = nn.Parameter(_tensor(checkpoint, "embedding"))
        self.layers = nn.ModuleList(
            Layer(checkpoint, index, context if cached else 0) for index in range(d.layers)
        )
        self.norm = RmsNorm(_tensor(checkpoint, "norm"), d.norm_epsilon)
        # A tied head is a copy: a shared tensor would be left unquantized.
        self.head = _linear(checkpoint.rows("embedding" if d.tied_embeddings else "head"), None)
        cosine, sine = d.ropes[0].table(context + 1)  # as long as the cache
        self.register_buffer("cosine", torch.from_numpy(cosine))
        self.register_buffer("sine", torch.from_numpy(sine))
        self.requires_grad_(False).eval()

    def hidden(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, lora: Mapping[str, Tensor]
    ) -> Tensor:
        """Normed hidden states, float32 [T, hidden_size], of what ``forward`` takes."""
        rotation = self.cosine[positions], self.sine[positions]
        x = self.embedding(tokens[0])
        for layer in self.layers:
            x = layer(x, positions, mask, rotation, lora)
        normed: Tensor = self.norm(x)
        return normed

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor,
        lora: Sequence[Tensor] = (),
    ) -> Tensor:
        """Logits of every position.

        Args:
            tokens: int64 [1, T] token ids.
            positions: int64 [T] places in the sequence, and in the cache.
            mask: float32 [T, L] added to attention scores: 0 where row t may see position l,
                -inf (or a large negative number) elsewhere. L is the part of the cache that is
                read; without a cache L = T.
            lora: the tensors that ``lora_shapes`` names, in its order; none: the base model.

        Returns:
            float32 [1, T, vocab_size].
        """
        names = lora_shapes(self.decoder, rank=0) if lora else ()
        weights = dict(zip(names, lora, strict=True))
        logits: Tensor = self.head(self.hidden(tokens, positions, mask, weights))
        return logits[None]


def causal_mask(positions: Tensor, length: int) -> Tensor:
    """The mask of a sequence without gaps: float32 [T, length], -inf after each row's position."""
    later = torch.arange(length)[None] > positions[:, None]
    return torch.zeros(later.shape).masked_fill(later, float("-inf"))


def _tensor(checkpoint: Checkpoint, name: str) -> Tensor:
    return torch.from_numpy(checkpoint.rows(name))


def _linear(weight: NDArray[np.float32], bias: NDArray[np.float32] | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(torch.from_numpy(weight))
    if bias is not None:
        linear.bias = nn.Parameter(torch.from_numpy(bias))
    return linear


def _by_head(x: Tensor, heads: int, head_size: int) -> Tensor:
    """[T, heads x head_size] → [heads, T, head_size]."""
    return x.view(-1, heads, head_size).transpose(0, 1)


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """RoFormer's rotation (arXiv 2104.09864), halves rotated as in Hugging Face's Llama."""
    cosine, sine = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
