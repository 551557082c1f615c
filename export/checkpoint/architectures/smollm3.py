"""SmolLM3: a Llama in which every fourth layer does not rotate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from omnidraft.export.checkpoint.architectures import Architecture, Metadata
from omnidraft.export.checkpoint.config import Base, Config, Size
from omnidraft.export.checkpoint.rope import still
from omnidraft.export.checkpoint.spec import Decoder, windows_of
from omnidraft.runtime.errors import DamagedFileError

STILL_EVERY = 4


class SmolLM3Config(Config):
    num_key_value_heads: Size | None = 4
    tie_word_embeddings: bool = True
    rope_theta: Base = 2_000_000.0
    # 1 for a layer that rotates, 0 for one that does not.
    no_rope_layers: list[Annotated[int, Field(ge=0, le=1)]] | None = None
    no_rope_layer_interval: Size = STILL_EVERY
    use_sliding_window: bool = False
    sliding_window: Annotated[int, Field(ge=0)] | None = None


class SmolLM3(Architecture[SmolLM3Config]):
    name = "smollm3"
    model_types = ("smollm3",)
    gguf_types = ("smollm3",)
    schema = SmolLM3Config
    gguf_interleaved = True

    def from_config(self, decoder: Decoder, config: SmolLM3Config) -> Decoder:
        layers, every, bias = decoder.layers, config.no_rope_layer_interval, config.attention_bias
        rotates = config.no_rope_layers or [(i + 1) % every for i in range(layers)]
        if len(rotates) != layers:
            raise DamagedFileError(f"no_rope_layers names {len(rotates)} of {layers} layers.")
        window = (config.use_sliding_window and config.sliding_window) or 0
        windows = windows_of(layers, window, lambda i: not rotates[i], config.layer_types)
        decoder = replace(decoder, qkv_bias=bias, output_bias=bias, windows=windows)
        return _rotating(decoder, rotates)

    def from_gguf(self, decoder: Decoder, metadata: Metadata) -> Decoder:
        return _rotating(decoder, [(i + 1) % STILL_EVERY for i in range(decoder.layers)])


def _rotating(decoder: Decoder, rotates: Sequence[int]) -> Decoder:
    rope = decoder.ropes[0]
    return replace(decoder, ropes=tuple(rope if each else still(rope) for each in rotates))


architecture = SmolLM3()
