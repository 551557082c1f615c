"""``omnidraft profile``: latency, throughput, memory and energy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from omnidraft.cli import options as opt
from omnidraft.cli.interruption import Interrupted
from omnidraft.cli.output import count, errors, print_json, stdout, steps
from omnidraft.cli.profile_tables import new_table, passes_table
from omnidraft.cli.prompt import read_prompts
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models.catalogue import DEFAULT_DRAFTER, DEFAULT_QUANTIZATION
from omnidraft.runtime.options import DEFAULT_DRAFT_LENGTH, read_draft_length

if TYPE_CHECKING:
    from omnidraft.runtime.profiling.report import KvCache, Memory, Mode, Profile
    from omnidraft.runtime.profiling.summary import Summary

_PASSES_A_REPEAT = 10
"""On a phone, of each length."""


def profile(
    target: opt.Target,
    prompts: Annotated[
        Path | None,
        typer.Argument(**opt.PROMPTS, show_default="a few built-in ones"),
    ] = None,
    drafter: opt.Drafter = DEFAULT_DRAFTER,
    quantization: opt.Weights = DEFAULT_QUANTIZATION,
    threads: opt.Threads = None,
    limit: opt.Limit = None,
    max_new_tokens: Annotated[
        int, typer.Option(**opt.whole(2), help="Generate at most so many tokens.")
    ] = 128,
    draft_length: opt.DraftLength = str(DEFAULT_DRAFT_LENGTH),
    tree: opt.Tree = None,
    repeat: Annotated[
        int,
        typer.Option(**opt.whole(1), help="Answer every prompt so often; speeds are medians."),
    ] = 3,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="Write a report with plots here.", show_default=False
        ),
    ] = None,
    device_profile: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="Simulate a device: a TOML or JSON file, or the name of one that is built in.",
            show_default=False,
        ),
    ] = None,
    adb: Annotated[
        bool, typer.Option("--adb", help="Time both models' passes on an Android phone.")
    ] = False,
    serial: Annotated[
        str | None,
        typer.Option(
            metavar="SERIAL", help="The phone, where several are attached.", show_default=False
        ),
    ] = None,
    device_libraries: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="ONNX Runtime, operators and runner for it.", show_default=False
        ),
    ] = None,
    device_context: Annotated[
        int, typer.Option(**opt.whole(1), help="Tokens that passes on the phone follow.")
    ] = 256,
    keep_on_device: Annotated[
        bool, typer.Option("--keep-on-device", help="Leave models and libraries on the phone.")
    ] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Measure where time, memory and energy go.

    Every prompt is answered plainly and speculatively, in turn.

    With --adb passes of both models are timed on a phone instead, many of each length.

    With --device-profile the device's limits on threads, memory and contexts hold, and passes of
    the drafter take its NPU's time. Static graphs for an NPU score no trees, so that such a drafter
    reads one path. The speed of the device's processor is not simulated: passes of the target take
    this machine's time.

    \b
    Examples:
      omnidraft profile --target smollm2-135m --html report.html
      omnidraft profile prompts.jsonl --target smollm2-135m --repeat 5 --json
      omnidraft profile --target smollm2-135m --adb --device-libraries libraries
    """
    if adb:
        if prompts or html or device_profile or tree or limit:
            raise OmniDraftError(
                "--adb times passes and answers no prompts: leave out PROMPTS.jsonl, --limit, "
                "--tree, --html and --device-profile."
            )
        from omnidraft.cli.profile_phone import print_phone_profile
        from omnidraft.runtime.profiling.on_phone import PhoneRequest

        print_phone_profile(
            PhoneRequest(
                target,
                drafter,
                quantization,
                device_libraries,
                serial,
                threads,
                device_context,
                _PASSES_A_REPEAT * repeat,
                keep_on_device,
            ),
            as_json=as_json,
        )
        return
    if serial or device_libraries or keep_on_device:
        raise OmniDraftError(
            "--serial, --device-libraries and --keep-on-device belong to --adb: add that."
        )
    length = read_draft_length(draft_length)
    if length == 0:
        raise OmniDraftError("profile compares drafting with plain decoding: --draft-length from 1")
    # Imported here: pydantic's models take longer than all else that every command starts with.
    from omnidraft.runtime.profiling.devices import load_device
    from omnidraft.runtime.profiling.html import write_html
    from omnidraft.runtime.profiling.profiler import PROMPTS, Request
    from omnidraft.runtime.profiling.profiler import profile as measure
    from omnidraft.runtime.storage.files import check_place

    request = Request(
        target,
        drafter,
        quantization,
        threads,
        prompts=PROMPTS[:limit] if prompts is None else read_prompts(prompts, limit),
        repeats=repeat,
        max_new_tokens=max_new_tokens,
        draft_length=length,
        tree=tree,
        device=load_device(device_profile) if device_profile is not None else None,
    )
    if html is not None:
        check_place(html)

    def show_result(result: Profile) -> None:
        if html is not None:
            write_html(result, html)
        if as_json:
            print_json(result.model_dump(mode="json"))
        else:
            _print(result)

    done: Profile | None = None

    def told(so_far: Profile) -> None:
        nonlocal done
        done = so_far

    try:
        with steps("loading", quiet=as_json) as show:
            result = measure(request, show, told)
    except Interrupted:
        if done is not None:
            show_result(done)
            errors.print(
                f"\nThese figures are of the first {done.settings.repeats} of "
                f"{count(repeat, 'repeat')}."
            )
        raise
    show_result(result)


def _print(result: Profile) -> None:
    console = stdout()
    settings, machine = result.settings, result.machine
    console.print(
        f"{result.target} ({settings.quantization}) with {result.drafter}: "
        f"{count(settings.prompts, 'prompt')}, {count(settings.repeats, 'time')}, at most "
        f"{count(settings.max_new_tokens, 'token')}, {count(settings.target_threads, 'thread')}"
    )
    console.print(
        f"{machine.processor}, {count(machine.usable_cores or machine.cores or 1, 'core')}, "
        f"{machine.os}, ONNX Runtime {machine.versions['onnxruntime']}"
    )
    if result.simulation is not None:
        console.print(f"simulating {result.simulation.device.name}", style="yellow")
        for what, source in result.simulation.device.sources.items():
            console.print(f"  {what}: {source}", style="yellow")
    console.print()
    console.print(_throughput(result))
    speedup = result.speedup
    spread = f" ({speedup.lowest:.2f} to {speedup.highest:.2f})" if settings.repeats > 1 else ""
    console.print(
        f"speedup {speedup.median:.2f}×{spread}, "
        f"{speedup.identical} of {count(settings.prompts, 'answer')} identical"
    )
    console.print(f"{_rounds(result.speculative)}\n")
    console.print(_latency(result))
    console.print()
    console.print(_passes(result))
    console.print()
    console.print(_memory(result.memory))
    console.print()
    console.print(_energy(result))


def _throughput(result: Profile) -> Table:
    table = new_table(
        *("", "tok/s", "tok/round", "accepted", "prompt/s", "draft", "target", "native", "Python")
    )
    table.caption = "prompt/s: tokens read a second; draft to Python: mean milliseconds of a token"
    table.caption_justify = "left"
    for name, mode in (("plain", result.plain), ("speculative", result.speculative)):
        share = mode.time_per_token
        table.add_row(
            name,
            f"{mode.tokens_per_second:.1f}",
            f"{mode.block_efficiency:.2f}",
            f"{mode.acceptance_rate:.0%}",
            f"{mode.prompt_tokens_per_second:.0f}" if mode.prompt_tokens_per_second else "–",
            f"{share.draft_ms:.2f}",
            f"{share.target_ms:.2f}",
            f"{share.native_ms:.2f}",
            f"{share.python_ms:.2f}",
        )
    return table


def _rounds(mode: Mode) -> str:
    """What the rounds of a mode proposed."""
    kinds = {
        "trees": mode.rounds_by_kind.tree,
        "chains": mode.rounds_by_kind.chain,
        "looked up": mode.rounds_by_kind.lookup,
        "plain": mode.rounds_by_kind.plain,
    }
    shares = ", ".join(f"{n / mode.rounds:.0%} {kind}" for kind, n in kinds.items() if n)
    return f"{count(mode.rounds, 'round')}, {mode.nodes_per_round:.2f} nodes each: {shares}"


def _latency(result: Profile) -> Table:
    table = new_table("", "count", "p50", "p95", "p99", title="latency, milliseconds")
    load = result.load
    for name, milliseconds in (
        ("load target", load.target_ms),
        ("load drafter", load.drafter_ms),
        ("pair vocabularies", load.pairing_ms),
    ):
        table.add_row(name, "1", f"{milliseconds:.1f}", "", "")
    for name, mode in (("plain", result.plain), ("speculative", result.speculative)):
        table.add_section()
        table.add_row(name, style="bold")
        for phase, summary in _phases(mode):
            table.add_row(
                phase,
                f"{summary.count:,}",
                *(f"{ms:.2f}" for ms in (summary.p50_ms, summary.p95_ms, summary.p99_ms)),
            )
    return table


def _passes(result: Profile) -> Table:
    drafts, target = result.speculative.draft_passes, result.target_passes
    return passes_table(
        {
            "draft steps": [each for each in drafts if each.kind == "chain"],
            "draft trees": [each for each in drafts if each.kind == "tree"],
            "target chains": [each for each in target if each.kind == "chain"],
            "target trees": [each for each in target if each.kind == "tree"],
        }
    )


def _phases(mode: Mode) -> Iterator[tuple[str, Summary]]:
    """The phases that occurred, in the order in which they happen."""
    named = {
        "prompt": mode.prompt,
        "first token": mode.first_token,
        "token": mode.token,
        "round": mode.round,
        "  draft reads the prompt": mode.draft_prompt,
        "  native": mode.native,
        "  Python": mode.python,
    }
    for phase, summary in named.items():
        if summary is not None:
            yield phase, summary


def _memory(memory: Memory) -> Table:
    table = new_table("", "MB", "", title="memory")
    table.columns[2].justify = "left"

    def add(name: str, size: int | None, note: str = "", style: str = "") -> None:
        table.add_row(name, "–" if size is None else f"{size / 1e6:.2f}", note, style=style)

    add("resident", memory.resident, "now", "bold")
    add("  target weights", memory.target_weights)
    add("  drafter weights", memory.drafter_weights)
    add("  target KV cache", *_kv(memory.target_kv))
    add("  drafter KV cache", *_kv(memory.drafter_kv))
    add("  n-gram cache", memory.ngram_cache, count(memory.ngrams, "n-gram"))
    add("  runtime", memory.runtime, "the rest")
    since = "while loading and answering" if memory.peak_since == "load" else "since the start"
    add("peak", memory.peak, since, "bold")
    add("before loading", memory.before_load)
    add("target loaded", memory.after_target)
    add("drafter loaded", memory.after_drafter)
    add("paired", memory.after_pairing)
    return table


def _kv(cache: KvCache | None) -> tuple[int | None, str]:
    if cache is None:
        return None, "kept by the engine: part of the runtime"
    return cache.touched, f"of {cache.allocated / 1e6:.0f} MB of address space"


def _energy(result: Profile) -> str:
    energy = result.energy
    if energy.plain_joules_per_token is None or energy.speculative_joules_per_token is None:
        return f"energy: not measured; {energy.reason}"
    return (
        f"energy: {energy.plain_joules_per_token:.3f} J a token plainly, "
        f"{energy.speculative_joules_per_token:.3f} J speculatively ({energy.reason})"
    )
