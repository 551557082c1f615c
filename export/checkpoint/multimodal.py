"""The text half of models that also see or hear, where it computes as the model of text alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# By the model type of the whole: that of its text half where it does not say.
_HALVES = {
    "gemma3": "gemma3_text",
    "idefics3": "llama",
    "internvl": "qwen2",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "smolvlm": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}
# What transformers takes where the text half, unlike a model alone, is published without.
_LLAMA = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {**_LLAMA, "intermediate_size": 11008, "vocab_size": 32000},
    "mistral": {
        **_LLAMA,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "max_position_embeddings": 131_072,
    },
    "qwen2_vl_text": {"rope_theta": 1_000_000.0},
    "qwen2_5_vl_text": {"rope_theta": 1_000_000.0},
    "qwen3_vl_text": {"rope_theta": 500_000.0},
}


def is_multimodal(config: Mapping[str, Any]) -> bool:
    """Whether it is a model whose text half is known."""
    return config.get("model_type") in _HALVES


def text_half(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config.json says of the text half, or of the whole if it has no other."""
    if not is_multimodal(config):
        return config
    whole, inner = config["model_type"], config.get("text_config")
    if not isinstance(inner, dict):  # Qwen2-VL's say it of the whole
        inner = config
    kind = inner.get("model_type")
    if kind in (None, whole):
        kind = _HALVES[whole]
    ties = [each.get("tie_word_embeddings") for each in (config, inner)]
    return {
        **_DEFAULTS.get(kind, {}),
        "quantization_config": config.get("quantization_config"),
        **inner,
        "model_type": kind,
        # The files show whether they have a head of their own; those who say nothing tie.
        "tie_word_embeddings": True in ties or ties == [None, None],
    }
