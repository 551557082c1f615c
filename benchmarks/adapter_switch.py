"""What it costs to switch to another adapter of the default drafter.

    python benchmarks/adapter_switch.py [--rank 32] [--json FILE]

Adapters as learning leaves them: LoRA on all linears, an n-gram cache, a head, AdamW's state.
Prints median and minimum, in ms, of reading one for generation, of unpacking its n-gram cache, of
reading one to learn on, and of saving it. The disk is warm and the variants are interleaved.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from omnidraft._native import NgramCache, Vocabulary, VocabularyPair
from omnidraft.runtime.learning.adapter import Adapter, Metadata, ModelKey
from omnidraft.runtime.learning.store import AdapterStore
from omnidraft.runtime.models.catalogue import default_drafter_folder
from omnidraft.runtime.pairing import native_vocabulary
from omnidraft.runtime.text.tokenizer import Tokenizer


def lora_of(config: dict[str, Any], rank: int) -> dict[str, np.ndarray]:
    """Random LoRA weights on all linears of a Llama model."""
    rng = np.random.default_rng(0)
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    linears = {
        "qkv": (hidden, (heads + 2 * kv_heads) * head),
        "o": (heads * head, hidden),
        "gate_up": (hidden, 2 * inner),
        "down": (inner, hidden),
    }
    lora = {}
    for layer in range(config["num_hidden_layers"]):
        for linear, (inputs, outputs) in linears.items():
            for part, shape in (("A", (inputs, rank)), ("B", (rank, outputs))):
                values = rng.standard_normal(shape, dtype=np.float32)
                lora[f"lora.{layer}.{linear}.{part}"] = values
    return lora


def ngrams_of(drafter: Path, count: int) -> tuple[VocabularyPair, NgramCache]:
    """A cache of ``count`` n-grams between the drafter's vocabulary and a made-up target's."""
    tokenizer = Tokenizer.load(drafter)
    surfaces = tokenizer.surfaces
    rng = np.random.default_rng(0)
    known = [token for token, surface in enumerate(surfaces) if surface]
    spelled = {}
    while len(spelled) < count:
        parts = [int(token) for token in rng.choice(known, 3)]
        spelled[b"".join(surfaces[token] or b"" for token in parts)] = parts
    target = list(dict.fromkeys([*(surfaces[token] for token in known), *spelled]))
    pair = VocabularyPair(native_vocabulary(tokenizer, len(surfaces)), Vocabulary(target))
    cache = NgramCache(pair)
    for token, surface in enumerate(target):
        if surface in spelled:
            cache.observe(token, spelled[surface])
    return pair, cache


def main(
    rank: Annotated[int, typer.Option(min=1)] = 32,
    ngrams: Annotated[int, typer.Option(min=1, help="n-grams in the cache.")] = 5_000,
    runs: Annotated[int, typer.Option(min=1)] = 200,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure and print."""
    drafter = default_drafter_folder()
    lora = lora_of(json.loads((drafter / "config.json").read_text("utf-8")), rank)
    pair, cache = ngrams_of(drafter, ngrams)
    key = ModelKey(name="default", sha256="0" * 64)
    moments = {f"{name}.{m}": np.abs(values) for name, values in lora.items() for m in "mv"}
    head = {"weight": np.zeros(320, np.float32), "bias": np.zeros(1, np.float32)}
    adapter = Adapter(Metadata(drafter=key, target=key), lora, cache.to_bytes(), head, moments)

    with tempfile.TemporaryDirectory() as folder:
        store = AdapterStore(Path(folder))
        names = ("math", "code")
        for name in names:
            store.save(name, adapter)
        steps: dict[str, Callable[[str], object]] = {
            "read to generate": lambda name: store.load(name, key, key, optimizer=False),
            "unpack the n-gram cache": lambda name: adapter.ngram_cache(pair),
            "read to learn": lambda name: store.load(name, key, key),
            "save": lambda name: store.save(name, adapter),
        }
        times: dict[str, list[float]] = {step: [] for step in steps}
        for run in range(runs + 5):
            for step, action in steps.items():
                # Saving is slow, and what it writes back disturbs what comes next.
                if step == "save" and run % 10:
                    continue
                begin = time.perf_counter()
                action(names[run % 2])
                if run >= 5:
                    times[step].append(1e3 * (time.perf_counter() - begin))
        size = store.list()[0].size

    figures = {
        step: {"median_ms": statistics.median(values), "minimum_ms": min(values)}
        for step, values in times.items()
    }
    sizes = {
        "lora": sum(values.nbytes for values in lora.values()),
        "ngrams": len(adapter.ngrams),
        "file": size,
    }
    table = Table(box=None, pad_edge=False)
    for heading in ("", "median ms", "minimum ms"):
        table.add_column(heading, justify="right" if heading else "left")
    for step, values in figures.items():
        table.add_row(step, f"{values['median_ms']:.2f}", f"{values['minimum_ms']:.2f}")
    Console().print(table)
    print(", ".join(f"{name} {value:,} bytes" for name, value in sizes.items()))
    if json_file:
        result = {"rank": rank, "ngrams": len(cache), "bytes": sizes, "ms": figures}
        json_file.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
