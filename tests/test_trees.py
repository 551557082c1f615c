"""Token trees in the decoding loop: the tokens are plain decoding's, whatever is proposed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from toy import ToyModel, ToyPair, ToyTree, plain_greedy, toy_pair

from omnidraft import SamplingParameters
from omnidraft._native import (
    CostAware,
    CostCurve,
    Fixed,
    History,
    Judged,
    Judgement,
    Lookup,
    Origin,
    Outcome,
    Policy,
    TreeDraft,
    TreeProposal,
    Walker,
)
from omnidraft.runtime.decoding.costs import Costs
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.decoding.drafting import Drafting

EIGHT_BIT = {1: 1.0, 2: 1.03, 4: 1.27, 8: 1.7, 16: 2.6, 32: 4.2}
STEEP = {1: 1.0, 2: 1.7, 4: 2.5, 8: 4.0, 16: 6.9, 32: 13.0}
FLAT = {1: 1.0, 2: 1.01, 8: 1.05, 32: 1.2}


class WhimsicalTree(Policy):
    """Grows trees by an arbitrary function of the rounds so far."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.calibration = [(0.7, 0.1)]
        self._rng = np.random.default_rng(seed)

    def begin(self, room: int, space: int, context: int, unread: int, found: int) -> int:
        return int(min(space, self._rng.integers(0, 14)))

    def found(self, match: int) -> float:
        return float(self._rng.random())

    def layer(self, open_nodes: Sequence[float], gains: Sequence[float], limit: int) -> int:
        return int(self._rng.integers(0, len(open_nodes) + 1)) if self._rng.random() < 0.8 else 0

    def count(self, gains: Sequence[float], limit: int) -> int:
        return int(self._rng.integers(0, limit + 1))

    def observe(self, outcome: Outcome) -> None:
        pass


def costs(step: float, target: dict[int, float], reading: float = 0.005) -> Costs:
    return Costs({256: CostCurve(target)}, CostCurve({1: step, 32: step + 31 * reading}))


def drafting(
    pair: ToyPair,
    policy: Policy,
    seed: int,
    *,
    trees: bool,
    tree: bool = True,
    **more: int,
) -> Drafting:
    model = (ToyTree if trees else ToyModel)(len(pair.drafter), seed, **more)  # type: ignore[arg-type]
    lookup = Lookup(len(pair.target))
    policies = {"policy": policy, "tree": tree}
    return Drafting(model, pair.cache, pair.speller, (0,), lookup=lookup, **policies)


def policy_of(name: str, seed: int) -> Policy:
    policies: dict[str, Policy] = {
        "fixed": Fixed(1 + seed % 20),
        "by cost": CostAware(costs(0.05, FLAT)),
        "whimsical": WhimsicalTree(seed),
    }
    return policies[name]


@settings(max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(["fixed", "by cost", "whimsical"]),
    tree=st.booleans(),
    drafter_trees=st.booleans(),
    count=st.integers(1, 60),
    drafter_context=st.sampled_from([60, 90, 512]),
    sampling=st.sampled_from(
        [
            SamplingParameters(),
            SamplingParameters(repetition_penalty=1.4),
            SamplingParameters(temperature=0.7),
            SamplingParameters(temperature=1.3, top_k=5, top_p=0.9, min_p=0.02),
        ]
    ),
)
def test_answers_are_those_of_plain_decoding(
    seed: int,
    name: str,
    tree: bool,
    drafter_trees: bool,
    count: int,
    drafter_context: int,
    sampling: SamplingParameters,
) -> None:
    """A seed is a promise: greedy or sampled, plain, by chains and by trees."""
    pair = toy_pair(seed)
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, len(pair.target), int(rng.integers(1, 20))).tolist()
    plain = SpeculativeDecoder(ToyModel(len(pair.target), seed), sampling=sampling, seed=seed)
    expected = [emitted.token for emitted in plain.generate(prompt, count)]
    if sampling.greedy and sampling.repetition_penalty == 1:
        assert expected == plain_greedy(ToyModel(len(pair.target), seed), prompt, count)
    side = drafting(
        pair,
        policy_of(name, seed),
        seed + 1,
        trees=drafter_trees,
        tree=tree,
        max_length=drafter_context,
    )
    target = ToyTree(len(pair.target), seed)
    decoder = SpeculativeDecoder(target, side, sampling=sampling, seed=seed)
    for _ in range(2):  # the second with a warm cache, and with KV caches from the first
        assert [emitted.token for emitted in decoder.generate(prompt, count)] == expected
        # The last token was emitted, and not read.
        assert target.tokens == [*prompt, *expected[:-1]][: len(target.tokens)]
        assert len(target.tokens) >= len(prompt) + count - 1 or count == 1
    stats = decoder.statistics
    assert stats.target_tokens == count and stats.rounds <= count
    assert stats.ngram_accepted <= stats.ngram_hits <= stats.proposed


@pytest.mark.parametrize("end", [1, 2, 3, 5, 8])
def test_an_answer_that_ends_within_a_tree_ends_where_it_ends_plainly(end: int) -> None:
    pair = toy_pair(3)
    target = ToyTree(len(pair.target), 4)
    expected = plain_greedy(target, [1, 2], 40)
    stop = expected[end]
    first = expected.index(stop)
    side = dataclasses.replace(drafting(pair, Fixed(12), 4, trees=True), keep=True)
    decoder = SpeculativeDecoder(target, side)
    answer = [emitted.token for emitted in decoder.generate([1, 2], 40, (stop,))]
    assert answer == expected[: first + 1]
    assert decoder.finish_reason == "stop"
    assert target.tokens == [1, 2, *expected[:first]]


def test_a_tree_of_a_drafter_like_its_target_takes_fewer_rounds_than_a_chain() -> None:
    pair = toy_pair(8)
    rounds = {}
    for name, policy in {"chain": Fixed(4), "tree": Fixed(12)}.items():
        target = ToyTree(len(pair.target), 2, order=1)
        side = drafting(pair, policy, 5, trees=True, tree=name == "tree")
        side = dataclasses.replace(side, lookup=None)
        decoder = SpeculativeDecoder(target, side)
        list(decoder.generate([1, 2], 200))
        rounds[name] = decoder.statistics.rounds
        assert decoder.statistics.draft_tokens >= decoder.statistics.proposed > 0
    assert rounds["tree"] < rounds["chain"]


def test_a_drafter_that_fails_ends_drafting_and_not_the_answer() -> None:
    class Failing(ToyTree):
        def forward_tree(self, *arguments: object, **more: object) -> NDArray[np.float32]:
            raise RuntimeError("no trees today")

    pair = toy_pair(1)
    target = ToyTree(len(pair.target), 1)
    side = drafting(pair, Fixed(6), 2, trees=True)
    side = dataclasses.replace(side, model=Failing(len(pair.drafter), 2))
    decoder = SpeculativeDecoder(target, side)
    with pytest.warns(UserWarning, match="no trees today"):
        answer = [emitted.token for emitted in decoder.generate([1, 2], 30)]
    assert answer == plain_greedy(target, [1, 2], 30)


def hot(pair: ToyPair, token: int) -> NDArray[np.float32]:
    row = np.zeros(len(pair.target), np.float32)
    row[token] = 40
    return row


@dataclass
class World:
    """Rounds of a policy with made-up rows of a drafter. Time is counted in plain steps."""

    policy: Policy
    step: float
    reading: float
    target: dict[int, float]
    seed: int = 0
    sureness: float = 3.0
    finds: bool = False
    answer: int = 400
    seconds: float = 0.0
    emitted: int = 0
    proposed: int = 0

    def run(self, rounds: int, accepts: Callable[[int], bool]) -> None:
        """Rounds in which the first proposed path is right, or nothing that is proposed."""
        policy, pair = self.policy, toy_pair(self.seed % 7)
        passing = CostCurve(self.target)
        drafter = CostCurve({1: self.step, 32: self.step + 31 * self.reading})
        rng = np.random.default_rng(self.seed)
        history = History(len(pair.target))
        left = unread = 0
        for round_ in range(rounds):
            if left < 1:
                left, unread = self.answer, 100
            draft = TreeDraft(pair.cache, calibration=policy.calibration)
            limit = policy.begin(400, 4000, 100, unread, 3 if self.finds else 0)
            assert 0 <= limit <= CostAware.MAX_NODES
            if limit and self.finds:
                draft.add_path([1, 2, 3], policy.found(3))
            passes: list[tuple[int, float]] = []
            nodes = [(0, 0, 0, 1.0)]
            while count := policy.layer([each[3] for each in nodes], draft.gains(), limit):
                assert count <= len(nodes)
                size = count if passes else unread
                passes.append((size, drafter.seconds(size)))
                for node, _, _, _ in nodes[:count]:
                    row = rng.standard_normal(len(pair.drafter)).astype(np.float32) * self.sureness
                    draft.expand(node, row)
                nodes = draft.frontier(CostAware.MAX_LAYER)
            proposal: TreeProposal = draft.finish(policy.count(draft.gains(), limit))
            assert len(proposal) <= limit
            special = len(pair.target) - 1  # never proposed
            rows = [hot(pair, special)] * (len(proposal) + 1)
            if accepts(round_):
                for node, (token, parent) in enumerate(
                    zip(proposal.tokens, proposal.parents, strict=True)
                ):
                    if parent == node - 1:
                        rows[parent + 1] = hot(pair, token)
            verdict = Walker().walk(proposal, np.stack(rows), SamplingParameters(), history, 0, 0)
            took = passing.seconds(len(proposal) + 1)
            self.seconds += sum(spent for _, spent in passes) + took
            self.emitted += verdict.accepted + 1
            self.proposed += len(proposal)
            left -= verdict.accepted + 1
            unread = 1 if passes else unread + 1
            columns = zip(
                verdict.judgements,
                proposal.origins,
                proposal.ranks,
                proposal.confidences,
                strict=True,
            )
            judged = [
                Judged(rank, confidence, judgement is Judgement.RIGHT)
                for judgement, origin, rank, confidence in columns
                if judgement is not Judgement.NONE and origin is not Origin.LOOKUP
            ]
            tokens, match = verdict.accepted + 1, 3 if self.finds else 0
            policy.observe(Outcome(len(proposal) + 1, tokens, passes, judged, took, 0.0, match))


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10**6),
    adversary=st.sampled_from(["refuses", "in turns", "at random"]),
    step=st.floats(0.005, 4),
    reading=st.floats(0.0, 0.05),
    target=st.sampled_from([EIGHT_BIT, STEEP, FLAT]),
    sureness=st.floats(0.0, 8.0),
    finds=st.booleans(),
    answer=st.sampled_from([2, 5, 40, 400]),
)
def test_whatever_rounds_bring_the_loss_is_bounded(
    seed: int,
    adversary: str,
    step: float,
    reading: float,
    target: dict[int, float],
    sureness: float,
    finds: bool,
    answer: int,
) -> None:
    """Time is counted in plain steps, not measured; see the same test of chains."""
    policy = CostAware(costs(step, target, reading))
    world = World(policy, step, reading, target, seed, sureness, finds, answer)
    rng = np.random.default_rng(seed)
    accepts = {
        "refuses": lambda round_: False,
        "in turns": lambda round_: bool(round_ // 20 % 2),
        "at random": lambda round_: bool(rng.random() < 0.5),
    }
    world.run(150, accepts[adversary])
    assert world.seconds <= world.emitted + CostAware.CREDIT + CostAware.ALLOWANCE * world.seconds


@pytest.mark.parametrize("target", [EIGHT_BIT, FLAT])
def test_trees_are_tried_again_after_a_long_time_in_vain(target: dict[int, float]) -> None:
    policy = CostAware(costs(0.05, target))
    world = World(policy, 0.05, 0.005, target)
    world.run(1500, lambda round_: False)
    world.run(1500, lambda round_: True)
    world.emitted, world.proposed = 0, 0
    world.run(300, lambda round_: True)
    assert world.proposed >= world.emitted - 300 > 300
