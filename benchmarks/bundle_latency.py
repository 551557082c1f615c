"""What a drafter's bundles cost for each token, side by side: size, parity and latency.

    python benchmarks/bundle_latency.py [--drafter NAME]… [--bundles DIR] [--json FILE]
    python benchmarks/bundle_latency.py BUNDLE… [--json FILE]

Exports each drafter by every recipe that can run here, or takes bundles that are there, and times
the decoding of one token. ``random-68m`` is a Llama of the 68M geometry with random weights, made
here: its speed and size are those of a trained one; of its parity see the note under the table.

Each bundle is loaded by a process of its own (idle threads of one session spin and slow others
down). The processes take turns in short blocks, in another order each round, and sleep between
them, so that a machine whose speed changes changes all of them. Ratios are to the ONNX float32
bundle of the same drafter: the median over rounds of the quotient of the two blocks' medians, and
the quotient of the smallest times. An emulated chip is not timed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnxruntime as ort
import typer
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save_file

from omnidraft.export.recipes import Options, backends, find_recipe
from omnidraft.export.socs import DEFAULT_SOC
from omnidraft.runtime.engines import open_engine
from omnidraft.runtime.errors import MissingDependencyError, OmniDraftError
from omnidraft.runtime.models.catalogue import default_drafter_folder
from omnidraft.runtime.processor import processor_name
from omnidraft.runtime.storage.bundle import BUNDLE_FILE, Bundle
from omnidraft.runtime.storage.manifest import CHECKPOINTS

RANDOM_68M = "random-68m"
# Steps before those that are timed: the others' turns have emptied the processor's caches.
WARM_UP = 3
_errors = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Row:
    """A bundle that was exported or given, or why there is none.

    Args:
        drafter: what it was exported from.
        folder: None: the export was refused.
        note: why.
    """

    drafter: str
    backend: str
    quantization: str
    folder: Path | None
    note: str = ""


# --- what is measured ----------------------------------------------------------------------------


def write_random_llama(folder: Path) -> None:
    """A Llama of 68M parameters with random weights and the default drafter's tokenizer."""
    vocab, hidden, inner, layers, heads = 32_000, 768, 3072, 2, 12
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32) * np.float32(0.02)

    tensors = {
        "model.embed_tokens.weight": weight(vocab, hidden),
        "model.norm.weight": np.ones(hidden, np.float32),
        "lm_head.weight": weight(vocab, hidden),
    }
    for layer in range(layers):
        name = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}{norm}.weight"] = np.ones(hidden, np.float32)
        for part in "qkvo":
            tensors[f"{name}self_attn.{part}_proj.weight"] = weight(hidden, hidden)
        for part in ("gate", "up"):
            tensors[f"{name}mlp.{part}_proj.weight"] = weight(inner, hidden)
        tensors[f"{name}mlp.down_proj.weight"] = weight(hidden, inner)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": vocab,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(default_drafter_folder() / name, folder / name)


def export_all(drafter: str, bundles: Path, scratch: Path, soc: str) -> list[Row]:
    """Bundles of a drafter by every recipe that can run here; one that is there is taken.

    Raises:
        OmniDraftError: the drafter cannot be exported as ONNX float32.
    """
    # ONNX float32 first: what fails there is the drafter's fault, later on the recipe's.
    # What other programs run has no latency here.
    found = (recipe for recipe in map(find_recipe, backends()) if recipe.backend not in CHECKPOINTS)
    recipes = sorted(found, key=lambda recipe: recipe.backend != "onnx")
    rows = []
    for recipe in recipes:
        chip = soc if recipe.backend == "qnn" else None
        for quantization in sorted(recipe.quantizations, key=lambda q: q != "none"):
            try:
                recipe.check(Options(quantization, soc=chip))
            except MissingDependencyError as error:
                rows.append(Row(drafter, recipe.backend, quantization, None, str(error)))
                continue
            name = f"{drafter}-{recipe.backend}-{quantization}".replace("/", "--")
            folder = bundles / name
            if (folder / BUNDLE_FILE).is_file():
                rows.append(Row(drafter, recipe.backend, quantization, folder))
                continue
            source = drafter
            if drafter == RANDOM_68M:
                source = str(scratch / RANDOM_68M)
                if not Path(source).exists():
                    write_random_llama(Path(source))
            with _errors.status(f"exporting {name}"):
                note = _export(source, folder, recipe.backend, quantization, chip)
            if note and not rows:
                raise OmniDraftError(note)
            rows.append(Row(drafter, recipe.backend, quantization, None if note else folder, note))
    return rows


def _export(source: str, folder: Path, backend: str, quantization: str, soc: str | None) -> str:
    """Run the command in a process of its own; return what it says when it refuses."""
    command = [sys.executable, "-m", "omnidraft", "export", source, "--output", str(folder)]
    command += ["--backend", backend, "--quantization", quantization]
    # Random weights are timed, whatever 4 bits make of them.
    command += ["--min-agreement", "0"] if Path(source).name == RANDOM_68M else []
    command += ["--soc", soc] if soc else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 2):
        raise OmniDraftError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return done.stderr.strip().rpartition("error: ")[2] if done.returncode else ""


def given(folders: list[Path]) -> list[Row]:
    """Bundles that a user named.

    Raises:
        OmniDraftError: one is no bundle or damaged, or has no ONNX float32 bundle beside it.
    """
    rows = []
    sources: dict[str, str] = {}
    floats = set()
    for folder in folders:
        bundle = Bundle.load(folder)
        if (source := bundle.source_sha256) not in sources:
            name = Path(bundle.name).name
            taken = name in sources.values()
            sources[source] = f"{name} {source[:8]}" if taken else name
        drafter = sources[source]
        rows.append(Row(drafter, bundle.backend, bundle.quantization, folder))
        if (bundle.backend, bundle.quantization) == ("onnx", "none"):
            floats.add(drafter)
    for row in rows:
        if row.drafter not in floats:
            raise OmniDraftError(
                f"{row.folder} has nothing to be compared with: name also an ONNX float32 bundle "
                f"of {row.drafter} (omnidraft export … --quantization none)."
            )
    return rows


# --- measuring -----------------------------------------------------------------------------------


def _serve(connection: Connection, folder: Path, context: int, threads: int) -> None:
    """Worker: answer each number of steps with so many times in seconds; 0 ends it."""
    try:
        model = open_engine(folder, threads=threads)
        tokens = np.random.default_rng(0).integers(3, model.vocab_size, context + 1)
        model.forward(tokens[:context], rows=1)
    except Exception as error:  # whatever it is, the other side has to know
        connection.send(error if isinstance(error, OmniDraftError) else repr(error))
        return
    connection.send(None)
    with suppress(EOFError):  # the other side has failed
        while steps := connection.recv():
            times = []
            for _ in range(WARM_UP + steps):
                model.truncate(context)
                begin = time.perf_counter()
                model.forward(tokens[context:])
                times.append(time.perf_counter() - begin)
            connection.send(times[WARM_UP:])


@contextmanager
def _worker(folder: Path, context: int, threads: int) -> Iterator[Connection]:
    spawning = multiprocessing.get_context("spawn")
    connection, other = spawning.Pipe()
    process = spawning.Process(target=_serve, args=(other, folder, context, threads), daemon=True)
    process.start()
    other.close()
    with closing(connection):
        try:
            failure = connection.recv()
        except EOFError:
            process.join()
            failure = f"its process ended with {process.exitcode}"
        if failure is not None:
            raise OmniDraftError(f"{folder} cannot be run: {failure}")
        yield connection
        connection.send(0)
    process.join()


def measure(
    folders: list[Path], context: int, threads: int, rounds: int, steps: int
) -> list[list[list[float]]]:
    """Milliseconds of single steps, by bundle and round."""
    times: list[list[list[float]]] = [[] for _ in folders]
    order = list(range(len(folders)))
    shuffle = random.Random(0).shuffle
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(f, context, threads)) for f in folders]
        for done in range(rounds):
            with _errors.status(f"round {done + 1} of {rounds}"):
                shuffle(order)
                for i in order:
                    workers[i].send(steps)
                    times[i].append([1000 * seconds for seconds in workers[i].recv()])
    return times


def compare(
    times: list[list[float]], float32: list[list[float]]
) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds of a step, and their ratios to float32's: median and minimum of each."""
    steps, others = ([ms for block in rounds for ms in block] for rounds in (times, float32))
    quotients = [
        statistics.median(block) / statistics.median(other)
        for block, other in zip(times, float32, strict=True)
    ]
    return (
        {"median": statistics.median(steps), "minimum": min(steps)},
        {"median": statistics.median(quotients), "minimum": min(steps) / min(others)},
    )


# --- the report ----------------------------------------------------------------------------------


def describe(row: Row) -> dict[str, Any]:
    """What is known of a bundle without timing it."""
    figures: dict[str, Any] = {
        "drafter": row.drafter,
        "backend": row.backend,
        "quantization": row.quantization,
    }
    if row.folder is None:
        return figures | {"not_exported": row.note}
    bundle = Bundle.load(row.folder, checksums=False)
    stems = tuple(Path(graph.file).stem for graph in bundle.decoders)
    decoder = [entry.size for name, entry in bundle.files.items() if name.startswith(stems)]
    return figures | {
        "soc": bundle.soc.name if bundle.soc else None,
        "emulated": any(latency.emulated for latency in bundle.latency),
        "decoder_bytes": sum(decoder),
        "bundle_bytes": bundle.size,
        "lora_rank": bundle.lora.rank if bundle.lora else 0,
        "parity": bundle.parity.model_dump() if bundle.parity else None,
        "versions": bundle.versions,
    }


def machine(threads: int) -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": processor_name(),
        "logical_processors": os.cpu_count(),
        "threads": threads,
        "system": platform.platform(),
        "python": platform.python_version(),
        "onnxruntime": ort.__version__,
        "load_before": os.getloadavg()[0],
    }


def show(drafter: str, figures: list[dict[str, Any]]) -> None:
    """Print a drafter's bundles."""
    table = Table(box=None, title=drafter, title_justify="left")
    for heading in ("bundle", "MB", "top-1", "accept", "ms", "min", "ratio", "of min"):
        table.add_column(heading, justify="left" if heading == "bundle" else "right", no_wrap=True)
    missing: dict[str, list[str]] = {}
    for row in figures:
        name = f"{row['backend']} {row['quantization']}"
        if "not_exported" in row:
            missing.setdefault(row["not_exported"], []).append(name)
            continue
        parity, ms, ratio = row["parity"], row.get("milliseconds"), row.get("ratio")
        table.add_row(
            name,
            f"{row['decoder_bytes'] / 1e6:.1f}",
            f"{parity['top1_agreement']:.1%}" if parity else "–",
            f"{parity['acceptance_agreement']:.1%}" if parity else "–",
            *([f"{ms['median']:.2f}", f"{ms['minimum']:.2f}"] if ms else ["emulated", "–"]),
            *([f"{ratio['median']:.2f}", f"{ratio['minimum']:.2f}"] if ratio else ["–", "–"]),
        )
    console = Console(highlight=False)
    console.print(table)
    for note, names in missing.items():
        console.print(f"Without {', '.join(names)}: {note}", markup=False)
    if drafter == RANDOM_68M:
        console.print("Random weights: the likeliest token is chance; read acceptance, not top-1.")


def main(
    bundles: Annotated[list[Path] | None, typer.Argument(help="Bundles to measure.")] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What to export, as `omnidraft export` takes it, or {RANDOM_68M}.",
            show_default=f"default and {RANDOM_68M}",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--bundles", help="Keep exported bundles here; take those there.")
    ] = None,
    soc: Annotated[str, typer.Option(help="Chip of qnn bundles.")] = DEFAULT_SOC,
    context: Annotated[int, typer.Option(min=1, help="Tokens before the timed one.")] = 256,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each bundle.")] = 20,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps a turn.")] = 15,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures.")] = None,
) -> None:
    """Measure and print."""
    try:
        if bundles and (drafter or folder):
            raise OmniDraftError("Name bundles, or what to export (--drafter, --bundles).")
        if json_file and not json_file.absolute().parent.is_dir():
            raise OmniDraftError(f"There is no folder {json_file.parent} to write --json into.")
        with tempfile.TemporaryDirectory(prefix="omnidraft-") as temporary:
            scratch = Path(temporary)
            if bundles:
                rows = given(bundles)
            else:
                rows = [
                    row
                    for name in drafter or ["default", RANDOM_68M]
                    for row in export_all(name, folder or scratch, scratch, soc)
                ]
            report = _report(rows, context, threads, rounds, steps)
    except OmniDraftError as error:
        _errors.print(f"error: {error}", style="red", soft_wrap=True, markup=False)
        raise typer.Exit(2) from error
    if json_file:
        json_file.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


def _report(rows: list[Row], context: int, threads: int, rounds: int, steps: int) -> dict[str, Any]:
    """Measure one drafter's bundles after another's, and show them."""
    for row in rows:
        if row.folder is not None:
            limit = Bundle.load(row.folder, checksums=False).geometry.context_length
            if context >= limit:
                raise OmniDraftError(
                    f"{row.folder} holds {limit} tokens: choose a --context below that."
                )
    used = machine(threads)
    results = []
    for drafter in dict.fromkeys(row.drafter for row in rows):
        ours = [row for row in rows if row.drafter == drafter]
        figures = [describe(row) for row in ours]
        timed = [
            (row.folder, values)
            for row, values in zip(ours, figures, strict=True)
            if row.folder is not None and not values["emulated"]
        ]
        times = measure([path for path, _ in timed], context, threads, rounds, steps)
        float32 = next(
            i
            for i, (_, values) in enumerate(timed)
            if (values["backend"], values["quantization"]) == ("onnx", "none")
        )
        for (_, values), own in zip(timed, times, strict=True):
            values["milliseconds"], values["ratio"] = compare(own, times[float32])
        show(drafter, figures)
        results += figures
    used["load_after"] = os.getloadavg()[0]
    Console(highlight=False).print(
        f"One token at context {context}, {threads} threads, {rounds} turns of {steps} steps; "
        f"{used['processor']}, {used['logical_processors']} logical processors, ONNX Runtime "
        f"{ort.__version__}; load {used['load_before']:.1f} to {used['load_after']:.1f}"
    )
    return {
        "machine": used,
        "context": context,
        "rounds": rounds,
        "steps": steps,
        "bundles": results,
    }


if __name__ == "__main__":
    typer.run(main)
