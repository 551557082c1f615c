"""What a generation did and where its time went."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class Statistics:
    """Sums over one generation, or over several when added up. Seconds are wall-clock."""

    target_tokens: int = 0
    """Tokens emitted, an end-of-text token included."""
    rounds: int = 0
    """Target passes after the prompt."""
    draft_tokens: int = 0
    """Draft tokens drawn; of trees those that spell what was proposed."""
    proposed: int = 0
    """Target tokens proposed and scored."""
    accepted: int = 0
    """Proposed target tokens that stood."""
    ngram_hits: int = 0
    """Proposed target tokens that came from the n-gram cache."""
    ngram_accepted: int = 0
    ngram_inserted: int = 0
    prompt_tokens: int = 0
    prompt_kept: int = 0
    """Of them, those that the target's KV cache held from before."""
    prompt_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    native_seconds: float = 0.0
    seconds: float = 0.0
    """From the end of the prompt to the last token."""

    @property
    def block_efficiency(self) -> float:
        """Target tokens per round."""
        return self.target_tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted ÷ proposed target tokens."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Target tokens per second after the prompt."""
        return self.target_tokens / self.seconds if self.seconds else 0.0

    @property
    def python_seconds(self) -> float:
        """Time outside the models and the native core."""
        return self.seconds - self.draft_seconds - self.target_seconds - self.native_seconds

    def __iadd__(self, other: Statistics) -> Statistics:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self

    def as_dict(self) -> dict[str, float]:
        """The figures that ``generate --json`` reports under ``stats``."""
        return {
            "target_tokens": self.target_tokens,
            "rounds": self.rounds,
            "block_efficiency": self.block_efficiency,
            "acceptance_rate": self.acceptance_rate,
            "ngram_hits": self.ngram_hits,
            "ngram_accepted": self.ngram_accepted,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "ngram_inserted": self.ngram_inserted,
            "draft_tokens": self.draft_tokens,
            "prompt_tokens": self.prompt_tokens,
            "prompt_kept": self.prompt_kept,
            "prompt_seconds": self.prompt_seconds,
            "draft_seconds": self.draft_seconds,
            "target_seconds": self.target_seconds,
            "native_seconds": self.native_seconds,
            "python_seconds": self.python_seconds,
        }
