"""What quantization costs: the quantized target's distributions against its float32 graph's.

    python benchmarks/fidelity.py --target NAME [--quantizations auto,8bit] [--llamacpp]
        [--prompts FILE] [--max-new-tokens 80] [--json FILE]

The float32 conversion answers each prompt greedily (chat template where the model has one). Every
model then reads prompt and answer, and is compared at the positions that predict the answer's
tokens: Kullback-Leibler divergence KL(float32 || quantized) in nats, mean over the positions, and
how often both have the same most likely token. The float32 graph of a quantized GGUF computes with
the very weights of that file; ``--llamacpp`` reads it with llama.cpp, too, through xllamacpp.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from omnidraft.runtime.bench import read_prompts
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.models import LoadedModel, load_model
from omnidraft.runtime.models.catalogue import Quantization
from omnidraft.runtime.models.resolve import resolve_checkpoint

DEMO = Path(__file__).resolve().parent.parent / "demo" / "prompts.jsonl"
# Tokens of a distribution that llama.cpp is asked for.
LIKELIEST = 2000
Reads = Callable[[list[int], list[int]], NDArray[np.float64]]
"""Prompt and answer → log-probabilities, float64 [answer's tokens, vocabulary]."""


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


def llamacpp(gguf: Path, vocabulary: int) -> Reads:
    """llama.cpp, asked token by token for its likeliest tokens; minus infinity for the others."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(gguf)
    parameters.n_ctx = 2048
    parameters.n_parallel = 1
    parameters.verbosity = 0
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 2
    server = xllamacpp.Server(parameters)

    def reads(prompt: list[int], answer: list[int]) -> NDArray[np.float64]:
        rows = np.full((len(answer), vocabulary), -np.inf)
        for i, row in enumerate(rows):
            question = {
                "prompt": [*prompt, *answer[:i]],
                "n_predict": 1,
                "n_probs": LIKELIEST,
                "temperature": 0,
                "cache_prompt": True,
            }
            request = urllib.request.Request(
                f"{server.listening_address}/completion",
                json.dumps(question).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request) as said:
                (first,) = json.load(said)["completion_probabilities"]
            for each in first["top_logprobs"]:
                row[each["id"]] = each["logprob"]
        return rows

    return reads


def divergence(
    expected: NDArray[np.float64], found: NDArray[np.float64], known: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """KL(expected || found) of each row of log-probabilities; tokens not ``known`` are one."""

    def joined(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        inside = np.where(known, np.exp(rows), 0)
        rest = np.maximum(1 - inside.sum(axis=-1, keepdims=True), 1e-9)
        return np.concatenate([inside, rest], axis=-1)

    p, q = joined(expected), joined(found)
    ratio = np.divide(p, q, out=np.ones_like(p), where=p > 0)
    rows: NDArray[np.float64] = (p * np.log(ratio)).sum(axis=-1)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--target", default="smollm2-135m", help="as omnidraft generate takes it")
    parser.add_argument("--prompts", type=Path, default=DEMO, help="JSON lines: task, prompt")
    parser.add_argument("--max-new-tokens", type=int, default=80)
    parser.add_argument("--quantizations", default="auto,8bit,4bit", help="which, with commas")
    parser.add_argument("--llamacpp", action="store_true", help="llama.cpp on the same GGUF, too")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    reference = load_model(arguments.target, quantization="float32")
    models: dict[str, Reads] = {}
    for quantization in get_args(Quantization):
        if quantization in arguments.quantizations.split(","):
            loaded = load_model(arguments.target, quantization=quantization)
            models[quantization] = partial(log_probabilities, loaded.model)
    if arguments.llamacpp:
        checkpoint = resolve_checkpoint(arguments.target)
        models["llama.cpp"] = llamacpp(checkpoint, reference.model.vocab_size)
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
        read = {q: reads(ids, answer) for q, reads in models.items()}
        # What all of them say, so that all are judged by the same.
        known = np.all([np.isfinite(rows) for rows in read.values()], axis=0)
        for q, found in read.items():
            divergences[q].append(divergence(expected, found, known))
            agreements[q].append(expected.argmax(axis=-1) == found.argmax(axis=-1))
    figures = {
        q: {
            "kl": float(np.concatenate(divergences[q]).mean()),
            "top1": float(np.concatenate(agreements[q]).mean()),
        }
        for q in models
    }
    positions = sum(map(len, next(iter(divergences.values()))))
    table = Table("weights", "KL(float32 || quantized)", "same most likely token")
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
