"""The hybrid loss of cross-vocabulary distillation in torch, for training graphs and for tests.

OmniDraft (arXiv 2507.02659): at positions whose target token has a direct counterpart the reverse
KL divergence D(q' ‖ p), at the sub-tokens of accepted n-grams -log q.
"""

from __future__ import annotations

import torch
from torch import Tensor

from omnidraft.export.graphs.training import SMALLEST_REST


def hybrid_loss(
    logits: Tensor,
    direct_ids: Tensor,
    direct_log_p: Tensor,
    direct_weight: Tensor,
    direct_tokens: Tensor,
    label: Tensor,
    label_weight: Tensor,
) -> Tensor:
    """Σ direct_weight · D(q' ‖ p) + Σ label_weight · (-log q(label)), a scalar.

    The divergence is over a row's direct tokens and everything else as one outcome.

    Args:
        logits: float32 [R, vocab], the drafter's.
        direct_ids: int64 [R, M] draft tokens, distinct in a row; -1 fills a row up.
        direct_log_p: float32 [R, M], finite: the target's log-probabilities of their counterparts.
        direct_weight: float32 [R]; 0 where the row is no direct position.
        direct_tokens: float32 [vocab], 1 for the draft tokens over which q is renormalised to q'.
        label: int64 [R], the next sub-token.
        label_weight: float32 [R]; 0 where the row belongs to no n-gram.
    """
    log_q = torch.log_softmax(logits, dim=-1)
    listed = (direct_ids >= 0).to(logits.dtype)
    mass = (log_q.exp() * direct_tokens).sum(1, keepdim=True)
    direct = log_q.gather(1, direct_ids.clamp(min=0)) - mass.log()
    q = direct.exp() * listed
    rest_q = (1 - q.sum(1)).clamp(min=SMALLEST_REST)
    rest_p = (1 - (direct_log_p.exp() * listed).sum(1)).clamp(min=SMALLEST_REST)
    divergence = (q * (direct - direct_log_p)).sum(1) + rest_q * (rest_q.log() - rest_p.log())
    surprise = -log_q.gather(1, label[:, None])[:, 0]
    return (direct_weight * divergence).sum() + (label_weight * surprise).sum()
