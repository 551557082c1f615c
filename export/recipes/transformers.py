"""transformers, and what loads its checkpoints: a Llama as Hugging Face lays it out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from omnidraft.export.checkpoint import Checkpoint, Decoder
from omnidraft.export.checkpoint.architectures import HF_NAMES
from omnidraft.export.checkpoint.spec import split_name, tensor_names
from omnidraft.export.interchange.rotation import check_rotation, rope_fields
from omnidraft.export.interchange.weights import (
    as_floats,
    describe_matrices,
    llama_rows,
    refuse_graph_options,
)
from omnidraft.export.meanings import TRANSFORMERS_USAGE
from omnidraft.export.recipes import NO_WORDS, Built, Options, Progress, Words
from omnidraft.runtime.storage.bundle import Backend, Graph, Quantization, SpecialTokens, Thresholds
from omnidraft.runtime.storage.manifest import Layout

WEIGHTS_FILE = "model.safetensors"


class TransformersRecipe:
    """See ``Recipe``.

    ``none``: float32. ``float16``: half the bytes, each weight rounded to 11 bits.
    """

    backend: Backend = "transformers"
    quantizations: tuple[Quantization, ...] = ("none", "float16")
    chip_quantization = None
    layouts: tuple[Layout, ...] = ("omnidraft",)
    calibrated: tuple[Quantization, ...] = ()
    lora_rank = 0
    context = 0
    thresholds: Mapping[Quantization, Thresholds] = {
        "none": Thresholds(smallest_agreement=0.99, largest_logit_error=0.0001),
        "float16": Thresholds(smallest_agreement=0.98, largest_logit_error=0.001),
    }
    parity_positions = 1024

    def check(self, options: Options) -> None:
        refuse_graph_options(options, self.backend)

    def build(
        self,
        checkpoint: Checkpoint,
        folder: Path,
        options: Options,
        calibration: Sequence[Sequence[int]],
        progress: Progress,
        words: Words = NO_WORDS,
    ) -> Built:
        d = checkpoint.decoder
        check_rotation(d)
        half = options.quantization == "float16"
        config = _config(d, options, words.special)
        names = list(tensor_names(d))
        tensors: dict[str, NDArray[np.floating[Any]]] = {}
        matrices = []
        for number, name in enumerate(names):
            progress("weights", number, len(names))
            rows = llama_rows(checkpoint, name)
            values = as_floats(rows, name, half=half)
            tensors[_stored_name(name)] = values
            if rows.ndim == 2:
                matrices.append((name, values.itemsize * 8, values.size))
        if config["attention_bias"]:
            # A Llama has all four, or none.
            for layer in range(d.layers):
                for part in "qkvo":
                    weight = tensors[_stored_name(f"{layer}.{part}")]
                    name = _stored_name(f"{layer}.{part}.bias")
                    tensors.setdefault(name, np.zeros(len(weight), weight.dtype))
        # By way of bytes: the library makes files that only their owner may read.
        (folder / WEIGHTS_FILE).write_bytes(save(tensors, metadata={"format": "pt"}))
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        return Built(
            graphs=[
                Graph(
                    role="decoder",
                    file=WEIGHTS_FILE,
                    inputs=[],
                    outputs=[],
                    usage=TRANSFORMERS_USAGE,
                )
            ],
            weights=describe_matrices(matrices, tied=d.tied_embeddings),
            lora=None,
            versions={"safetensors": version("safetensors")},
        )


recipe = TransformersRecipe()


def _stored_name(name: str) -> str:
    layer, part, suffix = split_name(name)
    if part == "head":
        return "lm_head.weight"
    return f"model.{f'layers.{layer}.' if layer else ''}{HF_NAMES[part]}.{suffix}"


def _config(d: Decoder, options: Options, special: SpecialTokens) -> dict[str, Any]:
    """A Llama's config.json."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": d.hidden_size,
        "intermediate_size": d.feed_forward_size,
        "num_hidden_layers": d.layers,
        "num_attention_heads": d.heads,
        "num_key_value_heads": d.kv_heads,
        "head_dim": d.head_size,
        "vocab_size": d.vocab_size,
        "max_position_embeddings": options.context,
        "rms_norm_eps": d.norm_epsilon,
        "hidden_act": "silu",
        "attention_bias": d.qkv_bias or d.output_bias,
        "mlp_bias": d.mlp_bias,
        "tie_word_embeddings": d.tied_embeddings,
        "torch_dtype": "float16" if options.quantization == "float16" else "float32",
        **rope_fields(d.ropes[0]),
        **token_ids(special),
    }
    if d.drafted_tokens:
        config["drafted_tokens"] = d.drafted_tokens
    return config


def token_ids(special: SpecialTokens) -> dict[str, Any]:
    """What config.json and generation_config.json say of a text's beginning and end."""
    ids: dict[str, Any] = {}
    if special.beginning is not None:
        ids["bos_token_id"] = special.beginning
    if special.ends:
        ids["eos_token_id"] = special.ends[0] if len(special.ends) == 1 else special.ends
    return ids
