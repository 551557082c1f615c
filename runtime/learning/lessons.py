"""What a round teaches the acceptance head."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.decoding.decoder import Round
from omnidraft.runtime.learning.head import Lessons
from omnidraft.runtime.learning.trace import DraftTrace


def lessons_of(shown: Round, trace: DraftTrace) -> Lessons | None:
    """What a round teaches the acceptance head, where the drafter gives hidden states."""
    proposal, temperature = shown.proposal, shown.temperature
    count = sum(proposal.draft_counts)
    if not count or len(trace.hidden) < count:
        return None
    proposed = len(proposal.tokens)
    p, q = np.ones(proposed, np.float32), np.ones(proposed, np.float32)
    if temperature == 0:
        p[shown.verdict.accepted :] = 0
    else:
        begins = np.cumsum((0, *proposal.draft_counts))
        each = [
            _probability(logits, draft, temperature)
            for logits, draft in zip(trace.logits, proposal.drafts, strict=False)
        ]
        for i, token in enumerate(proposal.tokens):
            p[i] = _probability(shown.logits[i], token, temperature)
            q[i] = np.prod(each[begins[i] : begins[i + 1]])
    return Lessons.of_round(
        np.stack(trace.hidden[:count]),
        np.array(trace.confidences[:count], np.float32),
        p,
        q,
        proposal.draft_counts,
    )


def _probability(logits: NDArray[np.float32], token: int, temperature: float) -> float:
    shifted = (logits - logits.max()) / np.float32(temperature)
    return float(np.exp(shifted[token]) / np.exp(shifted).sum())
