"""Ministral-3: a Llama whose queries grow beyond the length that it was first trained with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from omnidraft.export.checkpoint.architectures import Architecture, Metadata
from omnidraft.export.checkpoint.config import Config, HeadSize, Size
from omnidraft.export.checkpoint.spec import Decoder

ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


class Ministral3Config(Config):
    num_key_value_heads: Size | None = 8
    head_dim: HeadSize | None = 128
    sliding_window: Annotated[int, Field(ge=0)] | None = None


class Ministral3(Architecture[Ministral3Config]):
    name = "ministral3"
    model_types = ("ministral3",)
    gguf_types = ("mistral3",)
    schema = Ministral3Config
    gguf_interleaved = True

    def text_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        stated = config.get("rope_parameters") or config.get("rope_scaling")
        return config if stated else {**config, "rope_parameters": ROPE}

    def from_config(self, decoder: Decoder, config: Ministral3Config) -> Decoder:
        return replace(decoder, windows=(config.sliding_window or None,) * decoder.layers)

    def from_gguf(self, decoder: Decoder, metadata: Metadata) -> Decoder:
        if not metadata("attention.temperature_scale", 0.0):
            return decoder
        trained = metadata("rope.scaling.original_context_length", decoder.context_length)
        return replace(decoder, context_length=min(decoder.context_length, trained))


architecture = Ministral3()
