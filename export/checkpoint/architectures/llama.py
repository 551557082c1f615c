"""Llama, and whatever else is published under its name."""

from __future__ import annotations

from dataclasses import replace

from omnidraft.export.checkpoint.architectures import Architecture
from omnidraft.export.checkpoint.config import Config
from omnidraft.export.checkpoint.spec import Decoder


class Llama(Architecture[Config]):
    name = "llama"
    model_types = ("llama",)
    gguf_types = ("llama",)
    schema = Config
    gguf_interleaved = True

    def from_config(self, decoder: Decoder, config: Config) -> Decoder:
        bias = config.attention_bias
        return replace(decoder, qkv_bias=bias, output_bias=bias)


architecture = Llama()
