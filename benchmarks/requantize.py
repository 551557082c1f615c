"""Write a GGUF's matrices anew in one of the types that the gguf library quantizes to.

    python benchmarks/requantize.py SOURCE.gguf TYPE OUTPUT.gguf

TYPE is one of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, F16. Vectors, and all metadata, stay as they are. With
the type ``spread`` matrices become F16, and each weight of a layer is moved at random by up to half
its step: such weights lie on no grid, as those of a checkpoint that was never quantized.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

BLOCK = 32


def spread(values: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
    """Each weight moved by up to half the smallest difference within its block of 32."""
    moved = np.empty_like(values)
    for start in range(0, len(values), 8192):
        part = slice(start, start + 8192)
        blocks = values[part].reshape(-1, BLOCK)
        gaps = np.diff(np.sort(blocks, axis=1), axis=1)
        largest = np.abs(blocks).max(axis=1, keepdims=True)
        step = np.where(gaps > largest * 1e-3, gaps, np.inf).min(axis=1, keepdims=True)
        step = np.where(np.isfinite(step), step, 0)
        shift = random.random(blocks.shape, np.float32) - np.float32(0.5)
        moved[part] = (blocks + step * shift).reshape(values[part].shape)
    return moved


def requantize(source: Path, kind: str, output: Path) -> None:
    reader = gguf.GGUFReader(source)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    writer = gguf.GGUFWriter(output, fields.pop("general.architecture").contents())
    for name, field in fields.items():
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    random = np.random.default_rng(0)
    known = gguf.GGMLQuantizationType["F16" if kind == "spread" else kind]
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
            continue
        if kind == "spread" and tensor.name.startswith("blk.") and values.shape[1] % BLOCK == 0:
            values = spread(values, random)
        writer.add_tensor(tensor.name, gguf.quantize(values, known), raw_dtype=known)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    requantize(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
