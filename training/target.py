"""The target, SmolLM2-135M-Instruct: weights, tokenizer and chat format from its GGUF file."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 30, 576, 9, 3, 64, 49152
ROPE_THETA, NORM_EPS = 100000.0, 1e-5
IM_START, IM_END = 1, 2
SPECIAL = 17  # ids below this are control tokens: they have no surface
TOP = 8  # kept probabilities of each sampled position
KIND_FORCED, KIND_USER, KIND_ANSWER = 0, 1, 2  # who chose a sampled stream's token

SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n"
)
USER_HEADER = "<|im_start|>user\n"
ANSWER_HEADER = "<|im_end|>\n<|im_start|>assistant\n"


def read_gguf(path: Path) -> gguf.GGUFReader:
    """Open the GGUF file (memory-mapped)."""
    return gguf.GGUFReader(str(path))


def load_tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    """Build the byte-level BPE tokenizer from the GGUF metadata."""
    tokens: list[str] = reader.fields["tokenizer.ggml.tokens"].contents()
    merges: list[str] = reader.fields["tokenizer.ggml.merges"].contents()
    vocab = {token: i for i, token in enumerate(tokens)}
    pairs = [(a, b) for a, b in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in tokens[:SPECIAL]])
    return tokenizer


def load_weights(reader: gguf.GGUFReader, device: str) -> dict[str, torch.Tensor]:
    """Dequantise every tensor to bfloat16 [out, in] (norms float32); q, k, v and gate, up fused.

    GGUF stores q and k rows for interleaved rotary pairs; they are put back in half-split order.
    """
    raw: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        raw[tensor.name] = torch.from_numpy(values).to(device)

    def half_split(weight: torch.Tensor, heads: int) -> torch.Tensor:
        return weight.view(heads, HEAD_DIM // 2, 2, -1).transpose(1, 2).reshape(weight.shape)

    weights = {"embed": raw["token_embd.weight"].bfloat16(), "norm": raw["output_norm.weight"]}
    for i in range(LAYERS):
        block = f"blk.{i}."
        qkv = [
            half_split(raw[block + "attn_q.weight"], HEADS),
            half_split(raw[block + "attn_k.weight"], KV_HEADS),
            raw[block + "attn_v.weight"],
        ]
        weights[f"{i}.qkv"] = torch.cat(qkv).bfloat16()
        weights[f"{i}.o"] = raw[block + "attn_output.weight"].bfloat16()
        gate_up = [raw[block + "ffn_gate.weight"], raw[block + "ffn_up.weight"]]
        weights[f"{i}.gate_up"] = torch.cat(gate_up).bfloat16()
        weights[f"{i}.down"] = raw[block + "ffn_down.weight"].bfloat16()
        weights[f"{i}.norm1"] = raw[block + "attn_norm.weight"]
        weights[f"{i}.norm2"] = raw[block + "ffn_norm.weight"]
    return weights


def token_surfaces(reader: gguf.GGUFReader) -> list[bytes | None]:
    """Surface bytes of every token; None for control tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    to_byte = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    tokens: list[str] = reader.fields["tokenizer.ggml.tokens"].contents()
    return [
        None if i < SPECIAL else bytes(to_byte[c] for c in token) for i, token in enumerate(tokens)
    ]
