"""Every decoder that transformers knows is read as it is, or refused by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from families import FAMILIES
from needs import needs
from test_multimodal import MODELS

from omnidraft.export.checkpoint.safetensors import describe
from omnidraft.runtime.errors import OmniDraftError

transformers = needs("transformers")
AUTO = transformers.models.auto.modeling_auto
KNOWN = {each.model_type for each in FAMILIES.values()} | {kind for kind, _ in MODELS}
NAMES = sorted(
    {
        *AUTO.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *AUTO.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        *AUTO.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    }
)


@pytest.mark.parametrize("name", NAMES)
def test_an_architecture_is_compared_with_transformers_or_refused(name: str) -> None:
    try:
        config = json.loads(transformers.AutoConfig.for_model(name).to_json_string(use_diff=False))
    except Exception:  # some have no defaults
        config = {"model_type": name}
    name = config["model_type"]
    try:
        describe(config, "somewhere")
    except OmniDraftError as error:
        assert name not in KNOWN
        assert str(error).startswith(f"somewhere: model_type '{name}' is not supported.")
    else:
        assert name in KNOWN


# What people have under the names of these families, as their config.json says it.
PUBLISHED: dict[str, dict[str, Any]] = {
    "falcon3": {
        "model_type": "llama",
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 23040,
        "max_position_embeddings": 32768,
        "num_attention_heads": 12,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000042,
        "vocab_size": 131072,
    },
    "gemma-2b": {
        "model_type": "gemma",
        "head_dim": 256,
        "hidden_act": "gelu",
        "hidden_activation": None,
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "max_position_embeddings": 8192,
        "num_attention_heads": 8,
        "num_hidden_layers": 18,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "vocab_size": 256000,
    },
    "phi-4-mini": {
        "model_type": "phi3",
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "num_attention_heads": 24,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096,
        "partial_rotary_factor": 0.75,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "type": "longrope",
            "long_factor": [1.0 + i for i in range(48)],
            "short_factor": [1.0] * 48,
        },
        "rope_theta": 10000.0,
        "sliding_window": 262144,
        "tie_word_embeddings": True,
        "vocab_size": 200064,
    },
    "exaone-4.0-1.2b": {
        "model_type": "exaone4",
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 4096,
        "layer_types": ["full_attention"] * 30,
        "max_position_embeddings": 65536,
        "num_attention_heads": 32,
        "num_hidden_layers": 30,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 16.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 1000000,
        "sliding_window": None,
        "sliding_window_pattern": None,
        "tie_word_embeddings": True,
        "vocab_size": 102400,
    },
    "exaone-4.0-32b": {
        "model_type": "exaone4",
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "intermediate_size": 27392,
        "max_position_embeddings": 131072,
        "num_attention_heads": 40,
        "num_hidden_layers": 64,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000,
        "sliding_window": 4096,
        "sliding_window_pattern": "LLLG",
        "vocab_size": 102400,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_are_read(name: str) -> None:
    config = PUBLISHED[name]
    decoder, _ = describe(config, "somewhere")
    assert decoder.head_size == config.get("head_dim", 128)
    assert decoder.layers == config["num_hidden_layers"]
    longest = config.get("original_max_position_embeddings", config["max_position_embeddings"])
    assert decoder.context_length == longest
    assert sum(map(bool, decoder.windows)) == {"phi-4-mini": 32, "exaone-4.0-32b": 48}.get(name, 0)
    assert decoder.tied_embeddings == (config.get("tie_word_embeddings", name == "gemma-2b"))
