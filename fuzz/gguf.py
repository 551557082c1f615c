"""A GGUF file: its tokenizer, its description and its weights."""

from __future__ import annotations

from fuzz.files import folder_of, refusing
from fuzz.safetensors import use as use_checkpoint
from fuzz.tokenizer import use as use_tokenizer
from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.runtime.text.tokenizer import Tokenizer


def check(data: bytes) -> None:
    with folder_of({"model.gguf": data}) as folder:
        path = folder / "model.gguf"
        with refusing():
            use_tokenizer(Tokenizer.load(path))
        with refusing():
            use_checkpoint(open_checkpoint(path))
