"""Families of decoders: each computes what transformers does, from safetensors and from GGUF."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from needs import needs
from numpy.typing import NDArray

from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.export.checkpoint.safetensors import describe
from omnidraft.export.conversion import convert
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError

torch, transformers = needs("torch"), needs("transformers")

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 130,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 9
# Tokens: several windows.
LENGTH = 40


@dataclass
class Family:
    """A tiny model, and how llama.cpp's converter writes it.

    Args:
        model_type: as transformers names it.
        change: what differs from SIZES.
        gguf_type: as llama.cpp names it; nothing: it has no GGUF files of its own.
        interleaved: the converter puts the rows of queries and keys pair by pair.
        metadata: fields of the GGUF file beside the usual ones, without the family's name.
        tensors: tensors of the GGUF file beside the model's.
    """

    model_type: str
    change: dict[str, Any] = field(default_factory=dict)
    gguf_type: str = ""
    interleaved: bool = False
    metadata: dict[str, float | int | str] = field(default_factory=dict)
    tensors: dict[str, list[float]] = field(default_factory=dict)


GRANITE = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.4,
    "residual_multiplier": 0.3,
    "logits_scaling": 5.0,
}

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

MINISTRAL3_ROPE = {
    "rope_theta": 10000.0,
    **YARN,
    "mscale": 1.0,
    "mscale_all_dim": 0.6,
    "llama_4_scaling_beta": 0.1,
}

FAMILIES = {
    "gemma": Family("gemma", {"head_dim": 32}, "gemma"),
    "gemma2": Family(
        "gemma2",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 3.0,
        },
        "gemma2",
        metadata={
            "attention.sliding_window": WINDOW,
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma2-uncapped": Family(
        "gemma2",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 20,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        },
    ),
    "gemma3": Family(
        "gemma3_text",
        {
            "num_hidden_layers": 7,
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": WINDOW,
            "rope_parameters": {
                "full_attention": {"rope_theta": 1_000_000.0, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"},
            },
        },
        "gemma3",
        metadata={"attention.sliding_window": WINDOW, "rope.freq_base_swa": 10_000.0},
    ),
    "ernie4_5": Family("ernie4_5", {"head_dim": 32}, "ernie4_5"),
    "ernie4_5-biases": Family("ernie4_5", {"head_dim": 16, "use_bias": True}),
    "exaone4": Family(
        "exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 4},
        "exaone4",
    ),
    "exaone4-window": Family("exaone4", {"sliding_window": WINDOW}),
    "granite": Family(
        "granite",
        GRANITE,
        "granite",
        True,
        {
            "embedding_scale": 6.0,
            "attention.scale": 0.4,
            "residual_scale": 0.3,
            "logit_scale": 5.0,
        },
    ),
    "granite-biases": Family(
        "granite", GRANITE | {"attention_bias": True, "tie_word_embeddings": True}
    ),
    "llama": Family("llama", {}, "llama", True),
    "llama-yarn": Family(
        "llama",
        {"rope_parameters": {"rope_theta": 10000.0, **YARN}},
        "llama",
        True,
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 128,
        },
    ),
    "llama-yarn-tuned": Family(
        "llama",
        {
            "rope_parameters": {
                "rope_theta": 10000.0,
                **YARN,
                "beta_fast": 8.0,
                "beta_slow": 0.5,
                "truncate": False,
                "mscale": 0.7,
                "mscale_all_dim": 0.4,
            }
        },
    ),
    "llama-biases": Family("llama", {"attention_bias": True, "mlp_bias": True}, "llama", True),
    "granite-mlp-biases": Family("granite", GRANITE | {"mlp_bias": True}),
    "llama-dynamic": Family(
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "mistral": Family("mistral", {"sliding_window": WINDOW}),
    # Of no window its GGUF files know.
    "mistral-full": Family("mistral", {"sliding_window": None, "head_dim": 32}, "llama", True),
    "ministral": Family(
        "ministral",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "ministral3": Family(
        "ministral3",
        {"head_dim": 32, "rope_parameters": MINISTRAL3_ROPE},
        "mistral3",
        True,
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 128,
            "rope.scaling.yarn_log_multiplier": 0.6,
            "attention.temperature_scale": 0.1,
        },
    ),
    "phi3": Family("phi3", {}, "phi3"),
    "phi3-long": Family(
        "phi3",
        {
            "num_hidden_layers": 2,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "short_factor": [1.0, 1.1, 1.5, 3.0],
                "long_factor": [2.0, 3.0, 7.0, 20.0],
            },
        },
        "phi3",
        metadata={
            "rope.dimension_count": 8,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(8) / math.log(64)),
        },
        tensors={
            "rope_factors_short.weight": [1.0, 1.1, 1.5, 3.0],
            "rope_factors_long.weight": [2.0, 3.0, 7.0, 20.0],
        },
    ),
    "phi3-window": Family(
        "phi3",
        {"num_key_value_heads": 4, "sliding_window": WINDOW, "tie_word_embeddings": True},
        "phi3",
        metadata={"attention.sliding_window": WINDOW},
    ),
    "smollm3": Family("smollm3", {}, "smollm3", True),
    "smollm3-window": Family(
        "smollm3",
        {
            "attention_bias": True,
            "no_rope_layers": [0, 1, 1, 0],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "tie_word_embeddings": False,
        },
    ),
    "olmo2": Family("olmo2", {}, "olmo2"),
    "olmo2-biases": Family("olmo2", {"attention_bias": True, "num_key_value_heads": 1}),
    "olmo3": Family(
        "olmo3",
        {
            "sliding_window": WINDOW,
            "rope_parameters": {
                "full_attention": {"rope_theta": 10000.0, **YARN},
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            },
        },
        "olmo2",
        metadata={
            "attention.sliding_window": WINDOW,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 128,
        },
    ),
    "seed_oss": Family("seed_oss", {"head_dim": 16}, "seed_oss"),
    "seed_oss-output-bias": Family(
        "seed_oss", {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True}
    ),
    "qwen2": Family("qwen2", {"tie_word_embeddings": True}, "qwen2"),
    "qwen3": Family("qwen3", {"head_dim": 32}, "qwen3"),
    "qwen3-window": Family(
        "qwen3",
        {
            "head_dim": 16,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 1,
        },
    ),
}


@pytest.fixture(scope="module")
def references() -> dict[str, Any]:
    """Models of transformers with random weights, made when they are asked for."""
    return {}


def reference_of(name: str, references: dict[str, Any]) -> Any:
    if name not in references:
        references[name] = model_of(FAMILIES[name])
    return references[name]


def model_of(family: Family) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        family.model_type, **(SIZES | family.change), attn_implementation="eager"
    )
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


Tensors = dict[str, NDArray[Any]]


def write_gguf(
    path: Path,
    family: Family,
    model: Any,
    change: Callable[[Tensors], None] = lambda tensors: None,
    write_tokenizer: Callable[[Any], None] = lambda writer: None,
) -> Path:
    """Write a model under the names and in the order of rows that llama.cpp has.

    Args:
        write_tokenizer: adds one to a ``gguf.GGUFWriter``.
    """
    config = model.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer = gguf.GGUFWriter(path, family.gguf_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    for key, value in family.metadata.items():
        kinds = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        kinds[type(value)](f"{family.gguf_type}.{key}", value)
    write_tokenizer(writer)
    kind = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[family.gguf_type]
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    tensors: Tensors = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value = tensor.numpy()
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        if family.model_type in ("gemma", "gemma2", "gemma3_text") and name.endswith("norm.weight"):
            value = value + 1
        if family.interleaved and (".q_proj." in name or ".k_proj." in name):
            count = heads if ".q_proj." in name else kv_heads
            value = value.reshape(count, 2, -1, *value.shape[1:]).swapaxes(1, 2)
            value = value.reshape(tensor.shape)
        tensors[stored] = np.ascontiguousarray(value)
    for stored, values in family.tensors.items():
        tensors[stored] = np.array(values, np.float32)
    change(tensors)
    for stored, value in tensors.items():
        writer.add_tensor(stored, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def sources(name: str, folder: Path, references: dict[str, Any]) -> Iterator[Path]:
    """A family's checkpoint in each format that it has."""
    model = reference_of(name, references)
    model.save_pretrained(folder / "source")
    yield folder / "source"
    if FAMILIES[name].gguf_type:
        yield write_gguf(folder / "model.gguf", FAMILIES[name], model)


def expected_logits(model: Any, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    with torch.no_grad():
        logits: NDArray[np.float32] = model(torch.tensor(tokens[None])).logits[0].numpy()
    return logits


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_transformers(name: str, tmp_path: Path, references: dict[str, Any]) -> None:
    tokens = np.random.default_rng(0).integers(0, SIZES["vocab_size"], LENGTH)
    expected = expected_logits(reference_of(name, references), tokens)
    for source in sources(name, tmp_path, references):
        convert(source, tmp_path / "out", "float32")
        model = OnnxModel(tmp_path / "out", threads=1)
        np.testing.assert_allclose(model.forward(tokens), expected, rtol=0, atol=1e-4)
        # Cut back, and go on in passes of several lengths, past what a window sees.
        model.truncate(11)
        for start, stop in ((11, 12), (12, 25), (25, 26), (26, 40)):
            part = model.forward(tokens[start:stop])
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
def test_every_tensor_of_a_folder_is_read_or_named(
    name: str, tmp_path: Path, references: dict[str, Any]
) -> None:
    """None is left over, none is made up, and none is of another shape."""
    from safetensors.numpy import load_file, save_file

    source = next(sources(name, tmp_path, references))
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
def test_every_tensor_of_a_gguf_is_read_or_named(
    name: str, tmp_path: Path, references: dict[str, Any]
) -> None:
    family, model = FAMILIES[name], reference_of(name, references)
    whole: Tensors = {}
    open_checkpoint(write_gguf(tmp_path / "whole.gguf", family, model, whole.update))

    def refused(stored: str, value: NDArray[Any] | None) -> None:
        def change(tensors: Tensors) -> None:
            tensors.pop(stored, None)
            if value is not None:
                tensors[stored] = value

        path = write_gguf(tmp_path / "changed.gguf", family, model, change)
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
def test_a_context_ends_where_training_did(
    name: str, length: int, tmp_path: Path, references: dict[str, Any]
) -> None:
    """Beyond that other factors hold, for the keys that are in the cache already, too."""
    for source in sources(name, tmp_path, references):
        assert convert(source, tmp_path / "out", "8bit").context_length == length


@pytest.mark.parametrize("name", FAMILIES)
def test_quantized_graphs_are_batch_invariant(
    name: str, tmp_path: Path, references: dict[str, Any]
) -> None:
    source = next(sources(name, tmp_path, references))
    tokens = np.random.default_rng(1).integers(0, SIZES["vocab_size"], LENGTH)
    expected = expected_logits(reference_of(name, references), tokens)
    for quantization, error in (("4bit", 0.5), ("8bit", 0.1)):
        manifest = convert(source, tmp_path / "out", quantization, calibration=range(60))
        assert manifest.batch_invariant, manifest.invariance
        found = OnnxModel(tmp_path / "out", threads=1).forward(tokens)
        assert np.linalg.norm(found - expected) < error * np.linalg.norm(expected)
