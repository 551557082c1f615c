"""What is read of a checkpoint's config.json, and what its fields may be."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from omnidraft.runtime.errors import DamagedFileError
from omnidraft.runtime.storage.validation import mistakes

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# What no model comes near: memory is taken for a layer, a head and a place in the context before
# the weights show what a configuration is worth.
LARGEST_SIZE = (1 << 31) - 1
MOST_LAYERS = LARGEST_HEAD = 1 << 12
LONGEST_CONTEXT = 1 << 24
Size = Annotated[int, Field(ge=1, le=LARGEST_SIZE)]
Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS)]
HeadSize = Annotated[int, Field(ge=1, le=LARGEST_HEAD)]
# In a sequence of one token there is nothing to predict a token from.
Context = Annotated[int, Field(ge=2, le=LONGEST_CONTEXT)]
# Of frequencies, the highest of which is 1.
Base = Annotated[float, Field(gt=1, allow_inf_nan=False)]
Exponent = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]


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
    original_max_position_embeddings: Annotated[float, Field(ge=2, lt=1 << 31)] | None = None
    short_factor: list[Positive] | None = None
    beta_fast: Positive = 32
    beta_slow: Positive = 1
    truncate: bool = True
    mscale: Exponent | None = None
    mscale_all_dim: Exponent | None = None
    attention_factor: Positive | None = None
    partial_rotary_factor: Share | None = None
    # Ministral-3: how much queries grow with each multiple of the length of training.
    llama_4_scaling_beta: float | None = None

    @property
    def kind(self) -> str:
        kind = self.rope_type or self.type or "default"
        # Of text the three positions of a multimodal rotation are one.
        return {"su": "longrope", "mrope": "default"}.get(kind, kind)

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
            "yarn": ["factor"],
            "longrope": ["short_factor"],
        }
        for name in needed.get(self.kind, []):
            if getattr(self, name) is None:
                raise ValueError(f"{name} is missing, which '{self.kind}' scaling needs")
        if self.kind == "llama3" and self.low_freq_factor == self.high_freq_factor:
            raise ValueError("low_freq_factor equals high_freq_factor")
        return self


class RopeParameters(RopeScaling):
    rope_theta: Base | None = None
    full_attention: RopeParameters | None = None
    sliding_attention: RopeParameters | None = None

    @model_validator(mode="after")
    def _has_base(self) -> RopeParameters:
        if self.rope_theta is None and not (self.full_attention and self.sliding_attention):
            raise ValueError("rope_theta is missing")
        return self


class Config(_Read):
    """The fields that every family has; a family with more adds them to a subclass."""

    num_hidden_layers: Layers
    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: HeadSize | None = None
    vocab_size: Size
    max_position_embeddings: Context
    rms_norm_eps: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    hidden_act: str | None = None
    hidden_activation: str | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    layer_types: list[str] = []
    partial_rotary_factor: Share = 1.0
    original_max_position_embeddings: Context | None = None
    # transformers 5 has rope_parameters, its predecessors the other two.
    rope_parameters: RopeParameters | None = None
    rope_theta: Base = 10_000.0
    rope_scaling: RopeScaling | None = None
    # This project's own: see ``Decoder``.
    drafted_tokens: Size | None = None

    @model_validator(mode="after")
    def _drafts_its_tokens(self) -> Config:
        if self.drafted_tokens and self.drafted_tokens > self.vocab_size:
            raise ValueError(
                f"drafted_tokens = {self.drafted_tokens} is more than vocab_size = "
                f"{self.vocab_size}"
            )
        return self

    @property
    def rotary_size(self) -> int:
        """How many elements of a head are rotated."""
        share = self.rope_parameters and self.rope_parameters.partial_rotary_factor
        return int(self.head_size * (share or self.partial_rotary_factor))

    def trained_length(self, scaling: RopeScaling) -> int:
        """The context of a model before its rotation was scaled for a longer one."""
        original = self.original_max_position_embeddings or scaling.original_max_position_embeddings
        return int(original or self.max_position_embeddings)

    @property
    def context_length(self) -> int:
        """In tokens. It ends where training did if beyond that other factors hold."""
        scaling: RopeScaling | None = self.rope_scaling
        if self.rope_parameters:
            scaling = self.rope_parameters.full_attention or self.rope_parameters
        if scaling is None or not (scaling.kind == "longrope" or scaling.llama_4_scaling_beta):
            return self.max_position_embeddings
        return min(self.trained_length(scaling), self.max_position_embeddings)

    @property
    def activation(self) -> str:
        return self.hidden_activation or self.hidden_act or "silu"

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads


AnyConfig = TypeVar("AnyConfig", bound=Config)


def read_config(schema: type[AnyConfig], config: Mapping[str, Any], path: str) -> AnyConfig:
    """The fields of ``config``. A null that a field cannot be is as if it were missing.

    Raises:
        DamagedFileError: one of them is missing or cannot be; it is named, and so is ``path``.
    """
    try:
        nulls = {k for k, f in schema.model_fields.items() if NoneType in get_args(f.annotation)}
        return schema.model_validate(
            {k: v for k, v in config.items() if v is not None or k in nulls}
        )
    except ValidationError as error:
        raise DamagedFileError(f"{path}: {mistakes(error)}.") from error
