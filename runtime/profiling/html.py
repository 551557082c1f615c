"""A profile as one HTML file that loads nothing."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from omnidraft.runtime.profiling.plots import bars, lines, stacks
from omnidraft.runtime.profiling.report import Memory, Mode, Profile
from omnidraft.runtime.storage.files import whole_file

_TEMPLATE = "report.html.jinja"


def render_html(profile: Profile) -> str:
    """The report: an HTML document with its style sheet and plots inside and no script."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(_TEMPLATE).render(
        profile=profile, plots=_plots(profile), curves=list(_curves(profile))
    )


def write_html(profile: Profile, path: Path) -> None:
    """Write the report, whole or not at all.

    Raises:
        OmniDraftError: the file cannot be written.
    """
    text = render_html(profile)
    with whole_file(path) as file:
        file.write_text(text, "utf-8")


def _plots(profile: Profile) -> dict[str, str]:
    modes = {"plain": profile.plain, "speculative": profile.speculative}
    return {
        "speed": bars(
            {name: {name: mode.tokens_per_second} for name, mode in modes.items()},
            "tokens/s",
            "tokens per second, plain and speculative",
        ),
        # One repeat is in the bars above.
        "repeats": lines(
            {
                name: list(enumerate(mode.tokens_per_second_of_repeats, 1))
                for name, mode in modes.items()
            },
            "repeat",
            "tokens/s",
            "tokens per second in each repeat",
        )
        if profile.settings.repeats > 1
        else "",
        "token": stacks(
            {name: _shares(mode) for name, mode in modes.items()},
            "ms",
            "where the time of a token goes",
        ),
        "latency": bars(_percentiles(modes), "ms", "percentiles of latencies"),
        "rounds": stacks({"rounds": _kinds(profile.speculative)}, "rounds", "kinds of rounds"),
        "target": lines(_curves(profile), "rows in a pass", "ms", "target passes"),
        "memory": stacks({"resident": _parts(profile.memory)}, "MB", "parts of the memory taken"),
    }


def _shares(mode: Mode) -> dict[str, float]:
    share = mode.time_per_token
    return {
        "draft": share.draft_ms,
        "target": share.target_ms,
        "native": share.native_ms,
        "Python": share.python_ms,
    }


def _kinds(mode: Mode) -> dict[str, float]:
    kinds = mode.rounds_by_kind
    return {
        "trees": kinds.tree,
        "chains": kinds.chain,
        "looked up": kinds.lookup,
        "plain": kinds.plain,
    }


def _percentiles(modes: dict[str, Mode]) -> dict[str, dict[str, float]]:
    rows = {}
    for phase in ("first_token", "round", "token"):
        for name, mode in modes.items():
            if (summary := getattr(mode, phase)) is not None:
                rows[f"{phase.replace('_', ' ')}, {name}"] = {
                    "p50": summary.p50_ms,
                    "p95": summary.p95_ms,
                    "p99": summary.p99_ms,
                }
    return rows


def _curves(profile: Profile) -> dict[str, list[tuple[float, float]]]:
    """p50 and p95 of the target's passes, of chains and of trees."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for kind, name in (("chain", "chains"), ("tree", "trees")):
        passes = [each for each in profile.target_passes if each.kind == kind]
        curves[f"{name}, p50"] = [(each.tokens, each.p50_ms) for each in passes]
        curves[f"{name}, p95"] = [(each.tokens, each.p95_ms) for each in passes]
    return {name: points for name, points in curves.items() if points}


def _parts(memory: Memory) -> dict[str, float]:
    sizes = {
        "target weights": memory.target_weights,
        "drafter weights": memory.drafter_weights,
        "target KV cache": memory.target_kv.touched if memory.target_kv else None,
        "drafter KV cache": memory.drafter_kv.touched if memory.drafter_kv else None,
        "n-gram cache": memory.ngram_cache,
        "runtime": memory.runtime,
    }
    return {name: size / 1e6 for name, size in sizes.items() if size is not None}
