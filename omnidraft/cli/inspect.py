"""``omnidraft inspect``: what a bundle holds, and whether it still is what its manifest says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from omnidraft.cli import options as opt
from omnidraft.cli.output import count, print_json, stdout, steps
from omnidraft.runtime.errors import ModelNotFoundError, OmniDraftError
from omnidraft.runtime.models.catalogue import DEFAULT_DRAFTER, PACKAGED_MODELS
from omnidraft.runtime.storage.checkpoints import is_checkpoint
from omnidraft.runtime.storage.manifest import MANIFEST_FILE

if TYPE_CHECKING:
    from omnidraft.export.parity import Verified
    from omnidraft.runtime.storage.bundle import Bundle, Graph, Latency


def inspect(
    folder: Annotated[
        Path,
        typer.Argument(metavar="BUNDLE", help="A bundle that `omnidraft export` wrote."),
    ],
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Measure parity and latency again, and compare."),
    ] = False,
    threads: opt.MeasuringThreads = 2,
    as_json: opt.AsJson = False,
) -> None:
    """Show what a bundle holds, and check it.

    Shown is also how it was checked when it was written, and how fast it was then.
    Every file's sha256 is compared with the manifest. With --verify the bundle must also agree
    with float32 as its manifest says; no checkpoint is needed for that.

    \b
    Example:
      omnidraft inspect bundle --verify
    """
    bundle = _load(folder)
    verified = None
    if verify:
        from omnidraft.export.parity import verify as measure

        with steps("measuring"):
            verified = measure(bundle, folder, threads)
    if as_json:
        report = bundle.model_dump(mode="json") | {"size_bytes": bundle.size}
        if verified is not None:
            report["verified"] = verified.as_dict()
        print_json(report)
    else:
        _print_bundle(bundle, verified)
    if verified is not None and not verified.ok:
        raise OmniDraftError(
            f"{folder} is not what its manifest says: {verified.reason}. Export it again."
        )


def _load(folder: Path) -> Bundle:
    from omnidraft.runtime.storage.bundle import Bundle

    try:
        return Bundle.load(folder)
    except ModelNotFoundError as error:
        made = f"`omnidraft export {folder} --output FOLDER` makes a bundle of it, and shows it"
        if str(folder) in (DEFAULT_DRAFTER, *PACKAGED_MODELS):
            raise ModelNotFoundError(
                f"{folder} is the name of a model, no bundle. {made}."
            ) from error
        if (folder / MANIFEST_FILE).is_file():
            raise ModelNotFoundError(
                f"{folder} is a converted model, no bundle. `omnidraft doctor` tells of those in "
                "the cache."
            ) from error
        if is_checkpoint(folder):
            raise ModelNotFoundError(f"{folder} is a checkpoint, no bundle. {made}.") from error
        raise


def _print_bundle(bundle: Bundle, verified: Verified | None) -> None:
    from omnidraft.export.parity import parity_text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    g = bundle.geometry
    table.add_row("drafter", bundle.name)
    layout = "" if bundle.layout == "omnidraft" else f", layout {bundle.layout}"
    table.add_row("backend", f"{bundle.backend}{layout}, weights {bundle.quantization}")
    if bundle.soc is not None:
        shared = ", one binary with shared weights" if bundle.soc.shared_weights else ""
        table.add_row("chip", f"{bundle.soc.name} ({bundle.soc.htp_architecture}){shared}")
        if (emulation := bundle.soc.emulation) is not None:
            table.add_row(
                "emulation",
                f"relative difference from the CPU {emulation.relative_error:.2%}, "
                f"top-1 agreement {emulation.top1_agreement:.1%}, "
                f"{count(emulation.positions, 'position')}",
            )
    table.add_row(
        "geometry",
        f"{count(g.layers, 'layer')} × {g.hidden_size}, feed-forward {g.feed_forward_size}, "
        f"{count(g.heads, 'head')} ({g.kv_heads} key) × {g.head_size}, {g.vocab_size:,} tokens, "
        f"context {g.context_length:,}",
    )
    for graph in bundle.graphs:
        what = _passes_text(graph) if graph.role == "decoder" else "training step"
        table.add_row("graph", f"{graph.file}: {what}")
    table.add_row("weights", bundle.weights_text)
    lora = bundle.lora
    table.add_row(
        "LoRA", "none" if lora is None else f"rank {lora.rank} on {', '.join(lora.linears)}"
    )
    if (merged := bundle.merged) is not None:
        table.add_row(
            "merged",
            f"adapter {merged.adapter}, learned for {merged.target}: the weights keep "
            f"{merged.kept:.0%} of what it changes; parity is with float32 and the adapter",
        )
    for name, entry in bundle.files.items():
        table.add_row("file", f"{name}, {entry.size / 1e6:.2f} MB, sha256 {entry.sha256[:12]}… ✓")
    table.add_row("size", f"{bundle.size / 1e6:.1f} MB")
    if bundle.parity is not None:
        table.add_row("parity", parity_text(bundle.parity, bundle.thresholds))
    for latency in bundle.latency:
        table.add_row("latency", _latency_text(latency))
    if verified is not None:
        table.add_row("found now", parity_text(verified.parity))
        if verified.latency is not None:
            table.add_row("", _latency_text(verified.latency))
        if verified.other_processor:
            table.add_row("", "This is another processor: its latency is not the one above.")
    table.add_row("versions", ", ".join(f"{name} {v}" for name, v in bundle.versions.items()))
    stdout().print(table)


def _passes_text(graph: Graph) -> str:
    if graph.tokens is not None:
        return f"{count(graph.tokens, 'token')} a pass"
    if graph.most_tokens is not None:
        return f"passes of up to {count(graph.most_tokens, 'token')}"
    return "passes of any length"


def _latency_text(latency: Latency) -> str:
    kind = ", emulated" if latency.emulated else ""
    return (
        f"a token takes {latency.milliseconds:.2f} ms (p50) to {latency.p95_milliseconds:.2f} ms "
        f"(p95), {count(latency.steps, 'step')} at context {latency.context}, "
        f"{count(latency.threads, 'thread')}, "
        f"{latency.processor}{kind}"
    )
