"""What is shown of rounds: what the target and the drafter said, and where they said it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import ToyModel, ToyTree, toy_pair

from omnidraft import SamplingParameters
from omnidraft._native import Fixed, Lookup
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.decoding.observed import Round
from omnidraft.runtime.learning.trace import DraftTrace


def check(
    seed: int,
    count: int,
    *,
    tree: bool = True,
    drafter_trees: bool = True,
    temperature: float = 0.0,
    nodes: int = 10,
    looked_up: bool = True,
    order: int = 2,
) -> Counter[str]:
    """Generate, compare all that is shown with what the models say anew, and tell what was seen."""
    pair = toy_pair(seed)
    target = ToyTree(len(pair.target), seed, order=order)
    model = (ToyTree if drafter_trees else ToyModel)(
        len(pair.drafter), seed + 1, order=order, spread=4.0
    )
    trace = DraftTrace()
    answer: list[int] = []
    prompt = [2, 1, 2]
    context: list[int] = []
    kinds: Counter[str] = Counter()

    def observer(seen: Round) -> None:
        nonlocal context
        # The context goes on where the round before has ended.
        assert list(seen.context[: len(context)]) == context
        text = [*prompt, *answer]
        assert len(seen.logits) == len(seen.tokens) + 1
        for i, row in enumerate(seen.logits):
            np.testing.assert_array_equal(row, target.logits([*text, *seen.tokens[:i]]))
        # The drafter's steps, one before each draft token, perhaps one more.
        assert 0 <= len(trace.logits) - sum(seen.counts) <= 1 or not tree
        for k, row in enumerate(trace.logits):
            drafted = [*seen.context, *seen.drafts[:k]]
            np.testing.assert_array_equal(row, model.logits(drafted))
            shifted = row.astype(np.float64) - row.max()
            if tree:
                assert trace.confidences[k] == pytest.approx(1 / np.exp(shifted).sum(), rel=1e-3)
        assert all(seen.counts) and len(seen.counts) == len(seen.tokens)
        for i, token in enumerate(seen.tokens):
            begin = sum(seen.counts[:i])
            spelled = seen.drafts[begin : begin + seen.counts[i]]
            surface = b"".join(pair.drafter[draft] or b"?" for draft in spelled)
            assert surface == pair.target[token]
        if seen.accepted < len(seen.tokens):
            assert seen.tokens[seen.accepted] != seen.last
            kinds["refused"] += 1
        kinds["plain"] += not seen.tokens
        kinds["accepted"] += seen.accepted
        kinds["merged"] += any(each > 1 for each in seen.counts)
        answer.extend([*seen.tokens[: seen.accepted], seen.last])
        context = [*seen.context, *seen.drafts[: sum(seen.counts[: seen.accepted])]]

    drafting = replace(
        pair.drafting(),
        model=model,
        policy=Fixed(nodes),
        tree=tree,
        lookup=Lookup(len(pair.target)) if looked_up else None,
    )
    decoder = SpeculativeDecoder(
        target,
        drafting,
        sampling=SamplingParameters(temperature=temperature),
        seed=seed,
        observer=observer,
        steps=trace,
    )
    emitted = [each.token for each in decoder.generate(prompt, count)]
    assert answer[: len(emitted)] == emitted
    assert len(answer) == len(emitted)
    return kinds


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 60),
    tree=st.booleans(),
    drafter_trees=st.booleans(),
    temperature=st.sampled_from([0.0, 0.8]),
    nodes=st.sampled_from([1, 4, 10, 20]),
    looked_up=st.booleans(),
    order=st.sampled_from([1, 2]),
)
def test_rounds_show_what_both_models_said(
    seed: int,
    count: int,
    tree: bool,
    drafter_trees: bool,
    temperature: float,
    nodes: int,
    looked_up: bool,
    order: int,
) -> None:
    check(
        seed,
        count,
        tree=tree,
        drafter_trees=drafter_trees,
        temperature=temperature,
        nodes=nodes,
        looked_up=looked_up,
        order=order,
    )


@pytest.mark.parametrize("drafter_trees", [False, True])
def test_walks_show_what_stood_what_was_refused_and_what_was_looked_up(
    drafter_trees: bool,
) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(8):
        kinds += check(seed, 80, drafter_trees=drafter_trees, temperature=0.8, nodes=20)
    assert min(kinds[kind] for kind in ("accepted", "refused", "plain", "merged")) > 5, kinds
