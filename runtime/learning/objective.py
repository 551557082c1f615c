"""What learning minimises: the names of losses, and what each needs.

Their mathematics is in ``export/graphs/training.py``, and ``batches.py`` makes their batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, get_args

LossName = Literal["ce", "hybrid", "alm"]
LOSSES: Final[tuple[LossName, ...]] = get_args(LossName)
LEARNING_RATES: Final[dict[LossName, float]] = {
    "ce": 1e-3,
    "hybrid": 3e-4,
    "alm": 3e-4,
}
"""AdamW's, by loss. At 1e-3 the divergences throw the default drafter off."""


class Detail(IntEnum):
    """How much of a round a loss is computed from."""

    TOKENS = 0
    """What was accepted."""
    PROBABILITIES = 1
    """All tokens that were proposed, and the target's log-probability of each."""
    DISTRIBUTIONS = 2
    """And the likeliest of what both models could have said in their places."""


@dataclass(frozen=True)
class Objective:
    """What is minimised.

    - ``ce``: −log q of every draft token of the answer, the cross-entropy with what the target
      said: under greedy decoding the forward KL to its distribution;
    - ``hybrid``: L_DM + λ · L_N-gram (OmniDraft, arXiv 2507.02659). L_DM is D(q' ‖ p'), both
      renormalised over direct tokens, at every token boundary, times the mass that p has there:
      where the target wants an n-gram, direct tokens learn nothing. L_N-gram is −log q of the draft
      tokens of n-grams that the target emitted;
    - ``alm``: binarised divergences of whole target tokens' likelihoods (arXiv 2503.20083).

    Args:
        ngram_weight: λ; at 0 ``hybrid`` is L_DM alone.
        weighting: ``fixed``: λ; ``target``: λ p(t), the point-wise KL.
        temperature: ALM's τ.
    """

    loss: LossName = "ce"
    ngram_weight: float = 0.2
    weighting: Literal["fixed", "target"] = "fixed"
    temperature: float = 100.0

    @property
    def detail(self) -> Detail:
        """What must be kept of rounds for this loss."""
        if self.loss == "hybrid":
            return Detail.DISTRIBUTIONS
        if self.loss == "ce" and self.weighting == "fixed":
            return Detail.TOKENS
        return Detail.PROBABILITIES
