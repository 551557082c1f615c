"""What a drafter is to be made of: a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from omnidraft.runtime.errors import ModelNotFoundError, OmniDraftError
from omnidraft.runtime.storage.validation import mistakes

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Positive = Annotated[int, Field(ge=1, le=10**12)]
Size = Annotated[int, Field(ge=1, le=2**16)]
Share = Annotated[float, Field(ge=0, le=1)]
BLOCK = 32
"""Weights of a row that are packed together."""
Opening = Literal["free", "chat", "code", "summary", "maths", "languages", "prompts"]
"""Kinds of conversations: see ``sampling.openings``; ``prompts``: from the configuration's."""


class _Part(BaseModel):
    # Unknown fields are refused: a misspelt one must not be ignored in silence.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Shape(_Part):
    """Sizes of the drafter, a Llama with a tied head.

    ``drafted_tokens``: rows of the head that are computed when drafting, of the tokens that it
    proposes most; None: all. ``start``: the drafter to go on from, a folder or ``default``; None:
    fresh weights.
    """

    layers: Annotated[int, Field(ge=1, le=256)] = 3
    hidden_size: Size = 320
    feed_forward_size: Size = 896
    heads: Size = 5
    positions: Annotated[int, Field(ge=1, le=2**20)] = 1024
    rope_theta: Annotated[float, Field(gt=0, le=1e9)] = 10000.0
    drafted_tokens: Positive | None = 12288
    start: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> Shape:
        # Weights are packed in blocks along their inputs.
        for name in ("hidden_size", "feed_forward_size"):
            if getattr(self, name) % BLOCK:
                raise ValueError(f"{name} must be a multiple of {BLOCK}")
        if self.hidden_size % (2 * self.heads):
            raise ValueError("hidden_size must be a multiple of twice the heads")
        return self


class _Teacher(_Part):
    name: Name
    licence: Annotated[str, Field(min_length=1)]
    """Of the model or the text, as the model card will say it."""
    weight: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """How often its documents are seen, relative to how many there are."""


class LocalTeacher(_Teacher):
    """A model on this machine.

    ``model``: a checkpoint's folder, a GGUF file, or a Hugging Face id. ``repository``: the model's
    Hugging Face id, which the model card names as its base. ``tokens``: to be sampled.
    ``sampler``: ``cuda-graphs`` for Llama and Qwen2 on one CUDA device, ``library`` for whatever
    transformers runs anywhere; ``auto``: the former where it can.
    """

    kind: Literal["model"]
    model: str
    repository: str | None = None
    tokens: Positive
    sampler: Literal["auto", "cuda-graphs", "library"] = "auto"
    streams: Positive = 64
    """Conversations at a time: thousands on a large GPU."""


class ServerTeacher(_Teacher):
    """A model behind a server that speaks OpenAI's protocol and gives log-probabilities.

    ``url`` ends with ``/v1``; ``key_variable`` names the environment's variable that holds the key.
    """

    kind: Literal["server"]
    url: str
    model: str
    tokens: Positive
    key_variable: str | None = None
    requests: Positive = 8
    """At a time: no more than the server answers at once."""
    timeout: Annotated[float, Field(gt=0, le=86400)] = 120.0
    """Seconds for one answer, with the time that it waits for its turn."""


class TextTeacher(_Teacher):
    """Text that is there: JSON lines with ``text``, or with ``messages`` of which answers count.

    ``files``: paths, which may hold ``*``, relative to the configuration.
    """

    kind: Literal["text"]
    files: Annotated[list[str], Field(min_length=1)]


Teacher = Annotated[LocalTeacher | ServerTeacher | TextTeacher, Field(discriminator="kind")]


class Prompts(_Part):
    """Messages of users to begin conversations with: JSON lines with ``prompt``.

    ``files``: paths, which may hold ``*``, relative to the configuration. ``licence``: of the
    prompts, as the model card will say it.
    """

    name: Name
    files: Annotated[list[str], Field(min_length=1)]
    licence: Annotated[str, Field(min_length=1)]


class Sampling(_Part):
    """How teachers write.

    ``openings``: how often which kind of conversation is begun; see ``sampling.openings``.
    ``prompts``: what the kind ``prompts`` draws from, each prompt as often as another.
    ``temperatures``: of answers, drawn for each; the user's words are sampled at 1.
    """

    openings: dict[Opening, Annotated[float, Field(ge=0, le=1e6)]] = {
        "free": 0.22,
        "chat": 0.20,
        "code": 0.18,
        "summary": 0.20,
        "maths": 0.20,
    }
    prompts: list[Prompts] = []
    temperatures: Annotated[list[Annotated[float, Field(ge=0, le=2)]], Field(min_length=1)] = [
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.3,
        0.3,
        0.5,
        0.7,
        0.9,
    ]
    least_share: Share = 0.02
    """Sampled tokens have at least this share of the likeliest one's probability."""
    another_turn: Share = 0.2
    longest: Annotated[int, Field(ge=64, le=2**20)] = 768
    """Tokens of a conversation."""
    shard_tokens: Positive = 4_000_000

    @model_validator(mode="after")
    def _some(self) -> Sampling:
        if not sum(self.openings.values()) > 0:
            raise ValueError("openings must hold a share above 0")
        if bool(self.openings.get("prompts")) != bool(self.prompts):
            raise ValueError(
                "openings must hold a share of prompts where there are prompts, and only there"
            )
        return self


class Stage(_Part):
    """One run of the trainer over the documents.

    ``loss``: ``soft`` learns the teacher's probabilities, ``hard`` what it wrote, ``alm`` its
    likelihood of whole pieces of text. ``sharpen``: labels become p^(1/sharpen). ``cut_heads``:
    some documents begin behind the system prompt or the question. ``grid``: weights on the grid
    that 4-bit kernels hold without loss, and inputs in 8 bits.
    """

    steps: Positive
    rate: Annotated[float, Field(gt=0, le=1)]
    loss: Literal["soft", "hard", "alm"] = "soft"
    sharpen: Annotated[float, Field(gt=0, le=1)] = 1.0
    cut_heads: bool = True
    grid: bool = False
    warm_up: Share = 0.02


class Training(_Part):
    """How the drafter learns.

    ``positions``: tokens of a step, over all processes. ``canonical``: the share of documents in
    the drafter's own segmentation of their text; the others are aligned to the teacher's tokens.
    """

    stages: Annotated[list[Stage], Field(min_length=1)]
    positions: Annotated[int, Field(ge=256, le=2**28)] = 65536
    canonical: Share = 0.25
    user_weight: Share = 0.1
    """Of the user's words in the loss; an answer's weigh 1."""
    longest: Annotated[int, Field(ge=64, le=2**20)] = 1280
    """Draft tokens of a document; longer ones are cut."""
    checkpoint_steps: Positive = 500
    """Between checkpoints; where they take longer there is one every two minutes."""


class Config(_Part):
    """All of it. ``tokenizer``: a folder that holds one; None: the default drafter's."""

    name: Name
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    tokenizer: str | None = None
    held_out: Positive = 64
    """Documents of each teacher that are kept for the evaluation: a quarter of them at most."""
    drafter: Shape = Shape()
    teachers: Annotated[list[Teacher], Field(min_length=1)]
    sampling: Sampling = Sampling()
    training: Training

    @model_validator(mode="after")
    def _names(self) -> Config:
        names = [teacher.name for teacher in self.teachers]
        if len(set(names)) < len(names):
            raise ValueError("teachers must have different names")
        return self


def load_config(path: Path) -> Config:
    """Read a configuration.

    Raises:
        ModelNotFoundError: there is no such file.
        OmniDraftError: it is no TOML, or says what is not possible.
    """
    if not path.is_file():
        raise ModelNotFoundError(f"There is no configuration {path}.")
    try:
        return Config.model_validate(tomllib.loads(path.read_bytes().decode("utf-8-sig")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OmniDraftError(f"{path} is no TOML: {error}.") from error
    except OSError as error:
        raise OmniDraftError(f"{path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        raise OmniDraftError(f"{path}: {mistakes(error)}. See docs/distill.md.") from error
