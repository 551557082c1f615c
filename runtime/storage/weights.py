"""How large a model's weights are."""

from __future__ import annotations

from pathlib import Path

_WEIGHTS = {".onnx", ".data", ".onnx_data", ".safetensors", ".gguf", ".pte", ".bin"}


def weights_bytes(path: Path) -> int:
    """Size of a model's graphs and weights on disk, a bundle's training step left out."""
    if path.is_file():
        return path.stat().st_size
    return sum(
        file.stat().st_size
        for file in path.rglob("*")
        if file.suffix in _WEIGHTS and not file.name.startswith("training")
    )
