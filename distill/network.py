"""The drafter: a small Llama with Hugging Face parameter names and a tied head."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from omnidraft.distill.config import Shape
from omnidraft.distill.grid import Rounding

NORM_EPSILON = 1e-5


def hf_config(shape: Shape, vocab_size: int, begin: int, end: int) -> dict[str, Any]:
    """The drafter as a Hugging Face Llama's configuration."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.feed_forward_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.hidden_size // shape.heads,
        "vocab_size": vocab_size,
        "max_position_embeddings": shape.positions,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": NORM_EPSILON,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": begin,
        "eos_token_id": end,
    }


class Attention(nn.Module):
    """Causal self-attention with half-split rotary positions."""

    def __init__(self, shape: Shape, rounding: Rounding) -> None:
        super().__init__()
        self.heads, self.rounding = shape.heads, rounding
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(shape.hidden_size, shape.hidden_size, bias=False))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, T, width]; cos, sin [T, 1, head_dim] in x's dtype."""
        weight = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        qkv = _product(x, weight, self.rounding).unflatten(-1, (3 * self.heads, -1))
        qk, v = qkv[:, :, : 2 * self.heads], qkv[:, :, 2 * self.heads :]
        a, b = qk.chunk(2, dim=-1)
        qk = qk * cos + torch.cat([-b, a], dim=-1) * sin
        q, k = qk[:, :, : self.heads], qk[:, :, self.heads :]
        q, k, v = (t.transpose(1, 2).contiguous() for t in (q, k, v))
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            out = F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), is_causal=True)
        return _product(out.transpose(1, 2).flatten(2), self.o_proj.weight, self.rounding)


class MLP(nn.Module):
    """Gated feed-forward block."""

    def __init__(self, shape: Shape, rounding: Rounding) -> None:
        super().__init__()
        self.rounding = rounding
        self.gate_proj = nn.Linear(shape.hidden_size, shape.feed_forward_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.feed_forward_size, bias=False)
        self.down_proj = nn.Linear(shape.feed_forward_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, width]."""
        weight = torch.cat([self.gate_proj.weight, self.up_proj.weight])
        gate, up = _product(x, weight, self.rounding).chunk(2, dim=-1)
        return _product(F.silu(gate) * up, self.down_proj.weight, self.rounding)


class Block(nn.Module):
    """One pre-norm layer."""

    def __init__(self, shape: Shape, rounding: Rounding) -> None:
        super().__init__()
        self.self_attn = Attention(shape, rounding)
        self.mlp = MLP(shape, rounding)
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=NORM_EPSILON)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=NORM_EPSILON)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, T, width]."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    """Token ids to final hidden states; the head is the embedding."""

    def __init__(self, shape: Shape, vocab_size: int) -> None:
        super().__init__()
        self.shape = shape
        self.rounding = Rounding()
        self.embed_tokens = nn.Embedding(vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList([Block(shape, self.rounding) for _ in range(shape.layers)])
        self.norm = nn.RMSNorm(shape.hidden_size, eps=NORM_EPSILON)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                scale = (2 * shape.layers) ** -0.5 if "o_proj" in name or "down" in name else 1.0
                nn.init.normal_(p, std=0.02 * scale)

    def forward(self, ids: Tensor) -> Tensor:
        """ids int64 [B, T] -> hidden states [B, T, width], as the head takes them."""
        x = F.embedding(ids, self.head())
        if torch.is_autocast_enabled(ids.device.type):
            x = x.to(torch.get_autocast_dtype(ids.device.type))
        half = self.shape.hidden_size // self.shape.heads // 2
        exponent = torch.arange(half, device=ids.device) / half
        position = torch.arange(ids.shape[1], device=ids.device)
        angle = torch.outer(position, self.shape.rope_theta**-exponent).repeat(1, 2)[:, None]
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.rounding.inputs(self.norm(x))

    def head(self) -> Tensor:
        """The head, which is the embedding: [vocab, width]."""
        return self.rounding.weights(self.embed_tokens.weight)

    def hf_state(self) -> dict[str, Tensor]:
        """Float32 parameters under Hugging Face names; the tied head is not repeated."""
        return {
            "model." + k: (self.rounding.weights(v.detach()) if v.dim() == 2 else v).float().cpu()
            for k, v in self.state_dict().items()
        }


def _product(x: Tensor, weight: Tensor, rounding: Rounding) -> Tensor:
    return F.linear(rounding.inputs(x), rounding.weights(weight))
