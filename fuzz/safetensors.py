"""A folder of safetensors: its files by name in one JSON object, of safetensors the header."""

from __future__ import annotations

import json
from typing import Any

from fuzz.files import content, folder_of, parsed, refusing
from omnidraft.export.checkpoint import Checkpoint, open_checkpoint

CONFIG = {
    **{"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "vocab_size": 4, "max_position_embeddings": 16},
    "rms_norm_eps": 1e-5,
}
NAMES = {"config.json", "model.safetensors.index.json"}
MOST_BYTES = 100_000


def check(data: bytes) -> None:
    files = parsed(data)
    if not isinstance(files, dict):
        files = {}
    contents = {name: content(value) for name, value in files.items() if name in NAMES}
    contents.setdefault("config.json", json.dumps(CONFIG).encode())
    contents["model.safetensors"] = of_header(files.get("model.safetensors")) if files else data
    with folder_of(contents) as folder, refusing():
        use(open_checkpoint(folder))


def of_header(header: Any) -> bytes:
    """The file that has this header, as long as its offsets want it, within limits."""
    text = json.dumps(header).encode()
    tensors = header.values() if isinstance(header, dict) else ()
    offsets = [t.get("data_offsets") for t in tensors if isinstance(t, dict)]
    ends = [o[-1] for o in offsets if isinstance(o, list) and o and isinstance(o[-1], int)]
    zeros = bytes(min(MOST_BYTES, max(0, *ends, 0)))
    return len(text).to_bytes(8, "little") + text + zeros


def use(checkpoint: Checkpoint) -> None:
    """Read some rows of every kind of tensor."""
    decoder = checkpoint.decoder
    layer = ("q", "k", "v", "o", "gate", "up", "down", "input_norm", "mlp_norm", "q_norm", "q.bias")
    for name in ("embedding", "head", "norm", *(f"0.{part}" for part in layer)):
        with refusing():
            checkpoint.rows(name, 0, 1)
        with refusing():
            if decoder.vocab_size * decoder.hidden_size < MOST_BYTES:
                checkpoint.rows(name)
