"""Learning while answering: lossless, bounded, never for the worse, and kept on disk."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import needs
from scipy.stats import chisquare
from tiny import write_drafter, write_target
from toy import ToyModel, ToyTree, toy_pair
from typer.testing import CliRunner

from omnidraft import SamplingParameters
from omnidraft._native import Fixed, Lookup
from omnidraft.cli import adapt as adapt_command
from omnidraft.cli.app import app
from omnidraft.cli.interruption import Interrupted
from omnidraft.export.learnable import learnable_drafter
from omnidraft.runtime.answer import Answer
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.decoding.observed import Round
from omnidraft.runtime.errors import (
    DamagedFileError,
    ModelNotFoundError,
    OmniDraftError,
    OptionError,
)
from omnidraft.runtime.learning import trial as trial_module
from omnidraft.runtime.learning import worker as worker_module
from omnidraft.runtime.learning.batches import batches
from omnidraft.runtime.learning.head import AcceptanceHead
from omnidraft.runtime.learning.head_trainer import HeadTrainer
from omnidraft.runtime.learning.learner import AdapterChoice
from omnidraft.runtime.learning.objective import LOSSES, Objective
from omnidraft.runtime.learning.observations import (
    AdaptationBuffer,
    ObservedPrompt,
    direct_mapping,
)
from omnidraft.runtime.learning.optimizer import AdamW
from omnidraft.runtime.learning.store import AdapterStore
from omnidraft.runtime.learning.trainer import LearningOptions
from omnidraft.runtime.learning.training_step import TrainingStep
from omnidraft.runtime.models import LoadedModel, load_model
from omnidraft.runtime.options import DEFAULT_DRAFT_CONFIDENCE, GenerationOptions
from omnidraft.runtime.session import Session
from omnidraft.runtime.storage.bundle import Bundle

pytestmark = pytest.mark.usefixtures("all_cores")

PROMPTS = [f"What is the answer {i}? The quick brown fox" for i in range(12)]
OPTIONS = GenerationOptions(max_new_tokens=24, draft_length=4)


def observed(
    seed: int = 0, prompts: int = 3, tree: bool = False, **options: Any
) -> tuple[Any, AdaptationBuffer]:
    """A toy pair's rounds in a buffer, and what was shown of every round."""
    pair = toy_pair(seed)
    target = (ToyTree if tree else ToyModel)(len(pair.target), seed)
    plain = [surface is not None for surface in pair.target]
    native = pair.native
    buffer = AdaptationBuffer(direct_mapping(native, plain, len(pair.drafter)), **options)
    shown = []

    def observer(seen: Round) -> None:
        shown.append(
            SimpleNamespace(
                context=list(seen.context),
                drafts=list(seen.drafts),
                tokens=list(seen.tokens),
                counts=list(seen.counts),
                logits=np.stack(seen.logits),
                accepted=seen.accepted,
                last=seen.last,
                drafted=len(buffer.trace.confidences) if buffer.trace else 0,
            )
        )
        buffer.observe(seen)

    drafting = pair.drafting(seed + 1)
    if tree:
        model = ToyTree(len(pair.drafter), seed + 1)
        lookup = Lookup(len(pair.target))
        drafting = dataclasses.replace(
            drafting, model=model, policy=Fixed(8), tree=True, lookup=lookup
        )
    for index in range(prompts):
        # As sampled answers do, these differ from one another.
        decoder = SpeculativeDecoder(
            target,
            drafting,
            sampling=SamplingParameters(temperature=1.0),
            seed=index,
            observer=observer,
            steps=buffer.trace,
        )
        list(decoder.generate([1, 2, 1 + index % 3], 30))
        buffer.end_prompt()
    return SimpleNamespace(pair=pair, shown=shown), buffer


# --- what is kept ------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", range(4))
def test_batches_hold_the_targets_own_distributions(seed: int, loss: str, tree: bool) -> None:
    """Every row's context is what the drafter saw, and its distribution the target's there."""
    seen, buffer = observed(seed, kept=1000, tree=tree)
    mapping = buffer.mapping
    # The same draft tokens may stand for several sequences of target tokens.
    expected: dict[tuple[int, ...], list[Any]] = {}
    for shown in seen.shown:
        logits = shown.logits.astype(np.float64)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        at = 0
        for j, row in enumerate(p):
            # Where neither the target nor the drafter has gone on there is nothing to learn.
            if j <= shown.accepted or at < shown.drafted:
                expected.setdefault((*shown.context, *shown.drafts[:at]), []).append(row)
            at += shown.counts[j] if j < len(shown.counts) else 0
    answers = {
        tuple(prompt.tokens[:end])
        for prompt in buffer.prompts
        for end in range(1, len(prompt.tokens) + 1)
    }
    found = set()
    for batch in batches(list(buffer.prompts), Objective(loss), mapping):
        training = batch.training
        inputs = training.inputs(len(seen.pair.drafter))
        assert (inputs["mask"].diagonal() == 0).all()
        for i, row in enumerate(training.rows):
            visible = np.flatnonzero(training.mask[row] == 0)
            assert visible.max() == row
            assert (training.positions[visible] == np.arange(len(visible))).all()
            context = tuple(training.tokens[visible])
            listed = training.direct_ids[i] >= 0 if training.direct_ids.size else np.array([])
            if training.direct_weight[i] == 0 or not listed.any():
                continue
            found.add(context)
            ids, log_p = training.direct_ids[i, listed], training.direct_log_p[i, listed]
            assert len(set(ids)) == len(ids)
            targets = mapping.targets[mapping.place[ids]]

            def agrees(p: Any, targets: Any = targets, log_p: Any = log_p) -> bool:
                return np.allclose(np.exp(log_p), p[targets] / p[mapping.targets].sum(), rtol=1e-3)

            assert any(agrees(p) for p in expected[context])
            assert np.exp(log_p).sum() == pytest.approx(1, abs=2e-2)
        for i, answer in zip(batch.answer_rows, batch.answer, strict=True):
            context = tuple(training.tokens[np.flatnonzero(training.mask[training.rows[i]] == 0)])
            assert (*context, answer) in answers
    if loss == "hybrid":
        assert found == set(expected)


@pytest.mark.parametrize("loss", ["hybrid", "alm"])
def test_ngrams_are_labelled_as_the_target_spelled_them(loss: str) -> None:
    labelled = 0
    for seed in range(6):
        seen, buffer = observed(seed)
        emitted = {
            tuple(s.drafts[sum(s.counts[:j]) : sum(s.counts[: j + 1])])
            for s in seen.shown
            for j in range(len(s.counts))
        }
        known = {tuple(drafts) for _, drafts, _, _ in seen.pair.cache.ngrams()} | emitted
        for batch in batches(list(buffer.prompts), Objective(loss), buffer.mapping):
            training = batch.training
            if loss == "alm":
                for chunk in training.chunks:
                    rows = np.flatnonzero(chunk)
                    drafts = tuple(training.label[rows])
                    assert drafts in known or len(drafts) == 1
                    # One after another in the sequence.
                    places = training.positions[training.rows[rows]]
                    assert (np.diff(places) == 1).all()
                    labelled += len(drafts) > 1
            else:
                labelled += int((training.label_weight > 0).sum())
    assert labelled > 20


def test_without_a_weight_no_ngram_is_labelled() -> None:
    """The hybrid loss is then L_DM: the rows are token boundaries, and all else is the same."""
    _, buffer = observed(2)
    prompts = list(buffer.prompts)
    both, alone = (
        [b.training for b in batches(prompts, Objective("hybrid", weight), buffer.mapping)]
        for weight in (0.2, 0.0)
    )
    assert any(training.label_weight.any() for training in both)
    assert not any(training.label_weight.any() for training in alone)
    assert sum(len(t.rows) for t in alone) < sum(len(t.rows) for t in both)
    for name in ("direct_log_p", "direct_weight"):
        sums = [sum(getattr(t, name).sum() for t in part) for part in (both, alone)]
        assert sums[0] == pytest.approx(sums[1], rel=1e-5)


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_cross_entropy_is_with_every_token_of_the_answer(seed: int, tree: bool) -> None:
    _, buffer = observed(seed, tree=tree)
    for prompt in buffer.prompts:
        labelled = []
        for batch in batches([prompt], Objective("ce"), buffer.mapping):
            training = batch.training
            assert not training.direct_weight.any() and not len(training.chunks)
            for row, label, weight in zip(
                training.rows, training.label, training.label_weight, strict=True
            ):
                assert weight in (0, 1)
                if weight:
                    visible = np.flatnonzero(training.mask[row] == 0)
                    context = training.tokens[visible].tolist()
                    assert [*context, label] == list(prompt.tokens[: len(context) + 1])
                    labelled.append(len(context))
        # Once each, from the answer's first token to the last that was seen to end.
        begin = prompt.rounds[0].begin
        end = max(max(r.end, r.begin + r.stood) for r in prompt.rounds)
        special = sum(not buffer.mapping.plain[r.last] for r in prompt.rounds)
        assert len(set(labelled)) == len(labelled)
        assert set(labelled) <= set(range(begin, end))
        assert len(labelled) >= end - begin - special


class Unread:
    """Stands for rows of logits, and fails when anything looks at them."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the default loss reads rows of logits: {name}")

    def __getitem__(self, rows: Any) -> Any:
        raise AssertionError("the default loss reads rows of logits")

    def __len__(self) -> int:
        raise AssertionError("the default loss reads rows of logits")

    def __iter__(self) -> Any:
        raise AssertionError("the default loss reads rows of logits")


@pytest.mark.parametrize("seed", range(4))
def test_the_default_loss_reads_no_logits_and_learns_the_same(seed: int) -> None:
    """Neither the target's rows nor the drafter's are looked at, kept or reduced."""
    pair = toy_pair(seed)
    target = ToyModel(len(pair.target), seed)
    plain = [surface is not None for surface in pair.target]
    mapping = direct_mapping(pair.native, plain, len(pair.drafter))
    objective = Objective()
    lean = AdaptationBuffer(mapping, detail=objective.detail)
    whole = AdaptationBuffer(mapping)
    assert lean.trace is None, "steps of the drafter are not followed"

    def observer(seen: Round) -> None:
        lean.observe(seen._replace(logits=Unread()))
        whole.observe(seen)

    decoder = SpeculativeDecoder(
        target,
        pair.drafting(seed + 1),
        sampling=SamplingParameters(temperature=1.0),
        seed=seed,
        observer=observer,
        steps=whole.trace,
    )
    list(decoder.generate([1, 2, 1], 60))
    few, many = (list(batches(b.end_prompt(), objective, mapping)) for b in (lean, whole))
    assert len(few) == len(many) > 0
    for one, other in zip(few, many, strict=True):
        assert (one.answer == other.answer).all()
        mine, theirs = (each.training.inputs(len(pair.drafter)) for each in (one, other))
        for name, values in mine.items():
            np.testing.assert_array_equal(values, theirs[name], err_msg=name)
        # Nor does the training step read what was rejected.
        assert len(one.training.tokens) <= len(lean.prompts[0].tokens)
    assert lean.nbytes < whole.nbytes / 2


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weighting", ["fixed", "target"])
def test_what_a_loss_says_it_needs_is_all_it_needs(loss: str, weighting: str) -> None:
    objective = Objective(loss, weighting=weighting)
    _, whole = observed(1)
    _, lean = observed(1, detail=objective.detail)
    few, many = (list(batches(list(b.prompts), objective, b.mapping)) for b in (lean, whole))
    assert len(few) == len(many) > 0
    width = len(whole.mapping.place)
    for one, other in zip(few, many, strict=True):
        mine, theirs = one.training.inputs(width), other.training.inputs(width)
        for name, values in mine.items():
            np.testing.assert_array_equal(values, theirs[name], err_msg=name)


@settings(max_examples=15)
@given(limit=st.integers(3_000, 60_000), prompts=st.integers(1, 6))
def test_the_buffer_keeps_its_bound_and_the_newest(limit: int, prompts: int) -> None:
    _, everything = observed(1, prompts)
    _, buffer = observed(1, prompts, max_bytes=limit)
    assert buffer.nbytes <= limit
    assert buffer.nbytes == sum(prompt.nbytes for prompt in buffer.prompts)
    kept = list(buffer.prompts)
    for mine, full in zip(kept[::-1], list(everything.prompts)[::-1], strict=False):
        assert mine.tokens == full.tokens
        assert [r.begin for r in mine.rounds] == [r.begin for r in full.rounds][-len(mine.rounds) :]
    if everything.nbytes <= limit:
        assert len(kept) == len(everything.prompts)


def test_all_of_an_answer_is_kept_where_the_drafters_context_is_cut() -> None:
    pair = toy_pair(0)
    plain = [surface is not None for surface in pair.target]
    mapping = direct_mapping(pair.native, plain, len(pair.drafter))
    for limit, several in ((1 << 20, True), (2_000, False)):
        buffer = AdaptationBuffer(mapping, max_bytes=limit)
        target, drafting = ToyModel(len(pair.target), 0), pair.drafting(1, max_length=48)
        rounds = []

        def observer(
            seen: Round, rounds: list[int] = rounds, buffer: AdaptationBuffer = buffer
        ) -> None:
            rounds.append(len(seen.context))
            buffer.observe(seen)

        decoder = SpeculativeDecoder(target, drafting, observer=observer, steps=buffer.trace)
        list(decoder.generate([1, 2, 1], 150))
        cuts = sum(b < a for a, b in itertools.pairwise(rounds))
        parts = buffer.end_prompt()
        assert cuts >= 2
        if several:
            assert len(parts) == cuts + 1
            assert sum(len(part.rounds) for part in parts) == len(rounds)
        # What the bound has removed is not kept elsewhere.
        assert [id(part) for part in parts] == [id(part) for part in buffer.prompts]
        assert buffer.nbytes == sum(part.nbytes for part in parts) <= limit
        assert buffer.end_prompt() == []


def test_keeping_more_of_a_distribution_errs_less() -> None:
    _, full = observed(2, kept=1000)
    log_mass = []
    for kept in (1, 3, 6):
        _, buffer = observed(2, kept=kept)
        log_mass.append(
            sum(float(np.exp(r.ids_log_p).sum()) for p in buffer.prompts for r in p.rounds)
        )
        for mine, whole in zip(buffer.prompts, full.prompts, strict=True):
            for a, b in zip(mine.rounds, whole.rounds, strict=True):
                assert np.diff(a.ends, prepend=0).max() <= 2 * kept
                assert a.log_mass == pytest.approx(b.log_mass)
    assert log_mass == sorted(log_mass)


# --- the optimizer -----------------------------------------------------------------------------


def test_adamw_is_torchs() -> None:
    torch = needs("torch")
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((5, 3)).astype(np.float32) for i in range(2)}
    theirs = {name: torch.tensor(values, requires_grad=True) for name, values in weights.items()}
    reference = torch.optim.AdamW(theirs.values(), lr=3e-2, weight_decay=0.1)
    mine = AdamW(weights, 3e-2, weight_decay=0.1)
    for _ in range(20):
        gradients = {n: rng.standard_normal((5, 3)).astype(np.float32) for n in weights}
        mine.step(weights, gradients)
        for name, tensor in theirs.items():
            tensor.grad = torch.tensor(gradients[name])
        reference.step()
    for name, tensor in theirs.items():
        assert weights[name] == pytest.approx(tensor.detach().numpy(), abs=1e-5)


# --- sessions ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class World:
    target: LoadedModel
    drafter: LoadedModel
    root: Path

    def session(self, name: str, **options: Any) -> Session:
        background = options.pop("background", False)
        options.setdefault("interval", 3)
        learning = LearningOptions(**options)
        choice = AdapterChoice(self.store, name, learning, background=background)
        return Session(self.target, self.drafter, adapter=choice)

    @property
    def store(self) -> AdapterStore:
        return AdapterStore(self.root / "store")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("adaptation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIDRAFT_CACHE", str(root / "cache"))
        bundle = learnable_drafter(str(write_drafter(root / "drafter", seed=1)))
        # What was damaged is made again: it is only kept, and can be.
        for damage in (lambda file: file.unlink(), lambda file: file.write_bytes(b"x")):
            for name in ("omnidraft.json", next(bundle.glob("*.onnx")).name):
                damage(bundle / name)
                assert learnable_drafter(str(root / "drafter")) == bundle
                Bundle.load(bundle)
        assert learnable_drafter(str(bundle)) == bundle
        target = load_model(str(write_target(root / "target")))
        yield World(target, load_model(str(bundle)), root)


def always_promote(patch: pytest.MonkeyPatch) -> None:
    """Candidates come into use at once and stay, so that weights change as often as they can."""
    patch.setattr(trial_module.Trial, "better", lambda trial, worth: True)
    patch.setattr(trial_module.Trial, "short_of", lambda trial, worth: False)


@pytest.mark.parametrize("loss", LOSSES)
def test_greedy_answers_stay_the_targets_while_weights_change(
    world: World, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    always_promote(monkeypatch)
    plain = Session(world.target)
    session = world.session(f"greedy-{loss}", objective=Objective(loss), learning_rate=3e-2)
    for prompt in PROMPTS:
        assert (
            session.generate(prompt, OPTIONS).token_ids == plain.generate(prompt, OPTIONS).token_ids
        )
    assert session.learner.trainer.progress.promotions >= 3
    assert session.learner.trainer.progress.updates >= 3
    session.save()


def test_what_learns_drafts_trees_unless_a_head_learns(world: World) -> None:
    options = dataclasses.replace(OPTIONS, draft_length="auto", tree=6)
    session = world.session("trees")
    expected = Session(world.target).generate(PROMPTS[0], options).token_ids
    assert session.generate(PROMPTS[0], options).token_ids == expected
    assert session.last._drafting.tree
    assert session.learner.buffer.prompts[0].rounds
    session = world.session("chains", head="joint")
    with pytest.raises(OptionError, match="acceptance head learns drafts chains"):
        session.generate(PROMPTS[0], options)
    assert session.generate(PROMPTS[0], OPTIONS).token_ids == expected


def test_a_session_keeps_what_its_loss_needs(world: World) -> None:
    for name, loss, traced, kept in (
        ("needs-ce", None, False, False),
        ("needs-alm", Objective("alm"), True, False),
        ("needs-hybrid", Objective("hybrid"), True, True),
    ):
        session = world.session(name, objective=loss)
        session.generate(PROMPTS[0], OPTIONS)
        buffer = session.learner.buffer
        assert (buffer.trace is not None) == traced
        assert any(r.ids.size for p in buffer.prompts for r in p.rounds) == kept
        assert buffer.prompts[0].rounds


def test_a_loss_falls_where_it_is_learned(world: World) -> None:
    session = world.session("falls", interval=1, learning_rate=3e-3)
    session.generate(PROMPTS[0], OPTIONS)
    prompt = session.learner.buffer.prompts[0]
    step = TrainingStep(world.drafter.path)
    trainer = session.learner.trainer
    losses = []
    for _ in range(12):
        losses.append(
            sum(
                step.run(batch.training, trainer._candidate).loss
                for batch in batches([prompt], Objective(), session.learner.buffer.mapping)
            )
        )
        trainer.add([prompt])
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_kept_of_distributions_gives_nearly_their_gradient(
    world: World, temperature: float
) -> None:
    """Of 64 tokens of each model, of 329 direct ones here; the error falls as more are kept."""
    step = TrainingStep(world.drafter.path)

    def gradient(kept: int) -> Any:
        session = world.session(f"reduced-{temperature}-{kept}", budget=0.0)
        learner = session.learner
        learner.buffer = AdaptationBuffer(learner.buffer.mapping, kept=kept)
        for seed, prompt in enumerate(PROMPTS[:4]):
            sampling = SamplingParameters(temperature=temperature)
            options = dataclasses.replace(OPTIONS, sampling=sampling, seed=seed)
            session.generate(prompt, dataclasses.replace(options, draft_confidence=0.0))
        total: dict[str, Any] = {}
        objective = Objective("hybrid", ngram_weight=0.0)
        for batch in batches(list(learner.buffer.prompts), objective, learner.buffer.mapping):
            for name, values in step.run(
                batch.training, learner.trainer._candidate
            ).gradients.items():
                total[name] = total.get(name, 0) + values.astype(np.float64)
        return np.concatenate([values.ravel() for values in total.values()])

    whole = gradient(1000)
    errors = [
        np.linalg.norm(gradient(kept) - whole) / np.linalg.norm(whole) for kept in (16, 32, 64)
    ]
    assert errors == sorted(errors, reverse=True)
    assert 0 < errors[-1] < 0.1


def test_sampled_tokens_follow_the_target_while_weights_change(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first tokens of many sampled answers are distributed as the target's, learning on."""
    always_promote(monkeypatch)
    session = world.session("sampled", interval=8, learning_rate=3e-2)
    prompt, runs = PROMPTS[0], 200
    tokens = session.encode(prompt)
    world.target.model.truncate(0)
    logits = world.target.model.forward(tokens)[-1].astype(np.float64)
    p = np.exp(logits - logits.max())
    p /= p.sum()
    counts = np.zeros(len(p))
    for seed in range(runs):
        options = GenerationOptions(
            max_new_tokens=3, sampling=SamplingParameters(temperature=1.0), seed=seed
        )
        counts[session.generate(prompt, options).token_ids[0]] += 1
    assert session.learner.trainer.progress.promotions > 10
    enough = runs * p >= 5
    seen = np.append(counts[enough], counts[~enough].sum())
    wanted = np.append(runs * p[enough], runs * p[~enough].sum())
    assert chisquare(seen, wanted).pvalue > 1e-4


def test_an_update_that_does_harm_is_rolled_back(world: World) -> None:
    session = world.session("harm", interval=2)
    for prompt in PROMPTS[:4]:
        session.generate(prompt, OPTIONS)
    trainer = session.learner.trainer
    before = trainer.state()[0]
    for values in trainer._candidate.values():
        values[...] = np.random.default_rng(0).standard_normal(values.shape)
    trainer.progress.trial = trial_module.Trial()

    # Trusted weights that predict the answers, so that there is something to lose.
    def good(self: TrainingStep, batch: Any, lora: Any, options: Any = None) -> Any:
        return np.append(batch.tokens, 0)[batch.rows + 1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingStep, "best", good)
        patch.setattr(trial_module, "FEWEST", 2)
        for prompt in PROMPTS[4:12]:
            session.generate(prompt, OPTIONS)
    assert trainer.progress.rollbacks >= 1
    assert trainer.progress.promotions == 0
    after = trainer.state()[0]
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    for name, values in trainer._candidate.items():
        assert np.abs(values - trainer._trusted[name]).max() < 0.1


@pytest.mark.parametrize("gained", [1, 3])
def test_a_first_lora_must_be_worth_its_time(world: World, gained: int) -> None:
    """What predicts a token more in every answer does, beyond chance; it must be a hundredth."""
    session = world.session(f"worth-{gained}", interval=2)
    for prompt in PROMPTS[:4]:
        session.generate(prompt, OPTIONS)
    trainer = session.learner.trainer
    answer = session.learner.buffer.prompts[-1]
    trial = trial_module.Trial()
    for _ in range(trial_module.FEWEST):
        trial.add(gained, 200)
    trainer.progress.trial = trial
    trainer.add([answer])
    trainer.add([answer])
    assert trainer.progress.promotions == (gained > 2)
    trainer._used, trainer.progress.trial = True, trial
    trainer.add([answer])
    trainer.add([answer])
    assert trainer.progress.promotions == 1 + (gained > 2)


def test_weights_in_use_that_do_harm_are_withdrawn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they came into use: what helped one task may harm another, and luck may promote."""
    monkeypatch.setattr(trial_module, "FEWEST", 4)
    session = world.session("withdrawn", interval=2, learning_rate=0.0)
    session.generate(PROMPTS[0], OPTIONS)
    learner, trainer = session.learner, session.learner.trainer
    for values in trainer._trusted.values():
        values[...] = 0.1
    trainer._used = trainer._fresh = True

    def best(self: TrainingStep, batch: Any, lora: Any, options: Any = None) -> Any:
        harmful = all((values == np.float32(0.1)).all() for values in lora.values())
        answer = np.append(batch.tokens, 0)[batch.rows + 1]
        return answer + 1 if harmful else answer

    monkeypatch.setattr(TrainingStep, "best", best)
    session.generate(PROMPTS[1], OPTIONS)
    assert world.drafter.model.adapter is not None
    for prompt in PROMPTS[2:8]:
        session.generate(prompt, OPTIONS)
    assert trainer.progress.withdrawals == 1
    assert world.drafter.model.adapter is None
    session.save()
    assert world.store.read("withdrawn").lora == {}
    # The candidate begins anew as well.
    assert all((values != np.float32(0.1)).any() for values in trainer._candidate.values())
    assert learner.trainer.progress.defence == trial_module.Trial()


def test_gradients_that_are_not_numbers_are_rolled_back(world: World) -> None:
    session = world.session("nan", interval=1)
    for prompt in PROMPTS[:3]:
        session.generate(prompt, OPTIONS)
    trainer = session.learner.trainer
    assert trainer.progress.steps == 3 and trainer.progress.trial.prompts > 0
    for values in trainer._candidate.values():
        values.fill(np.nan)
    session.generate(PROMPTS[3], OPTIONS)
    assert trainer.progress.rollbacks == 1
    assert all(np.isfinite(values).all() for values in trainer._candidate.values())
    # Nor does the next session go on with what the diverged candidate had achieved.
    session.save()
    again = world.session("nan", interval=1).learner.trainer
    assert again.progress.trial == trial_module.Trial()
    assert again.progress.steps == again._optimizer.steps == 0


def prompt_with(accepted: int, proposed: int, base: ObservedPrompt) -> ObservedPrompt:
    return dataclasses.replace(base, accepted=accepted, proposed=proposed)


def test_learning_stops_when_it_does_not_help_and_resumes_on_drift(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_module, "PATIENCE", 2)
    monkeypatch.setattr(trial_module.Trial, "better", lambda trial, worth: False)
    session = world.session("stops", interval=2)
    session.generate(PROMPTS[0], OPTIONS)
    base = session.learner.buffer.prompts[0]
    trainer = session.learner.trainer
    for _ in range(20):
        trainer.add([prompt_with(6, 10, base)])
    assert trainer.progress.stopped
    updates, seconds = trainer.progress.updates, trainer.progress.seconds
    for _ in range(20):
        trainer.add([prompt_with(6, 10, base)])
    assert (trainer.progress.updates, trainer.progress.seconds) == (updates, seconds)
    for _ in range(20):
        trainer.add([prompt_with(3, 10, base)])
        if not trainer.progress.stopped:
            break
    assert not trainer.progress.stopped
    assert trainer.progress.seconds > seconds


def test_another_loss_goes_on_from_the_weights_alone(world: World) -> None:
    session = world.session("losses", objective=Objective("hybrid"))
    for prompt in PROMPTS[:5]:
        session.generate(prompt, OPTIONS)
    session.save()
    same = world.session("losses").learner.trainer
    assert same.objective == Objective("hybrid")
    assert same.progress.steps == 1 and same.progress.pending == 2
    other = world.session("losses", objective=Objective("ce")).learner.trainer
    assert other.progress.loss == "ce"
    assert other.progress.steps == other.progress.pending == 0
    assert not any(values.any() for values in other._optimizer.first.values())


def test_an_interrupted_update_is_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    session = world.session("interrupted", interval=2)
    for prompt in PROMPTS[:3]:
        session.generate(prompt, OPTIONS)
    trainer = session.learner.trainer
    before = trainer.state()
    roots = itertools.count()

    def sqrt(x: Any) -> Any:
        if next(roots) == 3:
            raise KeyboardInterrupt
        return x**0.5

    monkeypatch.setattr(
        "omnidraft.runtime.learning.optimizer.np", SimpleNamespace(**vars(np) | {"sqrt": sqrt})
    )
    with pytest.raises(KeyboardInterrupt):
        trainer._optimizer.step(trainer._candidate, trainer._gradients)
    after = trainer.state()
    assert after[2] == before[2] and trainer._optimizer.steps == before[2].steps
    for name, values in before[1].items():
        assert np.array_equal(after[1][name], values), name


def test_a_session_goes_on_where_the_last_one_ended(world: World) -> None:
    whole = world.session("whole")
    for prompt in PROMPTS[:8]:
        whole.generate(prompt, OPTIONS)
    whole.save()
    for part in (PROMPTS[:2], PROMPTS[2:7], PROMPTS[7:8]):
        session = world.session("parts")
        for prompt in part:
            session.generate(prompt, OPTIONS)
        session.save()
    one, other = world.store.read("whole"), world.store.read("parts")
    assert one.metadata.updates == other.metadata.updates == 2
    assert one.metadata.prompts == other.metadata.prompts == 8
    assert one.ngrams == other.ngrams != b""
    assert one.lora.keys() == other.lora.keys()
    for mine, theirs in ((one.lora, other.lora), (one.optimizer, other.optimizer)):
        assert mine.keys() == theirs.keys()
        for name, values in mine.items():
            assert np.array_equal(values, theirs[name]), name


def test_a_killed_run_leaves_what_was_saved_last(world: World, tmp_path: Path) -> None:
    script = tmp_path / "learn.py"
    script.write_text(
        f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from omnidraft.runtime.learning.store import AdapterStore
from omnidraft.runtime.learning.learner import AdapterChoice
from omnidraft.runtime.models import load_model
from omnidraft.runtime.options import GenerationOptions
from omnidraft.runtime.session import Session
from omnidraft.runtime.learning.trainer import LearningOptions
store = AdapterStore(Path({str(tmp_path / "store")!r}))
choice = AdapterChoice(store, "killed", LearningOptions(interval=1))
target, drafter = load_model({str(world.target.path)!r}), load_model({str(world.drafter.path)!r})
session = Session(target, drafter, adapter=choice)
while True:
    session.generate("What is the answer?", GenerationOptions(max_new_tokens=8, draft_length=4))
    print(session.learner.trainer.progress.updates, flush=True)
"""
    )
    environment = {**os.environ, "OMNIDRAFT_CACHE": str(world.root / "cache")}
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, env=environment, text=True
    )
    try:
        for _ in range(4):
            last = int(process.stdout.readline())
        time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    adapter = AdapterStore(tmp_path / "store").read("killed")
    assert adapter.metadata.updates >= last
    assert adapter.optimizer


def test_a_thread_learns_beside_answers_and_pauses_for_prompts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    always_promote(monkeypatch)
    plain = Session(world.target)
    session = world.session("thread", background=True, interval=2, budget=0.5)
    trainer = session.learner.trainer
    computing: list[bool] = []
    forward = world.target.model.forward

    def watched(tokens: Any, rows: Any = None) -> Any:
        computing.append(trainer._running is not None and not trainer._allowed.is_set())
        return forward(tokens, rows)

    for prompt in PROMPTS:
        assert (
            session.generate(prompt, OPTIONS).token_ids == plain.generate(prompt, OPTIONS).token_ids
        )
    session.save()
    assert trainer.progress.prompts == len(PROMPTS)
    assert trainer.progress.updates == len(PROMPTS) // 2
    assert world.store.read("thread").metadata.updates == len(PROMPTS) // 2
    # Nothing is computed from pause to resume; what was under way is done afterwards.
    trainer.pause()
    trainer.add([session.learner.buffer.prompts[0]])
    time.sleep(0.1)
    seconds = trainer.progress.seconds
    time.sleep(0.2)
    assert trainer.progress.seconds == seconds
    trainer.resume()
    trainer.drain()
    assert trainer.progress.prompts == len(PROMPTS) + 1
    trainer.close()
    assert threading.active_count() < 10


@pytest.mark.parametrize("budget", [0.2, 0.5])
def test_the_budget_bounds_the_share_of_time(
    world: World, budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which every piece of work takes a second, it rests as long as it has to."""
    session = world.session(f"budget-{budget}", background=True, budget=budget, head="interleaved")
    session.generate(PROMPTS[0], OPTIONS)
    prompt = session.learner.buffer.prompts[0]
    trainer = session.learner.trainer
    trainer.drain()
    clock = itertools.count()
    rests: list[float] = []
    monkeypatch.setattr(worker_module, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(trainer._closing, "wait", rests.append)
    before = trainer.progress.seconds
    for _ in range(4):
        trainer.add([prompt])
    trainer.drain()
    worked = trainer.progress.seconds - before
    assert worked == pytest.approx(len(rests)) and len(rests) > 4
    assert worked / (worked + sum(rests)) == pytest.approx(budget)
    trainer.close()


def test_ending_does_not_wait_for_what_is_to_be_learned(world: World) -> None:
    """As on Ctrl-C: with this budget a prompt takes hours of rests."""
    session = world.session("ended", background=True, budget=1e-6)
    for prompt in PROMPTS[:3]:
        session.generate(prompt, OPTIONS)
    trainer = session.learner.trainer
    assert trainer.waiting
    session.learner.close()
    assert not trainer._thread.is_alive()
    # An answer is still given, and nothing is learned from it.
    prompts = trainer.progress.prompts
    assert session.generate(PROMPTS[3], OPTIONS).token_ids
    assert trainer.progress.prompts == prompts


@pytest.mark.parametrize("budget", [1e-320, 1e-9])
def test_the_smallest_budgets_rest_as_long_as_threads_can(world: World, budget: float) -> None:
    session = world.session(f"smallest-{budget}", background=True, budget=budget)
    session.generate(PROMPTS[0], OPTIONS)
    trainer = session.learner.trainer
    while not trainer.progress.seconds and trainer._error is None:
        time.sleep(0.01)
    time.sleep(0.05)
    assert trainer._error is None and trainer._thread.is_alive()
    trainer.close()


def test_what_cannot_wait_is_counted(world: World) -> None:
    session = world.session("waiting", background=True)
    session.generate(PROMPTS[0], OPTIONS)
    trainer, prompt = session.learner.trainer, session.learner.buffer.prompts[0]
    trainer.drain()
    trainer.pause()
    trainer.add([prompt])
    while not trainer._busy:
        time.sleep(0.01)
    added = 1
    while not trainer.full:
        trainer.add([prompt])
        added += 1
    for _ in range(3):
        trainer.add([prompt])
    assert trainer.progress.skipped == 3 and trainer.waiting == added
    trainer.close()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_the_learning_thread_is_never_less_nice_than_the_process(world: World) -> None:
    nice = []

    def learn() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)
        session = world.session("nice", background=True)
        session.generate(PROMPTS[0], OPTIONS)
        session.save()
        thread = session.learner.trainer._thread
        nice.append(os.getpriority(os.PRIO_PROCESS, thread.native_id))
        session.learner.close()

    thread = threading.Thread(target=learn)
    thread.start()
    thread.join()
    assert nice == [15]


# --- sessions beside each other ------------------------------------------------------------------


def test_sessions_of_one_drafter_have_their_own_weights(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    always_promote(monkeypatch)
    plain = Session(world.target, world.drafter)
    first = plain.generate(PROMPTS[9], OPTIONS).statistics
    learning = world.session("own", interval=1, learning_rate=3e-2)
    for prompt in PROMPTS[:3]:
        learning.generate(prompt, OPTIONS)
    assert world.drafter.model.adapter is not None
    other = Session(world.target, world.drafter)
    again = other.generate(PROMPTS[9], OPTIONS).statistics
    assert (again.rounds, again.accepted) == (first.rounds, first.accepted)
    assert world.drafter.model.adapter is None
    learning.generate(PROMPTS[3], OPTIONS)
    assert world.drafter.model.adapter is not None


def test_a_failed_beginning_does_not_keep_learning_paused(world: World) -> None:
    session = world.session("failed", background=True)
    session.generate(PROMPTS[0], OPTIONS)
    with pytest.raises(OmniDraftError):
        session.generate("\ud800", OPTIONS)
    with pytest.raises(OptionError):
        session.generate(PROMPTS[1], GenerationOptions(max_new_tokens=0))
    session.save()
    assert session.learner.trainer.waiting == 0
    session.learner.close()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("how", ["closed", "interrupted", "dropped"])
def test_an_answer_that_is_broken_off_teaches_nothing(
    world: World, background: bool, how: str
) -> None:
    name = f"{how}-{background}".lower()
    session = world.session(name, interval=1, background=background)
    session.generate(PROMPTS[0], OPTIONS)
    session.save()
    learner = session.learner
    prompts, nbytes = learner.trainer.progress.prompts, learner.buffer.nbytes
    saved = world.store.read(name).metadata
    stream = session.stream(PROMPTS[1], OPTIONS)
    for _ in range(4):
        next(stream)
    if how == "closed":
        stream.close()
    elif how == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            stream.throw(KeyboardInterrupt)
    else:
        del stream
    assert world.store.read(name).metadata == saved
    assert learner.buffer.nbytes == nbytes
    session.save()
    assert learner.trainer.progress.prompts == prompts == 1
    session.generate(PROMPTS[1], OPTIONS)
    session.save()
    assert learner.trainer.progress.prompts == 2
    learner.close()


def test_an_error_of_learning_does_not_hide_one_of_answering(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.session("two-errors", interval=1)

    def fail(*_: object, **__: object) -> None:
        raise OmniDraftError("cannot be saved")

    monkeypatch.setattr(session.learner, "save", fail)
    monkeypatch.setattr(session.learner.trainer, "add", fail)
    monkeypatch.setattr(world.target.model, "forward", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.generate(PROMPTS[0], OPTIONS)
    monkeypatch.undo()
    session.learner.close()


def test_what_could_not_be_saved_is_saved_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.session("late", interval=1)

    def full(*_: object) -> None:
        raise OmniDraftError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(AdapterStore, "save", full)
        with pytest.raises(OmniDraftError, match="full"):
            session.generate(PROMPTS[0], OPTIONS)
    assert all(entry.name != "late" for entry in world.store.list())
    session.learner.trainer.drain()
    session.learner.end()
    assert world.store.read("late").metadata.updates == 1
    session.learner.close()


def test_an_adapter_needs_a_drafter(world: World) -> None:
    with pytest.raises(OmniDraftError, match="none"):
        Session(world.target, adapter=AdapterChoice(world.store, "nope"))


# --- files that do not hold what they should -----------------------------------------------------


def stored_with(world: World, name: str, figures: Any = None, **changes: Any) -> Session:
    """A session that learns into a copy of an adapter, with some of it replaced."""
    if not any(entry.name == "whole-head" for entry in world.store.list()):
        session = world.session("whole-head", interval=2, head="interleaved")
        for prompt in PROMPTS[:5]:
            session.generate(prompt, OPTIONS)
        session.save()
    adapter = world.store.read("whole-head")
    known = adapter.metadata.figures
    for figure, values in (figures or {}).items():
        known = {**known, figure: {**known[figure], **values}}
    metadata = adapter.metadata.model_copy(update={"figures": known})
    for part, change in changes.items():
        whole = dict(getattr(adapter, part))
        changes[part] = {n: v for n, v in (whole | change).items() if v is not None}
    world.store.save(name, dataclasses.replace(adapter, metadata=metadata, **changes))
    return world.session(name)


def test_figures_of_later_versions_are_left_out(world: World) -> None:
    figures = {"learning": {"invented": [1]}, "head": {"invented": 2}}
    session = stored_with(world, "later", figures)
    assert session.learner.trainer.progress.prompts == 5


@pytest.mark.parametrize(
    ("figures", "changes"),
    [
        ({"learning": {"updates": "many"}}, {}),
        ({"learning": {"trial": [1, 2]}}, {}),
        ({"learning": {"loss": "gain"}}, {}),
        ({"head": {"tests": [[1, 2]]}}, {}),
        ({"head": {"training": "never"}}, {}),
        ({}, {"optimizer": {"candidate.lora.0.o.A": None}}),
        ({}, {"optimizer": {"first.lora.0.o.A": np.zeros((1, 1), np.float32)}}),
        ({}, {"head": {"steps": np.array([np.inf], np.float32)}}),
        ({}, {"head": {"w1": None}}),
    ],
)
def test_what_an_adapter_should_not_hold_is_named(
    world: World, figures: dict[str, Any], changes: dict[str, Any]
) -> None:
    with pytest.raises(DamagedFileError, match="learn it again"):
        stored_with(world, "crafted", figures, **changes)


def test_a_lora_of_some_linears_is_learned_on(world: World) -> None:
    rng = np.random.default_rng(0)
    sizes = TrainingStep(world.drafter.path).lora_sizes
    shapes = {"lora.0.o.A": (sizes["lora.0.o.A"], 4), "lora.0.o.B": (4, sizes["lora.0.o.B"])}
    lora = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    world.session("whole-some", rank=4).save()
    adapter = world.store.read("whole-some")
    world.store.save("some", dataclasses.replace(adapter, lora=lora, optimizer={}))
    session = world.session("some", interval=1)
    session.generate(PROMPTS[0], OPTIONS)
    trainer = session.learner.trainer
    assert trainer.progress.updates == 1
    assert set(trainer.state()[0]) == set(sizes)
    assert np.array_equal(trainer.state()[0]["lora.0.o.A"], lora["lora.0.o.A"])


# --- the acceptance head -----------------------------------------------------------------------


def always_proven(patch: pytest.MonkeyPatch) -> None:
    """A head decides whether it is better or not."""
    patch.setattr(HeadTrainer, "proven", lambda self: AcceptanceHead.from_state(self.head.state()))


@pytest.mark.parametrize("training", ["joint", "interleaved"])
def test_greedy_answers_stay_the_targets_while_a_head_learns_and_decides(
    world: World, training: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    always_promote(monkeypatch)
    always_proven(monkeypatch)
    plain = Session(world.target)
    name = f"head-{training}"
    session = world.session(name, interval=2, head=training, learning_rate=3e-2)
    scored = []
    score = AcceptanceHead.score

    def watched(head: AcceptanceHead, hidden: Any, confidence: float) -> float:
        scored.append(score(head, hidden, confidence))
        return scored[-1]

    monkeypatch.setattr(AcceptanceHead, "score", watched)
    for prompt in PROMPTS[:8]:
        assert (
            session.generate(prompt, OPTIONS).token_ids == plain.generate(prompt, OPTIONS).token_ids
        )
    assert len(scored) > 20 and all(0 <= each <= 1 for each in scored)
    updates = session.learner.trainer.progress.updates
    assert session.learner.trainer.head_state[2].updates >= max(1, updates)
    assert session.learner.trainer.progress.promotions >= 2


def test_a_head_is_kept_and_decides_only_when_it_is_proven(world: World) -> None:
    session = world.session("head-kept", interval=2, head="interleaved")
    for prompt in PROMPTS[:5]:
        session.generate(prompt, OPTIONS)
    session.save()
    state, rows, progress = session.learner.trainer.head_state
    assert progress.updates == 2 and progress.pending == 1 and len(rows["label"]) > 0
    assert session.learner.head is None or progress.in_use
    stored = world.store.read("head-kept")
    shown = stored.metadata.figures["head"]
    assert shown == json.loads(json.dumps(dataclasses.asdict(progress)))
    assert stored.head.keys() == state.keys()
    for name, values in state.items():
        assert np.array_equal(stored.head[name], values)

    def reader() -> Session:
        return Session(world.target, world.drafter, adapter=AdapterChoice(world.store, "head-kept"))

    for in_use in (False, True):
        metadata = stored.metadata.model_copy(
            update={"figures": {**stored.metadata.figures, "head": {**shown, "in_use": in_use}}}
        )
        world.store.save("head-kept", dataclasses.replace(stored, metadata=metadata))
        head = reader().learner.head
        assert (head is not None) == in_use
    assert head is not None
    for name, values in head.state().items():
        assert np.array_equal(state[name], values)
    plain = Session(world.target).generate(PROMPTS[6], OPTIONS)
    assert reader().generate(PROMPTS[6], OPTIONS).token_ids == plain.token_ids
    # It goes on as it was trained so far, with what it learned from; "none" does without.
    more = world.session("head-kept", interval=2)
    assert more.learner.head is not None
    more.generate(PROMPTS[7], OPTIONS)
    assert more.learner.trainer.head_state[2].updates == 3
    assert more.learner.trainer.head_state[2].training == "interleaved"
    assert len(more.learner.trainer.head_state[1]["label"]) > len(rows["label"])
    without = world.session("head-kept", head="none")
    assert without.learner.head is None and without.learner.trainer.head_state is None
    without.save()
    assert not world.store.read("head-kept").head
    assert "head" not in world.store.read("head-kept").metadata.figures


def test_a_head_needs_hidden_states(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(world.drafter.model), "hidden_size", 0)
    with pytest.raises(OmniDraftError, match="--head none"):
        world.session("head-blind", head="joint")


def test_a_head_learns_on_when_the_drafter_has_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.session("head-alone", interval=1, head="joint")
    session.learner.trainer.progress.stopped = True
    for prompt in PROMPTS[:2]:
        session.generate(prompt, OPTIONS)
    trainer = session.learner.trainer
    assert trainer.progress.updates == 0 and trainer.head_state[2].updates == 2


def test_a_training_step_of_an_older_version_is_refused(world: World, tmp_path: Path) -> None:
    model = onnx.load(world.drafter.path / "training.onnx")
    outputs = [value for value in model.graph.output if value.name != "best"]
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    onnx.save(model, tmp_path / "training.onnx")
    with pytest.raises(OmniDraftError, match=r"'best'.*Export the drafter again"):
        TrainingStep(tmp_path)


def test_no_budget_learns_nothing(world: World) -> None:
    session = world.session("none", budget=0.0)
    for prompt in PROMPTS[:4]:
        session.generate(prompt, OPTIONS)
    assert session.learner.trainer.progress.prompts == 0


def test_an_adapter_that_does_not_learn_stays_as_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    always_promote(monkeypatch)
    session = world.session("kept", interval=1)
    for prompt in PROMPTS[:3]:
        session.generate(prompt, OPTIONS)
    session.save()
    content = (world.root / "store" / "kept.adapter").read_bytes()
    reader = Session(world.target, world.drafter, adapter=AdapterChoice(world.store, "kept"))
    assert reader.cache is not None and len(reader.cache) > 0
    reader.generate(PROMPTS[4], OPTIONS)
    reader.save()
    assert (world.root / "store" / "kept.adapter").read_bytes() == content
    with pytest.raises(OmniDraftError, match="rank 32, not 8"):
        world.session("kept", rank=8)
    with pytest.raises(ModelNotFoundError, match="adapters list"):
        Session(world.target, world.drafter, adapter=AdapterChoice(world.store, "missing"))


def test_another_targets_adapter_is_refused(world: World, tmp_path: Path) -> None:
    session = world.session("mine")
    session.generate(PROMPTS[0], OPTIONS)
    session.save()
    other = dataclasses.replace(
        world, target=load_model(str(write_target(tmp_path / "other", seed=7)))
    )
    with pytest.raises(OmniDraftError, match="belongs to the target"):
        other.session("mine")


# --- the command -------------------------------------------------------------------------------


def run(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "OMNIDRAFT_CACHE": str(world.root / "cache"),
        "OMNIDRAFT_DATA": str(world.root / "data"),
    }
    return subprocess.run(
        [sys.executable, "-m", "omnidraft", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )


def test_the_command_learns_tests_and_is_used(world: World, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    models = (
        *("--target", str(world.root / "target"), "--drafter", str(world.root / "drafter")),
        *("--max-new-tokens", "16", "--json"),
    )
    done = run(
        world,
        *("adapt", str(prompts), "--adapter", "cli", "--limit", "6", "--test", str(prompts)),
        *("--interval", "2", "--loss", "alm", "--rank", "4", *models),
        *("--head", "joint"),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["prompts"] == 6
    assert report["updates"] + report["rollbacks"] == 3
    assert report["seconds_learning"] > 0
    assert report["peak_memory_bytes"] > 10_000_000
    assert len(report["curve"]) == 6
    assert report["head"]["training"] == "joint" and report["head"]["updates"] == 3
    assert {"bce", "confidence_bce", "in_use"} <= report["head"].keys()
    for when in ("before", "after"):
        assert report[when]["prompts"] == report[when]["identical"] == len(PROMPTS)
    shown = json.loads(run(world, "adapters", "show", "cli", "--json").stdout)
    assert shown["metadata"]["prompts"] == 6
    assert shown["metadata"]["figures"]["head"]["updates"] == 3

    prompt = ("--prompt", PROMPTS[0], "--adapter", "cli", *models)
    answer = run(world, "generate", *prompt)
    assert answer.returncode == 0, answer.stderr
    plain = run(world, "generate", "--no-draft", "--prompt", PROMPTS[0], *models)
    assert json.loads(answer.stdout)["token_ids"] == json.loads(plain.stdout)["token_ids"]
    assert run(world, "generate", "--learn", *prompt).returncode == 0
    shown = json.loads(run(world, "adapters", "show", "cli", "--json").stdout)
    assert shown["metadata"]["prompts"] == 7
    benched = run(world, "bench", str(prompts), "--limit", "2", "--adapter", "cli", *models)
    assert json.loads(benched.stdout)["overall"]["identical"] == 2


def test_whoever_adapts_learns_where_learning_had_stopped(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS[:4]))
    session = world.session("stopped", interval=1)
    session.generate(PROMPTS[0], OPTIONS)
    session.learner.trainer.progress.stopped = True
    session.save()
    monkeypatch.setattr(adapt_command, "open_models", lambda *a, **k: (world.target, world.drafter))
    monkeypatch.setenv("OMNIDRAFT_DATA", str(tmp_path))
    store = AdapterStore(tmp_path / "adapters")
    store.save("stopped", world.store.read("stopped"))
    arguments = ["adapt", str(prompts), "--target", "x", "--adapter", "stopped", "--interval", "2"]
    done = CliRunner().invoke(app, [*arguments, "--max-new-tokens", "8"])
    assert done.exit_code == 0, done.output
    assert "2 updates from 4 prompts" in done.output


@pytest.mark.parametrize("answered", [0, 2])
@pytest.mark.parametrize("there", [False, True])
def test_an_adaptation_that_is_interrupted_keeps_what_it_learned(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answered: int,
    there: bool,
) -> None:
    """And leaves no adapter of nothing."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS[:4]))
    monkeypatch.setattr(adapt_command, "open_models", lambda *a, **k: (world.target, world.drafter))
    monkeypatch.setenv("OMNIDRAFT_DATA", str(tmp_path))
    store = AdapterStore(tmp_path / "adapters")
    if there:
        session = world.session("interrupted", interval=1)
        session.generate(PROMPTS[0], OPTIONS)
        session.save()
        store.save("interrupted", world.store.read("interrupted"))
    before = [path.read_bytes() for path in store.folder.glob("*.adapter")]
    generate, calls = Session.generate, 0

    def interrupted(self: Session, *arguments: Any, **options: Any) -> Answer:
        nonlocal calls
        if calls == answered:
            raise Interrupted(2)
        calls += 1
        return generate(self, *arguments, **options)

    monkeypatch.setattr(Session, "generate", interrupted)
    arguments = ["adapt", str(prompts), "--target", "x", "--adapter", "interrupted"]
    with pytest.raises(Interrupted):
        app([*arguments, "--max-new-tokens", "8"], standalone_mode=False)
    said = capsys.readouterr()
    after = [path.read_bytes() for path in store.folder.glob("*.adapter")]
    if answered:
        assert "2 of 4 prompts were answered" in said.err and len(after) == 1 and after != before
    else:
        assert "nothing was learned yet" in said.err and after == before
        assert ("stays as it was" if there else "has not begun") in said.err and not said.out


@pytest.mark.parametrize("budget", ["0.5", "1"])
def test_an_adaptation_learns_from_every_prompt(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str
) -> None:
    """Also from more than may wait."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": PROMPTS[0]}) + "\n" + 9 * '{"prompt": "What?"}\n')
    monkeypatch.setattr(worker_module, "_QUEUE", 2)
    monkeypatch.setattr(adapt_command, "open_models", lambda *a, **k: (world.target, world.drafter))
    monkeypatch.setenv("OMNIDRAFT_DATA", str(tmp_path))
    arguments = ["adapt", str(prompts), "--target", "x", "--adapter", "a", "--json"]
    arguments += ["--max-new-tokens", "8", "--learn-budget", budget]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["prompts"] == 10


@pytest.mark.parametrize(
    ("given", "head", "confidence"),
    [
        ((), None, DEFAULT_DRAFT_CONFIDENCE),
        (("--head", "interleaved", "--threshold", "0.4"), "interleaved", 0.6),
        (("--head", "none", "--threshold", "1"), "none", 0.0),
    ],
)
def test_how_a_head_is_trained_and_when_a_draft_ends_can_be_chosen(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[str, ...],
    head: str | None,
    confidence: float,
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": PROMPTS[0]}) + "\n")
    monkeypatch.setenv("OMNIDRAFT_DATA", str(tmp_path))
    used = []

    class Watched(Session):
        def generate(self, prompt: str, options: GenerationOptions | None = None) -> Answer:
            used.append((self.learner.trainer.options.head, options.draft_confidence))
            return super().generate(prompt, options)

    monkeypatch.setattr(adapt_command, "Session", Watched)
    monkeypatch.setattr(adapt_command, "open_models", lambda *a, **k: (world.target, world.drafter))
    arguments = ["adapt", str(prompts), "--target", "x", "--adapter", "a", "--interval", "1"]
    done = CliRunner().invoke(app, [*arguments, "--max-new-tokens", "8", *given])
    assert done.exit_code == 0, done.output
    assert used == [(head, pytest.approx(confidence))]
    assert ("acceptance head does not decide yet" in done.output) == (head == "interleaved")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "--prompt", "x", "--learn"), "--adapter"),
        (("generate", "--prompt", "x", "--adapter", "nowhere"), "no adapter"),
        (("generate", "--prompt", "x", "--adapter", "a", "--no-draft"), "plain decoding"),
        (("adapt", "nowhere.jsonl", "--adapter", "a"), "cannot be read"),
        (("adapt", "nowhere.jsonl", "--adapter", "a", "--learning-rate", "inf"), "number"),
        (("adapt", "nowhere.jsonl", "--adapter", "a", "--plot", "/nowhere/a.png"), ""),
    ],
)
def test_bad_requests_end_with_a_message(
    world: World, arguments: tuple[str, ...], message: str
) -> None:
    done = run(
        world,
        *arguments,
        *("--target", str(world.root / "target"), "--drafter", str(world.root / "drafter")),
    )
    assert done.returncode == 2
    assert "error:" in done.stderr.lower() and message in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_loss_is_answered_with_those_there_are() -> None:
    arguments = ["adapt", "nowhere.jsonl", "--target", "x", "--adapter", "a", "--loss", "dm"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "--loss" in done.stderr and "hybrid" in done.stderr


def test_learning_needs_no_torch(world: World, tmp_path: Path) -> None:
    script = f"""
import sys
sys.modules["torch"] = None
sys.modules["transformers"] = None
from pathlib import Path
from omnidraft.runtime.learning.store import AdapterStore
from omnidraft.runtime.learning.learner import AdapterChoice
from omnidraft.export.learnable import learnable_drafter
from omnidraft.runtime.models import load_model
from omnidraft.runtime.options import GenerationOptions
from omnidraft.runtime.session import Session
from omnidraft.runtime.learning.trainer import LearningOptions
choice = AdapterChoice(AdapterStore(Path({str(tmp_path)!r})), "a", LearningOptions(interval=1))
bundle = learnable_drafter({str(world.root / "drafter")!r})
session = Session(load_model({str(world.target.path)!r}), load_model(str(bundle)), adapter=choice)
session.generate("What?", GenerationOptions(max_new_tokens=8, draft_length=4))
session.save()
assert session.learner.trainer.progress.updates == 1
"""
    environment = {**os.environ, "OMNIDRAFT_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
