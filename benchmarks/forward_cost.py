"""What a pass over n tokens costs beside a pass over one, t(n)/t(1).

    python benchmarks/forward_cost.py MODEL [--threads 2] [--contexts 200 2000] [--json FILE]

MODEL is a converted model's folder. A pass is over a chain of tokens, or over as many nodes of a
tree. The kinds and sizes are interleaved, so that what disturbs one disturbs all; times are medians
of wall-clock times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.storage.manifest import Manifest

SIZES = (1, 2, 4, 5, 8, 12, 16)
KINDS = ("chain", "tree")


def measure(model: OnnxModel, context: int, rounds: int) -> dict[str, dict[int, float]]:
    """Median milliseconds of a pass over n tokens behind ``context`` tokens, for n in SIZES."""
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, context + max(SIZES))
    # Two children a node, layer by layer.
    parents = [context - 1, *(context + i // 2 for i in range(max(SIZES) - 1))]
    model.truncate(0)
    model.forward(tokens[:context], rows=1)
    times: dict[str, dict[int, list[float]]] = {kind: {n: [] for n in SIZES} for kind in KINDS}
    for _ in range(rounds):
        for n in SIZES:
            ahead = tokens[context : context + n]
            for kind in KINDS:
                # The first pass after another one binds its buffers anew and is not timed.
                for timed in (False, True):
                    start = time.perf_counter()
                    if kind == "chain":
                        model.forward(ahead)
                    else:
                        model.forward_tree(ahead, parents[:n])
                    elapsed = time.perf_counter() - start
                    model.truncate(context)
                    if timed:
                        times[kind][n].append(1000 * elapsed)
    return {
        kind: {n: statistics.median(values) for n, values in sizes.items()}
        for kind, sizes in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--contexts", type=int, nargs="+", default=[200, 2000])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    model = OnnxModel(arguments.model, threads=arguments.threads)
    table = Table("context", "pass", "t(1) ms", *(f"n = {n}" for n in SIZES[1:]))
    figures = []
    for context in arguments.contexts:
        found = measure(model, context, arguments.rounds)
        for kind, times in found.items():
            ratios = {n: times[n] / found["chain"][1] for n in SIZES}
            row = (f"{times[1]:.2f}", *(f"{ratios[n]:.2f}" for n in SIZES[1:]))
            table.add_row(str(context), kind, *row)
            figures.append(
                {"context": context, "pass": kind, "milliseconds": times, "ratios": ratios}
            )
    Console().print(table)
    if arguments.json:
        report = {
            "model": arguments.model.name,
            "quantization": Manifest.load(arguments.model).quantization,
            "threads": arguments.threads,
            "contexts": figures,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
