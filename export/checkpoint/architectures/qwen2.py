"""Qwen2: biases of queries, keys and values, and windows in the upper layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from omnidraft.export.checkpoint.architectures import Architecture, Metadata
from omnidraft.export.checkpoint.config import Config
from omnidraft.export.checkpoint.rope import ropes_of
from omnidraft.export.checkpoint.spec import Decoder, windows_of, with_windows
from omnidraft.runtime.errors import DamagedFileError


class Qwen2Config(Config):
    use_sliding_window: bool = False
    sliding_window: Annotated[int, Field(ge=0)] = 4096
    max_window_layers: int = 28


class Qwen2(Architecture[Qwen2Config]):
    name = "qwen2"
    model_types = ("qwen2", "qwen2_vl_text", "qwen2_5_vl_text")
    gguf_types = ("qwen2", "qwen2vl")
    schema = Qwen2Config

    def from_config(self, decoder: Decoder, config: Qwen2Config) -> Decoder:
        return qwen2_windows(replace(decoder, qkv_bias=True), config)

    def from_gguf(self, decoder: Decoder, metadata: Metadata) -> Decoder:
        if not decoder.qkv_bias:
            raise DamagedFileError("This Qwen2 lacks blk.0.attn_q.bias and all its like.")
        return decoder


def qwen2_windows(decoder: Decoder, config: Qwen2Config) -> Decoder:
    window = config.sliding_window if config.use_sliding_window else 0
    first = config.max_window_layers
    windows = windows_of(decoder.layers, window, lambda layer: layer >= first, config.layer_types)
    return with_windows(decoder, windows, ropes_of(config)[1])


architecture = Qwen2()
