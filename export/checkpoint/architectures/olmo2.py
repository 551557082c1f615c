"""OLMo-2: norms after attention and feed-forward network, and over all queries and all keys."""

from __future__ import annotations

from dataclasses import replace

from omnidraft.export.checkpoint.architectures import HF_NAMES, Architecture, Metadata
from omnidraft.export.checkpoint.config import Config
from omnidraft.export.checkpoint.rope import rope_of
from omnidraft.export.checkpoint.spec import Decoder, windows_of, with_windows


class Olmo2(Architecture[Config]):
    name = "olmo2"
    model_types = ("olmo2",)
    gguf_types = ("olmo2",)
    schema = Config
    qk_norm = "row"
    pre_norms = False
    post_norms = True
    hf_names = HF_NAMES | {
        "post_attention_norm": "post_attention_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    }

    def from_config(self, decoder: Decoder, config: Config) -> Decoder:
        bias = config.attention_bias
        return replace(decoder, qkv_bias=bias, output_bias=bias)

    def from_gguf(self, decoder: Decoder, metadata: Metadata) -> Decoder:
        # OLMo-3 has this name, too.
        windows = windows_of(decoder.layers, metadata("attention.sliding_window", 0), slides)
        local = rope_of(metadata("rope.freq_base", 10_000.0), decoder.head_size)
        return with_windows(decoder, windows, local)


def slides(layer: int) -> bool:
    return layer % 4 != 3


architecture = Olmo2()
