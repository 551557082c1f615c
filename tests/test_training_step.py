"""The training step against autograd: losses, gradients, and what runs without torch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import needs
from numpy.typing import NDArray
from onnx import TensorProto, helper
from test_convert import random_weights, write_safetensors

from omnidraft.export.checkpoint import Checkpoint, Decoder, open_checkpoint
from omnidraft.export.graphs.gradients import Tape
from omnidraft.export.graphs.quantize import quantize_blocks8
from omnidraft.export.graphs.training import write_training_graph
from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.learning.training_step import (
    MASKED,
    TrainingBatch,
    TrainingResult,
    TrainingStep,
)
from omnidraft.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from autograd import Reference

DRAFTER = Path(__file__).parents[1] / "drafter"
VOCAB = 97
BASE: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "grouped": {"num_key_value_heads": 2, "tie_word_embeddings": False},
    "odd": {
        "hidden_size": 42,
        "head_dim": 10,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "attention_bias": True,
        "mlp_bias": True,
        "num_hidden_layers": 1,
        "tie_word_embeddings": True,
    },
}
LOSSES = ("direct", "label", "chunk")
Lora = dict[str, NDArray[np.float32]]
Steps = dict[str, TrainingStep]
References = dict[str, "Reference"]


def silent(stage: str, done: int, total: int) -> None: ...


def random_lora(step: TrainingStep, rank: int, rng: np.random.Generator) -> Lora:
    return {
        name: rng.normal(0, 0.2, (size, rank) if name.endswith("A") else (rank, size)).astype(
            np.float32
        )
        for name, size in step.lora_sizes.items()
    }


def random_batch(
    rng: np.random.Generator,
    length: int = 12,
    rows: int = 6,
    ids: int = 5,
    chunks: int = 2,
    losses: tuple[str, ...] = LOSSES,
    merging: bool = True,
) -> TrainingBatch:
    """Every figure random; chunks are runs of rows, merged at their first."""
    label = rng.integers(0, VOCAB, rows)
    direct_ids = np.stack([rng.permutation(VOCAB)[:ids] for _ in range(rows)]) if rows else None
    incidence = np.zeros((chunks, rows), np.float32)
    merged = np.zeros((chunks, rows), np.float32)
    log_p = np.log(rng.dirichlet(np.ones(ids + 1), rows) / 2 + 1e-6)
    if direct_ids is not None and ids:
        # Sometimes the label is among the direct tokens, sometimes the row is not full.
        for r in range(rows):
            if label[r] not in direct_ids[r] and rng.random() < 0.5:
                direct_ids[r, 0] = label[r]
            if rng.random() < 0.3:
                direct_ids[r, rng.integers(0, ids) :] = -1
    for c in range(chunks if rows else 0):
        start = int(rng.integers(0, rows))
        incidence[c, start : start + int(rng.integers(2, 4))] = 1
        # An n-gram has two sub-tokens or more.
        if merging and incidence[c].sum() > 1 and not merged[:, start].any():
            merged[c, start] = rng.random() < 0.7

    # Far from what the drafter gives chunks: a divergence of almost 0 is known to few digits.
    # Merged tokens share a row's probability with its direct tokens.
    least, most = np.where(merged.any(axis=1), ((0.05,), (0.1,)), ((0.4,), (0.9,)))
    chunk_p = rng.uniform(least, most)

    def weight(name: str, count: int) -> NDArray[Any]:
        return rng.random(count) if name in losses else np.zeros(count)

    included = (rng.random(VOCAB) < 0.8).astype(np.float32)
    included[label] = 1
    if direct_ids is not None:
        included[direct_ids[direct_ids >= 0]] = 1
    return TrainingBatch(
        tokens=rng.integers(0, VOCAB, length),
        rows=rng.integers(0, length, rows),  # with repetitions
        direct_ids=direct_ids,
        direct_log_p=log_p[:, :ids].astype(np.float32),
        direct_weight=weight("direct", rows),
        direct_tokens=included,
        label=label,
        label_weight=weight("label", rows),
        chunks=incidence,
        chunk_log_p=np.log(chunk_p).astype(np.float32),
        chunk_weight=weight("chunk", chunks) * 100,
        merged=merged,
        temperature=float(rng.choice([1.0, 10.0, 100.0])),
    )


def close(got: Any, expected: Any, tolerance: float = 1e-4, noise: float = 1e-6) -> None:
    """Equal up to ``tolerance`` of the largest value and float32's ``noise``."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    assert np.isfinite(got).all()
    if expected.size:
        scale = np.abs(expected).max()
        assert np.abs(got - expected).max() <= tolerance * scale + noise


def compare(got: TrainingResult, expected: TrainingResult, tolerance: float = 1e-4) -> None:
    for field in dataclasses.fields(TrainingResult):
        if field.name != "gradients":
            close(getattr(got, field.name), getattr(expected, field.name), tolerance)
    assert got.gradients.keys() == expected.gradients.keys()
    # What cancels in one tensor leaves noise of the size that it has in the others.
    noise = 1e-6 * max(np.abs(gradient).max() for gradient in expected.gradients.values())
    for name, gradient in expected.gradients.items():
        close(got.gradients[name], gradient, tolerance, noise + 1e-9)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each configuration."""
    made = {}
    for seed, (name, change) in enumerate(CONFIGS.items()):
        config, folder = BASE | change, tmp_path_factory.mktemp(name)
        weights = random_weights(config, seed, deviation=0.15)
        made[name] = write_safetensors(folder, config, weights, format="pt")
    return made


@pytest.fixture(scope="module")
def steps(
    sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, TrainingStep]:
    made = {}
    for name, source in sources.items():
        folder = tmp_path_factory.mktemp(name)
        write_training_graph(open_checkpoint(source), folder, silent, "float32")
        made[name] = TrainingStep(folder, threads=1)
    return made


@pytest.fixture(scope="module")
def references(sources: dict[str, Path]) -> dict[str, Reference]:
    """What autograd makes of the same checkpoints."""
    needs("torch")
    needs("transformers")
    from autograd import Reference

    return {name: Reference(source) for name, source in sources.items()}


# --- losses and gradients ----------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_all_losses_together_equal_autograd(
    references: References, steps: Steps, name: str
) -> None:
    reference, step = references[name], steps[name]
    rng = np.random.default_rng(0)
    lora = random_lora(step, 8, rng)
    for _ in range(4):
        batch = random_batch(rng)
        result = step.run(batch, lora)
        compare(result, reference(batch, lora))
        assert result.loss > 0
        assert all(np.abs(g).max() > 0 for g in result.gradients.values())


@pytest.mark.parametrize("merging", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_alone_equals_autograd(
    references: References, steps: Steps, loss: str, merging: bool
) -> None:
    reference, step = references["grouped"], steps["grouped"]
    rng = np.random.default_rng(1)
    lora = random_lora(step, 4, rng)
    batch = random_batch(rng, losses=(loss,), merging=merging)
    result = step.run(batch, lora)
    compare(result, reference(batch, lora))
    assert result.loss == getattr(result, f"{loss}_loss") != 0


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    length=st.integers(1, 20),
    rows=st.integers(0, 8),
    ids=st.integers(0, 8),
    chunks=st.integers(0, 4),
    rank=st.integers(1, 5),
)
def test_any_sizes_equal_autograd(
    references: References,
    steps: Steps,
    seed: int,
    length: int,
    rows: int,
    ids: int,
    chunks: int,
    rank: int,
) -> None:
    reference, step = references["grouped"], steps["grouped"]
    rng = np.random.default_rng(seed)
    lora = random_lora(step, rank, rng)
    batch = random_batch(rng, length, rows, ids, chunks)
    compare(step.run(batch, lora), reference(batch, lora))


def test_a_merged_token_takes_its_probability_from_its_first_sub_token(
    references: References, steps: Steps
) -> None:
    """With likely sub-tokens, so that what moves is large (OmniDraft's Eq. 2)."""
    reference, step = references["grouped"], steps["grouped"]
    rng = np.random.default_rng(7)
    lora = {name: 2 * factor for name, factor in random_lora(step, 8, rng).items()}
    batch = TrainingBatch(rng.integers(0, VOCAB, 10), np.arange(10))
    label = step.run(batch, lora).best
    incidence, merged = np.zeros((2, 10, 10), np.float32)
    for r in range(0, 10, 2):
        incidence[r, r : r + 2] = merged[r, r] = 1
    batch = dataclasses.replace(
        batch,
        direct_ids=np.stack([label, (label + 1) % VOCAB], axis=1),
        direct_log_p=np.full((10, 2), -1.5, np.float32),
        direct_weight=np.ones(10),
        label=label,
        chunks=incidence,
        merged=merged,
        chunk_log_p=np.full(10, -2, np.float32),
    )
    result = step.run(batch, lora)
    compare(result, reference(batch, lora))
    apart = step.run(dataclasses.replace(batch, merged=None), lora)
    assert np.abs(result.kl - apart.kl)[::2].max() > 0.1
    assert (result.kl[1::2] == apart.kl[1::2]).all()


def test_a_floor_passes_no_gradient_below_it() -> None:
    tape = Tape()
    x = tape.watch("x")
    loss = tape.weighted_sum(tape.at_least(x, 0.5), "weights")
    gradient = tape.gradients(loss, [x])[x]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in (x, "weights")]
    output = helper.make_tensor_value_info(gradient, TensorProto.FLOAT, [3])
    graph = helper.make_graph(tape.nodes, "floor", values, [output], tape.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = {x: np.array([0, 1, 2], np.float32), "weights": np.array([3, 4, 5], np.float32)}
    assert session.run(None, inputs)[0].tolist() == [0, 4, 5]


def test_what_is_left_out_weighs_nothing(steps: Steps) -> None:
    step = steps["tied"]
    lora = random_lora(step, 4, np.random.default_rng(2))
    batch = TrainingBatch(np.arange(5), np.array([1, 3]))
    result = step.run(batch, lora)
    assert result.loss == 0
    assert result.chunk_divergence.shape == (0,)
    assert all((g == 0).all() for g in result.gradients.values())


def branches(rng: np.random.Generator) -> tuple[TrainingBatch, list[TrainingBatch]]:
    """Two continuations of a stem under a tree mask, and each as a sequence of its own."""
    stem, left, right = (rng.integers(0, VOCAB, n) for n in (6, 3, 4))
    labels = rng.integers(0, VOCAB, 7)

    def sequence(branch: NDArray[Any], labels: NDArray[Any]) -> TrainingBatch:
        tokens = np.concatenate([stem, branch])
        rows = np.arange(len(stem), len(tokens))
        return TrainingBatch(tokens, rows, label=labels, label_weight=np.ones(len(rows)))

    length = len(stem) + len(left) + len(right)
    mask = np.triu(np.full((length, length), MASKED, np.float32), 1)
    mask[9:, 6:9] = MASKED
    tree = TrainingBatch(
        np.concatenate([stem, left, right]),
        np.arange(6, length),
        positions=np.array([*range(9), *range(6, 10)]),
        mask=mask,
        label=labels,
        label_weight=np.ones(7),
    )
    return tree, [sequence(left, labels[:3]), sequence(right, labels[3:])]


def test_branches_under_a_tree_mask_equal_sequences_alone(steps: Steps) -> None:
    step, rng = steps["grouped"], np.random.default_rng(3)
    lora = random_lora(step, 8, rng)
    tree, sequences = branches(rng)
    result = step.run(tree, lora)
    alone = [step.run(sequence, lora) for sequence in sequences]
    close(result.log_label, np.concatenate([r.log_label for r in alone]), 1e-5)
    for name, gradient in result.gradients.items():
        close(gradient, sum(r.gradients[name] for r in alone), 1e-5)


def test_branches_under_a_tree_mask_equal_autograd(references: References, steps: Steps) -> None:
    step, rng = steps["grouped"], np.random.default_rng(3)
    lora = random_lora(step, 8, rng)
    tree, _ = branches(rng)
    compare(step.run(tree, lora), references["grouped"](tree, lora))


@given(
    log_p=st.floats(-200, 0, width=32),
    temperature=st.sampled_from([1.0, 10.0, 100.0]),
    seed=st.integers(0, 100),
)
@settings(max_examples=60)
def test_chunk_divergence_is_exact_for_any_likelihood(
    steps: Steps, log_p: float, temperature: float, seed: int
) -> None:
    step = steps["tied"]
    rng = np.random.default_rng(seed)
    lora = random_lora(step, 4, rng)
    batch = TrainingBatch(
        rng.integers(0, VOCAB, 8),
        np.arange(8),
        label=rng.integers(0, VOCAB, 8),
        chunks=np.eye(8, dtype=np.float32),
        chunk_log_p=np.full(8, log_p, np.float32),
        chunk_weight=np.ones(8, np.float32),
        temperature=temperature,
    )
    result = step.run(batch, lora)
    a, b = (
        np.minimum(np.float64(x), -1e-7) / temperature
        for x in (np.float32(log_p), result.log_label)
    )
    other_p, other_s = -np.expm1(a), -np.expm1(b)
    # ALM (arXiv 2503.20083), equation 8 with f = KL.
    expected = np.exp(a) * (a - b) + other_p * np.log(other_p / other_s)
    # Both logarithms are known to float32 only, and the divergence is quadratic in their distance.
    np.testing.assert_allclose(result.chunk_divergence, expected, rtol=1e-4, atol=2e-7)
    assert all(np.isfinite(g).all() for g in result.gradients.values())


def test_certainty_gives_finite_losses(steps: Steps) -> None:
    """p that leaves nothing, p of almost 0, and a drafter that is sure."""
    step = steps["tied"]
    lora = {k: 30 * v for k, v in random_lora(step, 4, np.random.default_rng(4)).items()}
    batch = TrainingBatch(
        np.arange(4),
        np.arange(4),
        direct_ids=np.array([[1, 2], [3, -1], [4, 5], [6, 7]]),
        direct_log_p=np.array([[0, -60], [0, 0], [-1, -2], [-1e-7, -16]], np.float32),
        direct_weight=np.ones(4),
        label=np.array([1, 3, 4, 6]),
        label_weight=np.ones(4),
        chunks=np.array([[1, 1, 0, 0], [0, 0, 0, 0]], np.float32),
        chunk_log_p=np.array([0, -80], np.float32),
        chunk_weight=np.ones(2),
        merged=np.array([[1, 0, 0, 0], [0, 0, 0, 0]], np.float32),
    )
    result = step.run(batch, lora)
    for field in dataclasses.fields(result):
        if field.name != "gradients":
            assert np.isfinite(getattr(result, field.name)).all(), field.name
    assert all(np.isfinite(g).all() for g in result.gradients.values())


class Quantized:
    """A checkpoint whose matrices have been through int8 blocks and back."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    @property
    def decoder(self) -> Decoder:
        return self.checkpoint.decoder

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        rows = self.checkpoint.rows(name, start, stop)
        if rows.ndim == 1:
            return rows
        codes, scales = quantize_blocks8(rows)
        centred = (codes.astype(np.float32) - 128).reshape(*scales.shape, 32)
        return (centred * scales[..., None]).reshape(rows.shape)


def test_int8_storage_computes_with_the_rounded_weights(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = Quantized(open_checkpoint(sources["grouped"]))
    steps = []
    for storage in ("int8", "float32"):
        (folder := tmp_path / storage).mkdir()
        write_training_graph(checkpoint, folder, silent, storage)  # type: ignore[arg-type]
        steps.append(TrainingStep(folder, threads=1))
    sizes = [(tmp_path / s / "training.onnx.data").stat().st_size for s in ("int8", "float32")]
    assert sizes[0] < 0.35 * sizes[1]
    rng = np.random.default_rng(5)
    lora = random_lora(steps[0], 4, rng)
    batch = random_batch(rng)
    compare(steps[0].run(batch, lora), steps[1].run(batch, lora), 1e-5)


# --- what is refused ---------------------------------------------------------------------------


def test_wrong_batches_and_adapters_are_refused(steps: Steps) -> None:
    step = steps["tied"]
    lora = random_lora(step, 4, np.random.default_rng(6))
    good = TrainingBatch(np.arange(4), np.arange(2), label=np.array([1, 2]))
    for change in (
        {"tokens": np.array([0, VOCAB, 1, 2])},
        {"rows": np.array([0, 4])},
        {"label": np.array([-1, 2])},
        {"label": np.array([1, 2, 3])},
        {"direct_ids": np.array([[-2], [0]])},
    ):
        with pytest.raises(ValueError):
            step.run(dataclasses.replace(good, **change), lora)
    with pytest.raises(OmniDraftError, match=r"lacks lora\.1\.o\.A"):
        step.run(good, {k: v for k, v in lora.items() if not k.startswith("lora.1.o.")})
    with pytest.raises(OmniDraftError, match="does not fit"):
        step.run(good, lora | {"lora.0.o.B": lora["lora.0.o.B"][:, 1:]})


def test_missing_and_damaged_files_are_refused(sources: dict[str, Path], tmp_path: Path) -> None:
    source = sources["odd"]
    with pytest.raises(ModelNotFoundError, match="no training step"):
        TrainingStep(tmp_path)
    write_training_graph(open_checkpoint(source), tmp_path, silent)
    data = tmp_path / "training.onnx.data"
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(DamagedFileError):
        TrainingStep(tmp_path)


def test_writing_again_replaces(sources: dict[str, Path], tmp_path: Path) -> None:
    source = sources["odd"]
    sizes = []
    for _ in range(2):
        write_training_graph(open_checkpoint(source), tmp_path, silent)
        sizes.append((tmp_path / "training.onnx.data").stat().st_size)
    assert sizes[0] == sizes[1]


def test_a_decoder_of_another_kind_is_refused(sources: dict[str, Path], tmp_path: Path) -> None:
    source = sources["odd"]

    class Gemma(Quantized):
        @property
        def decoder(self) -> Decoder:
            return dataclasses.replace(super().decoder, activation="gelu_tanh", qk_norm="head")

    with pytest.raises(OmniDraftError, match=r"GELU, normed queries and keys\. A drafter"):
        write_training_graph(Gemma(open_checkpoint(source)), tmp_path, silent)
    assert not (tmp_path / "training.onnx").exists()


# --- on a device -------------------------------------------------------------------------------

LEARN = """
import sys
for blocked in ("torch", "onnx", "transformers"):
    sys.modules[blocked] = None
from pathlib import Path
import numpy as np
from omnidraft.runtime.learning.training_step import TrainingBatch, TrainingStep

step = TrainingStep(Path(sys.argv[1]))
tokens = np.array([int(x) for x in sys.argv[2].split(",")])
rng = np.random.default_rng(0)
lora = {
    name: rng.normal(0, size**-0.5, (size, 8)).astype(np.float32)
    if name.endswith("A") else np.zeros((8, size), np.float32)
    for name, size in step.lora_sizes.items()
}
count = len(tokens) - 1
batch = TrainingBatch(
    tokens[:-1], np.arange(count), label=tokens[1:], label_weight=np.full(count, 1 / count)
)
first, second = ({name: np.zeros_like(x) for name, x in lora.items()} for _ in range(2))
for n in range(1, 7):
    result = step.run(batch, lora)
    print(result.loss)
    for name, gradient in result.gradients.items():
        first[name] = 0.9 * first[name] + 0.1 * gradient
        second[name] = 0.999 * second[name] + 0.001 * gradient**2
        update = first[name] / (1 - 0.9**n) / (np.sqrt(second[name] / (1 - 0.999**n)) + 1e-8)
        lora[name] -= np.float32(2e-3) * (update + np.float32(0.01) * lora[name])
"""


def test_the_default_drafter_learns_a_text_without_torch_and_onnx(tmp_path: Path) -> None:
    text = (
        "The library opens at nine. Maria borrowed three books on Monday and four more on Friday; "
        "she returned two of them, so she has five books now."
    )
    tokens = Tokenizer.load(DRAFTER).encode(text)
    write_training_graph(open_checkpoint(DRAFTER), tmp_path, silent)
    command = [sys.executable, "-c", LEARN, str(tmp_path), ",".join(map(str, tokens))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(line) for line in done.stdout.split()]
    assert 1 < losses[0] < 6  # it is a trained drafter
    assert all(later < earlier for earlier, later in pairwise(losses))
    assert losses[-1] < 0.7 * losses[0]
