"""Read Llama, Qwen2 and Gemma-3 checkpoints, GGUF or safetensors, in row blocks.

Weights are never read whole: ``Checkpoint.rows`` returns a few rows of one matrix as float32, so
that a converter's memory does not grow with the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.storage.checkpoints import load_json, weight_files

Architecture = Literal["llama", "qwen2", "gemma3"]
SUPPORTED = "llama, qwen2, gemma3"
INT8_FORMAT = "omnidraft-int8-block32"
GEMMA_LOCAL_ROPE_BASE = 10_000.0
GEMMA_FULL_ATTENTION_EVERY = 6
# Arrays of a GGUF file longer than this are vocabularies; per-layer settings are shorter.
LONG_ARRAY = 1024


@dataclass(frozen=True)
class Rope:
    """Rotary embedding, rotate-half convention; ``inverse_frequencies`` are [head_size/2]."""

    inverse_frequencies: tuple[float, ...]

    def table(self, length: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return cosine and sine, float32 [length, head_size/2]."""
        # float32 angles, as the models were trained with.
        angles = np.outer(
            np.arange(length, dtype=np.float32),
            np.array(self.inverse_frequencies, dtype=np.float32),
        )
        return np.cos(angles), np.sin(angles)


@dataclass(frozen=True)
class Decoder:
    """What a decoder computes; sizes in elements, lengths in tokens."""

    architecture: Architecture
    layers: int
    hidden_size: int
    feed_forward_size: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    context_length: int
    norm_epsilon: float
    query_scale: float
    embedding_scale: float
    activation: Literal["silu", "gelu_tanh"]
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    post_norms: bool
    # For each layer the sliding window in tokens (a token sees itself and window - 1 before it).
    windows: tuple[int | None, ...]
    # Rope of the layers with full attention, and of those with a sliding window.
    rope: Rope
    local_rope: Rope
    # A drafter's: its tokens are in the order of how often it proposes them, and those after the
    # first so many are not worth a row of the head.
    drafted_tokens: int | None = None


class Checkpoint(Protocol):
    """A decoder's description and its weights.

    Tensors: ``embedding`` [vocab, hidden], ``head`` [vocab, hidden], ``norm`` [hidden], and for
    layer i ``i.q`` ``i.k`` ``i.v`` ``i.o`` ``i.gate`` ``i.up`` ``i.down`` [out, in], each linear's
    ``….bias`` [out], ``i.input_norm``, ``i.mlp_norm`` and where the decoder has them ``i.q_norm``,
    ``i.k_norm``, ``i.post_attention_norm``, ``i.post_mlp_norm``. Norm weights are factors
    (Gemma's are returned with their 1 added).
    """

    @property
    def decoder(self) -> Decoder: ...

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """Rows ``start:stop`` of a tensor.

        Raises:
            DamagedFileError: the tensor is missing, cut off or of another shape than
                ``check_shape`` demands, or holds NaN or infinity.
            OmniDraftError: it is of a type that is not read.
        """


def open_checkpoint(source: Path) -> Checkpoint:
    """Open a GGUF file or a folder of safetensors with its config.json.

    Raises:
        ModelNotFoundError: there is nothing at that path that could be a model.
        DamagedFileError: a file is truncated or not what it claims to be.
        OmniDraftError: the architecture, or a detail of it, is not supported.
    """
    if source.is_dir() and (source / "config.json").is_file():
        return SafetensorsCheckpoint(source)
    if source.is_file():
        return GgufCheckpoint(source)
    raise ModelNotFoundError(
        f"{source} is neither a GGUF file nor a folder with config.json and *.safetensors."
    )


def check_shape(decoder: Decoder, name: str, shape: Sequence[int], stored: str) -> None:
    """Demand that a tensor has exactly the shape that its decoder reads.

    Args:
        name: as ``Checkpoint`` names it; ``stored``: as the file does.
        shape: as it is stored, [out, in] or [out].

    Raises:
        DamagedFileError: it differs. A padded vocabulary is no exception: the padding counts in
            ``vocab_size``, as Hugging Face has it.
    """
    d = decoder
    vocabulary, hidden = ("vocab_size", d.vocab_size), ("hidden_size", d.hidden_size)
    inner = ("intermediate_size", d.feed_forward_size)
    queries = ("num_attention_heads x head_dim", d.heads * d.head_size)
    keys = ("num_key_value_heads x head_dim", d.kv_heads * d.head_size)
    head_norm = (("head_dim", d.head_size),)
    shapes = {
        "embedding": (vocabulary, hidden),
        "head": (vocabulary, hidden),
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, queries),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
        "q_norm": head_norm,
        "k_norm": head_norm,
    }
    part = name.removesuffix(".bias").rpartition(".")[2]
    expected = shapes.get(part, (hidden,))[: 1 if name.endswith(".bias") else 2]
    if tuple(shape) != tuple(size for _, size in expected):
        raise DamagedFileError(
            f"{stored} is {list(shape)}, but the model's description says "
            f"[{', '.join(f'{what} = {size}' for what, size in expected)}]."
        )


def _finite(values: NDArray[np.float32], stored: str) -> NDArray[np.float32]:
    if not np.isfinite(values).all():
        raise DamagedFileError(
            f"{stored} holds weights that are NaN or infinite. Fetch the checkpoint again, or "
            "take one from before its training diverged."
        )
    return values


LINEAR_PARTS = {"qkv": ("q", "k", "v"), "o": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}
"""The linears of a layer, those of one input joined, and their parts as a checkpoint names them."""


def joined_weight(checkpoint: Checkpoint, layer: int, linear: str) -> NDArray[np.float32]:
    """The weight of one of ``LINEAR_PARTS``, float32 [out, in], its parts one after another."""
    return np.concatenate([checkpoint.rows(f"{layer}.{part}") for part in LINEAR_PARTS[linear]])


def joined_bias(checkpoint: Checkpoint, layer: int, linear: str) -> NDArray[np.float32] | None:
    """Its bias, float32 [out], if it has one."""
    d = checkpoint.decoder
    if not {"qkv": d.qkv_bias, "o": d.output_bias}.get(linear):
        return None
    parts = LINEAR_PARTS[linear]
    return np.concatenate([checkpoint.rows(f"{layer}.{part}.bias") for part in parts])


def _unsupported(what: str) -> OmniDraftError:
    return OmniDraftError(f"{what} is not supported. Supported architectures: {SUPPORTED}.")


# --- rotary embeddings -------------------------------------------------------------------------


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=1)]


class _Read(BaseModel):
    # Strict: "256" and 256.0 are no sizes. Fields that nothing here depends on are left alone.
    model_config = ConfigDict(strict=True, frozen=True)


class RopeScaling(_Read):
    """How rotary frequencies are scaled: ``rope_scaling``, or part of ``rope_parameters``."""

    rope_type: str | None = None
    type: str | None = None
    factor: Positive | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: Positive | None = None

    @property
    def kind(self) -> str:
        return self.rope_type or self.type or "default"

    @model_validator(mode="after")
    def _complete(self) -> RopeScaling:
        needed = {
            "linear": ["factor"],
            "llama3": [
                "factor",
                "low_freq_factor",
                "high_freq_factor",
                "original_max_position_embeddings",
            ],
        }
        for name in needed.get(self.kind, []):
            if getattr(self, name) is None:
                raise ValueError(f"{name} is missing, which '{self.kind}' scaling needs")
        if self.kind == "llama3" and self.low_freq_factor == self.high_freq_factor:
            raise ValueError("low_freq_factor equals high_freq_factor")
        return self


def _rope(base: float, head_size: int, scaling: RopeScaling | None = None) -> Rope:
    inverse = base ** -(np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    scaling = scaling or RopeScaling()
    if scaling.kind == "linear":
        assert scaling.factor is not None
        inverse /= scaling.factor
    elif scaling.kind == "llama3":
        inverse = _llama3_frequencies(inverse, scaling)
    elif scaling.kind != "default":
        raise OmniDraftError(
            f"Rotary scaling '{scaling.kind}' is not supported. Supported: default, linear, llama3."
        )
    return Rope(tuple(float(value) for value in inverse))


def _llama3_frequencies(inverse: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    """Llama 3.1: long wavelengths stretched by factor, short ones kept, a ramp between."""
    factor, original = scaling.factor, scaling.original_max_position_embeddings
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    assert factor and original and low and high
    turns = original * inverse / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(inverse * (keep + (1 - keep) / factor))


# --- GGUF --------------------------------------------------------------------------------------

_GGUF_NAMES = {
    "embedding": "token_embd",
    "head": "output",
    "norm": "output_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "input_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_attention_norm": "post_attention_norm",
    "post_mlp_norm": "post_ffw_norm",
}


def read_gguf(path: Path) -> Any:
    """Open a GGUF file as a ``gguf.GGUFReader`` that skips the contents of long arrays.

    The library makes several objects for every element of an array: 24 s and 600 MB for a
    vocabulary of 262,144 tokens, of which a converter of weights needs nothing.
    """
    import struct

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


class GgufCheckpoint:
    """A GGUF file with tensors of any type that the gguf library can dequantize."""

    def __init__(self, path: Path) -> None:
        import gguf

        self._path = path
        reader = read_gguf(path)
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._dequantize: Callable[..., NDArray[np.float32]] = gguf.dequantize
        try:
            self._decoder = _sound(self._describe(), str(path))
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise DamagedFileError(
                f"{path}: its metadata describe no decoder that is known here: {error}"
            ) from error

    @property
    def decoder(self) -> Decoder:
        return self._decoder

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        layer, _, part = name.rpartition(".") if not name.endswith(".bias") else _split_bias(name)
        suffix = "bias" if name.endswith(".bias") else "weight"
        base = f"{_GGUF_NAMES[part]}.{suffix}"
        stored = f"blk.{layer}.{base}" if layer else base
        tensor = self._tensors.get(stored)
        if tensor is None:
            raise DamagedFileError(f"{self._path} has no tensor {stored}.")
        place = f"{self._path}: {stored}"
        check_shape(self._decoder, name, self._shape(stored), place)
        heads = {"q": self._decoder.heads, "k": self._decoder.kv_heads}.get(part)
        if heads is None or self._decoder.architecture != "llama":
            return _finite(self._read(tensor, slice(start, stop)), place)
        # llama.cpp stores Llama's query and key rows of a head interleaved (0, half, 1, half + 1…).
        size = self._decoder.head_size
        order = np.arange(heads * size).reshape(heads, size // 2, 2).swapaxes(1, 2).reshape(-1)
        return _finite(self._read(tensor, order[start:stop]), place)

    def _read(self, tensor: Any, index: Any) -> NDArray[np.float32]:
        try:
            values = self._dequantize(tensor.data[index], tensor.tensor_type)
        except NotImplementedError as error:
            raise OmniDraftError(
                f"{self._path}: {tensor.name} is of type {tensor.tensor_type.name}, which is not "
                "read. Take a file with another quantization."
            ) from error
        return np.ascontiguousarray(values, dtype=np.float32)

    def _get(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(key)
        value = default if field is None else field.contents()
        if value is None:
            raise DamagedFileError(f"{self._path} lacks the metadata field {key}.")
        return value

    def _describe(self) -> Decoder:
        kind = self._get("general.architecture")
        if kind not in ("llama", "qwen2", "gemma3"):
            raise _unsupported(f"{self._path}: architecture '{kind}'")
        gemma = kind == "gemma3"

        def get(key: str, default: Any = None) -> Any:
            return self._get(f"{kind}.{key}", default)

        for key in ("expert_count", "attn_logit_softcapping", "final_logit_softcapping"):
            if get(key, 0):
                raise _unsupported(f"{self._path}: {key} = {get(key)}")
        layers, hidden = get("block_count"), get("embedding_length")
        heads = get("attention.head_count")
        head_size = get("attention.key_length", hidden // heads)
        if get("rope.dimension_count", head_size) != head_size:
            raise _unsupported(f"{self._path}: rotation of only a part of each head")
        window = get("attention.sliding_window", 0) if gemma else 0
        scaling = get("rope.scaling.type", "none")
        rope = _rope(
            get("rope.freq_base", 10_000.0),
            head_size,
            None
            if scaling in ("none", "")
            else RopeScaling(rope_type=scaling, factor=float(get("rope.scaling.factor", 1.0))),
        )
        if (factors := self._tensors.get("rope_freqs.weight")) is not None:
            divided = np.array(rope.inverse_frequencies) / self._read(factors, slice(None))
            rope = Rope(tuple(float(value) for value in divided))
        local = rope
        if gemma:
            local = _rope(get("rope.freq_base_swa", GEMMA_LOCAL_ROPE_BASE), head_size)
        return Decoder(
            architecture=kind,
            layers=layers,
            hidden_size=hidden,
            feed_forward_size=get("feed_forward_length"),
            heads=heads,
            kv_heads=get("attention.head_count_kv", heads),
            head_size=head_size,
            vocab_size=int(self._shape("token_embd.weight")[0]),
            context_length=get("context_length"),
            norm_epsilon=get("attention.layer_norm_rms_epsilon"),
            # The 27B model alone scales by hidden / heads, as llama.cpp knows by its 62 layers.
            query_scale=(hidden // heads if gemma and layers == 62 else head_size) ** -0.5,
            embedding_scale=hidden**0.5 if gemma else 1.0,
            activation="gelu_tanh" if gemma else "silu",
            tied_embeddings="output.weight" not in self._tensors,
            qkv_bias="blk.0.attn_q.bias" in self._tensors,
            output_bias="blk.0.attn_output.bias" in self._tensors,
            qk_norm=gemma,
            post_norms=gemma,
            windows=_gemma_windows(layers, window) if window else (None,) * layers,
            rope=rope,
            local_rope=local,
        )

    def _shape(self, name: str) -> tuple[int, ...]:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise DamagedFileError(f"{self._path} has no tensor {name}.")
        return tuple(int(size) for size in reversed(tensor.shape))


def _split_bias(name: str) -> tuple[str, str, str]:
    layer, part, _ = name.split(".")
    return layer, ".", part


def _gemma_windows(
    layers: int, window: int, every: int = GEMMA_FULL_ATTENTION_EVERY
) -> tuple[int | None, ...]:
    return tuple(None if (i + 1) % every == 0 else window for i in range(layers))


# --- safetensors -------------------------------------------------------------------------------

_HF_NAMES = {
    "embedding": "embed_tokens",
    "norm": "norm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "input_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}
# Gemma-3 names what follows the attention as Llama names what precedes the feed-forward network.
_HF_GEMMA_NAMES = _HF_NAMES | {
    "mlp_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}


_FLOATS = ("F64", "F32", "F16", "BF16")


class SafetensorsCheckpoint:
    """A folder as Hugging Face lays it out, or one in this project's int8 block format.

    In the latter (metadata ``format = omnidraft-int8-block32``) a matrix ``NAME`` is int8
    [out, in] beside ``NAME.scale`` float16 [out, in/32]: weight = integer x scale. Otherwise
    weights are floats; integers, which only their quantizer knows to read, are refused.
    """

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self._folder = folder
        self._files: dict[str, Any] = {}
        formats = set()
        for path in weight_files(folder):
            try:
                path.open("rb").close()  # the library calls a file that may not be read missing
                file = safe_open(path, framework="numpy")
            except (SafetensorError, OSError) as error:
                raise DamagedFileError(
                    f"{path} is damaged, missing or not readable: {error}"
                ) from error
            formats.add((file.metadata() or {}).get("format"))  # type: ignore[no-untyped-call]
            self._files.update(dict.fromkeys(file.keys(), file))  # type: ignore[no-untyped-call]
        self._int8 = INT8_FORMAT in formats
        self._prefix = next(
            (
                prefix
                for prefix in ("model.", "language_model.model.", "model.language_model.", "")
                if f"{prefix}embed_tokens.weight" in self._files
            ),
            "model.",
        )
        self._decoder = self._describe(load_json(folder / "config.json"))

    @property
    def decoder(self) -> Decoder:
        return self._decoder

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        gemma = self._decoder.architecture == "gemma3"
        stored = self._stored_name(name, gemma)
        shape = self._part(stored).get_shape()
        place = f"{self._folder}: {stored}"
        check_shape(self._decoder, name, shape, place)
        if self._int8 and len(shape) == 2:
            values = self._read(stored, start, stop, ("I8",))
            blocks = [shape[0], shape[1] // 32]
            if self._part(f"{stored}.scale").get_shape() != blocks or shape[1] % 32:
                raise DamagedFileError(f"{place}.scale has not one scale for 32 weights.")
            scale = self._read(f"{stored}.scale", start, stop)
            values = (values.reshape(*scale.shape, 32) * scale[..., None]).reshape(values.shape)
        else:
            values = self._read(stored, start, stop)
        _finite(values, place)
        if gemma and name.rpartition(".")[2].endswith("norm"):
            values = values + np.float32(1)
        return values

    def _stored_name(self, name: str, gemma: bool) -> str:
        if name == "head":
            lead = self._prefix.removesuffix("model.")
            return next(
                (n for n in (f"{lead}lm_head.weight", "lm_head.weight") if n in self._files),
                "lm_head.weight",
            )
        names = _HF_GEMMA_NAMES if gemma else _HF_NAMES
        bias = name.endswith(".bias")
        layer, _, part = _split_bias(name) if bias else name.rpartition(".")
        place = f"{self._prefix}layers.{layer}." if layer else self._prefix
        return f"{place}{names[part]}.{'bias' if bias else 'weight'}"

    def _part(self, stored: str) -> Any:
        file = self._files.get(stored)
        if file is None:
            raise DamagedFileError(f"{self._folder} has no tensor {stored}.")
        return file.get_slice(stored)

    def _read(
        self, stored: str, start: int, stop: int | None, types: Sequence[str] = _FLOATS
    ) -> NDArray[np.float32]:
        # numpy knows bfloat16 through ml_dtypes only.
        import ml_dtypes  # noqa: F401

        part = self._part(stored)
        if (kind := part.get_dtype()) not in types:
            raise OmniDraftError(
                f"{self._folder}: {stored} is stored as {kind}, {' or '.join(types)} is needed. "
                "Take the checkpoint from before it was quantized."
            )
        return np.ascontiguousarray(part[start:stop], dtype=np.float32)

    def _describe(self, config: dict[str, Any]) -> Decoder:
        kind = config.get("model_type")
        if kind == "gemma3" and isinstance(config.get("text_config"), dict):
            outer = config.get("quantization_config")
            config = {"quantization_config": outer, **config["text_config"]}
            config["tie_word_embeddings"] = True
        if kind not in ("llama", "qwen2", "gemma3", "gemma3_text"):
            raise _unsupported(f"{self._folder}: model_type '{kind}'")
        path = self._folder / "config.json"
        if (quantized := config.get("quantization_config")) is not None:
            method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
            raise OmniDraftError(
                f"{path}: quantization_config: weights quantized by {method!r} are not read. Take "
                "the checkpoint from before it was quantized, or a GGUF file."
            )
        try:
            decoder = self._decoder_of(config, "gemma3" if kind == "gemma3_text" else kind)
        except ValidationError as error:
            first = error.errors()[0]
            place = "".join(f"{part}: " for part in first["loc"])
            raise DamagedFileError(
                f"{path}: {place}{first['msg'].removeprefix('Value error, ')}."
            ) from error
        except ZeroDivisionError as error:
            raise DamagedFileError(
                f"{path}: num_attention_heads is larger than hidden_size."
            ) from error
        return _sound(decoder, str(path))

    def _decoder_of(self, config: dict[str, Any], kind: Architecture) -> Decoder:
        gemma = kind == "gemma3"
        for key in ("mlp_bias", "attn_logit_softcapping", "final_logit_softcapping"):
            if config.get(key):
                raise _unsupported(f"{self._folder}: {key} = {config[key]}")
        activation = config.get("hidden_activation") or config.get("hidden_act") or "silu"
        expected = "gelu_pytorch_tanh" if gemma else "silu"
        if activation != expected:
            raise _unsupported(f"{self._folder}: activation '{activation}' (not {expected})")
        c = _Config.model_validate(
            {key: value for key, value in config.items() if value is not None}
        )
        layers, hidden, heads = c.num_hidden_layers, c.hidden_size, c.num_attention_heads
        head_size = c.head_dim or hidden // heads
        rope, local = _hf_ropes(c, gemma, head_size)
        scalar = (c.query_pre_attn_scalar or head_size) if gemma else head_size
        return Decoder(
            architecture=kind,
            layers=layers,
            hidden_size=hidden,
            feed_forward_size=c.intermediate_size,
            heads=heads,
            kv_heads=c.num_key_value_heads or heads,
            head_size=head_size,
            vocab_size=c.vocab_size,
            context_length=c.max_position_embeddings,
            norm_epsilon=c.rms_norm_eps,
            query_scale=scalar**-0.5,
            embedding_scale=hidden**0.5 if gemma else 1.0,
            activation="gelu_tanh" if gemma else "silu",
            tied_embeddings=gemma if c.tie_word_embeddings is None else c.tie_word_embeddings,
            qkv_bias=kind == "qwen2" or c.attention_bias,
            output_bias=kind != "qwen2" and c.attention_bias,
            qk_norm=gemma,
            post_norms=gemma,
            windows=_hf_windows(c, gemma),
            rope=rope,
            local_rope=local,
            drafted_tokens=c.drafted_tokens,
        )


class RopeParameters(RopeScaling):
    rope_theta: Positive | None = None
    full_attention: RopeParameters | None = None
    sliding_attention: RopeParameters | None = None

    @model_validator(mode="after")
    def _has_base(self) -> RopeParameters:
        if self.rope_theta is None and not (self.full_attention and self.sliding_attention):
            raise ValueError("rope_theta is missing")
        return self


class _Config(_Read):
    """What is read of config.json, its nulls left out."""

    num_hidden_layers: Size
    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    vocab_size: Size
    # In a sequence of one token there is nothing to predict a token from.
    max_position_embeddings: Annotated[int, Field(ge=2)]
    rms_norm_eps: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    partial_rotary_factor: float = 1.0
    # transformers 5 has rope_parameters, its predecessors the other three.
    rope_parameters: RopeParameters | None = None
    rope_theta: Positive = 10_000.0
    rope_scaling: RopeScaling | None = None
    rope_local_base_freq: Positive = GEMMA_LOCAL_ROPE_BASE
    query_pre_attn_scalar: Positive | None = None
    sliding_window: Annotated[int, Field(ge=0)] = 0
    use_sliding_window: bool = False
    sliding_window_pattern: Size = GEMMA_FULL_ATTENTION_EVERY
    max_window_layers: int | None = None
    layer_types: list[str] = []
    # This project's own: see ``Decoder``.
    drafted_tokens: Size | None = None

    @model_validator(mode="after")
    def _drafts_its_tokens(self) -> _Config:
        if self.drafted_tokens and self.drafted_tokens > self.vocab_size:
            raise ValueError(
                f"drafted_tokens = {self.drafted_tokens} is more than vocab_size = "
                f"{self.vocab_size}"
            )
        return self


def _sound(decoder: Decoder, source: str) -> Decoder:
    """The decoder, if its sizes fit each other."""
    d = decoder
    reason = ""
    if min(d.layers, d.hidden_size, d.feed_forward_size, d.heads, d.kv_heads, d.vocab_size) < 1:
        reason = "a size is not positive"
    elif d.heads % d.kv_heads:
        reason = f"num_key_value_heads = {d.kv_heads} does not divide {d.heads} attention heads"
    elif d.head_size % 2 or d.head_size < 2:
        reason = f"head_dim = {d.head_size} is not even, as rotation needs it"
    elif len(d.windows) != d.layers:
        reason = f"layer_types names {len(d.windows)} of {d.layers} layers"
    if reason:
        raise DamagedFileError(f"{source}: {reason}.")
    return d


def _hf_ropes(config: _Config, gemma: bool, head_size: int) -> tuple[Rope, Rope]:
    """Ropes of the layers with full attention, and of those with a sliding window."""
    if config.partial_rotary_factor != 1:
        raise OmniDraftError("Rotation of only a part of each head is not supported.")
    parameters = config.rope_parameters
    if parameters is None:
        rope = _rope(config.rope_theta, head_size, config.rope_scaling)
        return rope, _rope(config.rope_local_base_freq, head_size) if gemma else rope
    full = parameters.full_attention or parameters
    local = parameters.sliding_attention or parameters
    assert full.rope_theta and local.rope_theta
    return _rope(full.rope_theta, head_size, full), _rope(local.rope_theta, head_size, local)


def _hf_windows(config: _Config, gemma: bool) -> tuple[int | None, ...]:
    layers, window = config.num_hidden_layers, config.sliding_window
    if not window or not (gemma or config.use_sliding_window):
        return (None,) * layers
    if kinds := config.layer_types:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    if gemma:
        return _gemma_windows(layers, window, config.sliding_window_pattern)
    first = layers if config.max_window_layers is None else config.max_window_layers
    return tuple(window if i >= first else None for i in range(layers))


def row_blocks(
    checkpoint: Checkpoint, name: str, count: int, size: int
) -> Iterable[NDArray[np.float32]]:
    """Yield a tensor's ``count`` rows in blocks of at most ``size``."""
    for start in range(0, count, size):
        yield checkpoint.rows(name, start, min(start + size, count))
