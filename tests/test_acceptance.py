"""The acceptance head: it learns what the target accepts, is kept, and drives the draft length."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare
from tiny import write_drafter, write_target
from toy import ToyModel, plain_greedy, toy_pair

from omnidraft import SamplingParameters, Verification
from omnidraft._native import Fixed
from omnidraft.export.conversion import convert
from omnidraft.export.pipeline import export
from omnidraft.export.recipes import Options
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.decoding.observed import Round
from omnidraft.runtime.engines.model import HiddenStates
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.errors import DamagedFileError
from omnidraft.runtime.learning.head import AcceptanceHead, scorer_of
from omnidraft.runtime.learning.head_trainer import (
    TESTS,
    HeadTrainer,
    HeadTraining,
    cross_entropy,
)
from omnidraft.runtime.learning.lessons import Lessons, position_labels
from omnidraft.runtime.learning.objective import Detail
from omnidraft.runtime.learning.observations import AdaptationBuffer, direct_mapping
from omnidraft.runtime.learning.trace import DraftTrace

SIZE = 24


def examples(count: int, seed: int = 0) -> Lessons:
    """Chances of acceptance that are a curved function of hidden state and confidence."""
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((count, SIZE)).astype(np.float32)
    confidence = rng.uniform(0.05, 0.95, count).astype(np.float32)
    unit = hidden / np.sqrt(np.square(hidden).mean(1, keepdims=True))
    logit = 2 * unit[:, 0] + 2 * np.abs(unit[:, 1]) - 1.5
    logit += 0.5 * np.log(confidence / (1 - confidence))
    chance = (1 / (1 + np.exp(-logit))).astype(np.float32)
    return Lessons(hidden, confidence, chance, np.ones(count, np.float32))


def eager(**options: Any) -> AcceptanceHead:
    """Learns quickly what is plain to see."""
    return AcceptanceHead(
        SIZE, **{"width": 32, "learning_rate": 1e-2, "weight_decay": 1e-2, **options}
    )


def entropy(lessons: Lessons, predicted: NDArray[np.float32]) -> float:
    return cross_entropy(lessons, predicted) / float(lessons.weight.sum())


def learn(trainer: HeadTrainer, lessons: Lessons) -> list[float]:
    return [trainer.update() for _ in range(trainer.add(lessons))]


@pytest.mark.parametrize("training", ["joint", "interleaved"])
def test_learns_what_is_accepted(training: HeadTraining) -> None:
    trainer = HeadTrainer(eager(), training, interval=1, capacity=2000, batch=128)
    losses = []
    for step in range(300 if training == "joint" else 40):
        losses += learn(trainer, examples(64, seed=step))
    test = examples(2000, seed=10**6)
    least = entropy(test, test.label)
    found = entropy(test, trainer.head.predict(test.hidden, test.confidence))
    constant = entropy(test, np.full_like(test.label, test.label.mean()))
    confidence = entropy(test, test.confidence)
    for ignorant in (constant, confidence):
        assert found < least + 0.25 * (ignorant - least)
    assert np.mean(losses[-10:]) < losses[0]
    scores = [
        trainer.head.score(hidden, float(sure))
        for hidden, sure in zip(test.hidden[:50], test.confidence[:50], strict=True)
    ]
    predicted = trainer.head.predict(test.hidden[:50], test.confidence[:50])
    np.testing.assert_allclose(scores, predicted, rtol=1e-4)


def test_an_untrained_head_says_what_the_drafter_says() -> None:
    test = examples(50)
    head = AcceptanceHead(SIZE)
    np.testing.assert_allclose(
        head.predict(test.hidden, test.confidence), test.confidence, atol=1e-5
    )
    for hidden in test.hidden[:5]:
        assert head.score(hidden, 0.3) == pytest.approx(0.3, abs=1e-6)
        # Also the surest drafters err.
        assert head.score(hidden, 1.0) == pytest.approx(0.999, abs=1e-6)


def test_interleaved_learns_more_from_as_many_batches() -> None:
    found = {}
    test = examples(2000, seed=10**6)
    for training in ("joint", "interleaved"):
        trainer = HeadTrainer(eager(), training, interval=2, batch=64)
        for step in range(20):
            learn(trainer, examples(32, seed=step))
        found[training] = entropy(test, trainer.head.predict(test.hidden, test.confidence))
        # One each time, or as many as make a pass over 64, 128, …, 640 rows.
        assert trainer.progress.updates == (10 if training == "joint" else sum(range(1, 11)))
    assert found["interleaved"] < found["joint"]


@pytest.mark.parametrize("training", ["joint", "interleaved"])
def test_a_head_decides_once_it_is_better_on_answers_it_has_not_learned_from(
    training: HeadTraining,
) -> None:
    trainer = HeadTrainer(eager(), training, interval=2, batch=64)
    assert trainer.proven() is None
    tested = []
    for step in range(120 if training == "joint" else 70):
        lessons = examples(48, seed=step)
        if trainer.progress.updates:
            said = trainer.head.predict(lessons.hidden, lessons.confidence)
            tested.append((entropy(lessons, said), entropy(lessons, lessons.confidence)))
        learn(trainer, lessons)
    progress = trainer.progress
    means = np.mean(tested[-TESTS:], axis=0)
    assert (progress.bce, progress.confidence_bce) == pytest.approx(tuple(means), rel=1e-4)
    assert progress.in_use and progress.bce < progress.confidence_bce
    proven = trainer.proven()
    assert proven is not None
    # A copy: learning on does not change it.
    test = examples(20, seed=10**6)
    before = proven.predict(test.hidden, test.confidence)
    learn(trainer, examples(48))
    learn(trainer, examples(48))
    np.testing.assert_array_equal(proven.predict(test.hidden, test.confidence), before)
    assert (trainer.head.predict(test.hidden, test.confidence) != before).any()


def test_a_head_that_is_no_better_than_the_confidence_does_not_decide() -> None:
    """Where the confidence is all there is to know, what a head makes up is not used."""
    trainer = HeadTrainer(eager(), "interleaved", interval=2, passes=4, batch=64)
    for step in range(40):
        lessons = examples(48, seed=step)
        rng = np.random.default_rng(step)
        fate = (rng.random(48) < lessons.confidence).astype(np.float32)
        learn(trainer, replace(lessons, label=fate))
        assert not trainer.progress.in_use
    assert trainer.progress.bce > trainer.progress.confidence_bce
    assert trainer.proven() is None


def test_a_head_that_has_become_worse_decides_no_more() -> None:
    trainer = HeadTrainer(eager(), "joint", interval=1)
    for step in range(150):
        learn(trainer, examples(64, seed=step))
    assert trainer.progress.in_use
    trainer.head.optimizer.learning_rate = 0.0  # the world changes, and the head does not follow
    for step in range(TESTS):
        lessons = examples(64, seed=1000 + step)
        learn(trainer, replace(lessons, label=1 - lessons.label))
    assert not trainer.progress.in_use


@pytest.mark.parametrize("training", ["joint", "interleaved"])
def test_learning_goes_on_where_its_state_was_taken(training: HeadTraining) -> None:
    whole = parts = HeadTrainer(AcceptanceHead(SIZE), training, interval=3, batch=60)
    for step in range(11):
        state, rows, progress = parts.state()
        parts = HeadTrainer(
            AcceptanceHead.from_state(state),
            training,
            interval=3,
            batch=60,
            progress=progress,
            rows=rows,
        )
        for trainer in (whole, parts):
            learn(trainer, examples(20, seed=step))
    assert (
        parts.progress.updates
        == whole.progress.updates
        == (3 if training == "joint" else 1 + 2 + 3)
    )
    assert parts.progress.pending == whole.progress.pending == 2
    assert len(parts.rows) == len(whole.rows) == (40 if training == "joint" else 220)
    np.testing.assert_array_equal(parts.rows.hidden, whole.rows.hidden)
    if training == "joint":  # nothing is drawn by chance
        assert parts.progress == whole.progress
        test = examples(20, seed=99)
        one, other = (
            trainer.head.predict(test.hidden, test.confidence) for trainer in (whole, parts)
        )
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["w1", "b1", "w2", "b2", "a"])
def test_the_gradient_is_that_of_the_loss(name: str) -> None:
    """AdamW's running mean moves by a tenth of the gradient."""
    weight = np.random.default_rng(1).random(40).astype(np.float32)
    lessons = replace(examples(40), weight=weight)
    head = AcceptanceHead(SIZE, width=6, rejection_weight=3.0, weight_decay=0.0)
    for step in range(5):
        head.update(examples(40, seed=step))
    state = head.state()
    head.optimizer.learning_rate = 1e-6
    head.update(lessons)
    first = 0.9
    gradient = (head.state()[f"first.{name}"] - first * state[f"first.{name}"]) / (1 - first)
    step = np.float32(2e-2)
    for index in list(np.ndindex(gradient.shape))[:: max(1, gradient.size // 12)]:
        losses = []
        for side in (step, -step):
            moved = {key: value.copy() for key, value in state.items()}
            moved[name][index] += side
            losses.append(AcceptanceHead.from_state(moved).update(lessons))
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(gradient[index], abs=2e-4)


def test_rejections_that_count_more_make_it_careful() -> None:
    test = examples(2000)
    means = []
    for rejection_weight in (1.0, 6.0):
        head = eager(rejection_weight=rejection_weight)
        trainer = HeadTrainer(head, "interleaved", interval=1, batch=64)
        for step in range(20):
            learn(trainer, examples(64, seed=step))
        means.append(head.predict(test.hidden, test.confidence).mean())
    assert means[1] < means[0] - 0.1


def test_weights_choose_what_is_learnt() -> None:
    lessons = examples(64)
    heads = [AcceptanceHead(SIZE), AcceptanceHead(SIZE)]
    heads[0].update(replace(lessons, weight=np.repeat([1, 0], 32).astype(np.float32)))
    heads[1].update(lessons[:32])
    one, other = (head.predict(lessons.hidden, lessons.confidence) for head in heads)
    np.testing.assert_allclose(one, other, rtol=1e-5)


def test_the_buffer_is_bounded_and_keeps_the_newest() -> None:
    trainer = HeadTrainer(AcceptanceHead(SIZE), "interleaved", interval=1, capacity=50)
    given = []
    for step in range(7):
        lessons = examples(30, seed=step)
        given.append(lessons.label)
        learn(trainer, lessons)
        expected = np.concatenate(given)[-50:]
        np.testing.assert_array_equal(trainer.rows.label, expected)


def test_a_head_goes_on_where_its_state_was_taken() -> None:
    head = AcceptanceHead(SIZE, rejection_weight=2.0)
    for step in range(5):
        head.update(examples(20, seed=step))
    state = head.state()
    assert all(value.dtype == np.float32 for value in state.values())
    other = AcceptanceHead.from_state(state)
    for each in (head, other):
        each.update(examples(20, seed=50))
    test = examples(30, seed=60)
    np.testing.assert_array_equal(
        head.predict(test.hidden, test.confidence), other.predict(test.hidden, test.confidence)
    )
    assert other.optimizer.steps == head.optimizer.steps == 6


def test_a_damaged_state_is_refused() -> None:
    state = AcceptanceHead(SIZE).state()
    for name in state:
        with pytest.raises(DamagedFileError, match="acceptance head is damaged"):
            AcceptanceHead.from_state({k: v for k, v in state.items() if k != name})
    with pytest.raises(DamagedFileError):
        AcceptanceHead.from_state({**state, "b1": np.zeros(3, np.float32)})
    with pytest.raises(DamagedFileError):
        AcceptanceHead.from_state({**state, "w1": np.zeros(3, np.float32)})


def test_what_cannot_be_learnt_from_is_refused() -> None:
    head = AcceptanceHead(SIZE)
    good = examples(8)
    for bad in (
        replace(good, hidden=good.hidden[:, 1:]),
        replace(good, label=good.label[1:]),
        replace(good, confidence=good.confidence[1:]),
        replace(good, weight=np.zeros(8, np.float32)),
        replace(good, weight=np.ones(7, np.float32)),
        replace(good, label=good.label + 1),
        good[:0],
    ):
        with pytest.raises(ValueError, match=r"fit|needs|0…1"):
            head.update(bad)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(1e-6, 1), st.integers(1, 4)), max_size=6))
def test_the_product_of_a_paths_labels_is_its_acceptance(
    positions: list[tuple[float, float, int]],
) -> None:
    p = np.array([position[0] for position in positions], np.float32)
    q = np.array([position[1] for position in positions], np.float32)
    counts = [position[2] for position in positions]
    labels = position_labels(p, q, counts)
    assert labels.shape == (sum(counts),) and labels.dtype == np.float32
    assert ((labels >= 0) & (labels <= 1)).all()
    ends = np.cumsum([0, *counts])
    for i in range(len(positions)):
        product = labels[ends[i] : ends[i + 1]].prod()
        assert product == pytest.approx(min(1.0, p[i] / q[i]), abs=1e-4)
    # A token weighs as much as those before it are likely to stand.
    hidden = np.ones((len(labels), SIZE), np.float32)
    lessons = Lessons.of_round(hidden, labels, p, q, counts)
    before = np.array([labels[:i].prod() for i in range(len(labels))], np.float32)
    kept = before > 1.1e-3
    assert kept.sum() <= len(lessons) <= (before > 0.9e-3).sum()
    np.testing.assert_allclose(lessons.weight[: kept.sum()], before[kept], rtol=1e-4)


# --- in the loop ------------------------------------------------------------------------------


@dataclass
class Seeing(ToyModel):
    """A toy drafter with hidden states: one of two, by the last token's parity."""

    hidden_size: int = SIZE

    def last_hidden(self) -> NDArray[np.float32]:
        state = np.full(SIZE, -1, np.float32)
        state[0] = 8 if self.tokens[-1] % 2 else -8
        return state


def head_for(parity: int) -> AcceptanceHead:
    """Sure after a token of this parity, hopeless after one of the other."""
    head = eager(learning_rate=0.05)
    states = np.full((2, SIZE), -1, np.float32)
    states[:, 0] = [-8, 8]
    states, sure = np.repeat(states, 3, axis=0), np.tile([0.05, 0.5, 0.95], 2).astype(np.float32)
    labels = np.repeat([parity == 0, parity == 1], 3).astype(np.float32)
    for _ in range(150):
        head.update(Lessons(states, sure, labels, np.ones(6, np.float32)))
    assert (abs(head.predict(states, sure) - labels) < 0.1).all()
    return head


@pytest.mark.parametrize("parity", [0, 1])
def test_a_draft_ends_where_the_head_says_so(parity: int) -> None:
    pair = toy_pair(6)
    target = ToyModel(len(pair.target), 3)
    model = Seeing(len(pair.drafter), 4)
    scorer = scorer_of(head_for(parity), model)
    drafting = replace(pair.drafting(4), model=model, policy=Fixed(6, 0.5), scorer=scorer)
    decoder = SpeculativeDecoder(target, drafting)
    assert [e.token for e in decoder.generate([1], 40)] == plain_greedy(target, [1], 40)
    # Every step after the first of a round fed the token drawn before, after which the head was
    # sure: it read the state after the token before that.
    lengths = decoder.statistics.draft_tokens / decoder.statistics.rounds
    without = SpeculativeDecoder(target, replace(drafting, scorer=None, policy=Fixed(6)))
    list(without.generate([1], 40))
    assert 1 < lengths < without.statistics.draft_tokens / without.statistics.rounds


def seeing_rounds(
    sampling: SamplingParameters, verification: Verification = Verification.EXACT
) -> Iterator[tuple[Round, DraftTrace, Lessons]]:
    """Rounds of a drafter with hidden states, and what a buffer kept of each for the head."""
    pair = toy_pair(6)
    target = ToyModel(len(pair.target), 3)
    plain = [surface is not None for surface in pair.target]
    mapping = direct_mapping(pair.native, plain, len(pair.drafter))
    model = Seeing(len(pair.drafter), 4)
    buffer = AdaptationBuffer(mapping, detail=Detail.TOKENS, states=model)
    trace = buffer.trace
    assert trace is not None
    drafting = replace(pair.drafting(4), model=model, policy=Fixed(5))
    shown: list[tuple[Round, DraftTrace, Lessons]] = []

    def observer(seen: Round) -> None:
        buffer.observe(seen)
        lessons = buffer.prompts[-1].rounds[-1].lessons
        if lessons is not None:
            seen = seen._replace(logits=np.stack(seen.logits))
            shown.append((seen, deepcopy(trace), lessons))

    for seed in range(6):
        decoder = SpeculativeDecoder(
            target,
            drafting,
            sampling=sampling,
            verification=verification,
            seed=seed,
            observer=observer,
            steps=trace,
        )
        list(decoder.generate([1, 2], 40))
        buffer.end_prompt()
        yield from shown
        shown.clear()
    assert buffer.nbytes == sum(prompt.nbytes for prompt in buffer.prompts)


def softmax(logits: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
    e = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    return e / e.sum()  # type: ignore[no-any-return]


@pytest.mark.parametrize("followed", [True, False])
def test_sampled_rounds_teach_what_the_target_would_accept(followed: bool) -> None:
    """A seed's tokens stand where plain decoding takes them; others by rejection sampling."""
    merged = judged = 0
    sampling = SamplingParameters(temperature=0.7)
    verification = Verification.EXACT if followed else Verification.PAPER
    for seen, trace, lessons in seeing_rounds(sampling, verification):
        assert seen.followed == followed
        at, weight, labels, weights = 0, 1.0, [], []
        for i, (token, count) in enumerate(zip(seen.tokens, seen.counts, strict=True)):
            p, q = softmax(seen.logits[i], 0.7)[token], 1.0
            for k in range(at, 0 if followed else at + count):
                q *= softmax(trace.logits[k], 0.7)[seen.drafts[k]]
            for _ in range(count):
                labels.append(min(1.0, p / q) ** (1 / count))
                weights.append(weight)
                weight *= labels[-1]
            at += count
            merged += count > 1
        count = len(lessons)
        np.testing.assert_allclose(lessons.label, labels[:count], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(lessons.weight, weights[:count], rtol=1e-3, atol=1e-5)
        assert all(each < 1.1e-3 for each in weights[count:])
        for k in range(count):
            largest = softmax(trace.logits[k], 1.0 if followed else 0.7).max()
            assert lessons.confidence[k] == pytest.approx(largest, rel=1e-3)
            # The hidden state before the token that was drawn there.
            size = np.sqrt(np.square(trace.hidden[k]).mean())
            np.testing.assert_allclose(lessons.hidden[k], trace.hidden[k] / size, rtol=2e-3)
        judged += count
    assert merged > 5 and judged > 100


def test_greedy_rounds_teach_what_was_accepted() -> None:
    labels = []
    for seen, _, lessons in seeing_rounds(SamplingParameters()):
        rejected = seen.accepted < len(seen.tokens)
        stood = sum(seen.counts[: seen.accepted])
        assert lessons.label.tolist() == [1.0] * stood + [0.0] * rejected
        assert (lessons.weight == 1).all()
        labels += lessons.label.tolist()
    assert 0 < sum(labels) < len(labels)


@pytest.mark.parametrize("parity", [0, 1])
def test_sampled_answers_stay_the_targets_while_a_head_decides(parity: int) -> None:
    """The first two tokens of many answers are distributed as the target's."""
    pair = toy_pair(6)
    target = ToyModel(len(pair.target), 3)
    model = Seeing(len(pair.drafter), 4)
    scorer = scorer_of(head_for(parity), model)
    drafting = replace(pair.drafting(4), model=model, policy=Fixed(6, 0.5), scorer=scorer)
    size, runs = len(pair.target), 1500
    counts, drafted = np.zeros((size, size)), set()
    for seed in range(runs):
        decoder = SpeculativeDecoder(
            target, drafting, sampling=SamplingParameters(temperature=1.0), seed=seed
        )
        first, second, *_ = (e.token for e in decoder.generate([1, 2], 5))
        counts[first, second] += 1
        drafted.add(decoder.statistics.draft_tokens)
    assert len(drafted) > 1
    first_p = softmax(target.logits([1, 2]), 1.0)
    p = np.stack([first_p[t] * softmax(target.logits([1, 2, t]), 1.0) for t in range(size)])
    enough = runs * p >= 5
    seen = np.append(counts[enough], counts[~enough].sum())
    wanted = np.append(runs * p[enough], runs * p[~enough].sum())
    assert chisquare(seen, wanted).pvalue > 1e-4


def test_a_head_is_not_used_where_it_cannot_read() -> None:
    """Of another width, or without hidden states."""
    assert scorer_of(AcceptanceHead(SIZE), Seeing(4)) is not None
    assert scorer_of(AcceptanceHead(SIZE + 1), Seeing(4)) is None
    assert scorer_of(AcceptanceHead(SIZE), ToyModel(4)) is None


def test_an_exported_drafter_tells_its_hidden_states(tmp_path: Path) -> None:
    source = write_drafter(tmp_path / "drafter")
    export(str(source), tmp_path / "bundle", "onnx", Options(quantization="none", lora_rank=4))
    model = OnnxModel(tmp_path / "bundle")
    assert isinstance(model, HiddenStates) and model.hidden_size == 64
    from safetensors.numpy import load_file

    weights = load_file(source / "model.safetensors")["lm_head.weight"]
    for tokens, rows in (([5, 6, 7], 1), ([8], 1), ([9, 10], 2), ([11, 12, 13], 1)):
        logits = model.forward(tokens, rows=rows)
        np.testing.assert_allclose(weights @ model.last_hidden(), logits[-1], atol=1e-3)


def test_a_converted_target_does_not_pay_for_it(tmp_path: Path) -> None:
    convert(write_target(tmp_path / "target"), tmp_path / "converted", "float32")
    model = OnnxModel(tmp_path / "converted")
    assert model.hidden_size == 0
