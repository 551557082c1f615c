"""Folders of safetensors, or PyTorch's files, with config.json, as Hugging Face lays them out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.checkpoint.architectures import (
    SOFT_CAPS,
    Architecture,
    of_model_type,
    unsupported,
)
from omnidraft.export.checkpoint.config import LARGEST_HEAD, read_config
from omnidraft.export.checkpoint.multimodal import is_multimodal, text_half
from omnidraft.export.checkpoint.reader import Reader
from omnidraft.export.checkpoint.rope import ropes_of
from omnidraft.export.checkpoint.spec import Decoder, check_sound, said_of
from omnidraft.export.checkpoint.torch_files import TorchFile
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError
from omnidraft.runtime.storage.checkpoints import load_json, weight_files

INT8_FORMAT = "omnidraft-int8-block32"
HF_ACTIVATIONS = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}
_FLOATS = ("F64", "F32", "F16", "BF16")
# A decoder's own, and that of the decoder in a multimodal model.
_PREFIXES = (
    *("model.", "model.language_model.", "language_model.model.", "language_model."),
    *("model.text_model.", ""),
)
_ROWS = 4096
_HEADS = ("lm_head.weight", "language_model.lm_head.weight")
# Buffers that old versions of transformers saved: frequencies of the rotation, causal masks.
_OF_NO_CONCERN = re.compile(
    r"\.rotary_emb\.(inv_freq|(cos|sin)_cached)$|\.(self_attn|attn|attention)\.(masked_)?bias$"
)


class SafetensorsCheckpoint(Reader):
    """A folder as Hugging Face lays it out, or one in this project's int8 block format.

    In the latter (metadata ``format = omnidraft-int8-block32``) a matrix ``NAME`` is int8
    [out, in] beside ``NAME.scale`` float16 [out, in/32]: weight = integer x scale. Otherwise
    weights are floats; integers, which only their quantizer knows to read, are refused.
    """

    def __init__(self, folder: Path) -> None:
        self._source = folder
        # The tensor that is embedding and head, where it is not called an embedding.
        self._tied_name: str | None = None
        self._files: dict[str, Any] = {}
        formats = set()
        for path in weight_files(folder):
            file = _opened(path)
            formats.add((file.metadata() or {}).get("format"))
            self._files.update(dict.fromkeys(file.keys(), file))
        self._int8 = INT8_FORMAT in formats
        self._prefix = next(
            (prefix for prefix in _PREFIXES if self._holds(f"{prefix}layers.")), _PREFIXES[0]
        )
        config = load_json(folder / "config.json")
        self._multimodal = is_multimodal(config) or "language_model." in self._prefix
        self._decoder, family = describe(config, folder)
        self._names, self._norm_offset = family.hf_names, family.hf_norm_offset
        self._interleaved = family.hf_interleaved
        self._settle_tie()
        self._check_tensors(self._present())

    def _settle_tie(self) -> None:
        """Where embedding and head are to be one, read whichever is there, and both if they differ.

        So does transformers; configurations say that they are tied though training has parted them.
        """
        if not self._decoder.tied_embeddings:
            return
        embedding, head = (self._stored_name("", part, "weight") for part in ("embedding", "head"))
        if head not in self._files:
            return
        if embedding not in self._files:
            self._tied_name = head
        elif self._equal(embedding, head):
            del self._files[head]
        else:
            self._decoder = replace(self._decoder, tied_embeddings=False)

    def _equal(self, first: str, second: str) -> bool:
        if self._shape(first) != self._shape(second):
            return False
        a, b, rows = self._tensor(first), self._tensor(second), self._shape(first)[0]
        blocks = ((start, min(start + _ROWS, rows)) for start in range(0, rows, _ROWS))
        return all(np.array_equal(a[start:stop], b[start:stop]) for start, stop in blocks)

    def _holds(self, beginning: str) -> bool:
        return any(name.startswith(beginning) for name in self._files)

    def _present(self) -> set[str]:
        """The tensors that are the decoder's, or ought to be."""
        present = {name for name in self._files if not _OF_NO_CONCERN.search(name)}
        if self._multimodal:  # the rest looks at images, or hears
            own = self._prefix.removesuffix("model.") or self._prefix
            ours = (own, *(head.removesuffix("weight") for head in _HEADS))
            present = {name for name in present if name.startswith(ours)}
        return present - {f"{name}.scale" for name in present} if self._int8 else present

    def _stored_name(self, layer: str, part: str, suffix: str) -> str:
        if part == "embedding" and self._tied_name is not None:
            return self._tied_name
        if part == "head":
            return next((name for name in _HEADS if name in self._files), _HEADS[0])
        place = f"{self._prefix}layers.{layer}." if layer else self._prefix
        return f"{place}{self._names[part]}.{suffix}"

    def _tensor(self, stored: str) -> Any:
        file = self._files.get(stored)
        if file is None:
            raise DamagedFileError(f"{self._source} has no tensor {stored}.")
        return file.get_slice(stored)

    def _shape(self, stored: str) -> tuple[int, ...]:
        return tuple(self._tensor(stored).get_shape())

    def _read(self, stored: str, start: int, stop: int) -> NDArray[np.float32]:
        shape = self._shape(stored)
        if not self._int8 or len(shape) != 2:
            return self._numbers(stored, start, stop, _FLOATS)
        values = self._numbers(stored, start, stop, ("I8",))
        scales = f"{stored}.scale"
        if self._shape(scales) != (shape[0], shape[1] // 32) or shape[1] % 32:
            raise DamagedFileError(f"{self._source}: {scales} has not one scale for 32 weights.")
        scale = self._numbers(scales, start, stop, _FLOATS)
        return (values.reshape(*scale.shape, 32) * scale[..., None]).reshape(values.shape)

    def _numbers(
        self, stored: str, start: int, stop: int, types: Sequence[str]
    ) -> NDArray[np.float32]:
        # numpy knows bfloat16 through ml_dtypes only.
        import ml_dtypes  # noqa: F401

        tensor = self._tensor(stored)
        if (kind := tensor.get_dtype()) not in types:
            raise OmniDraftError(
                f"{self._source}: {stored} is stored as {kind}, {' or '.join(types)} is needed. "
                "Take the checkpoint from before it was quantized."
            )
        return np.ascontiguousarray(tensor[start:stop], dtype=np.float32)


def _opened(path: Path) -> Any:
    """A file with weights, with the interface of ``safetensors.safe_open``."""
    from safetensors import SafetensorError, safe_open

    try:
        path.open("rb").close()  # the library calls a file that may not be read missing
        if path.suffix == ".bin":
            return TorchFile(path)
        return safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise DamagedFileError(f"{path} is damaged, missing or not readable: {error}") from error


def describe(config: Mapping[str, Any], source: Path | str) -> tuple[Decoder, Architecture[Any]]:
    """The decoder that a config.json describes, and its family; ``source`` is where it is from.

    Raises:
        DamagedFileError: a field is missing or cannot be.
        OmniDraftError: the family, or something that the fields ask for, is not supported.
    """
    path = f"{source}/config.json"
    config = text_half(config)
    family = of_model_type(config.get("model_type"), str(source))
    with said_of(path):
        config = family.text_config(config)
    if (quantized := config.get("quantization_config")) is not None:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        raise OmniDraftError(
            f"{path}: quantization_config: weights quantized by {method!r} are not read. Take "
            "the checkpoint from before it was quantized, or a GGUF file."
        )
    for key in () if family.soft_caps else SOFT_CAPS:
        if config.get(key):
            raise unsupported(f"{source}: {key} = {config[key]}")
    c = read_config(family.schema, config, path)
    expected = HF_ACTIVATIONS[family.activation]
    if c.activation != expected:
        raise unsupported(f"{source}: activation '{c.activation}' (not {expected})")
    if not 1 <= c.head_size <= LARGEST_HEAD:
        raise DamagedFileError(
            f"{path}: num_attention_heads = {c.num_attention_heads} does not go with hidden_size = "
            f"{c.hidden_size}."
        )
    layers, heads = c.num_hidden_layers, c.num_attention_heads
    with said_of(path):
        rope = ropes_of(c)[0]
    # As it would be for a Llama.
    decoder = Decoder(
        architecture=family.name,
        layers=layers,
        hidden_size=c.hidden_size,
        feed_forward_size=c.intermediate_size,
        heads=heads,
        kv_heads=c.num_key_value_heads or heads,
        head_size=c.head_size,
        vocab_size=c.vocab_size,
        context_length=c.context_length,
        norm_epsilon=c.rms_norm_eps,
        query_scale=c.head_size**-0.5,
        activation=family.activation,
        tied_embeddings=bool(c.tie_word_embeddings),
        mlp_bias=c.mlp_bias,
        qk_norm=family.qk_norm,
        pre_norms=family.pre_norms,
        post_norms=family.post_norms,
        rotary_size=c.rotary_size,
        windows=(None,) * layers,
        ropes=(rope,) * layers,
        drafted_tokens=c.drafted_tokens,
    )
    with said_of(path):
        decoder = family.from_config(decoder, c)
    check_sound(decoder, path)
    return decoder, family
