"""Gemma-2: soft caps, norms around each block, and a window in every other layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from omnidraft.export.checkpoint.architectures import HF_NAMES, Architecture, Metadata
from omnidraft.export.checkpoint.config import Config, HeadSize, Positive, Size
from omnidraft.export.checkpoint.rope import ropes_of
from omnidraft.export.checkpoint.spec import Decoder, windows_of, with_windows

WINDOW = 4096
ATTENTION_CAP, LOGIT_CAP = 50.0, 30.0


class Gemma2Config(Config):
    num_key_value_heads: Size = 4
    head_dim: HeadSize = 256
    hidden_activation: str | None = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True
    query_pre_attn_scalar: Positive = 256
    sliding_window: Annotated[int, Field(ge=0)] | None = WINDOW
    attn_logit_softcapping: Positive | None = ATTENTION_CAP
    final_logit_softcapping: Positive | None = LOGIT_CAP


class Gemma2(Architecture[Gemma2Config]):
    name = "gemma2"
    model_types = ("gemma2",)
    gguf_types = ("gemma2",)
    schema = Gemma2Config
    activation = "gelu_tanh"
    post_norms = True
    soft_caps = True
    # What follows the attention has the name of what precedes a Llama's feed-forward network.
    hf_names = HF_NAMES | {
        "mlp_norm": "pre_feedforward_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    }
    hf_norm_offset = 1.0

    def from_config(self, decoder: Decoder, config: Gemma2Config) -> Decoder:
        window = config.sliding_window or 0
        windows = windows_of(decoder.layers, window, _slides, config.layer_types)
        decoder = replace(
            decoder,
            query_scale=config.query_pre_attn_scalar**-0.5,
            embedding_scale=decoder.hidden_size**0.5,
            attention_cap=config.attn_logit_softcapping or 0.0,
            logit_cap=config.final_logit_softcapping or 0.0,
            qkv_bias=config.attention_bias,
            output_bias=config.attention_bias,
        )
        return with_windows(decoder, windows, ropes_of(config)[1])

    def from_gguf(self, decoder: Decoder, metadata: Metadata) -> Decoder:
        d = decoder
        windows = windows_of(d.layers, metadata("attention.sliding_window", WINDOW), _slides)
        # The 27B model alone scales by hidden / heads, as llama.cpp knows by its 46 layers.
        scalar = d.hidden_size // d.heads if d.layers == 46 else d.head_size
        return replace(
            d,
            query_scale=scalar**-0.5,
            embedding_scale=d.hidden_size**0.5,
            attention_cap=metadata("attn_logit_softcapping", ATTENTION_CAP),
            logit_cap=metadata("final_logit_softcapping", LOGIT_CAP),
            windows=windows,
        )


def _slides(layer: int) -> bool:
    return layer % 2 == 0


architecture = Gemma2()
