"""Models that also see or hear: their text half computes what transformers does with text alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import LENGTH, SIZES
from needs import needs

from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.export.checkpoint.safetensors import describe
from omnidraft.export.conversion import convert
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.errors import OmniDraftError

torch, transformers = needs("torch"), needs("transformers")

TEXT = SIZES | {"num_hidden_layers": 2}
SEEING: dict[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "depth": 1},
    **{"num_attention_heads": 2, "num_heads": 2, "image_size": 28, "patch_size": 14},
    **{"embed_dim": 32, "out_hidden_size": 64, "projection_dim": 32, "num_mel_bins": 8},
    **{"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "d_model": 32},
}
MARKERS = ("image_token_id", "image_token_index", "video_token_id", "audio_token_id")
# By the model type of the whole: those of its text half, nothing for the one it has by itself.
MODELS = [
    *[("gemma3", ""), ("idefics3", ""), ("internvl", ""), ("internvl", "qwen3")],
    *[("internvl", "llama"), ("llava", ""), ("llava", "mistral"), ("llava", "gemma")],
    *[("llava_next", "qwen2"), ("llava_onevision", ""), ("mistral3", ""), ("smolvlm", "")],
    *[("mistral3", "ministral3"), ("qwen2_vl", ""), ("qwen2_5_vl", ""), ("qwen3_vl", "")],
    *[("qwen2_audio", ""), ("vipllava", ""), ("voxtral", "")],
]


def made(kind: str, text: str = "") -> Any:
    torch.manual_seed(0)
    base = transformers.AutoConfig.for_model(kind)
    text_config = {**TEXT, "model_type": text or base.text_config.model_type}
    if "_vl" in kind:
        rope = {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 3, 3]}
        text_config |= {"rope_parameters": rope, "head_dim": 16}
    config = transformers.AutoConfig.for_model(kind, text_config=text_config)
    other = getattr(config, "vision_config", None) or config.audio_config
    for key, value in SEEING.items():
        if hasattr(other, key):
            several = isinstance(getattr(other, key), list | tuple)
            setattr(other, key, [value] * 2 if several else value)
    for key in MARKERS:
        if hasattr(config, key):
            setattr(config, key, SIZES["vocab_size"] - 1)
    names = transformers.models.auto.modeling_auto
    found = names.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(kind)
    name = found or names.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES[kind]
    model = getattr(transformers, name)(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize(("kind", "text"), MODELS)
def test_the_text_half_computes_what_transformers_does(
    kind: str, text: str, tmp_path: Path
) -> None:
    model = made(kind, text)
    model.save_pretrained(tmp_path / "source")
    tokens = np.random.default_rng(0).integers(3, SIZES["vocab_size"] - 1, LENGTH)
    with torch.no_grad():
        expected = model(torch.tensor(tokens[None])).logits[0].numpy()
    convert(tmp_path / "source", tmp_path / "out", "float32")
    found = OnnxModel(tmp_path / "out", threads=1).forward(tokens)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_a_configuration_may_say_all_of_the_whole(kind: str, tmp_path: Path) -> None:
    made(kind).save_pretrained(tmp_path)
    nested = open_checkpoint(tmp_path).decoder
    config = json.loads((tmp_path / "config.json").read_text())
    flat = {**config.pop("text_config"), **config, "tie_word_embeddings": False}
    rope = flat.pop("rope_parameters")
    flat |= {"rope_theta": rope["rope_theta"]}
    flat |= {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    assert describe(flat, "flat")[0] == nested


def test_a_text_half_that_leaves_out_what_transformers_knows() -> None:
    """As Llava-1.5 is published."""
    for kind in ("llava", "mistral3", "voxtral"):
        for text in ("llama", "mistral"):
            part = {"model_type": text, "vocab_size": 300}
            config = {"model_type": kind, "text_config": part}
            whole = transformers.AutoConfig.for_model(**part).to_dict()
            expected = describe({**config, "text_config": whole}, "whole")[0]
            found = describe({**config, "text_config": part}, "part")[0]
            assert found.head_size == 128
            for name in ("layers", "hidden_size", "feed_forward_size", "heads", "kv_heads"):
                assert getattr(found, name) == getattr(expected, name), name
            for name in ("context_length", "norm_epsilon", "ropes", "windows"):
                assert getattr(found, name) == getattr(expected, name), name


def test_a_text_half_that_is_not_known_is_named() -> None:
    config = {"model_type": "llava", "text_config": {"model_type": "mixtral", "vocab_size": 300}}
    with pytest.raises(OmniDraftError, match="'mixtral' is not supported"):
        describe(config, "somewhere")
