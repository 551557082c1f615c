"""Families of decoders: each computes what transformers does, from safetensors and from GGUF."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import (
    COLUMNS,
    FAMILIES,
    LENGTH,
    SIZES,
    Tensors,
    expected_logits,
    sources,
    tokens_of,
    weights_of,
    write_folder,
    write_recorded_gguf,
)
from needs import needs
from numpy.typing import NDArray

from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.export.checkpoint.safetensors import describe
from omnidraft.export.conversion import convert
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_recorded_is_what_transformers_computes(name: str, tmp_path: Path) -> None:
    torch, transformers = needs("torch"), needs("transformers")
    folder = write_folder(name, tmp_path / "source")
    family = FAMILIES[name]
    config = transformers.AutoConfig.for_model(family.model_type, **(SIZES | family.change))
    assert described(config) == described(transformers.AutoConfig.from_pretrained(folder))
    model, found = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype="float32", output_loading_info=True
    )
    assert not any(found.values()), found
    with torch.no_grad():
        logits = model.eval()(torch.tensor(tokens_of()[None])).logits[0].numpy()
    assert len(weights_of(name)) > 0 and len(logits) == LENGTH
    np.testing.assert_allclose(logits[:, COLUMNS], expected_logits(name), rtol=0, atol=2e-5)


def described(config: Any) -> dict[str, Any]:
    """What a configuration says of the model itself."""
    apart = ("_name_or_path", "architectures", "dtype", "transformers_version")
    return {key: value for key, value in config.to_dict().items() if key not in apart}


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    tokens, expected = tokens_of(), expected_logits(name)
    for source in sources(name, tmp_path):
        convert(source, tmp_path / "out", "float32")
        model = OnnxModel(tmp_path / "out", threads=1)
        np.testing.assert_allclose(model.forward(tokens)[:, COLUMNS], expected, rtol=0, atol=1e-4)
        # Cut back, and go on in passes of several lengths, past what a window sees.
        model.truncate(11)
        for start, stop in ((11, 12), (12, 25), (25, 26), (26, 40)):
            part = model.forward(tokens[start:stop])[:, COLUMNS]
            np.testing.assert_allclose(part, expected[start:stop], rtol=0, atol=1e-4)


KINDS = ("weight", "bias")
# By what follows ``model.layers.1.``: what one family or another has, or none that is known here.
NAMES = [
    *(f"self_attn.{part}_proj.{kind}" for part in ("q", "k", "v", "o", "qkv") for kind in KINDS),
    *(f"mlp.{part}_proj.{kind}" for part in ("gate", "up", "down", "gate_up") for kind in KINDS),
    *("self_attn.q_norm.weight", "self_attn.k_norm.weight", "self_attn.q_norm.bias"),
    *("input_layernorm.weight", "post_attention_layernorm.weight", "input_layernorm.bias"),
    *("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"),
    *("self_attn.sinks", "mlp.experts.0.up_proj.weight", "mlp.router.weight"),
]
GGUF_NAMES = [
    *(f"blk.1.{part}.weight" for part in ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_sinks")),
    *(f"blk.1.{part}.weight" for part in ("attn_q_norm", "attn_k_norm", "attn_norm", "ffn_norm")),
    *("blk.1.post_attention_norm.weight", "blk.1.post_ffw_norm.weight", "blk.1.attn_norm.bias"),
    *("blk.1.ffn_gate.weight", "blk.1.ffn_gate_exps.weight", "blk.1.ffn_gate_inp.weight"),
    *("blk.1.attn_q_norm.bias", "output.bias", "output_norm.bias", "token_embd_norm.weight"),
    *("rope_factors_long.weight", "blk.1.attn_q.scale", "blk.4.ffn_up.weight"),
]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_tensor_of_a_folder_is_read_or_named(name: str, tmp_path: Path) -> None:
    """None is left over, none is made up, and none is of another shape."""
    from safetensors.numpy import load_file, save_file

    source = next(sources(name, tmp_path))
    file = source / "model.safetensors"
    whole = load_file(file)

    def refused(tensors: Tensors, stored: str) -> None:
        save_file(tensors, file)
        with pytest.raises(OmniDraftError, match=rf"{re.escape(stored)}\b"):
            open_checkpoint(source)

    open_checkpoint(source)
    others = [f"model.layers.1.{other}" for other in NAMES]
    strange = {"lm_head.bias", "model.norm.bias", "score.weight", *others} - whole.keys()
    assert len(strange) > len(NAMES) // 2
    for stored in strange:
        refused(whole | {stored: np.ones((8, 8), np.float32)}, stored)
    for stored, value in whole.items():
        if not stored.startswith(("model.layers.0.", "model.layers.2.", "model.layers.3.")):
            refused({other: whole[other] for other in whole if other != stored}, stored)
            refused(whole | {stored: np.concatenate([value, value[:1]])}, stored)


@pytest.mark.parametrize("name", [name for name in FAMILIES if FAMILIES[name].gguf_type])
def test_every_tensor_of_a_gguf_is_read_or_named(name: str, tmp_path: Path) -> None:
    whole: Tensors = {}
    open_checkpoint(write_recorded_gguf(name, tmp_path / "whole.gguf", whole.update))

    def refused(stored: str, value: NDArray[Any] | None) -> None:
        def change(tensors: Tensors) -> None:
            tensors.pop(stored, None)
            if value is not None:
                tensors[stored] = value

        path = write_recorded_gguf(name, tmp_path / "changed.gguf", change)
        with pytest.raises(OmniDraftError, match=rf"{re.escape(stored)}\b"):
            open_checkpoint(path)

    for stored in set(GGUF_NAMES) - whole.keys():
        refused(stored, np.ones((8, 8), np.float32))
    for stored, value in whole.items():
        if stored.startswith(("blk.1.", "output_norm.")):
            refused(stored, np.concatenate([value, value[:1]]))
            if not stored.endswith(".bias"):  # without, it would be another model's
                refused(stored, None)


@pytest.mark.parametrize(
    "model_type", sorted({each.model_type for each in FAMILIES.values()} | {"gemma3_text"})
)
def test_what_a_configuration_leaves_out_is_what_transformers_takes(model_type: str) -> None:
    """Or it is missed, in words. Some of Gemma-3 are published with half of their fields."""
    transformers = needs("transformers")
    whole = transformers.AutoConfig.for_model(model_type).to_dict()
    expected, _ = describe(whole, "whole")
    for key in sorted(whole.keys() - {"model_type"}):
        try:
            found, _ = describe({k: v for k, v in whole.items() if k != key}, "part")
        except DamagedFileError as error:
            assert key in str(error)
        else:
            assert found == expected, key


@pytest.mark.parametrize(
    ("model_type", "change", "message"),
    [
        ("gemma3_text", {"layer_types": ["linear_attention"] * 4}, "type 'linear_attention'"),
        ("mistral", {"layer_types": ["chunked_attention"] * 4}, "type 'chunked_attention'"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers names 2 of 4 layers"),
        ("smollm3", {"no_rope_layers": [2, 0, 0, 0]}, "no_rope_layers"),
        ("phi3", {"partial_rotary_factor": 0.35}, "partial_rotary_factor = 5 is not even"),
        ("phi3", {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        (
            "phi3",
            {"rope_scaling": {"type": "su", "short_factor": [1.0, 2.0]}},
            "2 factors for 8 frequencies",
        ),
        ("granite", {"residual_multiplier": 0}, "residual_multiplier"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping"),
        ("qwen3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0 is not"),
        ("olmo2", {"rope_scaling": {"type": "yarn"}}, "factor is missing"),
    ],
)
def test_what_cannot_be_is_named(model_type: str, change: dict[str, Any], message: str) -> None:
    config = {**SIZES, "model_type": model_type, "rms_norm_eps": 1e-6, **change}
    with pytest.raises(OmniDraftError, match=rf"somewhere.*{message}"):
        describe(config, "somewhere")


@pytest.mark.parametrize(("name", "length"), [("phi3-long", 64), ("ministral3", 128)])
def test_a_context_ends_where_training_did(name: str, length: int, tmp_path: Path) -> None:
    """Beyond that other factors hold, for the keys that are in the cache already, too."""
    for source in sources(name, tmp_path):
        assert convert(source, tmp_path / "out", "8bit").context_length == length


@pytest.mark.parametrize("name", FAMILIES)
def test_quantized_graphs_are_batch_invariant(name: str, tmp_path: Path) -> None:
    source = next(sources(name, tmp_path))
    tokens, expected = tokens_of(), expected_logits(name)
    for quantization, error in (("4bit", 0.5), ("8bit", 0.1)):
        manifest = convert(source, tmp_path / "out", quantization, calibration=range(60))
        assert manifest.batch_invariant, manifest.invariance
        found = OnnxModel(tmp_path / "out", threads=1).forward(tokens)[:, COLUMNS]
        assert np.linalg.norm(found - expected) < error * np.linalg.norm(expected)
