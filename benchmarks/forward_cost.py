"""What a pass over n tokens costs beside a pass over one, t(n)/t(1), and how fast a prompt is read.

    python benchmarks/forward_cost.py MODEL ... [--threads 2] [--contexts 200 2000] [--json FILE]

MODEL is a converted model's folder, or with --engine transformers a checkpoint; where PyTorch finds
a GPU it runs there. A pass is over a chain of tokens, or over as many nodes of a
tree. Models, kinds and sizes are interleaved, so that what disturbs one disturbs all; times are
medians of wall-clock times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from omnidraft.runtime.engines.model import CausalModel, tree_scorer
from omnidraft.runtime.engines.registry import ENGINES, open_engine
from omnidraft.runtime.processor import processor_name
from omnidraft.runtime.storage.manifest import Manifest

SIZES = (1, 2, 4, 5, 8, 12, 16, 32)
KINDS = ("chain", "tree")
PROMPT = 512

Times = dict[str, dict[int, list[float]]]


def measure(model: CausalModel, context: int, times: Times) -> None:
    """Add the milliseconds of passes over n tokens behind ``context`` tokens, for n in SIZES."""
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, context + max(SIZES))
    # Two children a node, layer by layer.
    parents = [context - 1, *(context + i // 2 for i in range(max(SIZES) - 1))]
    trees = tree_scorer(model)
    kinds = KINDS if trees else KINDS[:1]
    if model.length != context:
        model.truncate(0)
        model.forward(tokens[:context], rows=1)
    for n in SIZES:
        ahead = tokens[context : context + n]
        for kind in kinds:
            # The first pass after another one binds its buffers anew and is not timed.
            for timed in (False, True):
                start = time.perf_counter()
                if kind == "chain" or trees is None:
                    model.forward(ahead)
                else:
                    trees.forward_tree(ahead, parents[:n])
                elapsed = time.perf_counter() - start
                model.truncate(context)
                if timed:
                    times[kind][n].append(1000 * elapsed)


def prompt_seconds(model: CausalModel) -> float:
    """Seconds to read PROMPT tokens into an empty KV cache."""
    tokens = np.random.default_rng(1).integers(0, model.vocab_size, PROMPT)
    model.truncate(0)
    start = time.perf_counter()
    model.forward(tokens, rows=1)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--engine", choices=ENGINES, default="onnx")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--contexts", type=int, nargs="+", default=[200, 2000])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=5, help="how often a prompt is read")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    engine, threads = arguments.engine, arguments.threads
    models = [open_engine(folder, engine, threads=threads) for folder in arguments.models]
    names = [f"{folder.parent.name}/{folder.name}" for folder in arguments.models]
    figures = []
    columns = ("model", "context", "pass", "t(1) ms", *(f"n = {n}" for n in SIZES[1:]))
    table = Table(*columns)
    for context in arguments.contexts:
        found: list[Times] = [{kind: defaultdict(list) for kind in KINDS} for _ in models]
        for _ in range(arguments.rounds):
            for model, times in zip(models, found, strict=True):
                measure(model, context, times)
        for name, times in zip(names, found, strict=True):
            medians = {
                kind: {n: statistics.median(values) for n, values in sizes.items()}
                for kind, sizes in times.items()
                if sizes
            }
            for kind in medians:
                ratios = {n: medians[kind][n] / medians["chain"][1] for n in SIZES}
                row = (f"{medians[kind][1]:.2f}", *(f"{ratios[n]:.2f}" for n in SIZES[1:]))
                table.add_row(name, str(context), kind, *row)
                figures.append(
                    {
                        "model": name,
                        "context": context,
                        "pass": kind,
                        "milliseconds": medians[kind],
                        "ratios": ratios,
                    }
                )
    prompts: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(arguments.prompts):
        for name, model in zip(names, models, strict=True):
            prompts[name].append(prompt_seconds(model))
    speeds = {name: PROMPT / statistics.median(seconds) for name, seconds in prompts.items()}
    console = Console()
    console.print(table)
    for name, speed in speeds.items():
        console.print(f"{name}: {speed:.0f} tokens of a prompt of {PROMPT} a second")
    if arguments.json:
        report = {
            "processor": processor_name(),
            "load": os.getloadavg()[0],
            "engine": engine,
            "threads": threads,
            "quantizations": {
                name: Manifest.load(folder).quantization if engine == "onnx" else None
                for name, folder in zip(names, arguments.models, strict=True)
            },
            "passes": figures,
            "prompt_tokens": PROMPT,
            "prompt_tokens_per_second": speeds,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
