"""The model card of a drafter: what it learned from, how, and what it is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from omnidraft import __version__
from omnidraft.distill.config import Config, LocalTeacher, ServerTeacher, Teacher, TextTeacher
from omnidraft.distill.evaluation import DRAFT_LENGTH, Figures


@dataclass(frozen=True)
class Sampled:
    """What came of a teacher."""

    documents: int
    tokens: int


def card(
    config: Config,
    sampled: Mapping[str, Sampled],
    figures: Mapping[str, Figures],
    before: Mapping[str, Figures],
    parameters: int,
    versions: Mapping[str, str],
) -> str:
    """Markdown, with the front matter that model hubs read.

    Args:
        before: figures of the drafter that training went on from.
    """
    licences = sorted({teacher.licence for teacher in config.teachers})
    bases = [
        teacher.repository
        for teacher in config.teachers
        if isinstance(teacher, LocalTeacher) and teacher.repository is not None
    ]
    shape = config.drafter
    lines = [
        "---",
        f"license: {licences[0].lower() if len(licences) == 1 else 'other'}",
        "library_name: omnidraft",
        *(["base_model:", *(f"- {name}" for name in bases)] if bases else []),
        *(["base_model_relation: distillation"] if bases else []),
        "---",
        f"# {config.name}",
        "",
        f"A drafter for speculative decoding: a Llama of {parameters / 1e6:.1f}M parameters, "
        f"{shape.layers} layers of {shape.hidden_size}, feed-forward {shape.feed_forward_size}, "
        f"{shape.heads} heads, tied head. It is no assistant.",
        "",
        f"Made by `omnidraft distill` {__version__} from the configuration beside it "
        "(`config.toml`).",
        "",
        "## Teachers",
        "",
        "| teacher | what | licence | weight | documents | draft tokens |",
        "| --- | --- | --- | --- | --- | --- |",
        *(
            f"| {teacher.name} | {_what(teacher)} | {teacher.licence} | {teacher.weight:g} | "
            f"{sampled[teacher.name].documents:,} | {sampled[teacher.name].tokens:,} |"
            for teacher in config.teachers
        ),
        "",
        "The drafter's weights come under the terms of all of these. The vocabulary comes from its "
        "tokenizer, under that one's own.",
        "",
        *_conversations(config),
        "## Training",
        "",
        "| stage | steps | rate | loss | sharpened | heads cut | grid |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| {number} | {stage.steps:,} | {stage.rate:g} | {stage.loss} | {stage.sharpen:g} | "
            f"{_yes(stage.cut_heads)} | {_yes(stage.grid)} |"
            for number, stage in enumerate(config.training.stages, 1)
        ),
        "",
        f"{config.training.positions:,} positions a step, seed {config.seed}.",
        "",
        "## Figures",
        "",
        f"On up to {config.held_out} documents of each teacher that it has not seen, a quarter of "
        "them at most, of which the greedy answers count. Tokens a round: the teacher's, at draft "
        f"length {DRAFT_LENGTH}.",
        "",
        "| teacher | answers | tokens | tokens a round | first choice right | loss |",
        "| --- | --- | --- | --- | --- | --- |",
        *_figures(figures),
        *_figures({f"{name}, before": each for name, each in before.items()}),
        "",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
    ]
    return "\n".join(lines) + "\n"


def _conversations(config: Config) -> Sequence[str]:
    """How conversations were begun, if any were."""
    if all(isinstance(teacher, TextTeacher) for teacher in config.teachers):
        return []
    shares = config.sampling.openings
    total = sum(shares.values())
    begun = ", ".join(f"{kind} {share / total:.0%}" for kind, share in shares.items())
    lines = [f"Conversations were begun by openings (`distill/sampling/openings.py`): {begun}."]
    if config.sampling.prompts:
        listed = "; ".join(f"{each.name} ({each.licence})" for each in config.sampling.prompts)
        lines.append(f"Prompts: {listed}.")
    return [*lines, ""]


def _figures(figures: Mapping[str, Figures]) -> Sequence[str]:
    return [
        f"| {name} | {each.answers} | {each.tokens:,} | {each.tokens_per_round:.3f} | "
        f"{each.first_choice:.1%} | {each.loss:.3f} |"
        if each.answers
        else f"| {name} | 0 | | | | |"
        for name, each in figures.items()
    ]


def _what(teacher: Teacher) -> str:
    if isinstance(teacher, LocalTeacher):
        of = "" if teacher.repository is None else f" of {teacher.repository}"
        # A path says something on one machine only.
        return f"`{PurePath(teacher.model).name}`{of}, sampled"
    if isinstance(teacher, ServerTeacher):
        return f"`{teacher.model}` behind a server, sampled"
    return "text that was there"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
