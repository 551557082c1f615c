"""Qwen3: Qwen2 with normed queries and keys, and without biases."""

from __future__ import annotations

from dataclasses import replace

from omnidraft.export.checkpoint.architectures import Architecture
from omnidraft.export.checkpoint.architectures.qwen2 import Qwen2Config, qwen2_windows
from omnidraft.export.checkpoint.config import HeadSize
from omnidraft.export.checkpoint.spec import Decoder


class Qwen3Config(Qwen2Config):
    head_dim: HeadSize = 128


class Qwen3(Architecture[Qwen3Config]):
    name = "qwen3"
    model_types = ("qwen3", "qwen3_vl_text")
    gguf_types = ("qwen3", "qwen3vl")
    schema = Qwen3Config
    qk_norm = "head"

    def from_config(self, decoder: Decoder, config: Qwen3Config) -> Decoder:
        bias = config.attention_bias
        return qwen2_windows(replace(decoder, qkv_bias=bias, output_bias=bias), config)


architecture = Qwen3()
