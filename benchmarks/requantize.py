"""Write a GGUF's matrices anew in one of the types that the gguf library quantizes to.

    python benchmarks/requantize.py SOURCE.gguf TYPE OUTPUT.gguf

TYPE is one of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, F16. Vectors, and all metadata, stay as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf


def requantize(source: Path, kind: str, output: Path) -> None:
    reader = gguf.GGUFReader(source)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    writer = gguf.GGUFWriter(output, fields.pop("general.architecture").contents())
    for name, field in fields.items():
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    known = gguf.GGMLQuantizationType[kind]
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, gguf.quantize(values, known), raw_dtype=known)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    requantize(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
