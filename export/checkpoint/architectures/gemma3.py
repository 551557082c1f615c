"""Gemma-3: five layers of six have a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from omnidraft.export.checkpoint.architectures import Architecture, Metadata, unsupported
from omnidraft.export.checkpoint.architectures.gemma2 import Gemma2
from omnidraft.export.checkpoint.config import (
    Base,
    Config,
    Context,
    HeadSize,
    Layers,
    Positive,
    Size,
)
from omnidraft.export.checkpoint.rope import rope_of, ropes_of
from omnidraft.export.checkpoint.spec import Decoder, windows_of, with_windows

ROPE_BASE, LOCAL_ROPE_BASE = 1_000_000.0, 10_000.0
FULL_ATTENTION_EVERY = 6


class Gemma3Config(Config):
    # Multimodal checkpoints are published without what is as transformers has it.
    num_hidden_layers: Layers = 26
    hidden_size: Size = 2304
    intermediate_size: Size = 9216
    num_attention_heads: Size = 8
    num_key_value_heads: Size = 4
    head_dim: HeadSize = 256
    vocab_size: Size = 262_208
    max_position_embeddings: Context = 131_072
    rms_norm_eps: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-6
    hidden_activation: str | None = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True
    rope_theta: Base = ROPE_BASE
    query_pre_attn_scalar: Positive = 256
    sliding_window: Annotated[int, Field(ge=0)] | None = 4096
    sliding_window_pattern: Size = FULL_ATTENTION_EVERY
    rope_local_base_freq: Base = LOCAL_ROPE_BASE


class Gemma3(Architecture[Gemma3Config]):
    name = "gemma3"
    model_types = ("gemma3_text",)
    gguf_types = ("gemma3",)
    schema = Gemma3Config
    activation = "gelu_tanh"
    qk_norm = "head"
    post_norms = True
    hf_names = Gemma2.hf_names
    hf_norm_offset = 1.0

    def text_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        if config.get("use_bidirectional_attention"):
            raise unsupported("use_bidirectional_attention")
        ropes = config.get("rope_parameters")
        if isinstance(ropes, dict) and "rope_theta" not in ropes:
            bases = {"full_attention": ROPE_BASE, "sliding_attention": LOCAL_ROPE_BASE}
            stated = {kind: ropes.get(kind) or {} for kind in bases}
            if all(isinstance(rope, dict) for rope in stated.values()):
                filled = {kind: {"rope_theta": bases[kind]} | stated[kind] for kind in bases}
                config = {**config, "rope_parameters": filled}
        return config

    def from_config(self, decoder: Decoder, config: Gemma3Config) -> Decoder:
        every = config.sliding_window_pattern
        local = ropes_of(config)[1]
        if config.rope_parameters is None:
            local = rope_of(config.rope_local_base_freq, decoder.head_size)
        windows = windows_of(
            decoder.layers,
            config.sliding_window or 0,
            lambda layer: (layer + 1) % every != 0,
            config.layer_types,
        )
        decoder = replace(
            decoder,
            query_scale=config.query_pre_attn_scalar**-0.5,
            embedding_scale=decoder.hidden_size**0.5,
            qkv_bias=config.attention_bias,
            output_bias=config.attention_bias,
        )
        return with_windows(decoder, windows, local)

    def from_gguf(self, decoder: Decoder, metadata: Metadata) -> Decoder:
        d = decoder
        local = rope_of(metadata("rope.freq_base_swa", LOCAL_ROPE_BASE), d.head_size)
        windows = windows_of(
            d.layers,
            metadata("attention.sliding_window", 0),
            lambda layer: (layer + 1) % FULL_ATTENTION_EVERY != 0,
        )
        # The 27B model alone scales by hidden / heads, as llama.cpp knows by its 62 layers.
        scalar = d.hidden_size // d.heads if d.layers == 62 else d.head_size
        decoder = replace(d, query_scale=scalar**-0.5, embedding_scale=d.hidden_size**0.5)
        return with_windows(decoder, windows, local)


architecture = Gemma3()
