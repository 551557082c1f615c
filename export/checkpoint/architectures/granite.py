"""Granite: Llama with multipliers of embeddings, attention, residuals and logits."""

from __future__ import annotations

from dataclasses import replace

from omnidraft.export.checkpoint.architectures import Architecture, Metadata
from omnidraft.export.checkpoint.config import Config, Positive
from omnidraft.export.checkpoint.spec import Decoder


class GraniteConfig(Config):
    embedding_multiplier: Positive = 1.0
    attention_multiplier: Positive = 1.0
    residual_multiplier: Positive = 1.0
    logits_scaling: Positive = 1.0


class Granite(Architecture[GraniteConfig]):
    name = "granite"
    model_types = ("granite",)
    gguf_types = ("granite",)
    schema = GraniteConfig
    gguf_interleaved = True

    def from_config(self, decoder: Decoder, config: GraniteConfig) -> Decoder:
        decoder = replace(
            decoder,
            qkv_bias=config.attention_bias,
            output_bias=config.attention_bias,
            query_scale=config.attention_multiplier,
            embedding_scale=config.embedding_multiplier,
        )
        return _folded(decoder, config.residual_multiplier, config.logits_scaling)

    def from_gguf(self, decoder: Decoder, metadata: Metadata) -> Decoder:
        decoder = replace(
            decoder,
            # What is 0 is not said.
            query_scale=metadata("attention.scale", 0.0) or decoder.query_scale,
            embedding_scale=metadata("embedding_scale", 0.0) or 1.0,
        )
        residual, divisor = metadata("residual_scale", 0.0), metadata("logit_scale", 0.0)
        return _folded(decoder, residual or 1.0, divisor or 1.0)


def _folded(decoder: Decoder, residual: float, divisor: float) -> Decoder:
    """What multiplies a linear's output, or divides the last one's, is a matter of weights."""
    return replace(decoder, folded={"o": residual, "down": residual, "norm": 1 / divisor})


architecture = Granite()
