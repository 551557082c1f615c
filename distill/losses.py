"""What the drafter is to say: losses through the tied head, without keeping the logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from omnidraft.distill.documents import UNKNOWN

try:
    import triton
    import triton.language as tl
except ImportError:  # the plain formula below is used instead
    triton = None

CHUNK = 16384

if triton is not None:

    @triton.jit
    def soft_ce_kernel(logits, label, share, weight, loss, V, K: tl.constexpr, BLOCK: tl.constexpr):
        """A row's loss; the row's logits are replaced by their gradient."""
        row = tl.program_id(0)
        lane = tl.arange(0, BLOCK)
        base = logits + row.to(tl.int64) * V
        best = tl.full([BLOCK], -1e30, tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, V, BLOCK):
            x = tl.load(base + start + lane, mask=start + lane < V, other=-1e30).to(tl.float32)
            top = tl.maximum(best, x)
            total = total * tl.exp(best - top) + tl.exp(x - top)
            best = top
        peak = tl.max(best)
        lse = peak + tl.log(tl.sum(total * tl.exp(best - peak)))
        w = tl.load(weight + row)
        k = tl.arange(0, K)
        at = tl.load(base + tl.load(label + row * K + k)).to(tl.float32)
        p = tl.load(share + row * K + k)
        tl.store(loss + row, w * (lse - tl.sum(p * at)))
        tl.debug_barrier()
        for start in range(0, V, BLOCK):
            col = start + lane
            x = tl.load(base + col, mask=col < V, other=-1e30).to(tl.float32)
            grad = tl.exp(x - lse)
            for j in tl.static_range(K):
                target = tl.load(label + row * K + j)
                grad -= tl.where(col == target, tl.load(share + row * K + j), 0.0)
            tl.store(base + col, (grad * w).to(tl.bfloat16), mask=col < V)


class _FusedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, label: Tensor, share: Tensor, weight: Tensor
    ) -> Tensor:
        matrix = head.bfloat16()
        d_hidden = torch.empty_like(hidden)
        d_head = torch.zeros_like(head, dtype=torch.float32)
        loss = torch.empty(len(hidden), device=hidden.device)
        for i in range(0, len(hidden), CHUNK):
            part = slice(i, min(i + CHUNK, len(hidden)))
            h = hidden[part]
            logits = h @ matrix.T
            soft_ce_kernel[(len(h),)](
                logits, label[part], share[part], weight[part], loss[part], len(head),
                K=label.shape[1], BLOCK=4096, num_warps=8,
            )  # fmt: skip
            d_hidden[part] = logits @ matrix
            d_head += logits.T @ h
        ctx.save_for_backward(d_hidden, d_head)
        return loss.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_head = ctx.saved_tensors
        return d_hidden * grads[0].to(d_hidden.dtype), d_head * grads[0], None, None, None


def soft_cross_entropy(
    hidden: Tensor, head: Tensor, label: Tensor, share: Tensor, weight: Tensor
) -> Tensor:
    """Sum over rows of weight * -sum_k share_k log softmax(hidden head^T)[label_k].

    hidden [n, width] (bfloat16 on CUDA), head [vocab, width], label int64 [n, K], share float32
    [n, K] (each row sums to 1; K a power of two), weight float32 [n]. Returns a scalar.
    """
    if hidden.is_cuda:
        result: Tensor = _FusedHead.apply(hidden, head, label, share, weight)
        return result
    log_q = F.log_softmax(hidden.float() @ head.float().T, dim=-1)
    return -(weight * (share * log_q.gather(1, label)).sum(-1)).sum()


# Of "Cross-Tokenizer Distillation via Approximate Likelihood Matching" (arXiv 2503.20083).
_TEMPERATURE = 100.0


def likelihood_matching(
    hidden: Tensor, head: Tensor, token: Tensor, chunk: Tensor, weight: Tensor
) -> Tensor:
    """Approximate likelihood matching (arXiv 2503.20083, eq. 4): binary KL of chunks' likelihoods.

    Args:
        hidden: [n, width], rows of one document behind rows of another.
        head: [vocab, width].
        token: int64 [n], what was said at each row.
        chunk: float32 [n], the teacher's log-likelihood of the chunk that ends at a row; UNKNOWN:
            it
            ends there, and is not learned; NaN: none ends there.
        weight: float32 [n], of the chunk that ends at a row.

    Returns:
        A scalar, the weighted sum over chunks.
    """
    likelihood = log_likelihoods(hidden, head, token)
    ends = ~chunk.isnan()
    number = ends.long().cumsum(0) - ends.long()  # of each row's chunk
    count = int(ends.sum())
    total = torch.zeros(count + 1, device=hidden.device).index_add_(0, number, likelihood)[:count]
    known = chunk[ends] != UNKNOWN
    p = chunk[ends][known].clamp(max=0) / _TEMPERATURE
    q = total[known].clamp(max=0) / _TEMPERATURE
    # log(1 - e^x); both ends are kept away from 0, where it has no value.
    p_not, q_not = (torch.log(-torch.expm1(each.clamp(max=-1e-6))) for each in (p, q))
    divergence = p.exp() * (p - q) + p_not.exp() * (p_not - q_not)
    return (weight[ends][known] * divergence).sum()


def log_likelihoods(hidden: Tensor, head: Tensor, token: Tensor) -> Tensor:
    """float32 [n]: log softmax(hidden headᵀ)[token], row by row."""

    def part(rows: Tensor, matrix: Tensor, said: Tensor) -> Tensor:
        return -F.cross_entropy((rows @ matrix.T).float(), said, reduction="none")

    matrix = head.to(hidden.dtype)
    parts = [
        checkpoint(part, hidden[i : i + CHUNK], matrix, token[i : i + CHUNK], use_reentrant=False)
        for i in range(0, len(hidden), CHUNK)
    ]
    return torch.cat(parts) if parts else hidden.new_zeros(0).float()
