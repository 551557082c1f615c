"""Mistral and Ministral: Llamas whose layers, or some of them, have a sliding window.

Their GGUF files say that they are Llamas, and have no window.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from omnidraft.export.checkpoint.architectures import Architecture
from omnidraft.export.checkpoint.config import Config, Size
from omnidraft.export.checkpoint.rope import ropes_of
from omnidraft.export.checkpoint.spec import Decoder, windows_of, with_windows


class MistralConfig(Config):
    num_key_value_heads: Size | None = 8
    sliding_window: Annotated[int, Field(ge=0)] | None = 4096


class Mistral(Architecture[MistralConfig]):
    name = "mistral"
    model_types = ("mistral", "ministral")
    gguf_types = ()
    schema = MistralConfig

    def from_config(self, decoder: Decoder, config: MistralConfig) -> Decoder:
        window = config.sliding_window or 0
        windows = windows_of(decoder.layers, window, lambda layer: True, config.layer_types)
        return with_windows(decoder, windows, ropes_of(config)[1])


architecture = Mistral()
