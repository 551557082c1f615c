"""EXAONE 4: norms after each block and of each head; where some layers slide, only those rotate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from omnidraft.export.checkpoint.architectures import Architecture, Metadata
from omnidraft.export.checkpoint.architectures.olmo2 import Olmo2
from omnidraft.export.checkpoint.config import Config
from omnidraft.export.checkpoint.rope import still
from omnidraft.export.checkpoint.spec import Decoder, windows_of

WINDOW = 4096


class Exaone4Config(Config):
    sliding_window: Annotated[int, Field(ge=0)] | None = WINDOW
    # Every so many layers one has full attention.
    sliding_window_pattern: Annotated[int, Field(ge=0)] = 4


class Exaone4(Architecture[Exaone4Config]):
    name = "exaone4"
    model_types = ("exaone4",)
    gguf_types = ("exaone4",)
    schema = Exaone4Config
    qk_norm = "head"
    pre_norms = False
    post_norms = True
    hf_names = Olmo2.hf_names

    def text_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        # "LLLG": the pattern itself, in place of its length.
        pattern = config.get("sliding_window_pattern")
        if isinstance(pattern, str):
            return {**config, "sliding_window_pattern": len(pattern)}
        return config

    def from_config(self, decoder: Decoder, config: Exaone4Config) -> Decoder:
        every = config.sliding_window_pattern
        windows = windows_of(
            decoder.layers,
            config.sliding_window or 0,
            lambda layer: every == 0 or (layer + 1) % every != 0,
            config.layer_types,
        )
        return _sliding(decoder, windows)

    def from_gguf(self, decoder: Decoder, metadata: Metadata) -> Decoder:
        # The 32B model alone has windows, as llama.cpp knows by its 64 layers.
        large = decoder.layers == 64
        window = metadata("attention.sliding_window", WINDOW) if large else 0
        windows = windows_of(decoder.layers, window, lambda layer: (layer + 1) % 4 != 0)
        return _sliding(decoder, windows)


def _sliding(decoder: Decoder, windows: tuple[int | None, ...]) -> Decoder:
    if not any(windows):
        return decoder
    rope = decoder.ropes[0]
    ropes = tuple(still(rope) if window is None else rope for window in windows)
    return replace(decoder, windows=windows, ropes=ropes)


architecture = Exaone4()
