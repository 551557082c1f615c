"""Seed-OSS: a Llama with biases of queries, keys and values, and those of the output apart."""

from __future__ import annotations

from dataclasses import replace

from omnidraft.export.checkpoint.architectures import GGUF_NAMES, Architecture
from omnidraft.export.checkpoint.config import Config, HeadSize, Size
from omnidraft.export.checkpoint.spec import Decoder


class SeedOssConfig(Config):
    num_key_value_heads: Size | None = 8
    head_dim: HeadSize | None = 128
    attention_bias: bool = True
    attention_out_bias: bool = False


class SeedOss(Architecture[SeedOssConfig]):
    name = "seed_oss"
    model_types = ("seed_oss",)
    gguf_types = ("seed_oss",)
    schema = SeedOssConfig
    gguf_names = GGUF_NAMES | {"mlp_norm": "post_attention_norm"}

    def from_config(self, decoder: Decoder, config: SeedOssConfig) -> Decoder:
        return replace(
            decoder, qkv_bias=config.attention_bias, output_bias=config.attention_out_bias
        )


architecture = SeedOss()
