"""Record training steps and adapters of the Python program, for the tests of the Kotlin engine.

    python android_demo/engine/src/test/python/record_learning.py [FOLDER]

The steps are those of the tiny drafter, and its adapters are kept. Where FOLDER holds drafters that
were exported with a training step, their steps are recorded beside them as ``NAME.steps.json``.
"""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from record_models import adapter_of

from omnidraft.runtime.learning.adapter import Adapter, Metadata, ModelKey
from omnidraft.runtime.learning.adapter_file import read_adapter, to_bytes
from omnidraft.runtime.learning.optimizer import AdamW
from omnidraft.runtime.learning.training_step import TRAINING_FILE, TrainingBatch, TrainingStep
from omnidraft.runtime.storage.lora import write_adapter

RESOURCES = Path(__file__).resolve().parents[1] / "resources"
UPDATES = 3
LEARNING_RATE = 1e-3
# Of real drafters so many numbers of each array are kept.
KEPT = 64


def batch(vocab: int, seed: int) -> TrainingBatch:
    """One with every kind of loss: direct rows, labels, a chunk of two rows, a merged n-gram."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, vocab, 14)
    rows = np.array([2, 4, 5, 8, 8, 13])
    ids = np.stack([rng.permutation(vocab)[:5] for _ in rows])
    label = rng.integers(0, vocab, len(rows))
    ids[0, 0] = label[0]  # the first sub-token of the n-gram is listed, too
    ids[3, 3:] = -1
    p = rng.dirichlet(np.ones(8), len(rows))[:, :5]
    chunks = np.zeros((2, len(rows)), np.float32)
    chunks[0, [1, 2]] = 1
    chunks[1, [0]] = 1
    merged = np.zeros((2, len(rows)), np.float32)
    merged[1, 0] = 1
    return TrainingBatch(
        tokens=tokens,
        rows=rows,
        positions=np.arange(len(tokens)) + 3,
        direct_ids=ids,
        direct_log_p=np.log(p).astype(np.float32),
        direct_weight=rng.random(len(rows)).astype(np.float32),
        direct_tokens=(rng.random(vocab) < 0.9).astype(np.float32),
        label=label,
        label_weight=rng.random(len(rows)).astype(np.float32),
        chunks=chunks,
        chunk_log_p=np.array([-2.5, -4.0], np.float32),
        chunk_weight=np.array([0.5, 0.0], np.float32),
        merged=merged,
        temperature=50.0,
    )


def plain(vocab: int, seed: int) -> TrainingBatch:
    """One that leaves out what it can."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, vocab, 9)
    return TrainingBatch(
        tokens,
        np.arange(8),
        label=tokens[1:],
        label_weight=np.ones(8, np.float32),
    )


def as_json(given: TrainingBatch) -> dict[str, Any]:
    values = {f.name: getattr(given, f.name) for f in fields(given)}
    return {
        name: value.ravel().tolist() if isinstance(value, np.ndarray) else value
        for name, value in values.items()
        if value is not None
    }


def packed(values: NDArray[np.float32], whole: bool) -> str:
    flat = np.ascontiguousarray(values, np.float32).ravel()
    kept = flat if whole else flat[:: max(1, len(flat) // KEPT)]
    return base64.b64encode(kept.tobytes()).decode()


def steps(folder: Path, rank: int, whole: bool) -> dict[str, Any]:
    """Updates of a LoRA, each of two batches."""
    step = TrainingStep(folder, threads=2)
    lora = dict(adapter_of(step.lora_sizes, rank, 3))
    optimizer = AdamW(lora, LEARNING_RATE)
    made = []
    for update in range(UPDATES):
        batches = [batch(step.vocab_size, 10 + update), plain(step.vocab_size, 20 + update)]
        results = [step.run(each, lora) for each in batches]
        scale = np.float32(1 / sum(len(each.rows) for each in batches))
        total = {
            name: (results[0].gradients[name] + results[1].gradients[name]) * scale for name in lora
        }
        optimizer.step(lora, total)
        made.append(
            {
                "batches": [as_json(each) for each in batches],
                "losses": [
                    [float(getattr(r, name)) for name in ("loss", "direct_loss", "label_loss")]
                    + [float(r.chunk_loss)]
                    for r in results
                ],
                "rows": [
                    {
                        "kl": r.kl.tolist(),
                        "log_label": r.log_label.tolist(),
                        "chunk_divergence": r.chunk_divergence.tolist(),
                        "best": r.best.tolist(),
                        "hidden": packed(r.hidden, whole),
                    }
                    for r in results
                ],
                "lora": {name: packed(values, whole) for name, values in lora.items()},
            }
        )
    return {
        "rank": rank,
        "learning_rate": LEARNING_RATE,
        "every": 0 if whole else KEPT,
        "updates": made,
    }


def write_adapters(folder: Path, drafter: Path) -> None:
    """Files of both formats, and beside them what they hold."""
    sizes = TrainingStep(drafter).lora_sizes
    lora = adapter_of(sizes, 4, 1)
    metadata = Metadata(
        drafter=ModelKey(name="tiny \u2013 é", sha256="a" * 64),
        target=ModelKey(name="target", sha256="0123456789abcdef" * 4),
        prompts=3,
        updates=2,
        figures={"history": [0.5, None, {"a": True}], "text": "é😀"},
    )
    rng = np.random.default_rng(2)
    adapter = Adapter(
        metadata,
        lora,
        ngrams=bytes(range(256)),
        head={"w1": rng.random((3, 2)).astype(np.float32), "b": np.zeros(1, np.float32)},
        optimizer={
            "first": rng.random(5).astype(np.float32),
            "steps": np.array(7, np.int64),
            "seen": np.array([[True, False]]),
        },
    )
    (folder / "tiny.adapter").write_bytes(to_bytes(adapter, metadata))
    write_adapter(folder / "tiny.onnx_adapter", lora)
    again = read_adapter(folder / "tiny.adapter")
    told = {
        "rank": again.rank,
        "head": {name: values.tolist() for name, values in again.head.items()},
        "steps": int(again.optimizer["steps"]),
    }
    (folder / "tiny.json").write_text(json.dumps(told) + "\n", "utf-8")


def main(arguments: list[str]) -> None:
    if arguments:
        for folder in sorted(Path(arguments[0]).iterdir()):
            if (folder / TRAINING_FILE).is_file():
                made = steps(folder, 32, whole=False)
                path = folder.with_name(f"{folder.name}.steps.json")
                path.write_text(json.dumps(made) + "\n", "utf-8")
        return
    drafter = RESOURCES / "models" / "drafter-own"
    folder = RESOURCES / "learning"
    folder.mkdir(exist_ok=True)
    made = steps(drafter, 4, whole=True)
    (folder / "steps.json").write_text(json.dumps(made) + "\n", "utf-8")
    write_adapters(folder, drafter)


if __name__ == "__main__":
    main(sys.argv[1:])
