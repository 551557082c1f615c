"""Draft length: exact whatever a policy decides, and fast whatever the world is like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from enumeration import Instance, random_instance
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import ToyModel, follows_the_target, plain_greedy, toy_pair

from omnidraft import _native
from omnidraft._native import CostAware, CostCurve, Fixed, Judged, Outcome, Policy, calibrated
from omnidraft.runtime.decoding.costs import SIZES, Costs, measure
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.options import read_draft_length

EIGHT_BIT = {1: 1.0, 2: 1.03, 4: 1.27, 8: 1.7, 16: 2.6, 32: 4.2}
STEEP = {1: 1.0, 2: 1.7, 4: 2.5, 8: 4.0, 16: 6.9, 32: 13.0}
FLAT = {1: 1.0, 2: 1.01, 8: 1.05, 32: 1.2}
CONTEXT = 100
CAP = 10.0
"""What was won and may be lost again, in plain steps."""


# --- exactness --------------------------------------------------------------------------------


class Whimsical(Policy):
    """Stops by an arbitrary function of the path's scores and of the rounds so far."""

    def __init__(self, seed: int, most: int) -> None:
        super().__init__()
        self.calibration: list[tuple[float, float]] = []
        self._seed, self._most = seed, most
        self._rounds = 0

    def begin(self, room: int, space: int, context: int, unread: int, found: int) -> int:
        return min(space, self._random().integers(9), self._most)

    def found(self, match: int) -> float:
        return 0.5

    def layer(self, open_nodes: Sequence[float], gains: Sequence[float], limit: int) -> int:
        path = [round(gain * 1e6) for gain in gains]
        return int(self._random(*path).random() < 0.7)

    def count(self, gains: Sequence[float], limit: int) -> int:
        return self._random().integers(limit + 1)

    def observe(self, outcome: Outcome) -> None:
        self._rounds += 1

    def _random(self, *numbers: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, self._rounds, *numbers])


def drawing(policy: Policy, limit: int) -> Callable[[float | None], bool]:
    """Asks a policy as a chain does: whether to draw on, after a token of a score or at first."""
    gains: list[float] = []

    def go_on(score: float | None = None) -> bool:
        if score is None:
            return limit > 0 and policy.layer([1.0], [], limit) > 0
        likely = score
        if policy.calibration:
            likely = calibrated(score, *policy.calibration[0])
        gains.append(likely * (gains[-1] if gains else 1.0))
        return len(gains) < limit and policy.layer(gains[-1:], gains, limit) > 0

    return go_on


@dataclass
class Stopped(Instance):
    """An ``Instance`` whose rounds end where a policy says so."""

    policy: Callable[[], Policy] = lambda: Fixed(4)

    def verdict(
        self, chance: _native.Chance, budget: int, verification: _native.Verification
    ) -> tuple[_native.Proposal, _native.Verdict]:
        policy = self.policy()
        draft = _native.Draft(self.cache, verification, 1.0)
        drafts: tuple[int, ...] = ()
        go_on = drawing(policy, policy.begin(budget, budget, 0, 1, 0))
        more = go_on(None)
        while more:
            token = draft.step(self.logits("q", drafts), chance)
            if token < 0:
                break
            drafts += (token,)
            more = go_on(draft.confidence)
        proposal = draft.finish()
        tokens = tuple(proposal.tokens)
        rows = np.stack([self.logits("p", tokens[:i]) for i in range(len(tokens) + 1)])
        history = _native.History(self.target_size)
        verdict = _native.Verifier(self.cache).verify(
            proposal, rows, self.sampling, history, chance
        )
        return proposal, verdict


def learnt(seed: int) -> CostAware:
    """A cost-aware policy in a state that is the same each time."""
    policy = CostAware(costs(0.05, EIGHT_BIT))
    run(policy, World(seed=seed), 60)
    return policy


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: Whimsical(seed, 4),
        lambda seed: Fixed(4, 0.2),
        learnt,
    ],
    ids=["whimsical", "fixed", "cost-aware"],
)
def test_rounds_are_exact_wherever_a_policy_stops(
    make: Callable[[int], Policy],
) -> None:
    longest = 0
    for seed in range(20):
        world = random_instance(5000 + seed)
        instance = Stopped(**{**vars(world), "policy": lambda seed=seed: make(seed)})
        assert instance.deviation(4, _native.Verification.EXACT, 2) < 1e-12, seed
        proposal, _ = instance.verdict(_native.Generator(seed), 4, _native.Verification.EXACT)
        longest = max(longest, len(proposal.drafts))
    assert longest >= 3


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), auto=st.booleans())
def test_greedy_answers_do_not_depend_on_the_policy(seed: int, auto: bool) -> None:
    pair = toy_pair(seed)
    target = ToyModel(len(pair.target), seed)
    expected = plain_greedy(target, [1, 2], 50)
    policy = CostAware(costs(0.05, FLAT)) if auto else Whimsical(seed, 8)
    drafting = pair.drafting(seed + 1)
    decoder = SpeculativeDecoder(target, replace(drafting, policy=policy))
    for _ in range(2):
        answer = [emitted.token for emitted in decoder.generate([1, 2], 50)]
        assert answer == expected


# --- simulated worlds -------------------------------------------------------------------------


def costs(step: float, target: dict[int, float], reading: float = 0.005) -> Costs:
    return Costs({256: CostCurve(target)}, CostCurve({1: step, 32: step + 31 * reading}))


@dataclass
class World:
    """Draft tokens with a latent chance of acceptance, of which the score is a noisy sight.

    Time is counted, not measured: in units of the target's pass over one token.
    """

    seed: int = 0
    ease: float = 1.5
    """Mean logit of the chances."""
    spread: float = 1.5
    bias: float = 0.0
    """Added to a score's logit: how much surer the drafter is than it should be."""
    step: float = 0.05
    target: dict[int, float] | None = None
    reading: float = 0.005
    rest: float = 0.02
    noise: float = 0.0

    def rounds(self) -> Iterator[tuple[list[float], int]]:
        """Scores of the tokens that could be drafted, and how many of them would be accepted."""
        rng = np.random.default_rng(self.seed)
        while True:
            logits = self.ease + self.spread * rng.standard_normal(CostAware.MAX_PASSES)
            taken = rng.random(CostAware.MAX_PASSES) < 1 / (1 + np.exp(-logits))
            seen = logits + self.bias + 0.5 * rng.standard_normal(CostAware.MAX_PASSES)
            accepted = CostAware.MAX_PASSES if taken.all() else int(np.argmin(taken))
            yield (1 / (1 + np.exp(-seen))).tolist(), accepted


def run(policy: Policy, world: World, tokens: int, answer: int = 200) -> tuple[float, list[int]]:
    """Tokens per unit of time, and what each round drafted."""
    target = CostCurve(world.target or EIGHT_BIT)
    drafter = CostCurve({1: world.step, 32: world.step + 31 * world.reading})
    noise = np.random.default_rng(world.seed + 1)
    seconds, emitted, drafted = 0.0, 0, []
    left = unread = 0
    for scores, would in world.rounds():
        if emitted >= tokens:
            break
        if left < 1:
            left, unread = answer, CONTEXT
        most = policy.begin(left - 1, left - 1, CONTEXT, unread, 0)
        assert 0 <= most <= left - 1
        go_on = drawing(policy, most)
        k = 0
        more = go_on(None)
        while more:
            k += 1
            more = go_on(scores[k - 1])
        accepted = min(k, would)
        drafting = drafter.seconds(unread) + (k - 1) * world.step if k else 0.0
        passing = target.seconds(k + 1)
        seconds += drafting + passing + world.rest
        emitted += accepted + 1
        left -= accepted + 1
        drafted.append(k)
        jitter = np.exp(world.noise * np.abs(noise.standard_normal(3)))
        sizes = [unread, *[1] * (k - 1)][:k]
        policy.observe(
            Outcome(
                k + 1,
                accepted + 1,
                [(size, drafter.seconds(size) * jitter[0]) for size in sizes],
                [Judged(0, scores[i], i < accepted) for i in range(min(k, accepted + 1))],
                passing * jitter[1],
                world.rest * jitter[2],
            )
        )
        unread = max(1, accepted + 2 - k) if k else unread + 1
    return emitted / seconds, drafted


def plainly(world: World) -> float:
    return 1 / (1.0 + world.rest)


WORLDS = {
    "default pair": World(),
    "sure drafter": World(ease=3.0),
    "unsure drafter": World(ease=0.0, spread=1.0),
    "overconfident": World(ease=0.0, bias=2.0),
    "underconfident": World(ease=2.0, bias=-2.0),
    "dear drafter": World(ease=2.0, step=0.4),
    "dearer than the target": World(ease=2.0, step=1.5),
    "free rows": World(ease=1.0, target=FLAT),
    "dear rows": World(ease=1.0, target=STEEP),
    "hostile": World(ease=-3.0),
    "noisy clock": World(noise=0.5),
    "hostile and noisy": World(ease=-3.0, noise=0.5),
}


@pytest.mark.parametrize("name", WORLDS)
def test_as_fast_as_the_best_fixed_length_and_as_plain(name: str) -> None:
    world = WORLDS[name]
    fixed = {
        length: run(Fixed(length, confidence), world, 3000)[0]
        for length in (1, 2, 3, 4, 6, 8)
        for confidence in (0.0, 0.3)
    }
    speed, drafted = run(CostAware(costs(world.step, world.target or EIGHT_BIT)), world, 3000)
    best = max(plainly(world), *fixed.values())
    assert speed >= 0.97 * best, (speed, plainly(world), fixed, np.mean(drafted))


def test_a_drafter_that_cannot_pay_is_hardly_tried() -> None:
    world = World(ease=2.0, step=20.0)
    speed, drafted = run(CostAware(costs(20.0, EIGHT_BIT)), world, 20_000)
    assert speed >= 0.97 * plainly(world)
    assert sum(map(bool, drafted)) <= 20_000 * CostAware.ALLOWANCE / 20.0


def refused(round_: int, drafted: bool, rng: np.random.Generator) -> tuple[int, int]:
    return CostAware.MAX_PASSES, 0


def empty(round_: int, drafted: bool, rng: np.random.Generator) -> tuple[int, int]:
    return 0, 0


def in_turns(round_: int, drafted: bool, rng: np.random.Generator) -> tuple[int, int]:
    return CostAware.MAX_PASSES, CostAware.MAX_PASSES if round_ // 40 % 2 else 0


def at_random(round_: int, drafted: bool, rng: np.random.Generator) -> tuple[int, int]:
    return int(rng.integers(CostAware.MAX_PASSES + 1)), int(rng.integers(CostAware.MAX_PASSES + 1))


def never_when_it_counts(round_: int, drafted: bool, rng: np.random.Generator) -> tuple[int, int]:
    return CostAware.MAX_PASSES, 0 if drafted else CostAware.MAX_PASSES


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    adversary=st.sampled_from([refused, empty, in_turns, at_random, never_when_it_counts]),
    step=st.floats(0.005, 4),
    reading=st.floats(0.0, 0.05),
    target=st.sampled_from([EIGHT_BIT, STEEP, FLAT]),
    score=st.floats(0.3, 0.999),
    answer=st.sampled_from([1, 2, 5, 40, 400]),
    finds=st.booleans(),
)
def test_whatever_rounds_bring_the_loss_is_the_start_and_the_allowance(
    seed: int,
    adversary: Callable[[int, bool, np.random.Generator], tuple[int, int]],
    step: float,
    reading: float,
    target: dict[int, float],
    score: float,
    answer: int,
    finds: bool,
) -> None:
    """Drafts that are refused or come out empty, lookups that are wrong, answers that end at once.

    Tokens count as plain decoding would have taken one step for each, whatever was tried.
    """
    policy = CostAware(costs(step, target, reading))
    passing, drafter = CostCurve(target), CostCurve({1: step, 32: step + 31 * reading})
    rng = np.random.default_rng(seed)
    seconds, emitted, left, unread = 0.0, 0, 0, 0
    for round_ in range(400):
        if left < 1:
            left, unread = answer, CONTEXT
        # The policy is told of more room than the answer turns out to have.
        room, found, match = 400, 8 if finds else 0, 3
        limit = policy.begin(room, room, CONTEXT, unread, found)
        go_on = drawing(policy, limit)
        drawn = steps = looked_up = 0
        can, would = adversary(round_, True, rng)
        if more := go_on(None):
            while more:
                steps += 1
                if drawn == can:
                    break
                drawn += 1
                more = go_on(score)
        elif found:
            looked_up = policy.count([policy.found(match) ** (i + 1) for i in range(found)], limit)
        proposed = drawn or looked_up
        would = adversary(round_, proposed > 0, rng)[1]
        accepted = min(proposed, would)
        sizes = [unread, *[1] * (steps - 1)][:steps]
        passes = [(size, drafter.seconds(size)) for size in sizes]
        took = passing.seconds(proposed + 1)
        seconds += sum(spent for _, spent in passes) + took
        emitted += accepted + 1
        left -= accepted + 1
        unread = 1 if steps else unread + 1
        right = min(would, found)
        policy.observe(
            Outcome(
                rows=proposed + 1,
                tokens=accepted + 1,
                passes=passes,
                judged=[Judged(0, score, i < accepted) for i in range(min(drawn, accepted + 1))],
                target_seconds=took,
                other_seconds=0.0,
                match=match if found else 0,
                found_judged=min(found, accepted + 1),
                found_right=min(right, accepted + 1),
            )
        )
    assert seconds <= emitted + CostAware.CREDIT + CostAware.ALLOWANCE * seconds


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    ease=st.floats(-5, 4),
    bias=st.floats(-4, 4),
    step=st.floats(0.005, 4),
    target=st.sampled_from([EIGHT_BIT, STEEP, FLAT]),
    flips=st.booleans(),
)
def test_what_can_be_lost_is_bounded(
    seed: int, ease: float, bias: float, step: float, target: dict[int, float], flips: bool
) -> None:
    """Against plain decoding: the allowance, the first balance, what was won before, and a round.

    A world that turns hostile once the policy trusts the drafter can take back at most the cap.
    """
    policy = CostAware(costs(step, target))
    count = 800
    seconds = 0.0
    phases = [World(seed, ease, bias=bias, step=step, target=target)]
    if flips:
        phases.append(World(seed, -5.0, bias=bias, step=step, target=target))
    for world in phases:
        speed, drafted = run(policy, world, count)
        seconds = count / speed
        plain = count / plainly(world)
        largest = max(drafted) * step + CostCurve(target).seconds(max(drafted) + 1) + 1.0
        allowed = CostAware.ALLOWANCE * seconds + CAP + largest
        # Reading the first prompt anew in each answer is an investment of its own.
        allowed += 0.5 * (count / 200 + 1)
        assert seconds <= plain + allowed


def test_follows_a_drafter_that_becomes_useful_and_useless() -> None:
    policy = CostAware(costs(0.05, EIGHT_BIT))
    hostile, good = World(seed=1, ease=-4.0), World(seed=2, ease=2.5)
    run(policy, hostile, 3000)
    _, before = run(policy, hostile, 500)
    assert np.mean(before) < 0.1
    run(policy, good, 3000)
    speed, after = run(policy, good, 2000)
    assert np.mean(after) > 2
    assert speed > 0.95 * max(run(Fixed(length), good, 2000)[0] for length in (4, 8))
    run(policy, hostile, 1000)
    speed, again = run(policy, hostile, 2000)
    assert np.mean(again) < 0.1
    assert speed > 0.97 * plainly(hostile)


@pytest.mark.parametrize("reading", [0.005, 0.01, 0.02])
def test_a_bad_beginning_is_not_held_against_a_drafter(reading: float) -> None:
    """However short it was, and however little is known when the next prompt is to be read."""
    good = World(seed=2, ease=2.5, reading=reading)
    best = max(run(Fixed(length), good, 1000)[0] for length in (4, 8))
    for answer in range(1, 40):
        policy = CostAware(costs(0.05, EIGHT_BIT, reading))
        run(policy, World(seed=answer, ease=-1.0, reading=reading), answer, answer)
        # At worst what the beginning has lost must be saved up first.
        run(policy, good, 700)
        speed, drafted = run(policy, good, 1000)
        assert speed > 0.97 * best, (answer, np.mean(drafted))


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("auto", [False, True])
def test_looking_up_leaves_the_answer_to_the_target(sampled: bool, auto: bool) -> None:
    pair = toy_pair(5)
    target = ToyModel(len(pair.target), 9, order=1, spread=2.5)
    policy = CostAware(costs(20.0, FLAT)) if auto else Whimsical(1, 8)
    lookup = _native.Lookup(len(pair.target))
    drafting = replace(pair.drafting(3), policy=policy, lookup=lookup)
    sampling = _native.SamplingParameters(temperature=1.0 if sampled else 0.0)
    origins: Counter[_native.Origin] = Counter()
    follows: Counter[int] = Counter()
    for seed in range(150 if sampled else 4):
        decoder = SpeculativeDecoder(target, drafting, sampling=sampling, seed=seed)
        answer = list(decoder.generate([1 + seed % 4], 60))
        origins.update(emitted.origin for emitted in answer)
        tokens = [1 + seed % 4, *(emitted.token for emitted in answer)]
        if not sampled:
            assert tokens[1:] == plain_greedy(target, tokens[:1], 60)
        follows.update(b for a, b in pairwise(tokens) if a == 4)
    assert origins[_native.Origin.LOOKUP] > 50
    if sampled:
        assert follows_the_target(target, 4, follows)


def test_lookup_is_used_as_far_as_it_was_right() -> None:
    used = {}
    for right in (0.0, 0.5, 1.0):
        policy = CostAware(costs(20.0, EIGHT_BIT))
        rng = np.random.default_rng(0)
        counts = []
        for _ in range(300):
            limit = policy.begin(8, 8, CONTEXT, 1, 8)
            assert not policy.layer([1.0], [], limit), "it does not pay"
            count = policy.count([policy.found(6) ** (i + 1) for i in range(8)], limit)
            counts.append(count)
            agree = 8 if rng.random() < right else 0
            accepted = min(count, agree)
            judged = min(8, agree, accepted + 1) + (agree < accepted + 1)
            seconds = CostCurve(EIGHT_BIT).seconds(count + 1)
            found = (6, judged, min(agree, judged))
            policy.observe(Outcome(count + 1, accepted + 1, [], [], seconds, 0.02, *found))
        used[right] = np.mean(counts[100:])
    assert used[0.0] == 0
    assert 0 < used[0.5] < used[1.0]
    assert used[1.0] > 6


def test_the_last_tokens_are_not_overdrawn() -> None:
    policy = CostAware(costs(0.01, FLAT))
    run(policy, World(ease=4.0), 500)
    assert policy.begin(0, 0, CONTEXT, 1, 0) == 0
    assert policy.begin(3, 3, CONTEXT, 1, 0) == 3


def test_fixed_ends_a_draft_by_the_product_of_its_scores() -> None:
    policy = Fixed(3, 0.5)
    assert policy.begin(10, 10, 0, 1, 0) == 3
    assert policy.begin(2, 2, 0, 1, 0) == 2
    go_on = drawing(policy, 3)
    assert go_on(None) and go_on(0.9) and go_on(0.7) and not go_on(0.99)
    go_on = drawing(policy, 3)
    assert go_on(None) and not go_on(0.45)


# --- cost curves ------------------------------------------------------------------------------

times = st.floats(1e-5, 10.0)


@given(st.dictionaries(st.integers(2, 40), times), times, st.data())
def test_a_curve_is_monotone_whatever_is_observed(
    points: dict[int, float], single: float, data: st.DataObject
) -> None:
    curve = CostCurve(points | {1: single})
    observations = data.draw(st.lists(st.tuples(st.integers(1, 50), times), max_size=20))
    for tokens, seconds in observations:
        curve.observe(tokens, seconds)
        values = [curve.seconds(n) for n in np.linspace(1, 50, 99)]
        assert all(a <= b * (1 + 1e-9) for a, b in pairwise(values))
        assert values[0] > 0


def test_a_curve_follows_the_machine_and_not_its_hiccups() -> None:
    curve = CostCurve(EIGHT_BIT)
    for i in range(200):
        curve.observe(1 + i % 5, 2 * CostCurve(EIGHT_BIT).seconds(1 + i % 5))
        if i % 10 == 0:
            curve.observe(3, 100.0)
    for tokens in (1, 3, 5, 16):
        assert curve.seconds(tokens) == pytest.approx(
            2 * CostCurve(EIGHT_BIT).seconds(tokens), rel=0.2
        )


@pytest.mark.parametrize("bad", [{}, {2: 1.0}, {1: 0.0}, {1: float("nan")}, {1: 1.0, 4: -1.0}])
def test_a_curve_refuses_what_is_no_time(bad: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="cost curve"):
        CostCurve(bad)


@pytest.mark.parametrize(("length", "max_length"), [(0, 512), (7, 512), (20, 30), (29, 30)])
def test_measuring_leaves_the_sequence_as_it_was(length: int, max_length: int) -> None:
    model = ToyModel(5, max_length=max_length)
    if length:
        model.forward([2] * length)
    held = list(model.tokens)
    curve = measure(model, budget=0.05)
    assert model.tokens == held
    assert curve.seconds(1) > 0
    model.forward([1] * (max_length - length))
    with pytest.raises(ValueError, match="no room"):
        measure(model)


def test_costs_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "costs" / "some.json"
    kept = costs(0.05, EIGHT_BIT)
    kept = Costs({256: kept.target(0), 1024: kept.target(0)}, kept.drafter, path)
    kept.save()
    assert [file.name for file in path.parent.iterdir()] == ["some.json"]
    read = Costs.load(path)
    assert read is not None
    for size in SIZES:
        assert read.target(1000).seconds(size) == pytest.approx(kept.target(0).seconds(size))
        assert read.drafter.seconds(size) == pytest.approx(kept.drafter.seconds(size))
    before = path.stat().st_mtime_ns
    read.save()
    assert path.stat().st_mtime_ns == before, "nothing had moved"
    for _ in range(50):
        read.target(3000).observe(1, 5.0)
    read.save()
    again = Costs.load(path)
    assert again is not None
    assert again.target(3000).seconds(1) > 2 * again.target(0).seconds(1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"schema_version": 2, "target": {"256": {"1": 1}}, "drafter": {"1": 1}}',
        b'{"schema_version": 1, "target": {}, "drafter": {"1": 1}}',
        b'{"schema_version": 1, "target": {"-1": {"1": 1}}, "drafter": {"1": 1}}',
        b'{"schema_version": 1, "target": {"256": {"2": 1}}, "drafter": {"1": 1}}',
        b'{"schema_version": 1, "target": {"256": {"1": "x"}}, "drafter": {"1": 1}}',
        b'{"schema_version": 1, "target": {"256": {"1": NaN}}, "drafter": {"1": 1}}',
        b'{"schema_version": 1, "target": {"256": 3}, "drafter": {"1": 1}}',
    ],
)
def test_costs_that_cannot_be_read_are_measured_again(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "costs.json"
    assert Costs.load(path) is None
    path.write_bytes(content)
    assert Costs.load(path) is None


def test_costs_that_cannot_be_written_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = Costs({256: CostCurve(FLAT)}, CostCurve(FLAT), tmp_path / "file" / "costs.json")
    with pytest.raises(OmniDraftError, match="OMNIDRAFT_CACHE"):
        kept.save()


def test_draft_length_of_the_command_line() -> None:
    assert read_draft_length("auto") == "auto"
    assert read_draft_length("0") == 0
    assert read_draft_length("32") == 32
    for bad in ("", "-1", "33", "4.5", "many"):
        with pytest.raises(OmniDraftError, match="0 to 32, or auto"):
            read_draft_length(bad)
