"""ERNIE 4.5: a Llama in which neighbours are rotated with each other, with one flag for biases."""

from __future__ import annotations

from dataclasses import replace

from omnidraft.export.checkpoint.architectures import Architecture
from omnidraft.export.checkpoint.config import Base, Config, HeadSize, Size
from omnidraft.export.checkpoint.spec import Decoder


class Ernie45Config(Config):
    num_key_value_heads: Size | None = 2
    head_dim: HeadSize | None = 128
    tie_word_embeddings: bool = True
    rope_theta: Base = 500_000.0
    use_bias: bool = False


class Ernie45(Architecture[Ernie45Config]):
    name = "ernie4_5"
    model_types = ("ernie4_5",)
    gguf_types = ("ernie4_5",)
    schema = Ernie45Config
    hf_interleaved = True
    gguf_interleaved = True

    def from_config(self, decoder: Decoder, config: Ernie45Config) -> Decoder:
        bias = config.use_bias
        return replace(decoder, qkv_bias=bias, output_bias=bias, mlp_bias=bias)


architecture = Ernie45()
