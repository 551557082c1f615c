"""Options that several commands share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import typer

from omnidraft.runtime.engines import Engine
from omnidraft.runtime.models.catalogue import Quantization
from omnidraft.runtime.options import MAX_TREE


def whole(least: int, most: int | None = None) -> dict[str, Any]:
    """What ``typer.Option`` is told of a whole number, so that a refusal is a sentence."""
    limits = f"from {least} on" if most is None else f"from {least} to {most}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < least or (most is not None and value > most):
            raise typer.BadParameter(f"it must be a whole number {limits}, not {text}")
        return value

    return {"parser": parse, "metavar": "N"}


def number(least: float = -math.inf, most: float = math.inf) -> dict[str, Any]:
    """The same of a number. Infinite ones and NaN are none."""
    limits = "" if least == -math.inf else f" from {least:g} on"
    limits = limits if most == math.inf else f" from {least:g} to {most:g}"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and least <= value <= most):
            raise typer.BadParameter(f"it must be a number{limits}, not {text}")
        return value

    return {"parser": parse, "metavar": "X"}


def one_of(kind: Any) -> dict[str, Any]:
    """The same of a ``Literal``."""
    names: tuple[str, ...] = get_args(kind)

    def parse(text: str) -> str:
        if text not in names:
            raise typer.BadParameter(f"it must be one of {', '.join(names)}, not {text}")
        return text

    return {"parser": parse, "metavar": "|".join(names)}


AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")]
PROMPTS: Final[dict[str, Any]] = {
    "metavar": "PROMPTS.jsonl",
    "help": 'Prompts, a line each: {"task": "...", "prompt": "..."}; - is stdin.',
}
PromptFile = Annotated[Path, typer.Argument(**PROMPTS)]
Limit = Annotated[int | None, typer.Option(**whole(1), help="Only the first N prompts.")]
Target = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help="Model name, folder, GGUF file or Hugging Face id.",
        show_default=False,
    ),
]
Drafter = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help="The drafter: a name, folder, file or id as for --target; 'default' is built in.",
    ),
]
System = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="What the model is told first.", show_default=False),
]
MaxNewTokens = Annotated[int, typer.Option(**whole(1), help="Generate at most so many tokens.")]
Temperature = Annotated[float, typer.Option(**number(), help="0 is greedy decoding.")]
TopK = Annotated[
    int,
    typer.Option(**whole(0, 2**31 - 1), help="Keep the k most probable tokens; 0 is off."),
]
TopP = Annotated[
    float,
    typer.Option(**number(), help="Keep the smallest set with this probability; 1 is off."),
]
MinP = Annotated[
    float,
    typer.Option(
        **number(), help="Keep tokens at least X times as probable as the best; 0 is off."
    ),
]
Penalty = Annotated[float, typer.Option(**number(), help="Repetition penalty; 1 is off.")]
Seed = Annotated[int | None, typer.Option(**whole(0), help="Seed of sampling, to repeat a run.")]
DraftLength = Annotated[
    str,
    typer.Option(
        metavar="N|auto", help="Draft tokens per round; auto: as many as pay for themselves."
    ),
]
Tree = Annotated[
    int | None,
    typer.Option(
        **whole(1, MAX_TREE),
        help="Tokens that each round proposes as a tree; not while an acceptance head learns.",
    ),
]
DraftConfidence = Annotated[
    float,
    typer.Option(
        **number(0, 1),
        help="End a draft of fixed length early when it is less likely than this; 0: never.",
    ),
]
NoDraft = Annotated[
    bool, typer.Option("--no-draft", help="Plain decoding; options of drafting do nothing.")
]
VerificationName = Literal["exact", "paper"]
Verification = Annotated[
    VerificationName,
    typer.Option(**one_of(VerificationName), help="paper is approximate, for comparison."),
]
Raw = Annotated[
    bool,
    typer.Option(
        "--raw", help="No chat template: continue the text, in which <|markers|> are tokens."
    ),
]
Stop = Annotated[
    list[str],
    typer.Option(
        metavar="TEXT", help="End the answer before this text; several: --stop A --stop B."
    ),
]
Weights = Annotated[
    Quantization,
    typer.Option(
        **one_of(Quantization),
        help="Weights of a converted model; auto: a quantized file's own, else 4bit or 8bit.",
    ),
]
RunBy = Annotated[
    Engine | None,
    typer.Option(
        **one_of(Engine) | {"metavar": "ENGINE"},
        help=f"What runs the target: {', '.join(get_args(Engine))}.",
        show_default="by what it is",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        **whole(2),
        help="Longest sequence of the target, in tokens; memory is taken as it fills.",
        show_default="the model's own",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        **whole(1),
        help="Threads for one pass of the target.",
        show_default="one for each physical core: see doctor",
    ),
]
MeasuringThreads = Annotated[
    int,
    typer.Option(**whole(1, 256), help="Threads to measure parity and latency with."),
]
AdapterName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Draft with what this adapter has learned.", show_default=False
    ),
]
Learn = Annotated[bool, typer.Option("--learn", help="Go on learning, and keep it in the adapter.")]
