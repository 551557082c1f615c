"""llama.cpp: a drafter in one GGUF file, its tokenizer in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from omnidraft.export.calibration import calibration_texts, held_texts
from omnidraft.export.checkpoint import Checkpoint, Decoder
from omnidraft.export.checkpoint.architectures import GGUF_NAMES
from omnidraft.export.checkpoint.spec import split_name, tensor_names
from omnidraft.export.interchange.blocks import BLOCK, q4_0, q8_0
from omnidraft.export.interchange.gguf_tokenizer import add_tokenizer, check_tokenizer
from omnidraft.export.interchange.rotation import base_of, check_rotation, frequency_factors
from omnidraft.export.interchange.weights import (
    as_floats,
    describe_matrices,
    llama_rows,
    refuse_graph_options,
)
from omnidraft.export.meanings import GGUF_USAGE
from omnidraft.export.recipes import NO_WORDS, Built, Options, Progress, Words
from omnidraft.runtime.storage.bundle import Backend, Graph, Quantization, Thresholds
from omnidraft.runtime.storage.manifest import Layout

GGUF_FILE = "model.gguf"
# Where no base alone gives the frequencies, they are this one's, each divided by a factor.
_ANY_BASE = 10_000.0
_KINDS: dict[Quantization, tuple[Kind, gguf.LlamaFileType, int]] = {
    "none": (Kind.F32, gguf.LlamaFileType.ALL_F32, 32),
    "float16": (Kind.F16, gguf.LlamaFileType.MOSTLY_F16, 16),
    "int8": (Kind.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0, 8),
    "int4": (Kind.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0, 4),
}


class GgufRecipe:
    """See ``Recipe``.

    ``int8`` is Q8_0, ``int4`` Q4_0, ``float16`` F16 and ``none`` F32. Norms and biases are F32, and
    a matrix that has no whole blocks of 32 in a row is F16.
    """

    backend: Backend = "gguf"
    quantizations: tuple[Quantization, ...] = ("int8", "int4", "float16", "none")
    chip_quantization = None
    layouts: tuple[Layout, ...] = ("omnidraft",)
    calibrated: tuple[Quantization, ...] = ()
    lora_rank = 0
    context = 0
    thresholds: Mapping[Quantization, Thresholds] = {
        "int8": Thresholds(smallest_agreement=0.95, largest_logit_error=0.02),
        "int4": Thresholds(smallest_agreement=0.9, largest_logit_error=0.1),
        "float16": Thresholds(smallest_agreement=0.98, largest_logit_error=0.001),
        "none": Thresholds(smallest_agreement=0.99, largest_logit_error=0.0001),
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
        kind, file_type, bits = _KINDS[options.quantization or "none"]
        writer = gguf.GGUFWriter(folder / GGUF_FILE, "llama")
        writer.add_file_type(file_type)
        _add_decoder(writer, d, options.context)
        add_tokenizer(writer, words, d.vocab_size)
        names, matrices = list(tensor_names(d)), []
        for number, name in enumerate(names):
            progress("weights", number, len(names))
            rows = _ordered(llama_rows(checkpoint, name), name, d)
            layer, part, suffix = split_name(name)
            stored = f"{f'blk.{layer}.' if layer else ''}{GGUF_NAMES[part]}.{suffix}"
            if rows.ndim == 1:
                writer.add_tensor(stored, rows)
                continue
            quantized = kind in (Kind.Q8_0, Kind.Q4_0)
            own = Kind.F16 if quantized and rows.shape[1] % BLOCK else kind
            writer.add_tensor(stored, _as(own, rows, name), raw_dtype=own)
            matrices.append((name, bits if own == kind else 16, rows.size))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        check_tokenizer(folder / GGUF_FILE, words, [*held_texts(), *calibration_texts()])
        return Built(
            graphs=[Graph(role="decoder", file=GGUF_FILE, inputs=[], outputs=[], usage=GGUF_USAGE)],
            weights=describe_matrices(matrices, tied=d.tied_embeddings),
            lora=None,
            versions={"gguf": version("gguf")},
        )


recipe = GgufRecipe()


def _add_decoder(writer: gguf.GGUFWriter, d: Decoder, context: int) -> None:
    writer.add_block_count(d.layers)
    writer.add_context_length(context)
    writer.add_embedding_length(d.hidden_size)
    writer.add_feed_forward_length(d.feed_forward_size)
    writer.add_head_count(d.heads)
    writer.add_head_count_kv(d.kv_heads)
    writer.add_key_length(d.head_size)
    writer.add_value_length(d.head_size)
    writer.add_layer_norm_rms_eps(d.norm_epsilon)
    writer.add_vocab_size(d.vocab_size)
    writer.add_rope_dimension_count(d.head_size)
    base = base_of(d.ropes[0])
    writer.add_rope_freq_base(base or _ANY_BASE)
    if base is None:
        writer.add_tensor("rope_freqs.weight", frequency_factors(d.ropes[0], _ANY_BASE))


def _ordered(rows: NDArray[np.float32], name: str, d: Decoder) -> NDArray[np.float32]:
    """Rows of queries and keys as GGUF's Llamas have them, which rotate neighbours, not halves."""
    if split_name(name)[1] not in ("q", "k"):
        return rows
    halves = rows.reshape(-1, 2, d.head_size // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _as(kind: Kind, rows: NDArray[np.float32], name: str) -> NDArray[Any]:
    """A matrix in a type of GGUF's."""
    if kind == Kind.Q8_0:
        return q8_0(rows)
    if kind == Kind.Q4_0:
        return q4_0(rows)
    return as_floats(rows, name, half=kind == Kind.F16)
