"""Phi-3 and Phi-4: queries, keys and values lie in one tensor, gate and up in another."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from omnidraft.export.checkpoint.architectures import (
    GGUF_NAMES,
    HF_NAMES,
    Architecture,
    Metadata,
)
from omnidraft.export.checkpoint.config import Config, Context
from omnidraft.export.checkpoint.spec import Decoder

_QKV, _GATE_UP = ("q", "k", "v"), ("gate", "up")


class Phi3Config(Config):
    original_max_position_embeddings: Context = 4096
    sliding_window: Annotated[int, Field(ge=0)] | None = None


class Phi3(Architecture[Phi3Config]):
    name = "phi3"
    model_types = ("phi3",)
    gguf_types = ("phi3",)
    schema = Phi3Config
    hf_names = (
        HF_NAMES
        | dict.fromkeys(_QKV, "self_attn.qkv_proj")
        | dict.fromkeys(_GATE_UP, "mlp.gate_up_proj")
    )
    gguf_names = GGUF_NAMES | dict.fromkeys(_QKV, "attn_qkv") | dict.fromkeys(_GATE_UP, "ffn_up")

    def from_config(self, decoder: Decoder, config: Phi3Config) -> Decoder:
        return _windows(decoder, config.sliding_window)

    def from_gguf(self, decoder: Decoder, metadata: Metadata) -> Decoder:
        return _windows(decoder, metadata("attention.sliding_window", 0))


def _windows(decoder: Decoder, window: int | None) -> Decoder:
    return replace(decoder, windows=(window or None,) * decoder.layers)


architecture = Phi3()
