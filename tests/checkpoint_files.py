"""Tiny random Llamas as files of checkpoints: GGUF, safetensors, PyTorch's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tiny import sentencepiece_tokenizer

from omnidraft.export.checkpoint import Checkpoint
from omnidraft.export.checkpoint.spec import LINEAR_PARTS

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, SIZE = 2, 64, 96, 4, 2, 16
TOKENIZER = sentencepiece_tokenizer()
VOCAB = TOKENIZER.get_vocab_size()
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": SIZE,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
Weights = dict[str, NDArray[Any]]
_SHAPES = {
    "self_attn.q_proj": (HEADS * SIZE, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * SIZE, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * SIZE, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * SIZE),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
_GGUF_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def random_weights(seed: int = 0, biased: tuple[str, ...] = ()) -> Weights:
    """By Hugging Face's names, with a bias for the linears whose names end as ``biased`` says."""
    rng = np.random.default_rng(seed)

    def values(*shape: int) -> NDArray[np.float32]:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    weights = {"model.embed_tokens.weight": values(VOCAB, HIDDEN), "model.norm.weight": values(64)}
    weights["lm_head.weight"] = values(VOCAB, HIDDEN)
    for layer in range(LAYERS):
        place = f"model.layers.{layer}."
        weights[f"{place}input_layernorm.weight"] = values(HIDDEN)
        weights[f"{place}post_attention_layernorm.weight"] = values(HIDDEN)
        for part, shape in _SHAPES.items():
            weights[f"{place}{part}.weight"] = values(*shape)
            if part.endswith(biased or ("none",)):
                weights[f"{place}{part}.bias"] = values(shape[0])
    return weights


def write_folder(folder: Path, weights: Weights, **changes: Any) -> Path:
    """config.json, ``model.safetensors`` and a tokenizer."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    write_companions(folder, **changes)
    return folder


def write_companions(folder: Path, **changes: Any) -> None:
    """config.json and a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    TOKENIZER.save(str(folder / "tokenizer.json"))


def gguf_tensors(weights: Weights) -> Weights:
    """By GGUF's names, with the rows of queries and keys as Llamas' files have them."""
    tensors = {}
    for name, value in weights.items():
        stem, _, suffix = name.removeprefix("model.").rpartition(".")
        if heads := {"q_proj": HEADS, "k_proj": KV_HEADS}.get(stem.rpartition(".")[2]):
            split = value.reshape(heads, 2, SIZE // 2, -1)
            value = np.ascontiguousarray(split.swapaxes(1, 2)).reshape(value.shape)
        layer = ""
        if stem.startswith("layers."):
            _, number, stem = stem.split(".", 2)
            layer = f"blk.{number}."
        tensors[f"{layer}{_GGUF_NAMES[stem]}.{suffix}"] = value
    return tensors


def write_gguf(
    path: Path,
    tensors: Weights,
    *,
    types: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    hidden: int = HIDDEN,
    bare: bool = False,
) -> Path:
    """A GGUF file of architecture llama.

    Args:
        tensors: by GGUF's names; those of ``types`` as bytes [rows, bytes of a row].
        change: adds to the metadata.
        bare: without any other metadata.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    if not bare:
        _add_metadata(writer, hidden)
    change(writer)
    for name, value in tensors.items():
        writer.add_tensor(name, value, raw_dtype=(types or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_parts(
    folder: Path, parts: list[Weights], name: str = "tiny", suffix: str = ".gguf"
) -> list[Path]:
    """A GGUF in parts as llama.cpp splits them: the first has all metadata."""
    total = sum(map(len, parts))
    paths = []
    for number, tensors in enumerate(parts):

        def split(writer: gguf.GGUFWriter, number: int = number) -> None:
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", len(parts))
            writer.add_int32("split.tensors.count", total)

        path = folder / f"{name}-{number + 1:05}-of-{len(parts):05}{suffix}"
        paths.append(write_gguf(path, tensors, change=split, bare=number > 0))
    return paths


def _add_metadata(writer: gguf.GGUFWriter, hidden: int) -> None:
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(SIZE)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    vocabulary = TOKENIZER.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    types = [2, 3, 3, *[6] * 256]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types(types + [1] * (len(tokens) - len(types)))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def all_weights(checkpoint: Checkpoint) -> Weights:
    """Everything that a graph asks of a checkpoint, by the names of ``Checkpoint``."""
    d = checkpoint.decoder
    biased = {"qkv": d.qkv_bias, "o": d.output_bias, "gate_up": d.mlp_bias, "down": d.mlp_bias}
    names = ["embedding", "norm"] if d.tied_embeddings else ["embedding", "norm", "head"]
    for layer in range(d.layers):
        names += [f"{layer}.input_norm", f"{layer}.mlp_norm"]
        for linear, parts in LINEAR_PARTS.items():
            names += [f"{layer}.{part}" for part in parts]
            names += [f"{layer}.{part}.bias" for part in parts if biased.get(linear)]
    return {name: checkpoint.rows(name) for name in names}


def assert_same(a: Weights, b: Weights) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name], err_msg=name)
