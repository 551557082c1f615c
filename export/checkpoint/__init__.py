"""Read checkpoints of decoders, GGUF or safetensors, in row blocks.

Weights are never read whole: ``Checkpoint.rows`` returns a few rows of one matrix as float32, so
that a converter's memory does not grow with the model.
"""

from __future__ import annotations

from pathlib import Path

from omnidraft.export.checkpoint.gguf import GgufCheckpoint
from omnidraft.export.checkpoint.safetensors import SafetensorsCheckpoint
from omnidraft.export.checkpoint.spec import Checkpoint, Decoder
from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError
from omnidraft.runtime.storage.gguf import is_gguf
from omnidraft.runtime.storage.reading import reading

__all__ = ["Checkpoint", "Decoder", "open_checkpoint"]


def open_checkpoint(source: Path) -> Checkpoint:
    """Open a GGUF, or a folder with config.json and safetensors or PyTorch's files.

    Raises:
        ModelNotFoundError: there is nothing at that path that could be a model.
        DamagedFileError: a file is truncated or not what it claims to be.
        OmniDraftError: the architecture, or a detail of it, is not supported.
    """
    with reading(source):
        if source.is_dir() and (source / "config.json").is_file():
            return SafetensorsCheckpoint(source)
        if is_gguf(source):
            return GgufCheckpoint(source)
    if source.is_file():
        raise DamagedFileError(f"{source} is not a GGUF file: its first bytes are not 'GGUF'.")
    raise ModelNotFoundError(
        f"{source} is neither a GGUF file nor a folder with config.json and weights."
    )
