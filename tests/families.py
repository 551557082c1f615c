"""Tiny models of every family: what they are, their weights, and how their files are written.

``vectors/families.json`` and ``families.npz`` hold what transformers makes of each: the
configuration that it writes, the tensors' shapes, and logits. So no test of what we compute needs
transformers. ``vectors/record_families.py`` writes both anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

VECTORS = Path(__file__).parent / "vectors"
RECORDED = VECTORS / "families.json"
LOGITS = VECTORS / "families.npz"
# Every fifth column of logits is kept: what is wrong in a decoder is wrong in all of them.
COLUMNS = slice(None, None, 5)

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


Tensors = dict[str, NDArray[Any]]


def write_gguf(
    path: Path,
    family: Family,
    config: Any,
    weights: Tensors,
    change: Callable[[Tensors], None] = lambda tensors: None,
    write_tokenizer: Callable[[Any], None] = lambda writer: None,
) -> Path:
    """Write a model under the names and in the order of rows that llama.cpp has.

    Args:
        config: of transformers.
        weights: as transformers names them.
        write_tokenizer: adds one to a ``gguf.GGUFWriter``.
    """
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
    for name, value in weights.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        shape = value.shape
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        if family.model_type in ("gemma", "gemma2", "gemma3_text") and name.endswith("norm.weight"):
            value = value + 1
        if family.interleaved and (".q_proj." in name or ".k_proj." in name):
            count = heads if ".q_proj." in name else kv_heads
            value = value.reshape(count, 2, -1, *value.shape[1:]).swapaxes(1, 2)
            value = value.reshape(shape)
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


@cache
def recorded() -> dict[str, Any]:
    """By family: ``config``, as transformers writes it, and ``shapes`` of the tensors."""
    families: dict[str, Any] = json.loads(RECORDED.read_text())
    return families


def weights_of(name: str) -> Tensors:
    """A family's random weights, the same on every machine: this generator's stream is fixed."""
    record = recorded()[name]
    rng = np.random.RandomState(0)
    weights = {}
    for tensor, shape in sorted(record["shapes"].items()):
        # Gemma adds the 1 of its norms itself.
        one = tensor.endswith("norm.weight") and "gemma" not in record["config"]["model_type"]
        weights[tensor] = (one + 0.12 * rng.standard_normal(shape)).astype(np.float32)
    return weights


def tokens_of(seed: int = 0) -> NDArray[np.int64]:
    """The text whose logits are recorded."""
    return np.random.RandomState(seed).randint(0, SIZES["vocab_size"], LENGTH).astype(np.int64)


@cache
def expected_logits(name: str) -> NDArray[np.float32]:
    """float32 [LENGTH, columns] what transformers computed after each of ``tokens_of()``."""
    with np.load(LOGITS) as logits:
        expected: NDArray[np.float32] = logits[name]
    return expected


def write_folder(name: str, folder: Path) -> Path:
    """A family's checkpoint as transformers writes it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(recorded()[name]["config"]))
    save_file(weights_of(name), folder / "model.safetensors")
    return folder


def write_recorded_gguf(
    name: str, path: Path, change: Callable[[Tensors], None] = lambda tensors: None
) -> Path:
    """The same as llama.cpp writes it."""
    config = SimpleNamespace(**recorded()[name]["config"])
    return write_gguf(path, FAMILIES[name], config, weights_of(name), change)


def sources(name: str, folder: Path) -> Iterator[Path]:
    """A family's checkpoint in each format that it has."""
    yield write_folder(name, folder / "source")
    if FAMILIES[name].gguf_type:
        yield write_recorded_gguf(name, folder / "model.gguf")
