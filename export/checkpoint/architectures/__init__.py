"""Families of decoders, one file each. A new family is one new file, which is found by itself.

A file defines ``architecture``, an ``Architecture`` that says in what the family differs from
Llama. What reads checkpoints asks it; what writes graphs knows ``Decoder`` only.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from omnidraft.export.checkpoint.config import Config
from omnidraft.export.checkpoint.spec import Activation, Decoder, QkNorm
from omnidraft.runtime.errors import OmniDraftError

AnyConfig = TypeVar("AnyConfig", bound=Config)

HF_NAMES = {
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
GGUF_NAMES = {
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

SOFT_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
"""Fields of config.json and of GGUF files."""


class Metadata(Protocol):
    """A field of a GGUF file by its name without the family's; required if without a default."""

    def __call__(self, key: str, default: Any = None) -> Any: ...


class Architecture(Generic[AnyConfig]):
    """A family: its names, what it computes, and how its checkpoints are written.

    Attributes:
        name: for people, and in manifests.
        model_types: its names in config.json.
        gguf_types: its names in GGUF files.
        schema: what is read of config.json.
        activation, qk_norm, pre_norms, post_norms: see ``Decoder``.
        soft_caps: it may have them; in other families a checkpoint that asks for some is refused.
        hf_names: names in safetensors without prefix, layer and suffix, by those of ``Checkpoint``;
            the head's is ``lm_head``.
        gguf_names: the same in GGUF files.
        hf_norm_offset: what is added to norms' weights as they lie in safetensors.
        hf_interleaved, gguf_interleaved: safetensors, or GGUF files, hold the rows of a head's
            queries and keys, which are rotated in pairs (0, half), (1, half + 1) …, pair by pair.
    """

    name: str
    model_types: tuple[str, ...]
    gguf_types: tuple[str, ...]
    schema: type[AnyConfig]
    activation: Activation = "silu"
    qk_norm: QkNorm = ""
    pre_norms: bool = True
    post_norms: bool = False
    soft_caps: bool = False
    hf_names: Mapping[str, str] = HF_NAMES
    gguf_names: Mapping[str, str] = GGUF_NAMES
    hf_norm_offset: float = 0.0
    hf_interleaved: bool = False
    gguf_interleaved: bool = False

    def text_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of config.json that describes the decoder."""
        return config

    def from_config(self, decoder: Decoder, config: AnyConfig) -> Decoder:
        """The decoder that a config.json describes, from what it would be for a Llama."""
        return decoder

    def from_gguf(self, decoder: Decoder, metadata: Metadata) -> Decoder:
        """The decoder that a GGUF file describes, from what it would be for a Llama."""
        return decoder


def architectures() -> list[Architecture[Any]]:
    """All families, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}").architecture for name in names]


def of_model_type(model_type: object, source: str) -> Architecture[Any]:
    """The family that config.json names.

    Raises:
        OmniDraftError: none is known by that name; ``source`` is where it stands.
    """
    return _find(
        (each for each in architectures() if model_type in each.model_types),
        f"{source}: model_type '{model_type}'",
    )


def of_gguf_type(name: object, source: str) -> Architecture[Any]:
    """The family that a GGUF file names; errors as ``of_model_type``'s."""
    return _find(
        (each for each in architectures() if name in each.gguf_types),
        f"{source}: architecture '{name}'",
    )


def unsupported(what: str) -> OmniDraftError:
    names = ", ".join(each.name for each in architectures())
    return OmniDraftError(f"{what} is not supported. Supported architectures: {names}.")


def _find(found: Iterable[Architecture[Any]], what: str) -> Architecture[Any]:
    for each in found:
        return each
    raise unsupported(what)
