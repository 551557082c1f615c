"""Read Llama, Qwen2 and Gemma-3 checkpoints, GGUF or safetensors, in row blocks.

Weights are never read whole: ``Checkpoint.rows`` returns a few rows of one matrix as float32, so
that a converter's memory does not grow with the model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError

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
            DamagedFileError: the tensor is missing, cut off, or of another shape.
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


def source_files(source: Path) -> list[Path]:
    """Files that a checkpoint's content depends on, in a fixed order."""
    if source.is_file():
        return [source]
    return [source / "config.json", *_weight_files(source)]


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(_load_json(index)["weight_map"].values()))
        return [folder / shard for shard in shards]
    if (single := folder / "model.safetensors").is_file():
        return [single]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelNotFoundError(f"{folder} has a config.json but no *.safetensors.")
    return files


def _load_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DamagedFileError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise DamagedFileError(f"{path} does not hold a JSON object.")
    return value


def _unsupported(what: str) -> OmniDraftError:
    return OmniDraftError(f"{what} is not supported. Supported architectures: {SUPPORTED}.")


# --- rotary embeddings -------------------------------------------------------------------------


def _rope(base: float, head_size: int, scaling: Mapping[str, Any] | None = None) -> Rope:
    inverse = base ** -(np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "linear":
        inverse /= float(scaling["factor"])
    elif kind == "llama3":
        inverse = _llama3_frequencies(inverse, scaling)
    elif kind != "default":
        raise OmniDraftError(
            f"Rotary scaling '{kind}' is not supported. Supported: default, linear, llama3."
        )
    return Rope(tuple(float(value) for value in inverse))


def _llama3_frequencies(
    inverse: NDArray[np.float64], scaling: Mapping[str, Any]
) -> NDArray[np.float64]:
    """Llama 3.1: long wavelengths stretched by factor, short ones kept, a ramp between."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
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
        self._decoder = self._describe()

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
        available = self._shape(stored)[0]
        stop = available if stop is None else stop
        if stop > available:
            raise DamagedFileError(f"{self._path}: {stored} has fewer than {stop} rows.")
        heads = {"q": self._decoder.heads, "k": self._decoder.kv_heads}.get(part)
        if heads is None or self._decoder.architecture != "llama":
            return self._read(tensor, slice(start, stop))
        # llama.cpp stores Llama's query and key rows of a head interleaved (0, half, 1, half + 1…).
        size = self._decoder.head_size
        order = np.arange(heads * size).reshape(heads, size // 2, 2).swapaxes(1, 2).reshape(-1)
        if available != len(order):
            raise DamagedFileError(f"{self._path}: {stored} has not {len(order)} rows.")
        return self._read(tensor, order[start:stop])

    def _read(self, tensor: Any, index: Any) -> NDArray[np.float32]:
        values = self._dequantize(tensor.data[index], tensor.tensor_type)
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
            else {"rope_type": scaling, "factor": get("rope.scaling.factor", 1.0)},
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


class SafetensorsCheckpoint:
    """A folder as Hugging Face lays it out, or one in this project's int8 block format.

    In the latter (metadata ``format = omnidraft-int8-block32``) a matrix ``NAME`` is int8
    [out, in] beside ``NAME.scale`` float16 [out, in/32]: weight = integer x scale.
    """

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self._folder = folder
        self._files: dict[str, Any] = {}
        formats = set()
        for path in _weight_files(folder):
            try:
                file = safe_open(path, framework="numpy")
            except (SafetensorError, OSError) as error:
                raise DamagedFileError(f"{path} is damaged or missing: {error}") from error
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
        self._decoder = self._describe(_load_json(folder / "config.json"))

    @property
    def decoder(self) -> Decoder:
        return self._decoder

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        gemma = self._decoder.architecture == "gemma3"
        stored = self._stored_name(name, gemma)
        values = self._read(stored, start, stop)
        if self._int8 and values.ndim == 2:
            scale = self._read(f"{stored}.scale", start, stop)
            values = (values.reshape(*scale.shape, 32) * scale[..., None]).reshape(values.shape)
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

    def _read(self, stored: str, start: int, stop: int | None) -> NDArray[np.float32]:
        file = self._files.get(stored)
        if file is None:
            raise DamagedFileError(f"{self._folder} has no tensor {stored}.")
        # numpy knows bfloat16 through ml_dtypes only.
        import ml_dtypes  # noqa: F401

        part = file.get_slice(stored)
        stop = part.get_shape()[0] if stop is None else stop
        if stop > part.get_shape()[0]:
            raise DamagedFileError(f"{self._folder}: {stored} has fewer than {stop} rows.")
        return np.ascontiguousarray(part[start:stop], dtype=np.float32)

    def _describe(self, config: dict[str, Any]) -> Decoder:
        kind = config.get("model_type")
        if kind == "gemma3" and isinstance(config.get("text_config"), dict):
            config = {**config["text_config"], "tie_word_embeddings": True}
        if kind not in ("llama", "qwen2", "gemma3", "gemma3_text"):
            raise _unsupported(f"{self._folder}: model_type '{kind}'")
        try:
            return self._decoder_of(config, "gemma3" if kind == "gemma3_text" else kind)
        except (KeyError, TypeError, ZeroDivisionError) as error:
            raise DamagedFileError(
                f"{self._folder / 'config.json'} is incomplete: {error!r}"
            ) from error

    def _decoder_of(self, config: dict[str, Any], kind: Architecture) -> Decoder:
        gemma = kind == "gemma3"
        for key in ("mlp_bias", "attn_logit_softcapping", "final_logit_softcapping"):
            if config.get(key):
                raise _unsupported(f"{self._folder}: {key} = {config[key]}")
        activation = config.get("hidden_activation") or config.get("hidden_act") or "silu"
        expected = "gelu_pytorch_tanh" if gemma else "silu"
        if activation != expected:
            raise _unsupported(f"{self._folder}: activation '{activation}' (not {expected})")
        layers, hidden, heads = (
            config["num_hidden_layers"],
            config["hidden_size"],
            config["num_attention_heads"],
        )
        head_size = config.get("head_dim") or hidden // heads
        rope, local = _hf_ropes(config, gemma, head_size)
        scalar = config.get("query_pre_attn_scalar", head_size) if gemma else head_size
        return Decoder(
            architecture=kind,
            layers=layers,
            hidden_size=hidden,
            feed_forward_size=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_size=head_size,
            vocab_size=config["vocab_size"],
            context_length=config["max_position_embeddings"],
            norm_epsilon=config["rms_norm_eps"],
            query_scale=scalar**-0.5,
            embedding_scale=hidden**0.5 if gemma else 1.0,
            activation="gelu_tanh" if gemma else "silu",
            tied_embeddings=bool(config.get("tie_word_embeddings", gemma)),
            qkv_bias=kind == "qwen2" or bool(config.get("attention_bias")),
            output_bias=kind != "qwen2" and bool(config.get("attention_bias")),
            qk_norm=gemma,
            post_norms=gemma,
            windows=_hf_windows(config, gemma, layers),
            rope=rope,
            local_rope=local,
        )


def _hf_ropes(config: Mapping[str, Any], gemma: bool, head_size: int) -> tuple[Rope, Rope]:
    """Both layouts of config.json: ``rope_parameters`` (transformers 5) and its predecessors."""
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        raise OmniDraftError("Rotation of only a part of each head is not supported.")
    parameters = config.get("rope_parameters")
    if parameters is None:
        rope = _rope(config.get("rope_theta", 10_000.0), head_size, config.get("rope_scaling"))
        base = config.get("rope_local_base_freq", GEMMA_LOCAL_ROPE_BASE)
        return rope, _rope(base, head_size) if gemma else rope
    full = parameters.get("full_attention", parameters)
    local = parameters.get("sliding_attention", parameters)
    return (
        _rope(full["rope_theta"], head_size, full),
        _rope(local["rope_theta"], head_size, local),
    )


def _hf_windows(config: Mapping[str, Any], gemma: bool, layers: int) -> tuple[int | None, ...]:
    window = config.get("sliding_window")
    if not window or not (gemma or config.get("use_sliding_window")):
        return (None,) * layers
    if kinds := config.get("layer_types"):
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    if gemma:
        return _gemma_windows(
            layers, window, config.get("sliding_window_pattern", GEMMA_FULL_ATTENTION_EVERY)
        )
    first = config.get("max_window_layers", layers)
    return tuple(window if i >= first else None for i in range(layers))


def row_blocks(
    checkpoint: Checkpoint, name: str, count: int, size: int
) -> Iterable[NDArray[np.float32]]:
    """Yield a tensor's ``count`` rows in blocks of at most ``size``."""
    for start in range(0, count, size):
        yield checkpoint.rows(name, start, min(start + size, count))
