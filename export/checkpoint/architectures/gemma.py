"""Gemma: GELU, norms with an offset of 1, scaled embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omnidraft.export.checkpoint.architectures import Architecture, Metadata, unsupported
from omnidraft.export.checkpoint.config import Config, HeadSize
from omnidraft.export.checkpoint.spec import Decoder


class GemmaConfig(Config):
    head_dim: HeadSize = 256
    hidden_act: str = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True


class Gemma(Architecture[GemmaConfig]):
    name = "gemma"
    model_types = ("gemma",)
    gguf_types = ("gemma",)
    schema = GemmaConfig
    activation = "gelu_tanh"
    hf_norm_offset = 1.0

    def text_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        if config.get("use_bidirectional_attention"):
            raise unsupported("use_bidirectional_attention")
        # The first ones were published with the name of another GELU.
        activation = {"hidden_act": None} if config.get("hidden_act") == "gelu" else {}
        return {**config, "hidden_activation": None, **activation}

    def from_config(self, decoder: Decoder, config: GemmaConfig) -> Decoder:
        bias = config.attention_bias
        return _scaled(replace(decoder, qkv_bias=bias, output_bias=bias))

    def from_gguf(self, decoder: Decoder, metadata: Metadata) -> Decoder:
        return _scaled(decoder)


def _scaled(decoder: Decoder) -> Decoder:
    return replace(decoder, embedding_scale=decoder.hidden_size**0.5)


architecture = Gemma()
