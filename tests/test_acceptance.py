"""The acceptance head: it learns what the target accepts, is kept, and drives the draft length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny import write_drafter, write_target
from toy import ToyModel, plain_greedy, toy_pair

from omnidraft.export.pipeline import export
from omnidraft.export.recipes import Options
from omnidraft.runtime.acceptance import AcceptanceHead, HeadTrainer, HeadTraining, position_labels
from omnidraft.runtime.convert import convert
from omnidraft.runtime.decoder import SpeculativeDecoder
from omnidraft.runtime.draft_length import Fixed
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.errors import DamagedFileError
from omnidraft.runtime.model import HiddenStates

SIZE = 24


def examples(count: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Hidden states and chances of acceptance that are a curved function of them."""
    hidden = np.random.default_rng(seed).standard_normal((count, SIZE)).astype(np.float32)
    unit = hidden / np.sqrt(np.square(hidden).mean(1, keepdims=True))
    logit = 2 * unit[:, 0] + 2 * np.abs(unit[:, 1]) - 1.5
    return hidden, (1 / (1 + np.exp(-logit))).astype(np.float32)


def entropy(y: NDArray[np.float32], f: NDArray[np.float32]) -> float:
    return float(-(y * np.log(f) + (1 - y) * np.log(1 - f)).mean())


@pytest.mark.parametrize("training", ["joint", "interleaved"])
def test_learns_what_is_accepted(training: HeadTraining) -> None:
    head = AcceptanceHead(SIZE)
    trainer = HeadTrainer(head, training, capacity=2000)
    losses = []
    for step in range(600 if training == "joint" else 80):
        hidden, chance = examples(64, seed=step)
        losses.append(trainer.take(hidden, chance))
    hidden, chance = examples(2000, seed=10**6)
    least = entropy(chance, chance)
    found = entropy(chance, head.predict(hidden))
    ignorant = entropy(chance, np.full_like(chance, chance.mean()))
    assert found < least + 0.25 * (ignorant - least)
    assert np.mean(losses[-10:]) < losses[0]
    scores = [head.score(row) for row in hidden[:50]]
    np.testing.assert_allclose(scores, head.predict(hidden[:50]), rtol=1e-4)


def test_interleaved_learns_more_from_as_many_batches() -> None:
    found = {}
    hidden, chance = examples(2000, seed=10**6)
    for training in ("joint", "interleaved"):
        trainer = HeadTrainer(AcceptanceHead(SIZE), training)
        for step in range(60):
            trainer.take(*examples(32, seed=step))
        found[training] = entropy(chance, trainer.head.predict(hidden))
    assert found["interleaved"] < found["joint"]


@pytest.mark.parametrize("name", ["w1", "b1", "w2", "b2"])
def test_the_gradient_is_that_of_the_loss(name: str) -> None:
    """AdamW's first step without decay goes along the gradient's sign, by the rate."""
    hidden, chance = examples(40)
    weight = np.random.default_rng(1).random(40).astype(np.float32)
    head = AcceptanceHead(SIZE, width=6, rejection_weight=3.0, weight_decay=0.0)
    for step in range(5):
        head.update(*examples(40, seed=step))
    state = head.state()
    head.learning_rate = 1e-6
    head.update(hidden, chance, weight)
    first = 0.9
    gradient = (head.state()[f"mean.{name}"] - first * state[f"mean.{name}"]) / (1 - first)
    step = np.float32(2e-2)
    for index in list(np.ndindex(gradient.shape))[:: max(1, gradient.size // 12)]:
        losses = []
        for side in (step, -step):
            moved = {key: value.copy() for key, value in state.items()}
            moved[name][index] += side
            other = AcceptanceHead.from_state(moved)
            losses.append(other.update(hidden, chance, weight))
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(gradient[index], abs=2e-4)


def test_rejections_that_count_more_make_it_careful() -> None:
    hidden, _ = examples(2000)
    means = []
    for rejection_weight in (1.0, 6.0):
        trainer = HeadTrainer(
            AcceptanceHead(SIZE, rejection_weight=rejection_weight), "interleaved"
        )
        for step in range(20):
            trainer.take(*examples(64, seed=step))
        means.append(trainer.head.predict(hidden).mean())
    assert means[1] < means[0] - 0.1


def test_weights_choose_what_is_learnt() -> None:
    hidden, chance = examples(64)
    heads = [AcceptanceHead(SIZE), AcceptanceHead(SIZE)]
    heads[0].update(hidden, chance, np.repeat([1, 0], 32).astype(np.float32))
    heads[1].update(hidden[:32], chance[:32])
    np.testing.assert_allclose(heads[0].predict(hidden), heads[1].predict(hidden), rtol=1e-5)


def test_the_buffer_is_bounded_and_keeps_the_newest() -> None:
    head = AcceptanceHead(SIZE)
    trainer = HeadTrainer(head, "interleaved", capacity=50, updates=1)
    for step in range(7):
        trainer.take(*examples(30, seed=step))
        assert trainer.rows == min(50, 30 * (step + 1))
    # 50 rows of an opposite world push the old ones out.
    hidden, chance = examples(120, seed=99)
    trainer.take(hidden, 1 - chance)
    assert trainer.rows == 50
    for _ in range(150):
        trainer.take(hidden[-50:], 1 - chance[-50:])
    assert np.corrcoef(head.predict(hidden[-50:]), chance[-50:])[0, 1] < -0.5


def test_a_head_goes_on_where_its_state_was_taken() -> None:
    head = AcceptanceHead(SIZE, rejection_weight=2.0)
    for step in range(5):
        head.update(*examples(20, seed=step))
    state = head.state()
    assert all(value.dtype == np.float32 for value in state.values())
    other = AcceptanceHead.from_state(state)
    for each in (head, other):
        each.update(*examples(20, seed=50))
    hidden, _ = examples(30, seed=60)
    np.testing.assert_array_equal(head.predict(hidden), other.predict(hidden))
    assert other.steps == head.steps == 6


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
    hidden, chance = examples(8)
    for bad in (
        (hidden[:, 1:], chance, None),
        (hidden, chance[1:], None),
        (hidden, chance, np.zeros(8, np.float32)),
        (hidden, chance, np.ones(7, np.float32)),
        (hidden, chance + 1, None),
        (hidden[:0], chance[:0], None),
    ):
        with pytest.raises(ValueError, match=r"fit|needs|0…1"):
            head.update(*bad)


@settings(max_examples=50, deadline=None)
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
    head = AcceptanceHead(SIZE, learning_rate=0.05)
    states = np.full((2, SIZE), -1, np.float32)
    states[:, 0] = [-8, 8]
    labels = np.array([parity == 0, parity == 1], np.float32)
    for _ in range(60):
        head.update(states, labels)
    assert (abs(head.predict(states) - labels) < 0.1).all()
    return head


@pytest.mark.parametrize("parity", [0, 1])
def test_a_draft_ends_where_the_head_says_so(parity: int) -> None:
    pair = toy_pair(6)
    target = ToyModel(len(pair.target), 3)
    drafting = pair.drafting(4)
    model = Seeing(len(pair.drafter), 4)
    drafting = replace(drafting, model=model, policy=Fixed(6, 0.5), head=head_for(parity))
    decoder = SpeculativeDecoder(target, drafting)
    assert [e.token for e in decoder.generate([1], 40)] == plain_greedy(target, [1], 40)
    # Every step after the first of a round fed the token drawn before, after which the head was
    # sure: it read the state after the token before that.
    lengths = decoder.statistics.draft_tokens / decoder.statistics.rounds
    without = SpeculativeDecoder(target, replace(drafting, head=None, policy=Fixed(6)))
    list(without.generate([1], 40))
    assert 1 < lengths < without.statistics.draft_tokens / without.statistics.rounds


def test_a_head_of_another_width_is_not_used() -> None:
    pair = toy_pair(6)
    target = ToyModel(len(pair.target), 3)
    drawn = []
    for head in (None, AcceptanceHead(SIZE + 1)):
        drafting = replace(pair.drafting(4), model=Seeing(len(pair.drafter), 4), head=head)
        decoder = SpeculativeDecoder(target, replace(drafting, policy=Fixed(6, 0.3)))
        list(decoder.generate([1], 40))
        drawn.append(decoder.statistics.draft_tokens)
    assert drawn[0] == drawn[1]


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
