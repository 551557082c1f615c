"""``omnidraft profile --adb``: what was measured on a phone."""

from __future__ import annotations

from rich.table import Table

from omnidraft.cli.output import count, print_json, stdout, steps
from omnidraft.cli.profile_tables import new_table, passes_table
from omnidraft.runtime.profiling.on_phone import PhoneProfile, PhoneRequest, profile_on_phone


def print_phone_profile(request: PhoneRequest, *, as_json: bool) -> None:
    """Measure, and print the result."""
    with steps("asking the phone", quiet=as_json) as show:
        result = profile_on_phone(request, show)
    if as_json:
        print_json(result.model_dump(mode="json"))
    else:
        _print(result)


def _print(result: PhoneProfile) -> None:
    console = stdout()
    device, settings = result.device, result.settings
    console.print(
        f"{result.target} ({settings.quantization}) and {result.drafter} on {device.name}: "
        f"{settings.repeats:,} passes of each length behind "
        f"{count(settings.context, 'token')}"
    )
    console.print(
        f"{device.processor or device.architecture}, {count(device.cores, 'core')}, Android "
        f"{device.android}, {device.kernel}, ONNX Runtime {device.versions['onnxruntime']}"
    )
    console.print()
    console.print(_latency(result))
    console.print()
    console.print(
        passes_table(
            {"draft steps": result.on_drafter.passes, "target chains": result.on_target.passes}
        )
    )
    console.print()
    console.print(_memory(result))


def _latency(result: PhoneProfile) -> Table:
    table = new_table("", "target", "drafter", title="latency, milliseconds")
    models = (result.on_target, result.on_drafter)
    threads = (result.settings.target_threads, result.settings.drafter_threads)
    table.add_row("threads", *(str(each) for each in threads))
    table.add_row("load", *(f"{each.load_ms:.1f}" for each in models))
    table.add_row("read the text before", *(f"{each.prompt_ms:.1f}" for each in models))
    for name, figure in (("one token, p50", "p50_ms"), ("one token, p95", "p95_ms")):
        table.add_row(name, *(f"{getattr(each.passes[0], figure):.2f}" for each in models))
    return table


def _memory(result: PhoneProfile) -> Table:
    table = new_table("", "target", "drafter", title="memory, MB, a process for each model")
    for name, sizes in (
        ("weights", (result.on_target.weights, result.on_drafter.weights)),
        ("peak", (result.on_target.peak, result.on_drafter.peak)),
        ("at the end (PSS)", (result.on_target.proportional, result.on_drafter.proportional)),
    ):
        table.add_row(name, *("–" if size is None else f"{size / 1e6:.2f}" for size in sizes))
    return table
