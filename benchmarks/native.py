"""What the native core costs in a round: time of drafting and verification, memory of the cache.

    python benchmarks/native.py [--json FILE] [--repeat N]

A round has five positions at a target of 151,936 tokens (Qwen2.5's width) and a drafter of 32,000
(Llama-2's). Five draft tokens are drafted, one of the positions is an n-gram's first token. Lookup
drafting adds four tokens and proposes eight in a round, in 60,000 tokens that often repeat. A tree
round expands ten draft nodes in four layers and proposes twelve target nodes, of which a path of at
most four is accepted. Times are minima and medians over rounds; the target's logits are written
right before they are verified, as a model does.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnidraft._native import (
    Draft,
    Generator,
    History,
    Lookup,
    NgramCache,
    SamplingParameters,
    TreeDraft,
    Verification,
    Verifier,
    Vocabulary,
    VocabularyPair,
    Walker,
)

DRAFTER, TARGET, DIRECT, POSITIONS = 32_000, 151_936, 26_342, 5
TREE_TARGETS = {49_152: 18_709, TARGET: DIRECT}
"""Width of a target and its direct tokens: SmolLM2's, Qwen2.5's."""


def make_pair(target_size: int = TARGET, direct: int = DIRECT) -> VocabularyPair:
    """26,342 direct tokens as for Qwen2.5; the others of the target are pairs and triples."""
    drafter: list[bytes | None] = [b"%d," % i for i in range(DRAFTER)]
    rng = np.random.default_rng(0)
    target: list[bytes | None] = [drafter[i] for i in rng.permutation(DRAFTER)[:direct]]
    target += ngram_surfaces(drafter)[: target_size - direct]
    return VocabularyPair(Vocabulary(drafter), Vocabulary(target))


def ngram_drafts() -> list[list[int]]:
    """Draft tokens of every target token that is not direct: three each, first ones shared."""
    rng = np.random.default_rng(1)
    firsts = rng.zipf(1.3, TARGET) % 8000
    return [[int(firsts[i]), i % DRAFTER, i // DRAFTER] for i in range(TARGET - DIRECT)]


def ngram_surfaces(drafter: list[bytes | None]) -> list[bytes | None]:
    return [b"".join(drafter[d] or b"" for d in drafts) for drafts in ngram_drafts()]


def make_cache(pair: VocabularyPair, ngrams: int) -> NgramCache:
    cache = NgramCache(pair)
    for i, drafts in enumerate(ngram_drafts()[:ngrams]):
        cache.observe(pair.direct_count + i, drafts)
    return cache


def model_rows(count: int, width: int, seed: int) -> NDArray[np.float32]:
    """Logits as a language model gives them: a few tokens far above a broad floor."""
    rng = np.random.default_rng(seed)
    rows = 2 * rng.standard_normal((count, width), dtype=np.float32)
    for row in rows:
        row[rng.permutation(width)[:200]] += np.linspace(16, 4, 200, dtype=np.float32)
    return rows


def flat_rows(count: int, width: int, seed: int) -> NDArray[np.float32]:
    """The worst case: nothing stands out, top-p keeps a large part of the vocabulary."""
    return np.random.default_rng(seed).standard_normal((count, width), dtype=np.float32)


Rows = Callable[[int, int, int], NDArray[np.float32]]


class Round:
    """Rounds of one kind, with the times of their two halves."""

    def __init__(self, cache: NgramCache, sampling: SamplingParameters, rows: Rows) -> None:
        self.sampling = sampling
        verification = Verification.GREEDY if sampling.greedy else Verification.EXACT
        self.draft = Draft(cache, verification, sampling.temperature or 1.0)
        self.verifier = Verifier(cache)
        self.pair_rows = [rows(POSITIONS, DRAFTER, seed) for seed in range(4)]
        self.target_rows = [rows(POSITIONS + 1, TARGET, seed) for seed in range(4)]
        self.logits = np.empty((POSITIONS + 1, TARGET), dtype=np.float32)
        self.emitted = self.rounds = 0

    def run(self, i: int, accepted: bool) -> tuple[float, float]:
        chance = Generator(i)
        history = History(TARGET)
        begin = time.perf_counter()
        for row in self.pair_rows[i % 4]:
            self.draft.step(row, chance)
        proposal = self.draft.finish()
        middle = time.perf_counter()
        np.copyto(self.logits, self.target_rows[i % 4])
        if accepted:  # make the target want what is proposed: then every row is looked at
            self.logits[np.arange(len(proposal.tokens)), proposal.tokens] = 40
        logits = self.logits[: len(proposal.tokens) + 1]
        start = time.perf_counter()
        verdict = self.verifier.verify(proposal, logits, self.sampling, history, chance)
        end = time.perf_counter()
        self.emitted += len(verdict.tokens)
        self.rounds += 1
        return middle - begin, end - start


def measure_round(
    cache: NgramCache,
    sampling: SamplingParameters,
    rows: Rows,
    accepted: bool,
    repeat: int,
) -> dict[str, float]:
    bench = Round(cache, sampling, rows)
    times = np.array([bench.run(i, accepted) for i in range(repeat)]) * 1e3
    total = times.sum(axis=1)
    return {
        "min_ms": float(total.min()),
        "median_ms": float(np.median(total)),
        "draft_min_ms": float(times[:, 0].min()),
        "verify_min_ms": float(times[:, 1].min()),
        "tokens_per_round": bench.emitted / bench.rounds,
    }


def measure_tree(
    cache: NgramCache, target: int, sampling: SamplingParameters, rows: Rows, repeat: int
) -> dict[str, float]:
    """Rounds of a tree of twelve nodes whose most probable path is what the target wants.

    ``rows``: the target's; the drafter's stand out.
    """
    layers, count = (1, 3, 3, 3), 12
    draft, walker = TreeDraft(cache), Walker()
    draft_rows = [model_rows(sum(layers), DRAFTER, seed) for seed in range(4)]
    target_rows = [rows(count + 1, target, seed) for seed in range(4)]
    logits = np.empty((count + 1, target), dtype=np.float32)
    times, nodes, emitted = [], 0, 0
    for i in range(repeat):
        history = History(target)
        begin = time.perf_counter()
        row, expanded = draft_rows[i % 4], 0
        for width in layers:
            layer = [node for node, *_ in draft.frontier(width)] if expanded else [0]
            for node in layer:
                draft.expand(node, row[expanded])
                expanded += 1
        proposal = draft.finish(count)
        middle = time.perf_counter()
        np.copyto(logits, target_rows[i % 4])
        place = 0
        for node, (token, parent) in enumerate(
            zip(proposal.tokens, proposal.parents, strict=True), 1
        ):
            if parent + 1 == place and node <= 4:
                logits[place, token] = 40
                place = node
        start = time.perf_counter()
        verdict = walker.walk(proposal, logits[: len(proposal) + 1], sampling, history, i, 0)
        times.append((middle - begin, time.perf_counter() - start))
        nodes += len(proposal)
        emitted += len(verdict.tokens)
    milliseconds = np.array(times) * 1e3
    total = milliseconds.sum(axis=1)
    return {
        "min_ms": float(total.min()),
        "median_ms": float(np.median(total)),
        "draft_min_ms": float(milliseconds[:, 0].min()),
        "verify_min_ms": float(milliseconds[:, 1].min()),
        "nodes_per_round": nodes / repeat,
        "tokens_per_round": emitted / repeat,
    }


def measure_lookup(cache: NgramCache, repeat: int) -> dict[str, float]:
    """Greedy ``finish`` cuts a run of draft tokens into target tokens: lookups and nothing else.

    Its time for 512 draft tokens, a third of them in n-grams, by 512.
    """
    count, zeros = 512, np.zeros(DRAFTER, dtype=np.float32)
    rng = np.random.default_rng(2)
    ngrams = cache.ngrams()
    drafts: list[int] = []
    while len(drafts) < count:
        drafts += ngrams[int(rng.integers(len(ngrams)))][1]
        drafts += rng.integers(0, DRAFTER, 6).tolist()
    draft, chance = Draft(cache, Verification.GREEDY), Generator(0)
    times, cut = [], 0
    for _ in range(repeat):
        for token in drafts[:count]:
            zeros[token] = 1
            draft.step(zeros, chance)
            zeros[token] = 0
        begin = time.perf_counter()
        proposal = draft.finish()
        times.append((time.perf_counter() - begin) / count * 1e6)
        cut = len(proposal.drafts)
    assert cut == count
    return {"min_us": min(times), "median_us": float(np.median(times))}


def measure_lookup_drafting(repeat: int) -> dict[str, float]:
    """A round's ``add`` and ``propose`` in Zipf-distributed words and copied passages."""
    rng = np.random.default_rng(3)
    text = (rng.zipf(1.2, 60_000) % TARGET).tolist()
    for begin in range(1_000, len(text), 100):
        source = int(rng.integers(begin - 50))
        text[begin : begin + 50] = text[source : source + 50]
    times = []
    for _ in range(max(1, repeat // 50)):
        lookup = Lookup(TARGET)
        lookup.add(text[:30_000])
        for at in range(30_000, len(text), 4):
            emitted = text[at : at + 4]
            begin_time = time.perf_counter()
            lookup.add(emitted)
            lookup.propose(8)
            times.append((time.perf_counter() - begin_time) * 1e6)
    return {
        "min_us": min(times),
        "median_us": float(np.median(times)),
        "p99_us": float(np.percentile(times, 99)),
        "bytes": lookup.memory_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--repeat", type=int, default=200, help="rounds of each kind")
    arguments = parser.parse_args()

    pair = make_pair()
    assert pair.direct_count == DIRECT
    cache = make_cache(pair, 5_569)
    results: dict[str, dict[str, float]] = {}
    print(f"{'round of 5 positions':44} {'min ms':>8} {'median':>8} {'draft':>7} {'verify':>7}")
    top_p = SamplingParameters(temperature=0.8, top_p=0.95)
    top_k = SamplingParameters(temperature=0.8, top_k=40, top_p=0.95)
    penalty = SamplingParameters(repetition_penalty=1.1)
    greedy, plain = SamplingParameters(), SamplingParameters(temperature=0.8)
    kinds: list[tuple[str, SamplingParameters, Rows, bool, float]] = [
        ("greedy, all accepted", greedy, model_rows, True, 0.3),
        ("greedy, repetition penalty", penalty, model_rows, True, 0),
        ("sampled, all accepted", plain, model_rows, True, 1.5),
        ("sampled, first rejected", plain, model_rows, False, 1.5),
        ("sampled, top-p 0.95, all accepted", top_p, model_rows, True, 1.5),
        ("sampled, top-p 0.95, first rejected", top_p, model_rows, False, 1.5),
        ("sampled, top-k 40, top-p 0.95, accepted", top_k, model_rows, True, 1.5),
        ("sampled, top-p 0.95, flat rows, rejected", top_p, flat_rows, False, 1.5),
    ]
    for name, sampling, rows, accepted, budget in kinds:
        r = measure_round(cache, sampling, rows, accepted, arguments.repeat)
        results[name] = {**r, "budget_ms": budget}
        print(
            f"{name:44} {r['min_ms']:8.3f} {r['median_ms']:8.3f} {r['draft_min_ms']:7.3f} "
            f"{r['verify_min_ms']:7.3f}  {f'budget {budget}' if budget else ''} "
            f"({r['tokens_per_round']:.1f} tokens)"
        )
    for target, direct in TREE_TARGETS.items():
        narrow = make_cache(make_pair(target, direct), 5_569)
        for kind, sampling, rows, budget in (
            ("greedy", greedy, model_rows, 0.3),
            ("sampled", plain, model_rows, 1.5),
            ("sampled, flat rows", plain, flat_rows, 1.5),
        ):
            name = f"tree of 12 nodes, {target:,}, {kind}"
            r = measure_tree(narrow, target, sampling, rows, arguments.repeat)
            results[name] = {**r, "budget_ms": budget}
            print(
                f"{name:44} {r['min_ms']:8.3f} {r['median_ms']:8.3f} {r['draft_min_ms']:7.3f} "
                f"{r['verify_min_ms']:7.3f}  budget {budget} ({r['tokens_per_round']:.1f} tokens, "
                f"{r['nodes_per_round']:.1f} nodes)"
            )
    for ngrams in (5_569, 20_000):
        cache = make_cache(pair, ngrams)
        lookup = measure_lookup(cache, arguments.repeat)
        per_ngram = cache.memory_bytes / len(cache)
        results[f"{ngrams} n-grams"] = {**lookup, "bytes_per_ngram": per_ngram}
        print(
            f"{ngrams:,} n-grams: lookup of a draft token {lookup['min_us']:.3f} µs (median "
            f"{lookup['median_us']:.3f}, budget 0.3); {per_ngram:.1f} B an n-gram (budget 48)"
        )
    drafting = results["lookup drafting"] = measure_lookup_drafting(arguments.repeat)
    print(
        f"lookup drafting: {drafting['median_us']:.2f} µs a round (99 %: {drafting['p99_us']:.2f}, "
        f"budget 5); {drafting['bytes'] / 1e6:.2f} MB"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
