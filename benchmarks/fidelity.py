"""What quantization costs: the quantized target's distributions against its float32 graph's.

    python benchmarks/fidelity.py --target NAME [--prompts FILE] [--max-new-tokens 80] [--json FILE]

The float32 conversion answers each prompt greedily (chat template where the model has one). Every
model then reads prompt and answer, and is compared at the positions that predict the answer's
tokens: Kullback-Leibler divergence KL(float32 || quantized) in nats, mean over the positions, and
how often both have the same most likely token.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from omnidraft.runtime.bench import read_prompts
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.models import LoadedModel, load_model
from omnidraft.runtime.models.catalogue import QUANTIZATIONS

DEMO = Path(__file__).resolve().parent.parent / "demo" / "prompts.jsonl"


def greedy_answer(loaded: LoadedModel, prompt: list[int], limit: int) -> list[int]:
    """At most ``limit`` tokens, the end token included."""
    model = loaded.model
    model.truncate(0)
    logits = model.forward(prompt, rows=1)
    answer: list[int] = []
    while True:
        answer.append(int(logits[0].argmax()))
        if len(answer) == limit or answer[-1] in loaded.tokenizer.eos_ids:
            return answer
        logits = model.forward(answer[-1:])


def log_probabilities(
    model: CausalModel, prompt: list[int], answer: list[int]
) -> NDArray[np.float64]:
    """Float64 [answer's tokens, vocabulary]: of each token of the answer, given what precedes."""
    model.truncate(0)
    logits = model.forward([*prompt, *answer[:-1]], rows=len(answer)).astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--target", default="smollm2-135m", help="as omnidraft generate takes it")
    parser.add_argument("--prompts", type=Path, default=DEMO, help="JSON lines: task, prompt")
    parser.add_argument("--max-new-tokens", type=int, default=80)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    models = {q: load_model(arguments.target, quantization=q) for q in QUANTIZATIONS}
    reference = models.pop("float32")
    divergences: dict[str, list[NDArray[np.float64]]] = {q: [] for q in models}
    agreements: dict[str, list[NDArray[np.bool_]]] = {q: [] for q in models}
    prompts = read_prompts(arguments.prompts)
    tokenizer = reference.tokenizer
    for prompt in prompts:
        if tokenizer.has_chat_template:
            ids = tokenizer.encode_chat([{"role": "user", "content": prompt.prompt}])
        else:
            ids = tokenizer.encode(prompt.prompt)
        answer = greedy_answer(reference, ids, arguments.max_new_tokens)
        expected = log_probabilities(reference.model, ids, answer)
        for q, loaded in models.items():
            found = log_probabilities(loaded.model, ids, answer)
            divergences[q].append((np.exp(expected) * (expected - found)).sum(axis=-1))
            agreements[q].append(expected.argmax(axis=-1) == found.argmax(axis=-1))
    figures = {
        q: {
            "kl": float(np.concatenate(divergences[q]).mean()),
            "top1": float(np.concatenate(agreements[q]).mean()),
        }
        for q in models
    }
    positions = sum(len(values) for values in divergences["8bit"])
    table = Table("quantization", "KL(float32 || quantized)", "same most likely token")
    for q, values in figures.items():
        table.add_row(q, f"{values['kl']:.4f}", f"{values['top1']:.1%}")
    console = Console()
    console.print(table)
    console.print(f"{positions} positions in the answers to {len(prompts)} prompts")
    if arguments.json:
        report = {
            "target": arguments.target,
            "prompts": len(prompts),
            "positions": positions,
            "max_new_tokens": arguments.max_new_tokens,
            "quantizations": figures,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
