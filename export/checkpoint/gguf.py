"""GGUF files, whose tensors are dequantized a few rows at a time."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.checkpoint.architectures import SOFT_CAPS, Metadata, of_gguf_type, unsupported
from omnidraft.export.checkpoint.config import RopeScaling
from omnidraft.export.checkpoint.reader import Reader
from omnidraft.export.checkpoint.rope import Rope, divided, rope_of, yarn_amplitude
from omnidraft.export.checkpoint.spec import Decoder, check_sound, said_of
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError

# Arrays of a file longer than this are vocabularies; per-layer settings are shorter.
LONG_ARRAY = 1024
# What frequencies are divided by: in Llama 3, and by longrope within the length of training.
_FREQUENCY_FACTORS = "rope_freqs.weight"
_SHORT_FACTORS = "rope_factors_short.weight"


def read_gguf(path: Path) -> Any:
    """Open a GGUF file as a ``gguf.GGUFReader`` that skips the contents of long arrays.

    The library makes several objects for every element of an array: 24 s and 600 MB for a
    vocabulary of 262,144 tokens, of which a converter of weights needs nothing.
    """
    import gguf

    class Reader(gguf.GGUFReader):
        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type != gguf.GGUFValueType.ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)
            kind = gguf.GGUFValueType(self._get(orig_offs, np.uint32)[0])
            count = int(self._get(orig_offs + 4, np.uint64)[0])
            if count <= LONG_ARRAY or kind == gguf.GGUFValueType.ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)
            end = orig_offs + 12
            if kind == gguf.GGUFValueType.STRING:
                view = self.data.data
                order = ">" if self.byte_order == "S" else "<"
                length = struct.Struct(f"{order}Q").unpack_from
                for _ in range(count):
                    end += 8 + length(view, end)[0]
            else:
                end += count * np.dtype(self.gguf_scalar_to_np[kind]).itemsize
            return end - orig_offs, [], [], [gguf.GGUFValueType.ARRAY, kind]

    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise DamagedFileError(f"{path} is not a GGUF file: its first bytes are not 'GGUF'.")
    try:
        return Reader(path)
    except (
        ValueError,
        IndexError,
        KeyError,
        OverflowError,
        TypeError,
        MemoryError,
        struct.error,
    ) as error:
        raise DamagedFileError(f"{path} is damaged or cut off: {error}") from error


class GgufCheckpoint(Reader):
    """A GGUF file with tensors of any type that the gguf library can dequantize."""

    def __init__(self, path: Path) -> None:
        import gguf

        self._source = path
        reader = read_gguf(path)
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._dequantize: Callable[..., NDArray[np.float32]] = gguf.dequantize
        try:
            self._decoder = self._describe()
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise DamagedFileError(
                f"{path}: its metadata describe no decoder that is known here: {error}"
            ) from error

    def _stored_name(self, layer: str, part: str, suffix: str) -> str:
        place = f"blk.{layer}." if layer else ""
        return f"{place}{self._names[part]}.{suffix}"

    def _tensor(self, stored: str) -> Any:
        tensor = self._tensors.get(stored)
        if tensor is None:
            raise DamagedFileError(f"{self._source} has no tensor {stored}.")
        return tensor

    def _shape(self, stored: str) -> tuple[int, ...]:
        return tuple(int(size) for size in reversed(self._tensor(stored).shape))

    def _read(self, stored: str, start: int, stop: int) -> NDArray[np.float32]:
        tensor = self._tensor(stored)
        try:
            values = self._dequantize(tensor.data[start:stop], tensor.tensor_type)
        except NotImplementedError as error:
            raise OmniDraftError(
                f"{self._source}: {stored} is of type {tensor.tensor_type.name}, which is not "
                "read. Take a file with another quantization."
            ) from error
        return np.ascontiguousarray(values, dtype=np.float32)

    def _yarn(self, get: Metadata) -> RopeScaling:
        for key in ("ext_factor", "attn_factor", "log_multiplier"):
            if get(f"rope.scaling.yarn_{key}", 0):
                raise OmniDraftError(f"rope.scaling.yarn_{key} is not supported.")
        original = get("rope.scaling.original_context_length", get("context_length"))
        return RopeScaling(
            rope_type="yarn",
            factor=float(get("rope.scaling.factor")),
            original_max_position_embeddings=float(original),
            beta_fast=float(get("rope.scaling.yarn_beta_fast", 32.0)),
            beta_slow=float(get("rope.scaling.yarn_beta_slow", 1.0)),
        )

    def _get(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(key)
        value = default if field is None else field.contents()
        if value is None:
            raise DamagedFileError(f"{self._source} lacks the metadata field {key}.")
        return value

    def _describe(self) -> Decoder:
        kind = self._get("general.architecture")
        family = of_gguf_type(kind, str(self._source))
        self._names, self._interleaved = family.gguf_names, family.gguf_interleaved

        def get(key: str, default: Any = None) -> Any:
            return self._get(f"{kind}.{key}", default)

        for key in ("expert_count", *(() if family.soft_caps else SOFT_CAPS)):
            if get(key, 0):
                raise unsupported(f"{self._source}: {key} = {get(key)}")
        layers, hidden = get("block_count"), get("embedding_length")
        heads = get("attention.head_count")
        head_size = get("attention.key_length", hidden // heads)
        rotary_size = get("rope.dimension_count", head_size)
        if rotary_size != head_size and self._interleaved:
            raise unsupported(f"{self._source}: rotation of only a part of each head")
        context = get("context_length")
        if _SHORT_FACTORS in self._tensors:
            context = min(context, get("rope.scaling.original_context_length", context))
        with said_of(str(self._source)):
            rope = self._rope(get, head_size, rotary_size)
        # As it would be for a Llama.
        decoder = Decoder(
            architecture=family.name,
            layers=layers,
            hidden_size=hidden,
            feed_forward_size=get("feed_forward_length"),
            heads=heads,
            kv_heads=get("attention.head_count_kv", heads),
            head_size=head_size,
            vocab_size=int(self._shape("token_embd.weight")[0]),
            context_length=context,
            norm_epsilon=get("attention.layer_norm_rms_epsilon"),
            query_scale=head_size**-0.5,
            activation=family.activation,
            tied_embeddings="output.weight" not in self._tensors,
            qkv_bias=f"blk.0.{self._names['q']}.bias" in self._tensors,
            output_bias="blk.0.attn_output.bias" in self._tensors,
            mlp_bias="blk.0.ffn_down.bias" in self._tensors,
            qk_norm=family.qk_norm,
            pre_norms=family.pre_norms,
            post_norms=family.post_norms,
            windows=(None,) * layers,
            ropes=(rope,) * layers,
            rotary_size=rotary_size,
        )
        with said_of(str(self._source)):
            decoder = family.from_gguf(decoder, get)
        check_sound(decoder, str(self._source))
        return decoder

    def _rope(self, get: Metadata, head_size: int, rotary_size: int) -> Rope:
        kind = get("rope.scaling.type", "none")
        scaling, amplitude = None, 1.0
        if _SHORT_FACTORS in self._tensors:
            factors = self._read(_SHORT_FACTORS, 0, head_size).tolist()
            scaling = RopeScaling(rope_type="longrope", short_factor=factors)
            amplitude = get("rope.scaling.attn_factor", 1.0)
        elif kind == "yarn":
            scaling = self._yarn(get)
            assert scaling.factor is not None
            amplitude = get("rope.scaling.attn_factor", 1.0)
            amplitude *= yarn_amplitude(scaling.factor, scaling)
        elif kind not in ("none", ""):
            scaling = RopeScaling(rope_type=kind, factor=float(get("rope.scaling.factor", 1.0)))
        rope = rope_of(
            get("rope.freq_base", 10_000.0),
            head_size,
            scaling,
            rotary_size=rotary_size,
            amplitude=amplitude,
        )
        if _FREQUENCY_FACTORS not in self._tensors:
            return rope
        return divided(rope, self._read(_FREQUENCY_FACTORS, 0, head_size))
