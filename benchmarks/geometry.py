"""A checkpoint of a real model's geometry with random weights: for what passes cost, nothing else.

    python benchmarks/geometry.py 1.5b FOLDER [--quantizations 8bit 4bit]

Writes FOLDER/checkpoint (config.json and float16 safetensors) and FOLDER/QUANTIZATION for each, a
converted model for `forward_cost.py`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from omnidraft.export.conversion import convert

# Of Qwen2.5, whose biases are left out.
GEOMETRIES: dict[str, dict[str, Any]] = {
    "0.5b": {"layers": 24, "hidden": 896, "inner": 4864, "heads": 14, "kv_heads": 2, "head": 64},
    "1.5b": {"layers": 28, "hidden": 1536, "inner": 8960, "heads": 12, "kv_heads": 2, "head": 128},
    "3b": {"layers": 36, "hidden": 2048, "inner": 11008, "heads": 16, "kv_heads": 2, "head": 128},
}
VOCABULARY = 151_936
CONTEXT = 4096


def write_checkpoint(folder: Path, geometry: dict[str, Any]) -> None:
    """A Llama without tokenizer, a file a layer."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden, inner, head = geometry["hidden"], geometry["inner"], geometry["head"]
    chance = np.random.default_rng(0)

    def values(*shape: int) -> NDArray[np.float16]:
        return (0.02 * chance.standard_normal(shape, np.float32)).astype(np.float16)

    shapes = {
        "self_attn.q_proj": (geometry["heads"] * head, hidden),
        "self_attn.k_proj": (geometry["kv_heads"] * head, hidden),
        "self_attn.v_proj": (geometry["kv_heads"] * head, hidden),
        "self_attn.o_proj": (hidden, geometry["heads"] * head),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    ones = np.ones(hidden, np.float16)
    places: dict[str, str] = {}

    def save(name: str, tensors: dict[str, NDArray[np.float16]]) -> None:
        save_file(tensors, folder / name)
        places.update(dict.fromkeys(tensors, name))

    save(
        "ends.safetensors",
        {"model.embed_tokens.weight": values(VOCABULARY, hidden), "model.norm.weight": ones},
    )
    for i in range(geometry["layers"]):
        place = f"model.layers.{i}."
        tensors = {f"{place}{name}.weight": values(*shape) for name, shape in shapes.items()}
        tensors[f"{place}input_layernorm.weight"] = ones
        tensors[f"{place}post_attention_layernorm.weight"] = ones
        save(f"layer{i}.safetensors", tensors)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    config = {
        "model_type": "llama",
        "num_hidden_layers": geometry["layers"],
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": geometry["heads"],
        "num_key_value_heads": geometry["kv_heads"],
        "head_dim": head,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("geometry", choices=GEOMETRIES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quantizations", nargs="+", default=["8bit", "4bit"])
    arguments = parser.parse_args()
    checkpoint = arguments.folder / "checkpoint"
    write_checkpoint(checkpoint, GEOMETRIES[arguments.geometry])
    for quantization in arguments.quantizations:
        convert(checkpoint, arguments.folder / quantization, quantization)
        print(arguments.folder / quantization)


if __name__ == "__main__":
    main()
