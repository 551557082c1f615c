"""Batched decoding of the target on one GPU: every row is an endless stream of conversations.

One step (all rows, one token each) is one CUDA graph. A row that ends its conversation starts the
next at position 0 of its own key/value cache, so no row ever waits. Needs Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from target import (
    HEAD_DIM,
    HEADS,
    IM_END,
    KIND_FORCED,
    KV_HEADS,
    LAYERS,
    NORM_EPS,
    ROPE_THETA,
    TOP,
    VOCAB,
    WIDTH,
)
from torch import Tensor

MIN_P = 0.02  # sampled tokens have at least this share of the most likely token's probability


@triton.jit
def add_norm_kernel(x, delta, weight, out, N: tl.constexpr, BLOCK: tl.constexpr, EPS: tl.constexpr):
    """x += delta (float32 residual); out = RMSNorm(x) * weight in bfloat16."""
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    keep = col < N
    value = tl.load(x + row * N + col, mask=keep, other=0.0)
    value += tl.load(delta + row * N + col, mask=keep, other=0.0).to(tl.float32)
    tl.store(x + row * N + col, value, mask=keep)
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / N + EPS)
    gain = tl.load(weight + col, mask=keep, other=0.0)
    tl.store(out + row * N + col, (value * scale * gain).to(tl.bfloat16), mask=keep)


@triton.jit
def silu_mul_kernel(gate_up, out, N: tl.constexpr, BLOCK: tl.constexpr):
    """out = silu(gate) * up for rows [gate | up]."""
    row = tl.program_id(0)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_up + row * 2 * N + col).to(tl.float32)
    up = tl.load(gate_up + row * 2 * N + N + col).to(tl.float32)
    tl.store(out + row * N + col, (gate / (1.0 + tl.exp(-gate)) * up).to(tl.bfloat16))


@triton.jit
def rope_store_kernel(
    qkv, cos, sin, pos, q_out, k_cache, v_cache, T, H: tl.constexpr, KV: tl.constexpr
):
    """Rotate q and k; put q in q_out [B, H, 64], k and v in the caches [B, KV, T, 64] at pos."""
    row, head = tl.program_id(0), tl.program_id(1)
    half = tl.arange(0, 32)
    at = tl.load(pos + row)
    base = qkv + row * (H + 2 * KV) * 64 + head * 64
    a = tl.load(base + half).to(tl.float32)
    b = tl.load(base + 32 + half).to(tl.float32)
    if head < H + KV:
        c = tl.load(cos + at * 32 + half)
        s = tl.load(sin + at * 32 + half)
        a, b = a * c - b * s, b * c + a * s
    if head < H:
        to = q_out + (row * H + head) * 64
    elif head < H + KV:
        to = k_cache + ((row * KV + head - H).to(tl.int64) * T + at) * 64
    else:
        to = v_cache + ((row * KV + head - H - KV).to(tl.int64) * T + at) * 64
    tl.store(to + half, a.to(tl.bfloat16))
    tl.store(to + 32 + half, b.to(tl.bfloat16))


@triton.jit
def attend_kernel(
    q, k_cache, v_cache, pos, out, T, KV: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr
):
    """One query token a row over its first pos + 1 cache entries; GROUP query heads a kv head."""
    row, kv = tl.program_id(0), tl.program_id(1)
    length = tl.load(pos + row) + 1
    head = tl.arange(0, 16)
    dim = tl.arange(0, 64)
    q_at = (row * KV * GROUP + kv * GROUP + head[:, None]) * 64 + dim[None, :]
    live = head[:, None] < GROUP
    query = tl.load(q + q_at, mask=live, other=0.0)
    cache = (row * KV + kv).to(tl.int64) * T * 64
    best = tl.full([16], -1e30, tl.float32)
    total = tl.zeros([16], tl.float32)
    acc = tl.zeros([16, 64], tl.float32)
    for start in range(0, length, BLOCK):
        n = start + tl.arange(0, BLOCK)
        seen = n < length
        at = cache + n[:, None] * 64 + dim[None, :]
        key = tl.load(k_cache + at, mask=seen[:, None], other=0.0)
        value = tl.load(v_cache + at, mask=seen[:, None], other=0.0)
        score = tl.where(seen[None, :], tl.dot(query, tl.trans(key)) * 0.125, -1e30)
        top = tl.maximum(best, tl.max(score, 1))
        weight = tl.exp(score - top[:, None])
        fade = tl.exp(best - top)
        total = total * fade + tl.sum(weight, 1)
        acc = acc * fade[:, None] + tl.dot(weight.to(value.dtype), value)
        best = top
    tl.store(out + q_at, (acc / total[:, None]).to(tl.bfloat16), mask=live)


@triton.jit
def pick_kernel(
    logits, temperature, seed_at, token, top_id, top_p,
    V: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr, LOG_MIN_P: tl.constexpr,
):  # fmt: skip
    """Sample one token a row (Gumbel maximum under min-p) and keep the K largest probabilities.

    Lane i holds the best of tokens i, i + BLOCK, ...: of two leaders in one lane the lesser is
    lost, about one time in a hundred, and the next one takes its place.
    """
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    base = logits + row.to(tl.int64) * V
    best = tl.full([BLOCK], -1e30, tl.float32)
    where = tl.zeros([BLOCK], tl.int32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        x = tl.load(base + start + lane).to(tl.float32)
        top = tl.maximum(best, x)
        total = total * tl.exp(best - top) + tl.exp(x - top)
        where = tl.where(x > best, start + lane, where)
        best = top
    peak = tl.max(best)
    norm = tl.sum(total * tl.exp(best - peak))
    pick = 0
    for k in tl.static_range(K):
        value = tl.max(best)
        i = tl.argmax(best, 0)
        chosen = tl.sum(tl.where(lane == i, where, 0))
        if k == 0:
            pick = chosen
        tl.store(top_id + row * K + k, chosen.to(tl.int16))
        tl.store(top_p + row * K + k, (tl.exp(value - peak) / norm).to(tl.float16))
        best = tl.where(lane == i, -1e30, best)
    t = tl.load(temperature + row)
    if t > 0.0:
        seed = tl.load(seed_at)
        high = tl.full([BLOCK], -1e30, tl.float32)
        at = tl.zeros([BLOCK], tl.int32)
        for start in range(0, V, BLOCK):
            x = tl.load(base + start + lane).to(tl.float32)
            if tl.max(x) >= peak + LOG_MIN_P:
                u = tl.rand(seed, row * V + start + lane)
                noise = -tl.log(-tl.log(tl.maximum(u, 1e-9)) + 1e-20)
                noisy = tl.where(x >= peak + LOG_MIN_P, (x - peak) / t + noise, -1e30)
                at = tl.where(noisy > high, start + lane, at)
                high = tl.maximum(high, noisy)
        i = tl.argmax(high, 0)
        pick = tl.sum(tl.where(lane == i, at, 0))
    tl.store(token + row, pick)


@dataclass
class Plans:
    """Openings of conversations, as target tokens.

    tokens: int64 [P, longest], padded; length: int64 [P]; whole: int64 [P], 1 where the plan ends
    with the answer's header, 0 where the target goes on with the user's message.
    """

    tokens: Tensor
    length: Tensor
    whole: Tensor


class Decoder:
    """Static state and buffers of B rows with room for T positions each."""

    def __init__(
        self,
        weights: dict[str, Tensor],
        plans: Plans,
        answer_header: list[int],
        user_header: list[int],
        rows: int,
        positions: int,
        answer_temperatures: list[float],
        again: float,
        seed: int,
    ) -> None:
        """Answer temperatures are drawn per conversation; `again`: chance of one more user turn."""
        self.w, self.plans, self.rows, self.positions = weights, plans, rows, positions
        dev = weights["embed"].device
        torch.cuda.manual_seed(seed)
        self.again = again
        self.temperatures = torch.tensor(answer_temperatures, device=dev)
        longest = max(len(answer_header), len(user_header))
        heads = [h + [0] * (longest - len(h)) for h in (user_header, answer_header)]
        self.headers = torch.tensor(heads, device=dev)
        self.header_length = torch.tensor([len(user_header), len(answer_header)], device=dev)

        def zeros(*size: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=dev)

        bf16, f32 = torch.bfloat16, torch.float32
        self.k = zeros(LAYERS, rows, KV_HEADS, positions, HEAD_DIM, dtype=bf16)
        self.v = torch.zeros_like(self.k)
        inverse = ROPE_THETA ** -(torch.arange(HEAD_DIM // 2, device=dev, dtype=torch.float64) / 32)
        angle = torch.outer(torch.arange(positions, device=dev, dtype=torch.float64), inverse)
        self.cos, self.sin = angle.cos().float(), angle.sin().float()
        self.x, self.h = zeros(rows, WIDTH, dtype=f32), zeros(rows, WIDTH, dtype=bf16)
        self.q = zeros(rows, HEADS * HEAD_DIM, dtype=bf16)
        self.att = torch.zeros_like(self.q)
        self.act = zeros(rows, weights["0.down"].shape[1], dtype=bf16)
        self.none = zeros(rows, WIDTH, dtype=bf16)
        self.logits = zeros(rows, VOCAB, dtype=bf16)

        self.step_no = zeros(1)
        self.seed_no = zeros(1) + seed * 1_000_000
        self.plan = torch.arange(rows, device=dev) % len(plans.length)
        self.token = plans.tokens[self.plan, 0].clone()
        self.pos = zeros(rows, dtype=torch.int32)
        self.phase = plans.whole[self.plan].clone()  # 0: user's message, 1: answer
        self.kind = zeros(rows)  # of self.token
        self.tail = zeros(rows)  # header tokens still to force
        self.over = zeros(rows, dtype=torch.bool)  # self.token ends its conversation
        self.answer_t = self.temperatures[
            torch.randint(len(self.temperatures), (rows,), device=dev)
        ].clone()
        self.t = zeros(rows, dtype=f32)
        self.sampled = zeros(rows, dtype=torch.int32)
        self.top_id = zeros(rows, TOP, dtype=torch.int16)
        self.top_p = zeros(rows, TOP, dtype=torch.float16)

    def record(self, steps: int) -> None:
        """Allocate what is kept of `steps` steps.

        token int16 (bits of an unsigned value), kind int8, pos int16 [steps, B] of the step's
        input; top_id int16, top_p float16 [steps, B, TOP] of the distribution after it.
        """
        dev, shape = self.x.device, (steps, self.rows)
        self.log = {
            "token": torch.zeros(shape, dtype=torch.int16, device=dev),
            "kind": torch.zeros(shape, dtype=torch.int8, device=dev),
            "pos": torch.zeros(shape, dtype=torch.int16, device=dev),
            "top_id": torch.zeros((*shape, TOP), dtype=torch.int16, device=dev),
            "top_p": torch.zeros((*shape, TOP), dtype=torch.float16, device=dev),
        }

    def forward(self) -> None:
        """Logits after self.token at self.pos, through the cache."""
        w, rows = self.w, self.rows
        self.x.zero_()
        delta = w["embed"][self.token]
        norm = {"N": WIDTH, "BLOCK": 1024, "EPS": NORM_EPS, "num_warps": 4}
        for i in range(LAYERS):
            add_norm_kernel[(rows,)](self.x, delta, w[f"{i}.norm1"], self.h, **norm)
            qkv = self.h @ w[f"{i}.qkv"].T
            k, v = self.k[i], self.v[i]
            rope_store_kernel[(rows, HEADS + 2 * KV_HEADS)](
                qkv, self.cos, self.sin, self.pos, self.q, k, v, self.positions,
                H=HEADS, KV=KV_HEADS, num_warps=1,
            )  # fmt: skip
            attend_kernel[(rows, KV_HEADS)](
                self.q, k, v, self.pos, self.att, self.positions,
                KV=KV_HEADS, GROUP=HEADS // KV_HEADS, BLOCK=64, num_warps=4, num_stages=3,
            )  # fmt: skip
            delta = self.att @ w[f"{i}.o"].T
            add_norm_kernel[(rows,)](self.x, delta, w[f"{i}.norm2"], self.h, **norm)
            gate_up = self.h @ w[f"{i}.gate_up"].T
            width = self.act.shape[1]
            silu_mul_kernel[(rows, width // 512)](gate_up, self.act, N=width, BLOCK=512)
            delta = self.act @ w[f"{i}.down"].T
        add_norm_kernel[(rows,)](self.x, delta, w["norm"], self.h, **norm)
        torch.mm(self.h, w["embed"].T, out=self.logits)

    def step(self) -> None:
        """Log the input token, run the model, choose each row's next token."""
        self.forward()
        self.t.copy_(torch.where(self.phase == 1, self.answer_t, 1.0))
        pick_kernel[(self.rows,)](
            self.logits, self.t, self.seed_no, self.sampled, self.top_id, self.top_p,
            V=VOCAB, BLOCK=4096, K=TOP, LOG_MIN_P=float(torch.log(torch.tensor(MIN_P))),
            num_warps=8,
        )  # fmt: skip
        now = {
            "token": self.token.to(torch.int16),
            "kind": self.kind.to(torch.int8),
            "pos": self.pos.to(torch.int16),
            "top_id": self.top_id,
            "top_p": self.top_p,
        }
        for name, value in now.items():
            self.log[name].index_copy_(0, self.step_no % len(self.log[name]), value[None])
        self.step_no += 1
        self.seed_no += 1
        self._advance()

    def _advance(self) -> None:
        """Next token, phase and position of every row."""
        plans, dev = self.plans, self.x.device
        fresh = torch.randint(len(plans.length), (self.rows,), device=dev)
        drawn = torch.randint(len(self.temperatures), (self.rows,), device=dev)
        chance = torch.rand(self.rows, device=dev)

        at = self.pos.long() + 1
        planned = at < plans.length[self.plan]
        in_header = ~planned & (self.tail > 0)
        left = self.header_length[self.phase] - self.tail
        forced = torch.where(
            planned,
            plans.tokens[self.plan, at.clamp(max=plans.tokens.shape[1] - 1)],
            self.headers[self.phase, left.clamp(0, self.headers.shape[1] - 1)],
        )
        free = ~planned & ~in_header
        token = torch.where(free, self.sampled.long(), forced)
        kind = torch.where(free, self.phase + 1, KIND_FORCED)
        tail = self.tail - in_header.long()
        stopped = free & (token <= IM_END)
        # A control token ends the message, whichever it is; the text keeps the proper one.
        token = torch.where(stopped, IM_END, token)
        user_ends = stopped & (self.phase == 0)
        again = stopped & (self.phase == 1) & (chance < self.again) & (at < self.positions * 5 // 8)
        phase = torch.where(user_ends, 1, torch.where(again, 0, self.phase))
        tail = torch.where(user_ends | again, self.header_length[phase], tail)
        over = (stopped & (self.phase == 1) & ~again) | (at >= self.positions - 1)

        new = self.over
        self.plan.copy_(torch.where(new, fresh, self.plan))
        self.answer_t.copy_(torch.where(new, self.temperatures[drawn], self.answer_t))
        self.token.copy_(torch.where(new, plans.tokens[self.plan, 0], token))
        self.kind.copy_(torch.where(new, KIND_FORCED, kind))
        self.phase.copy_(torch.where(new, plans.whole[self.plan], phase))
        self.tail.copy_(torch.where(new, 0, tail))
        self.pos.copy_(torch.where(new, 0, self.pos + 1))
        self.over.copy_(~new & over)

    def capture(self) -> torch.cuda.CUDAGraph:
        """The step as a CUDA graph (three steps are run to warm up; their log is kept)."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph
