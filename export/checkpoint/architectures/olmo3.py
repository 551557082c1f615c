"""OLMo-3: OLMo-2 with a window in three layers of four, which rotate without scaling.

Their GGUF files say that they are OLMo-2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from omnidraft.export.checkpoint.architectures import Architecture
from omnidraft.export.checkpoint.architectures.olmo2 import Olmo2, slides
from omnidraft.export.checkpoint.config import Base, Config
from omnidraft.export.checkpoint.rope import rope_of, ropes_of
from omnidraft.export.checkpoint.spec import Decoder, windows_of, with_windows


class Olmo3Config(Config):
    rope_theta: Base = 500_000.0
    sliding_window: Annotated[int, Field(ge=0)] | None = 4096


class Olmo3(Architecture[Olmo3Config]):
    name = "olmo3"
    model_types = ("olmo3",)
    gguf_types = ()
    schema = Olmo3Config
    qk_norm = Olmo2.qk_norm
    pre_norms = Olmo2.pre_norms
    post_norms = Olmo2.post_norms
    hf_names = Olmo2.hf_names

    def from_config(self, decoder: Decoder, config: Olmo3Config) -> Decoder:
        local = ropes_of(config)[1]
        if config.rope_parameters is None:
            local = rope_of(config.rope_theta, decoder.head_size)
        window, bias = config.sliding_window or 0, config.attention_bias
        windows = windows_of(decoder.layers, window, slides, config.layer_types)
        decoder = replace(decoder, qkv_bias=bias, output_bias=bias)
        return with_windows(decoder, windows, local)


architecture = Olmo3()
