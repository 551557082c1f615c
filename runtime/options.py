"""How an answer is generated, and what of that is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from omnidraft._native import SamplingParameters, Verification
from omnidraft.runtime.decoding.constraint import Constraint
from omnidraft.runtime.errors import OptionError

DraftLength = int | Literal["auto"]
FIXED_DRAFT_LENGTH = 4
MAX_DRAFT_LENGTH = 32
MAX_LOGPROBS = 20
MAX_TREE = 64
DEFAULT_DRAFT_LENGTH: DraftLength = "auto"
DEFAULT_DRAFT_CONFIDENCE = 0.3
"""Measured with the default drafter: see benchmarks/README.md."""


@dataclass(frozen=True)
class GenerationOptions:
    """How one answer is generated.

    Args:
        max_new_tokens: at most so many tokens.
        sampling: temperature 0 (the default) is greedy.
        verification: how sampled proposals are verified; greedy needs no choice.
        seed: makes a sampled answer repeatable: it is that of plain decoding with this seed,
            whatever is drafted and whatever was asked before. Only the paper's verification needs
            the same options, a fixed draft length and an empty n-gram cache for that.
        draft_length: draft tokens per round; 0 decodes plainly; "auto": as many as pay for
            themselves, as a tree where the target scores trees, see ``CostAware``.
        draft_confidence: of a fixed length, see ``Fixed``.
        raw: take the prompt as text to continue instead of a chat message; names of special tokens
            in it are these tokens.
        stop: a text or several; the answer ends before the first of them that it would hold.
            Kept as a tuple.
        logprobs: tell the log-probability of each token, and of so many of the likeliest in its
            place (at most 20); None: compute none.
        tree: tokens that each round proposes, as a tree; None: as ``draft_length`` says.
        constraint: says which tokens may come; a new one for each answer.
        proposals: tell what each round proposed, see ``Piece.proposal``.

    Raises:
        OptionError: a value is of another type or out of its range; it names the option.
    """

    max_new_tokens: int = 128
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    verification: Verification = Verification.EXACT
    seed: int | None = None
    draft_length: DraftLength = DEFAULT_DRAFT_LENGTH
    draft_confidence: float = DEFAULT_DRAFT_CONFIDENCE
    raw: bool = False
    stop: str | Sequence[str] = ()
    logprobs: int | None = None
    tree: int | None = None
    constraint: Constraint | None = None
    proposals: bool = False

    def __post_init__(self) -> None:
        _check_whole("max_new_tokens", self.max_new_tokens, 1)
        _check_type("sampling", self.sampling, SamplingParameters)
        _check_type("verification", self.verification, Verification)
        if self.seed is not None:
            _check_whole("seed", self.seed, 0, 2**64 - 1)
        if self.draft_length != "auto":
            _check_whole("draft_length", self.draft_length, 0, MAX_DRAFT_LENGTH, " or 'auto'")
        share = self.draft_confidence
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise OptionError(f"draft_confidence must be a number from 0 to 1, not {share!r}")
        _check_type("raw", self.raw, bool)
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        if self.tree is not None:
            _check_whole("tree", self.tree, 1, MAX_TREE)
            if self.draft_length != "auto":
                raise OptionError("tree and draft_length cannot both be given")
            if self.verification is Verification.PAPER:
                raise OptionError("the paper's verification knows chains only: leave tree out")
        if self.logprobs is not None:
            _check_whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)

    @property
    def same_as_plain(self) -> bool:
        """Whether the tokens are those of plain decoding, of a batch-invariant target."""
        exact = self.verification is Verification.EXACT
        return self.sampling.greedy or (self.seed is not None and exact)

    @property
    def repeatable(self) -> bool:
        """Sampled with a seed by the paper's verification: nothing may depend on time.

        Elsewhere a seed gives the tokens of plain decoding, whatever is drafted.
        """
        paper = self.verification is Verification.PAPER
        return self.seed is not None and not self.sampling.greedy and paper


def sampling_parameters(
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
) -> SamplingParameters:
    """``SamplingParameters``, whose ranges are told in words.

    Raises:
        OptionError: a value is of another type or out of its range; it names the option.
    """
    numbers = {
        "temperature": temperature,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
    }
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise OptionError(f"{name} must be a number, not {value!r}")
        try:
            float(value)
        except OverflowError as error:
            raise OptionError(f"{name} must be a number of ordinary size") from error
    _check_whole("top_k", top_k, 0, 2**31 - 1)
    try:
        return SamplingParameters(temperature, top_k, top_p, min_p, repetition_penalty)
    except ValueError as error:
        raise OptionError(str(error)) from error


def read_draft_length(text: str) -> DraftLength:
    """What ``--draft-length`` was given.

    Raises:
        OptionError: neither a number from 0 to 32 nor ``auto``.
    """
    if text == "auto":
        return "auto"
    if text.isdecimal() and len(text) <= 2 and int(text) <= MAX_DRAFT_LENGTH:
        return int(text)
    raise OptionError(f"--draft-length must be a number from 0 to 32, or auto, not {text!r}")


def _stop_strings(stop: object) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else stop
    if isinstance(texts, bytes | bytearray) or not isinstance(texts, Sequence):
        raise OptionError(f"stop must be a text or a list of texts, not {stop!r}")
    for text in texts:
        if not isinstance(text, str):
            raise OptionError(f"stop must hold texts, not {text!r}")
        if not text:
            raise OptionError("stop must hold no empty text: every answer would end at once")
    return tuple(texts)


def _check_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise OptionError(f"{name} must be {kind.__name__}, not {value!r}")


def _check_whole(
    name: str, value: object, least: int, most: float = math.inf, also: str = ""
) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        limits = f"from {least} to {most}" if most < math.inf else f"from {least} on"
        raise OptionError(f"{name} must be a whole number {limits}{also}, not {value!r}")
