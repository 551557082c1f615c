"""The default drafter as a GGUF file, for llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.runtime.storage.files import whole_file

NAMES = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "input_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
}


def write_drafter(folder: Path, path: Path) -> Path:
    """A drafter like Llama, its tokenizer that of Llama 2, as a Q8_0."""
    checkpoint = open_checkpoint(folder)
    d = checkpoint.decoder
    kind = gguf.GGMLQuantizationType.Q8_0
    with whole_file(path) as scratch:
        writer = gguf.GGUFWriter(scratch, "llama")
        writer.add_block_count(d.layers)
        writer.add_context_length(d.context_length)
        writer.add_embedding_length(d.hidden_size)
        writer.add_feed_forward_length(d.feed_forward_size)
        writer.add_head_count(d.heads)
        writer.add_head_count_kv(d.kv_heads)
        writer.add_key_length(d.head_size)
        writer.add_value_length(d.head_size)
        writer.add_layer_norm_rms_eps(d.norm_epsilon)
        writer.add_rope_freq_base(10_000.0)
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
        _add_tokenizer(writer, folder / "tokenizer.json")
        for name, values in _tensors(folder):
            if values.ndim == 1:
                writer.add_tensor(name, values)
            else:
                writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        _finish(writer)
    return path


def _tensors(folder: Path) -> Iterator[tuple[str, NDArray[np.float32]]]:
    checkpoint = open_checkpoint(folder)
    d = checkpoint.decoder
    yield "token_embd.weight", checkpoint.rows("embedding")
    yield "output_norm.weight", checkpoint.rows("norm")
    for i in range(d.layers):
        for ours, theirs in NAMES.items():
            values = checkpoint.rows(f"{i}.{ours}")
            if heads := {"q": d.heads, "k": d.kv_heads}.get(ours):
                # GGUF's Llamas rotate neighbours instead of halves.
                split = values.reshape(heads, 2, d.head_size // 2, -1)
                values = np.ascontiguousarray(split.swapaxes(1, 2)).reshape(values.shape)
            yield f"blk.{i}.{theirs}.weight", values


def _add_tokenizer(writer: gguf.GGUFWriter, file: Path) -> None:
    """The merges of a SentencePiece BPE as scores: the earlier the merge, the higher."""
    model = json.loads(file.read_text("utf-8"))["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(model["merges"]):
        first, second = merge if isinstance(merge, list) else merge.split(" ")
        ranks.setdefault(first + second, rank)
    kinds = [
        gguf.TokenType.BYTE if token.startswith("<0x") else gguf.TokenType.NORMAL
        for token in tokens
    ]
    kinds[:3] = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(ranks.get(token, len(ranks))) for token in tokens])
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
