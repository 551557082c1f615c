"""Teachers like Llama and Qwen2 on one CUDA device, thousands of conversations at a time.

A step, one token of every conversation, is one CUDA graph. A conversation that is over makes room
for the next one at position 0 of its own KV cache, so no row ever waits. Needs Triton, as PyTorch
for CUDA brings it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from omnidraft.distill.sampling.conversations import Conversations, Recorder
from omnidraft.distill.sampling.local import Scene
from omnidraft.distill.shards import TOP, Document
from omnidraft.export.checkpoint import Checkpoint
from omnidraft.export.checkpoint.spec import Decoder, joined_bias, joined_weight

# Different openings, of which streams take one after another at random.
_PLANS = 50_000
# Steps whose log is fetched from the device in one piece.
_LOGGED = 256


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
    keep = col < N
    gate = tl.load(gate_up + row * 2 * N + col, mask=keep, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * N + N + col, mask=keep, other=0.0).to(tl.float32)
    tl.store(out + row * N + col, (gate / (1.0 + tl.exp(-gate)) * up).to(tl.bfloat16), mask=keep)


@triton.jit
def rope_store_kernel(
    qkv, cos, sin, pos, q_out, k_cache, v_cache, T,
    H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Rotate q and k; put q in q_out [B, H, D], k and v in the caches [B, KV, T, D] at pos."""
    row, head = tl.program_id(0), tl.program_id(1)
    half = tl.arange(0, D // 2)
    at = tl.load(pos + row)
    base = qkv + row * (H + 2 * KV) * D + head * D
    a = tl.load(base + half).to(tl.float32)
    b = tl.load(base + D // 2 + half).to(tl.float32)
    if head < H + KV:
        c = tl.load(cos + at * (D // 2) + half)
        s = tl.load(sin + at * (D // 2) + half)
        a, b = a * c - b * s, b * c + a * s
    if head < H:
        to = q_out + (row * H + head) * D
    elif head < H + KV:
        to = k_cache + ((row * KV + head - H).to(tl.int64) * T + at) * D
    else:
        to = v_cache + ((row * KV + head - H - KV).to(tl.int64) * T + at) * D
    tl.store(to + half, a.to(tl.bfloat16))
    tl.store(to + D // 2 + half, b.to(tl.bfloat16))


@triton.jit
def attend_kernel(
    q, k_cache, v_cache, pos, out, T, scale,
    KV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One query token a row over its first pos + 1 cache entries; GROUP query heads a kv head."""
    row, kv = tl.program_id(0), tl.program_id(1)
    length = tl.load(pos + row) + 1
    head = tl.arange(0, 16)
    dim = tl.arange(0, D)
    q_at = (row * KV * GROUP + kv * GROUP + head[:, None]) * D + dim[None, :]
    live = head[:, None] < GROUP
    query = tl.load(q + q_at, mask=live, other=0.0)
    cache = (row * KV + kv).to(tl.int64) * T * D
    best = tl.full([16], -1e30, tl.float32)
    total = tl.zeros([16], tl.float32)
    acc = tl.zeros([16, D], tl.float32)
    for start in range(0, length, BLOCK):
        n = start + tl.arange(0, BLOCK)
        seen = n < length
        at = cache + n[:, None] * D + dim[None, :]
        key = tl.load(k_cache + at, mask=seen[:, None], other=0.0)
        value = tl.load(v_cache + at, mask=seen[:, None], other=0.0)
        score = tl.where(seen[None, :], tl.dot(query, tl.trans(key)) * scale, -1e30)
        top = tl.maximum(best, tl.max(score, 1))
        weight = tl.exp(score - top[:, None])
        fade = tl.exp(best - top)
        total = total * fade + tl.sum(weight, 1)
        acc = acc * fade[:, None] + tl.dot(weight.to(value.dtype), value)
        best = top
    tl.store(out + q_at, (acc / total[:, None]).to(tl.bfloat16), mask=live)


@triton.jit
def pick_kernel(
    logits, temperature, seed_at, token, top_id, top_p, log_sum,
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
        x = tl.load(base + start + lane, mask=start + lane < V, other=-1e30).to(tl.float32)
        top = tl.maximum(best, x)
        total = total * tl.exp(best - top) + tl.exp(x - top)
        where = tl.where(x > best, start + lane, where)
        best = top
    peak = tl.max(best)
    norm = tl.sum(total * tl.exp(best - peak))
    tl.store(log_sum + row, peak + tl.log(norm))
    pick = 0
    for k in tl.static_range(K):
        value = tl.max(best)
        i = tl.argmax(best, 0)
        chosen = tl.sum(tl.where(lane == i, where, 0))
        if k == 0:
            pick = chosen
        tl.store(top_id + row * K + k, chosen)
        tl.store(top_p + row * K + k, (tl.exp(value - peak) / norm).to(tl.float16))
        best = tl.where(lane == i, -1e30, best)
    t = tl.load(temperature + row)
    if t > 0.0:
        seed = tl.load(seed_at)
        high = tl.full([BLOCK], -1e30, tl.float32)
        at = tl.zeros([BLOCK], tl.int32)
        for start in range(0, V, BLOCK):
            x = tl.load(base + start + lane, mask=start + lane < V, other=-1e30).to(tl.float32)
            if tl.max(x) >= peak + LOG_MIN_P:
                u = tl.rand(seed, row.to(tl.int64) * V + start + lane)
                noise = -tl.log(-tl.log(tl.maximum(u, 1e-9)) + 1e-20)
                noisy = tl.where(x >= peak + LOG_MIN_P, (x - peak) / t + noise, -1e30)
                at = tl.where(noisy > high, start + lane, at)
                high = tl.maximum(high, noisy)
        i = tl.argmax(high, 0)
        pick = tl.sum(tl.where(lane == i, at, 0))
    tl.store(token + row, pick)


def why_not(decoder: Decoder) -> str | None:
    """What of a decoder this sampler does not compute; None: it runs it."""
    group = decoder.heads // decoder.kv_heads
    checks = {
        "its heads are no 32, 64 or 128 wide": decoder.head_size in (32, 64, 128),
        "a key serves more than 16 queries": group <= 16,
        "its activation is another": decoder.activation == "silu",
        "it norms queries and keys": not decoder.qk_norm,
        "it norms elsewhere": decoder.pre_norms and not decoder.post_norms,
        "it caps scores": not decoder.attention_cap and not decoder.logit_cap,
        "its attention slides": all(window is None for window in decoder.windows),
        "its layers rotate differently": len(set(decoder.ropes)) == 1,
        "it rotates a part of a head": decoder.rotary_size in (None, decoder.head_size),
        "it scales embeddings": decoder.embedding_scale == 1,
        "it has biases elsewhere": not decoder.output_bias and not decoder.mlp_bias,
    }
    return next((problem for problem, fine in checks.items() if not fine), None)


class CudaGraphSampler:
    """A ``Sampler`` whose conversations never wait for each other.

    Args:
        checkpoint: of a decoder that ``why_not`` finds nothing of.
        streams: conversations at a time.
    """

    def __init__(self, checkpoint: Checkpoint, scene: Scene, streams: int) -> None:
        self._network = _Network(checkpoint, streams, scene.sampling.longest)
        self._scene, self._streams = scene, streams
        self.surfaces = scene.surfaces

    @torch.inference_mode()
    def documents(self, seed: int) -> Iterator[Document]:
        """See ``Sampler``."""
        scene = self._scene
        state = scene.begin(seed, self._streams, "cuda", plans=_PLANS, again=True)
        loop = _Loop(self._network, state, scene.sampling.least_share, seed)
        recorder = Recorder(self._streams)
        while True:
            yield from recorder.add(loop.run())


class _Network:
    """The teacher's weights, and buffers for one token of every row."""

    def __init__(self, checkpoint: Checkpoint, rows: int, positions: int) -> None:
        self.decoder = decoder = checkpoint.decoder

        def matrix(values: NDArray[np.float32]) -> Tensor:
            return torch.tensor(values).to("cuda", torch.bfloat16)

        def vector(values: NDArray[np.float32]) -> Tensor:
            return torch.tensor(values).reshape(-1).to("cuda")

        self.embedding = matrix(checkpoint.rows("embedding"))
        tied = decoder.tied_embeddings
        self.head = self.embedding if tied else matrix(checkpoint.rows("head"))
        self.norm = vector(checkpoint.rows("norm"))
        self.layers = []
        for i in range(decoder.layers):
            bias = joined_bias(checkpoint, i, "qkv")
            weights = {
                name: matrix(joined_weight(checkpoint, i, name)).T
                for name in ("qkv", "o", "gate_up", "down")
            }
            norms = [vector(checkpoint.rows(f"{i}.{name}_norm")) for name in ("input", "mlp")]
            self.layers.append((weights, None if bias is None else matrix(bias), norms))
        cosine, sine = decoder.ropes[0].table(positions)
        self.cosine, self.sine = vector(cosine), vector(sine)
        self.positions = positions

        def zeros(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
            return torch.zeros(size, dtype=dtype, device="cuda")

        cache = (decoder.layers, rows, decoder.kv_heads, positions, decoder.head_size)
        self.keys, self.values = zeros(*cache), zeros(*cache)
        self.x = zeros(rows, decoder.hidden_size, dtype=torch.float32)
        self.h = zeros(rows, decoder.hidden_size)
        self.q = zeros(rows, decoder.heads * decoder.head_size)
        self.attended = torch.zeros_like(self.q)
        self.activated = zeros(rows, decoder.feed_forward_size)
        self.logits = zeros(rows, decoder.vocab_size)

    def forward(self, token: Tensor, position: Tensor) -> None:
        """``logits`` after a token of each row, through the KV cache."""
        d, rows = self.decoder, len(token)
        self.x.zero_()
        delta = self.embedding[token]
        norm = {
            "N": d.hidden_size,
            "BLOCK": triton.next_power_of_2(d.hidden_size),
            "EPS": d.norm_epsilon,
            "num_warps": 4,
        }
        heads = {"KV": d.kv_heads, "D": d.head_size}
        for (weights, bias, norms), keys, values in zip(
            self.layers, self.keys, self.values, strict=True
        ):
            add_norm_kernel[(rows,)](self.x, delta, norms[0], self.h, **norm)
            qkv = self.h @ weights["qkv"]
            if bias is not None:
                qkv += bias
            rope_store_kernel[(rows, d.heads + 2 * d.kv_heads)](
                qkv, self.cosine, self.sine, position, self.q, keys, values, self.positions,
                H=d.heads, num_warps=1, **heads,
            )  # fmt: skip
            attend_kernel[(rows, d.kv_heads)](
                self.q, keys, values, position, self.attended, self.positions, d.query_scale,
                GROUP=d.heads // d.kv_heads, BLOCK=64, num_warps=4, num_stages=3, **heads,
            )  # fmt: skip
            delta = self.attended @ weights["o"]
            add_norm_kernel[(rows,)](self.x, delta, norms[1], self.h, **norm)
            gate_up = self.h @ weights["gate_up"]
            width = d.feed_forward_size
            silu_mul_kernel[(rows, triton.cdiv(width, 512))](
                gate_up, self.activated, N=width, BLOCK=512
            )
            delta = self.activated @ weights["down"]
        add_norm_kernel[(rows,)](self.x, delta, self.norm, self.h, **norm)
        torch.mm(self.h, self.head.T, out=self.logits)


class _Loop:
    """Steps of the conversations, and a log of the last of them."""

    def __init__(
        self, network: _Network, state: Conversations, least_share: float, seed: int
    ) -> None:
        self._network, self._state = network, state
        self._least = math.log(max(least_share, 1e-9))
        rows = state.rows

        def zeros(*size: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device="cuda")

        self._seed = zeros(1, dtype=torch.long) + seed * 1_000_003 % 2**31
        self._step = zeros(1, dtype=torch.long)
        self._sampled = zeros(rows)
        self._log_sum = zeros(rows, dtype=torch.float32)
        self._top = zeros(rows, TOP)
        self._shares = zeros(rows, TOP, dtype=torch.float16)
        self._log = (
            zeros(_LOGGED, rows),
            zeros(_LOGGED, rows, dtype=torch.int8),
            zeros(_LOGGED, rows),
            zeros(_LOGGED, rows, TOP),
            zeros(_LOGGED, rows, TOP, dtype=torch.float16),
            zeros(_LOGGED, rows, dtype=torch.float32),
        )
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> tuple[Tensor, ...]:
        """Some steps; their log, which the next ones overwrite."""
        if self._graph is None:
            return self._begin()
        for _ in range(_LOGGED):
            self._graph.replay()
        return self._log

    def _begin(self) -> tuple[Tensor, ...]:
        """The first few steps, which a graph is then made of."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._one()
        torch.cuda.current_stream().wait_stream(side)
        log = tuple(each[:3].clone() for each in self._log)
        self._step.zero_()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._one()
        return log

    def _one(self) -> None:
        state, network = self._state, self._network
        read = (state.token.int(), state.kind.clone(), state.position.clone())
        network.forward(state.token, state.position)
        pick_kernel[(state.rows,)](
            network.logits, state.temperature, self._seed, self._sampled, self._top, self._shares,
            self._log_sum, V=network.decoder.vocab_size, BLOCK=4096, K=TOP, LOG_MIN_P=self._least,
            num_warps=8,
        )  # fmt: skip
        state.advance(self._sampled.long())
        said = network.logits.gather(1, state.token[:, None])[:, 0].float() - self._log_sum
        for log, value in zip(self._log, (*read, self._top, self._shares, said), strict=True):
            log.index_copy_(0, self._step % _LOGGED, value[None])
        self._step += 1
        self._seed += 1
