"""Build a 4-bit onnxruntime-genai model from a GGUF file or a Hugging Face folder.

python -m benchmarks.peers.genai_build CHECKPOINT FOLDER
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

OPTIONS = ("int4_block_size=32", "int4_accuracy_level=4")


def main() -> None:
    checkpoint, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        source = checkpoint
        if checkpoint.is_file():
            source = Path(scratch) / "checkpoint"
            _dequantize(checkpoint, source)
        output = Path(scratch) / "model"
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
        paths = ["-i", str(source), "-o", str(output), "-c", str(Path(scratch) / "cache")]
        kind = ["-p", "int4", "-e", "cpu", "--extra_options", *OPTIONS]
        code = subprocess.run([*builder, *paths, *kind], check=False).returncode
        if code:
            sys.exit(code)  # what the builder said stands last
        output.replace(folder)


def _dequantize(gguf: Path, folder: Path) -> None:
    """Write the same weights as float32 safetensors, which is what the builder reads."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # A plain model of the same class: the loaded one would be saved as a quantized one.
    plain = type(model)(model.config)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


if __name__ == "__main__":
    main()
