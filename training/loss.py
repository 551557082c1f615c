"""Soft-label cross-entropy through the tied head, without keeping the logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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
