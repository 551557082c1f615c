"""The drafter learns: the same with one process and two, and with every interruption."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from needs import needs
from test_distill_text import SURFACES, draft_tokenizer, written
from tiny import sentencepiece_tokenizer, write_target

torch = needs("torch")
needs("accelerate")
needs("pyarrow")

from accelerate import Accelerator  # noqa: E402
from filelock import FileLock  # noqa: E402

from omnidraft.distill.batches import Plan  # noqa: E402
from omnidraft.distill.config import Shape, Stage, Training  # noqa: E402
from omnidraft.distill.documents import UNKNOWN, Documents, build  # noqa: E402
from omnidraft.distill.evaluation import evaluate, play  # noqa: E402
from omnidraft.distill.losses import (  # noqa: E402
    likelihood_matching,
    log_likelihoods,
    soft_cross_entropy,
)
from omnidraft.distill.muon import Float32Muon  # noqa: E402
from omnidraft.distill.network import Drafter  # noqa: E402
from omnidraft.distill.run import distill  # noqa: E402
from omnidraft.distill.shards import Shard  # noqa: E402
from omnidraft.distill.spellings import Speller  # noqa: E402
from omnidraft.distill.training import Told, train  # noqa: E402
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError  # noqa: E402

SHAPE = Shape(layers=1, hidden_size=32, feed_forward_size=64, heads=2, positions=128)
WORDS = ["the", "red", "fox", "jumps", "over", "one", "lazy", "dog", "and", "then", "all", "day"]


def documents(count: int = 40, canonical: float = 0.25) -> Documents:
    choose = random.Random(1)
    shard = [written(" ".join(choose.choices(WORDS, k=14)), seed=i) for i in range(count)]
    speller = Speller(draft_tokenizer())
    return build(
        Shard(SURFACES, shard), speller, canonical=canonical, user_weight=0.1, longest=120, seed=0
    )


def plan(rank: int = 0, processes: int = 1, often: float = 1.0) -> Plan:
    return Plan(
        [(documents(), often), (documents(12, 0.0), 0.5)],
        positions=512,
        longest=120,
        cut_heads=True,
        seed=3,
        device="cpu",
        rank=rank,
        processes=processes,
    )


def test_processes_share_each_batch() -> None:
    steps = [plan().steps(0), plan(0, 2).steps(0), plan(1, 2).steps(0)]
    for _ in range(12):
        whole, first, second = (next(each) for each in steps)
        assert whole.weight == first.weight == second.weight
        assert whole.weight == pytest.approx(float(whole.weights.sum()), rel=1e-3)
        parts = sorted(map(tuple, [*first.ids.tolist(), *second.ids.tolist()]))
        assert parts == sorted(map(tuple, whole.ids.tolist()))
        assert len(first.where) + len(second.where) == len(whole.where)


def test_batches_are_the_same_from_any_step_on() -> None:
    whole = plan(often=1.5).steps(0)
    expected = [next(whole) for _ in range(30)]
    for first in (1, 7, 22):
        later = plan(often=1.5).steps(first)
        for batch in expected[first:]:
            assert torch.equal(next(later).ids, batch.ids)


def test_losses_are_their_formulas() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(9, 6, generator=generator, requires_grad=True)
    head = torch.randn(20, 6, generator=generator)
    labels = torch.randint(20, (9, 8), generator=generator)
    shares = torch.rand(9, 8, generator=generator)
    shares = shares / shares.sum(1, keepdim=True)
    weights = torch.rand(9, generator=generator)
    log_q = (hidden @ head.T).log_softmax(-1)
    expected = -sum(
        weights[i] * shares[i, k] * log_q[i, labels[i, k]] for i in range(9) for k in range(8)
    )
    loss = soft_cross_entropy(hidden, head, labels, shares, weights)
    torch.testing.assert_close(loss, expected)
    said = labels[:, 0]
    torch.testing.assert_close(log_likelihoods(hidden, head, said), log_q[torch.arange(9), said])


def test_likelihoods_that_match_cost_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(6, 5, generator=generator, requires_grad=True)
    head = torch.randn(12, 5, generator=generator)
    said = torch.randint(12, (6,), generator=generator)
    own = log_likelihoods(hidden, head, said).detach()
    nothing = float("nan")
    chunks = torch.tensor([nothing, own[:2].sum(), own[2], UNKNOWN, nothing, own[4:].sum()])
    weights = torch.ones(6)
    loss = likelihood_matching(hidden, head, said, chunks, weights)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    assert float(hidden.grad.abs().max()) < 1e-4
    # What is less likely than the teacher has it becomes more likely; the unknown chunk stays.
    hidden.grad = None
    chunks = torch.tensor([nothing, own[:2].sum() + 1, own[2], UNKNOWN, nothing, own[4:].sum()])
    likelihood_matching(hidden, head, said, chunks, weights).backward()
    moved = (hidden - 0.1 * hidden.grad / hidden.grad.norm()).detach()
    after = log_likelihoods(moved, head, said)
    assert float(after[:2].sum()) > float(own[:2].sum())
    assert float(hidden.grad[2:].abs().max()) < 1e-4


class StoppedError(Exception):
    pass


SETTINGS = Training(
    stages=[Stage(steps=14, rate=1e-2, grid=True)], positions=512, longest=120, checkpoint_steps=3
)


def trained(
    checkpoint: Path,
    stop_after: int | None = None,
    settings: Training = SETTINGS,
    tell: Callable[[Told], None] = lambda _: None,
) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = Drafter(SHAPE, draft_tokenizer().vocab_size)
    accelerator = Accelerator(cpu=True)
    steps = 0
    reduce = accelerator.wait_for_everyone

    def counted() -> None:
        nonlocal steps
        steps += 1
        if stop_after is not None and steps >= stop_after:
            raise StoppedError
        reduce()

    accelerator.wait_for_everyone = counted
    train(
        model,
        plan(),
        settings.stages[0],
        settings,
        checkpoint=checkpoint,
        digest="this",
        accelerator=accelerator,
        tell=tell,
    )
    return model.state_dict()


def test_training_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    expected = trained(tmp_path / "whole.pt")
    for _ in range(5):
        try:
            found = trained(tmp_path / "stopped.pt", stop_after=1)
            break
        except StoppedError:
            (tmp_path / ".stopped.pt.tmp").write_bytes(b"half")
    else:
        found = trained(tmp_path / "stopped.pt")
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_slow_steps_are_told_and_kept_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seldom = SETTINGS.model_copy(update={"checkpoint_steps": 500})
    expected = trained(tmp_path / "whole.pt")
    # Minutes pass from one look at the clock to the next.
    clock = SimpleNamespace(monotonic=map(float, count(0, 200)).__next__)
    monkeypatch.setattr("omnidraft.distill.training.time", clock)
    steps = []

    def tell(told: Told) -> None:
        steps.append(told.step)
        if len(steps) == 6:
            raise StoppedError

    with pytest.raises(StoppedError):
        trained(tmp_path / "stopped.pt", settings=seldom, tell=tell)
    assert steps == [1, 2, 3, 4, 5, 6]
    found = trained(tmp_path / "stopped.pt", settings=seldom, tell=tell)
    assert steps == [*range(1, 7), *range(6, 15)]
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("shape", [(32, 80), (80, 32), (32, 32)])
def test_muon_is_torchs_but_for_rounding(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    begin = torch.randn(shape, generator=generator)
    mine, theirs = torch.nn.Parameter(begin.clone()), torch.nn.Parameter(begin.clone())
    how = {"lr": 0.1, "weight_decay": 0.02, "momentum": 0.95}
    optimizers = [
        Float32Muon([mine], **how),
        torch.optim.Muon([theirs], adjust_lr_fn="match_rms_adamw", **how),
    ]
    for _ in range(3):
        mine.grad = torch.randn(shape, generator=generator)
        theirs.grad = mine.grad.clone()
        for each in optimizers:
            each.step()
    moved = theirs - begin
    assert float((mine - theirs).detach().norm() / moved.detach().norm()) < 0.03


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "a.pt")
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    torch.save(content | {"digest": "other"}, tmp_path / "b.pt")
    with pytest.raises(DamagedFileError, match="another configuration"):
        trained(tmp_path / "b.pt")
    (tmp_path / "c.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:1000])
    with pytest.raises(DamagedFileError, match="Delete it"):
        trained(tmp_path / "c.pt")


@pytest.mark.parametrize(
    ("matches", "rounds"),
    [
        ([True] * 6, 2),  # four drafted and the target's own; then one
        ([False] * 6, 6),
        ([True, False, True, True, True, True], 2),
        ([True, True, True, False, True, True], 2),
    ],
)
def test_rounds_of_single_tokens(matches: list[bool], rounds: int) -> None:
    owner, said = np.arange(6), np.ones(6, np.bool_)
    assert play(np.array(matches), owner, said, 4) == (6, rounds)


def test_only_whole_tokens_of_the_target_are_accepted() -> None:
    # Tokens of 3, 1 and 2 draft tokens, of which the third draft token is wrong.
    owner = np.array([0, 0, 0, 1, 2, 2])
    said = np.ones(3, np.bool_)
    matches = np.array([True, True, False, True, True, True])
    # The first token is the target's own; then 1 and 2 are drafted.
    assert play(matches, owner, said, 4) == (3, 2)
    assert play(matches, owner, np.array([False, True, True]), 4) == (2, 1)
    assert play(matches, owner, np.array([False, True, True]), 2) == (2, 1)


def test_a_drafter_is_measured_on_greedy_answers_alone() -> None:
    speller = Speller(draft_tokenizer())
    model = Drafter(SHAPE, speller.vocab_size)
    greedy, sampled = written("one thing"), written("another thing")
    sampled.top[-1, 0] = (sampled.tokens[-1] + 1) % len(SURFACES)
    figures = evaluate(model, [(SURFACES, greedy), (SURFACES, sampled)], speller)
    assert figures.answers == 1
    assert figures.tokens == int((greedy.kinds == 2).sum())
    assert 1 <= figures.tokens_per_round <= 5


CONFIG = """
name = "toy"
held_out = 3
tokenizer = "tokenizer"
[drafter]
layers = 1
hidden_size = 32
feed_forward_size = 64
heads = 2
positions = 256
drafted_tokens = 400
[[teachers]]
kind = "text"
name = "lines"
licence = "CC0-1.0"
files = ["lines.jsonl"]
[sampling]
shard_tokens = 40
[training]
positions = 1024
longest = 120
checkpoint_steps = 2
[[training.stages]]
steps = 16
rate = 1e-2
loss = "hard"
[[training.stages]]
steps = 8
rate = 1e-3
loss = "hard"
grid = true
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    choose = random.Random(2)
    with (folder / "lines.jsonl").open("w") as file:
        for _ in range(90):
            text = " ".join(choose.choices(WORDS, k=12))
            file.write(json.dumps({"text": text}) + "\n")
    (folder / "tokenizer").mkdir()
    sentencepiece_tokenizer().save(str(folder / "tokenizer" / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "toy.toml").write_text(CONFIG)
    return folder


def command(toy: Path, output: Path, processes: int = 1) -> list[str]:
    words = ["-m", "omnidraft", "distill", str(toy / "toy.toml"), "--output", str(output)]
    if processes == 1:
        return [sys.executable, *words]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [sys.executable, *launcher, *words]


def weights(output: Path) -> dict[str, torch.Tensor]:
    return torch.load(output / "training" / "stage-2.pt", weights_only=True)["model"]


def losses(output: Path) -> dict[int, float]:
    """The mean loss of each stage."""
    lines = (output / "training" / "log.jsonl").read_text().splitlines()
    return {each["stage"]: each["loss"] for each in map(json.loads, lines)}


def run(words: list[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(toy: Path) -> Path:
    output = toy / "made"
    done = run(command(toy, output))
    said, _ = done.communicate()
    assert done.returncode == 0, said
    return output


def test_one_command_makes_a_drafter_that_drafts(made: Path, tmp_path: Path) -> None:
    from omnidraft import load

    drafter = made / "drafter"
    figures = json.loads((drafter / "figures.json").read_text())["lines"]
    assert figures["answers"] == 3
    assert "CC0-1.0" in (drafter / "README.md").read_text()
    target = write_target(tmp_path / "target")
    with load(target, drafter=drafter) as model:
        # By cost nothing may be worth drafting for so small a target.
        answer = model.generate("the red fox", max_new_tokens=16, draft_length=4)
    with load(target, drafter=None) as model:
        plain = model.generate("the red fox", max_new_tokens=16)
    assert answer.token_ids == plain.token_ids
    assert answer.stats.proposed > 0


def test_a_few_documents_are_enough_and_the_beginning_is_measured(
    made: Path, tmp_path: Path
) -> None:
    with (tmp_path / "lines.jsonl").open("w") as file:
        for i in range(9):
            file.write(json.dumps({"text": " ".join(WORDS[i % 4 :])}) + "\n")
    text = CONFIG.replace("held_out = 3", "").replace("shard_tokens = 40", "shard_tokens = 1")
    head, _, _ = text.partition("[[training.stages]]")
    text = head.replace("[drafter]", f'[drafter]\nstart = "{made / "drafter"}"')
    # So low a rate leaves the drafter what it was.
    stage = '[[training.stages]]\nsteps = 1\nrate = 1e-12\nloss = "hard"\n'
    (tmp_path / "few.toml").write_text(text + stage)
    result = distill(tmp_path / "few.toml", tmp_path / "few")
    # A quarter of nine documents, in shards of one.
    assert result.figures["lines"].answers == 2
    assert result.before["lines"].rounds == result.figures["lines"].rounds
    assert len(list((tmp_path / "few" / "documents").rglob("*.safetensors"))) == 7
    figures = json.loads((result.folder / "figures.json").read_text())
    assert figures["lines"]["before"]["answers"] == 2
    assert "lines, before" in (result.folder / "README.md").read_text()


def test_a_run_that_is_whole_does_nothing_anew(made: Path, toy: Path) -> None:
    before = weights(made)
    done = run(command(toy, made))
    said, _ = done.communicate()
    assert done.returncode == 0, said
    assert "step" not in said
    for name, value in weights(made).items():
        assert torch.equal(value, before[name])


@pytest.fixture(scope="module")
def by_two(toy: Path) -> Path:
    output = toy / "two"
    done = run(command(toy, output, processes=2))
    said, _ = done.communicate()
    assert done.returncode == 0, said
    return output


def test_two_processes_learn_what_one_learns(made: Path, by_two: Path) -> None:
    assert losses(by_two)[1] == pytest.approx(losses(made)[1], rel=1e-5)


def written_at(output: Path) -> set[tuple[str, int]]:
    """The checkpoints, and when they were written."""
    paths = (output / "training").glob("*.pt")
    return {(path.name, path.stat().st_mtime_ns) for path in paths}


def test_kills_change_nothing(by_two: Path, toy: Path) -> None:
    output = toy / "killed"
    choose = random.Random(5)
    for _ in range(int(os.environ.get("OMNIDRAFT_KILLS", "3"))):
        running = run(command(toy, output, processes=2))
        # Some time after it has written a checkpoint, or after a while.
        end, before = time.monotonic() + 60, written_at(output)
        while time.monotonic() < end and written_at(output) == before:
            if running.poll() is not None:
                break
            time.sleep(0.1)
        time.sleep(choose.random())
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
    done = run(command(toy, output, processes=2))
    said, _ = done.communicate()
    assert done.returncode == 0, said
    for name, value in weights(by_two).items():
        assert torch.equal(weights(output)[name], value), name


def test_another_configuration_does_not_touch_the_folder(
    made: Path, toy: Path, tmp_path: Path
) -> None:
    changed = toy / "changed.toml"
    changed.write_text(CONFIG.replace("steps = 8", "steps = 9"))
    words = [sys.executable, "-m", "omnidraft", "distill", str(changed), "--output", str(made)]
    done = run(words)
    said, _ = done.communicate()
    assert done.returncode == 2
    assert "another configuration" in said and "Traceback" not in said


@pytest.mark.parametrize("kept", ["", "name = 3", CONFIG.replace("[training]", "[trainings]")])
def test_a_folder_with_something_else_is_left_alone(toy: Path, tmp_path: Path, kept: str) -> None:
    copy = tmp_path / "config.toml"
    copy.write_text(kept)
    with pytest.raises(OmniDraftError, match="another configuration"):
        distill(toy / "toy.toml", tmp_path)
    assert copy.read_text() == kept


def test_one_run_at_a_time_works_in_a_folder(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnidraft.distill.run._SOON", 0.1)
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(OmniDraftError, match="Another process makes a drafter"),
    ):
        distill(toy / "toy.toml", tmp_path)
    assert not (tmp_path / "config.toml").exists()


def test_other_sizes_than_those_it_begins_with_are_told_before_anything_is_sampled(
    toy: Path, tmp_path: Path
) -> None:
    other = toy / "other.toml"
    changed = CONFIG.replace("layers = 1", 'layers = 2\nstart = "default"')
    other.write_text(changed.replace('tokenizer = "tokenizer"\n', ""))
    with pytest.raises(OmniDraftError, match="other sizes"):
        distill(other, tmp_path / "made")
    assert not (tmp_path / "made").exists()
