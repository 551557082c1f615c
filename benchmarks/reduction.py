"""What keeping only the likeliest tokens of a distribution costs the gradient that learning takes.

    python benchmarks/reduction.py PROMPTS.jsonl [--target smollm2-135m] [--limit 3] [--json FILE]

The same answers are given again and again, and of every distribution that a round shows the
likeliest direct tokens are kept, so many of the target's and so many of the drafter's. Error: norm
of the difference between the gradient of L_DM and that of whole distributions, over the norm of the
latter; cosine: of their angle. Cross-entropy, the default loss, needs no distributions.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from omnidraft import GenerationOptions, SamplingParameters, Session
from omnidraft.export.learnable import learnable_drafter
from omnidraft.runtime.bench import read_prompts
from omnidraft.runtime.learning.batches import batches
from omnidraft.runtime.learning.learner import AdapterChoice
from omnidraft.runtime.learning.objective import Objective
from omnidraft.runtime.learning.observations import AdaptationBuffer
from omnidraft.runtime.learning.store import AdapterStore
from omnidraft.runtime.learning.trainer import LearningOptions
from omnidraft.runtime.learning.training_step import TrainingStep
from omnidraft.runtime.models import LoadedModel, load_model

KEPT = (8, 16, 32, 64, 128)
WHOLE = 1 << 20


def observed(
    target: LoadedModel, bundle: Path, prompts: list[str], options: GenerationOptions, kept: int
) -> AdaptationBuffer:
    """What the rounds of the answers left."""
    with tempfile.TemporaryDirectory() as folder:
        choice = AdapterChoice(AdapterStore(Path(folder)), "kept", LearningOptions(budget=0.0))
        session = Session(target, load_model(str(bundle)), adapter=choice)
        learner = session.learner
        assert learner is not None and learner.buffer is not None
        learner.buffer = AdaptationBuffer(learner.buffer.mapping, kept=kept, max_bytes=1 << 40)
        for prompt in prompts:
            session.generate(prompt, options)
        return learner.buffer


def gradient(step: TrainingStep, buffer: AdaptationBuffer) -> NDArray[np.float64]:
    """Of L_DM over the buffer, at a LoRA whose factors are both random."""
    rng = np.random.default_rng(0)
    lora = {
        name: 0.1 * rng.standard_normal((size, 32) if name.endswith(".A") else (32, size))
        for name, size in step.lora_sizes.items()
    }
    lora = {name: (value / np.sqrt(len(value))).astype(np.float32) for name, value in lora.items()}
    total: dict[str, NDArray[np.float64]] = {}
    objective = Objective("hybrid", ngram_weight=0.0)
    for batch in batches(list(buffer.prompts), objective, buffer.mapping):
        for name, part in step.run(batch.training, lora).gradients.items():
            total[name] = total.get(name, np.zeros(part.shape)) + part
    return np.concatenate([part.ravel() for part in total.values()])


def main(
    prompts: Annotated[Path, typer.Argument(help="JSON lines of {prompt}.")],
    target: str = "smollm2-135m",
    limit: Annotated[int, typer.Option(min=1)] = 3,
    max_new_tokens: Annotated[int, typer.Option(min=2)] = 96,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure and print."""
    texts = [entry.prompt for entry in read_prompts(prompts, limit)]
    loaded = load_model(target)
    bundle = learnable_drafter("default")
    step = TrainingStep(bundle)
    table = Table(box=None, pad_edge=False)
    for heading in ("temperature", "kept", "error", "cosine", "bytes a prompt"):
        table.add_column(heading, justify="right")
    rows: list[dict[str, Any]] = []
    for temperature in (0.0, 1.0):
        sampling = SamplingParameters(temperature=temperature)
        options = GenerationOptions(max_new_tokens, draft_length=4, sampling=sampling, seed=0)
        whole = gradient(step, observed(loaded, bundle, texts, options, WHOLE))
        for kept in KEPT:
            buffer = observed(loaded, bundle, texts, options, kept)
            reduced = gradient(step, buffer)
            size = float(np.linalg.norm(whole))
            row = {
                "temperature": temperature,
                "kept": kept,
                "error": float(np.linalg.norm(reduced - whole)) / size,
                "cosine": float(reduced @ whole) / size / float(np.linalg.norm(reduced)),
                "bytes_per_prompt": buffer.nbytes // len(texts),
            }
            rows.append(row)
            table.add_row(
                f"{temperature:g}",
                str(kept),
                f"{row['error']:.3f}",
                f"{row['cosine']:.3f}",
                f"{row['bytes_per_prompt']:,}",
            )
    Console(highlight=False).print(table)
    if json_file:
        facts = {"target": target, "prompts": len(texts), "max_new_tokens": max_new_tokens}
        json_file.write_text(json.dumps({**facts, "rows": rows}, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
