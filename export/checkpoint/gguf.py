"""GGUF files, whose tensors are dequantized a few rows at a time."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from omnidraft.export.checkpoint.architectures import SOFT_CAPS, Metadata, of_gguf_type, unsupported
from omnidraft.export.checkpoint.blocks import Blocks, taken_apart
from omnidraft.export.checkpoint.config import (
    LARGEST_HEAD,
    LARGEST_SIZE,
    LONGEST_CONTEXT,
    MOST_LAYERS,
    RopeScaling,
)
from omnidraft.export.checkpoint.reader import Reader
from omnidraft.export.checkpoint.rope import Rope, divided, rope_of, yarn_amplitude
from omnidraft.export.checkpoint.spec import Decoder, check_sound, said_of, split_name
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError
from omnidraft.runtime.storage.gguf import GgufTensor, read_gguf
from omnidraft.runtime.storage.validation import mistakes

# Types whose values need no scale.
_FLOATS = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}
# What frequencies are divided by: in Llama 3, and by longrope within the length of training.
_FREQUENCY_FACTORS = "rope_freqs.weight"
_SHORT_FACTORS = "rope_factors_short.weight"
_LONG_FACTORS = "rope_factors_long.weight"
# What looks at images or hears in a multimodal model's file, and frequencies of the rotation that
# old converters wrote down though they follow from the metadata.
_OF_NO_CONCERN = re.compile(r"(v|a|mm)\.|blk\.\d+\.attn_rot_embd\.")


class GgufCheckpoint(Reader):
    """A GGUF with tensors of any type that the gguf library can dequantize: see ``read_gguf``."""

    def __init__(self, path: Path) -> None:
        self._source = path
        header = read_gguf(path, lambda key: not key.startswith("tokenizer."))
        self._metadata = header.metadata
        data = {t.path: np.memmap(t.path, np.uint8, "r") for t in header.tensors}
        self._tensors = {
            tensor.name: _Tensor(tensor, data[tensor.path])
            for tensor in header.tensors
            if not _OF_NO_CONCERN.match(tensor.name)
        }
        embedding, head = "token_embd.weight", "output.weight"
        if embedding not in self._tensors and head in self._tensors:
            self._tensors[embedding] = self._tensors.pop(head)  # tied, by the other name
        self._decoder = self._describe()
        known = {_FREQUENCY_FACTORS}
        if _SHORT_FACTORS in self._tensors:
            known |= {_SHORT_FACTORS, _LONG_FACTORS}  # the latter: beyond the context read
        # A bias is optional, so that one that is missing is not missed.
        self._check_tensors(self._tensors.keys() - known, ".bias")

    def _stored_name(self, layer: str, part: str, suffix: str) -> str:
        place = f"blk.{layer}." if layer else ""
        return f"{place}{self._names[part]}.{suffix}"

    def _tensor(self, stored: str) -> _Tensor:
        tensor = self._tensors.get(stored)
        if tensor is None:
            raise DamagedFileError(f"{self._source} has no tensor {stored}.")
        return tensor

    def _shape(self, stored: str) -> tuple[int, ...]:
        return self._tensor(stored).shape

    def _read(self, stored: str, start: int, stop: int) -> NDArray[np.float32]:
        return self._tensor(stored).rows(slice(start, stop))

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """See ``Checkpoint``. A linear without a bias, beside one with one, adds nothing."""
        layer, part, suffix = split_name(name)
        if suffix == "bias" and self._stored_name(layer, part, suffix) not in self._tensors:
            return np.zeros(self._count(part), np.float32)[start:stop]
        return super().rows(name, start, stop)

    def kind(self, name: str) -> str:
        """See ``HoldsBlocks``."""
        import gguf

        return gguf.GGMLQuantizationType(
            self._tensor(self._stored_name(*split_name(name))).kind
        ).name

    def height(self, name: str) -> int:
        """See ``HoldsBlocks``."""
        _, part, _ = split_name(name)
        return self._count(part)

    def blocks(self, name: str, start: int, stop: int) -> Blocks:
        """See ``HoldsBlocks``."""
        kind = self.kind(name)
        rows = self._rows_by(self._raw, name, start, stop)
        blocks = taken_apart(kind, rows)
        for factors in (blocks.factors, blocks.units):
            if factors is not None:
                self._demand_finite(name, factors)
        return blocks

    def _raw(self, stored: str, start: int, stop: int) -> NDArray[np.uint8]:
        return self._tensor(stored).data[start:stop]

    def _has_bias(self, *parts: str) -> bool:
        ends = tuple(f".{self._names[part]}.bias" for part in parts)
        return any(name.endswith(ends) for name in self._tensors)

    def _yarn(self, get: Metadata) -> RopeScaling:
        for key in ("ext_factor", "attn_factor"):
            if get(f"rope.scaling.yarn_{key}", 0):
                raise OmniDraftError(f"rope.scaling.yarn_{key} is not supported.")
        original = get("rope.scaling.original_context_length", get("context_length"))
        return _scaling(
            rope_type="yarn",
            factor=get("rope.scaling.factor"),
            original_max_position_embeddings=original,
            beta_fast=get("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=get("rope.scaling.yarn_beta_slow", 1.0),
            mscale=1.0,
            mscale_all_dim=get("rope.scaling.yarn_log_multiplier", 0.0),
        )

    def _get(self, key: str, default: Any = None) -> Any:
        value = self._metadata.get(key, default)
        if value is None:
            raise DamagedFileError(f"{self._source} lacks the metadata field {key}.")
        return value

    def _describe(self) -> Decoder:
        kind = self._get("general.architecture")
        family = of_gguf_type(kind, str(self._source))
        self._names, self._interleaved = family.gguf_names, family.gguf_interleaved

        def get(key: str, default: Any = None) -> Any:
            return self._get(f"{kind}.{key}", default)

        if experts := get("expert_count", 0):
            raise unsupported(f"{self._source}: architecture '{kind}' with {experts} experts")
        if get("attention.causal", True) is not True:
            raise unsupported(f"{self._source}: attention to what follows (attention.causal)")
        for key in () if family.soft_caps else SOFT_CAPS:
            if get(key, 0):
                raise unsupported(f"{self._source}: {key} = {get(key)}")

        def size(key: str, default: int | None = None, most: int = LARGEST_SIZE) -> int:
            value = get(key, default)
            # One for each layer, where all are the same.
            if isinstance(value, list) and value and value == value[:1] * len(value):
                value = value[0]
            if type(value) is not int or not 1 <= value <= most:
                raise DamagedFileError(f"{self._source}: {kind}.{key} cannot be {value!r:.60}.")
            return value

        layers, hidden = size("block_count", most=MOST_LAYERS), size("embedding_length")
        heads = size("attention.head_count")
        head_size = size("attention.key_length", hidden // heads, LARGEST_HEAD)
        rotary_size = size("rope.dimension_count", head_size, head_size)
        if rotary_size != head_size and self._interleaved:
            raise unsupported(f"{self._source}: rotation of only a part of each head")
        context = size("context_length", most=LONGEST_CONTEXT)
        if _SHORT_FACTORS in self._tensors:
            context = min(context, size("rope.scaling.original_context_length", context))
        with said_of(str(self._source)):
            rope = self._rope(get, head_size, rotary_size)
        # As it would be for a Llama.
        decoder = Decoder(
            architecture=family.name,
            layers=layers,
            hidden_size=hidden,
            feed_forward_size=size("feed_forward_length"),
            heads=heads,
            kv_heads=size("attention.head_count_kv", heads),
            head_size=head_size,
            vocab_size=self._shape("token_embd.weight")[0],
            context_length=context,
            norm_epsilon=get("attention.layer_norm_rms_epsilon"),
            query_scale=head_size**-0.5,
            activation=family.activation,
            tied_embeddings="output.weight" not in self._tensors,
            qkv_bias=self._has_bias("q", "k", "v"),
            output_bias=self._has_bias("o"),
            mlp_bias=self._has_bias("gate", "up", "down"),
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
        # As llama.cpp has it: a factor alone is a linear one, which old files call otherwise.
        kind = get("rope.scaling.type", "linear")
        scaling, amplitude = None, 1.0

        def number(key: str, default: float) -> float:
            value = get(key, default)
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise DamagedFileError(f"{key} cannot be {value!r:.60}.")
            return float(value)

        if _SHORT_FACTORS in self._tensors:
            factors = self._read(_SHORT_FACTORS, 0, head_size).tolist()
            scaling = _scaling(rope_type="longrope", short_factor=factors)
            amplitude = number("rope.scaling.attn_factor", 1.0)
        elif kind == "yarn":
            scaling = self._yarn(get)
            assert scaling.factor is not None
            amplitude = number("rope.scaling.attn_factor", 1.0)
            amplitude *= yarn_amplitude(scaling.factor, scaling)
        elif kind not in ("none", ""):
            factor = get("rope.scaling.factor", 0.0) or get("rope.scale_linear", 0.0) or 1.0
            scaling = _scaling(rope_type=kind, factor=factor)
        rope = rope_of(
            number("rope.freq_base", 10_000.0),
            head_size,
            scaling,
            rotary_size=rotary_size,
            amplitude=amplitude,
        )
        if _FREQUENCY_FACTORS not in self._tensors:
            return rope
        return divided(rope, self._read(_FREQUENCY_FACTORS, 0, head_size))


def _scaling(**values: Any) -> RopeScaling:
    """Of ``rope.scaling``.

    Raises:
        DamagedFileError: one of the values cannot be.
    """
    try:
        return RopeScaling(**values)
    except ValidationError as error:
        raise DamagedFileError(f"rope.scaling: {mistakes(error)}.") from error


class _Tensor:
    """A tensor of a file that is mapped into memory.

    Raises:
        DamagedFileError: it does not lie within the file.
        OmniDraftError: it is of a type that cannot be read.
    """

    def __init__(self, tensor: GgufTensor, data: NDArray[np.uint8]) -> None:
        place = f"{tensor.path}: {tensor.name}"
        self.shape = tensor.shape
        self.kind = tensor.kind
        block, size = _block(tensor.kind, place)
        count, rest = divmod(tensor.shape[-1], block)
        rows = math.prod(tensor.shape[:-1])
        end = tensor.offset + rows * count * size
        if rest or end > len(data):
            raise DamagedFileError(f"{place} is cut off. Fetch or copy the file again.")
        self.data = data[tensor.offset : end].reshape(rows, count * size)

    def rows(self, index: Any) -> NDArray[np.float32]:
        """Some rows; of a vector some elements."""
        if len(self.shape) == 1:
            vector: NDArray[np.float32] = _dequantized(self.data, self.kind)[0][index]
            return vector
        return _dequantized(self.data[index], self.kind)


def _block(kind: int, place: str) -> tuple[int, int]:
    """Elements of a block of a type of tensors, and its bytes.

    Raises:
        OmniDraftError: tensors of this type, as the one at ``place`` is, cannot be read.
    """
    import gguf

    name = str(kind)
    try:
        known = gguf.GGMLQuantizationType(kind)
        name = known.name
        block, size = gguf.GGML_QUANT_SIZES[known]
        if _can_dequantize(kind):
            return block, size
        what = "not read"
    except (ValueError, KeyError):
        what = "not known here"
    raise OmniDraftError(
        f"{place} is of type {name}, which is {what}. Take a file with another quantization."
    )


@cache
def _can_dequantize(kind: int) -> bool:
    import gguf

    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    try:
        _dequantized(np.zeros((1, size), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _dequantized(data: NDArray[np.uint8], kind: int) -> NDArray[np.float32]:
    """Rows of bytes as rows of numbers."""
    import gguf

    known = gguf.GGMLQuantizationType(kind)
    plain = _FLOATS.get(known.name)
    values = gguf.dequantize(data, known) if plain is None else data.view(plain)
    return np.ascontiguousarray(values, dtype=np.float32)
