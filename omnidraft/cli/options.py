"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from omnidraft.runtime.engines import Engine
from omnidraft.runtime.models.catalogue import Quantization

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")]
PromptFile = Annotated[Path, typer.Argument(help="JSON lines of {task, prompt}.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first N prompts.")]
Target = Annotated[
    str, typer.Option(help="Model name, folder, GGUF file or Hugging Face id.", show_default=False)
]
Drafter = Annotated[
    str, typer.Option(help="The same, of the drafter; 'default' is the built-in one.")
]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Generate at most so many tokens.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy decoding.")]
TopK = Annotated[
    int, typer.Option(max=2**31 - 1, help="Keep the k most probable tokens; 0 is off.")
]
TopP = Annotated[float, typer.Option(help="Keep the smallest set with this probability; 1 is off.")]
MinP = Annotated[float, typer.Option(help="Keep tokens at least so probable relative to the best.")]
Penalty = Annotated[float, typer.Option(help="Repetition penalty; 1 is off.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Repeat a sampled run.")]
DraftLength = Annotated[
    str,
    typer.Option(
        metavar="N|auto", help="Draft tokens per round; auto: as many as pay for themselves."
    ),
]
DraftConfidence = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="End a draft of fixed length early when it is less likely than this; 0: never.",
    ),
]
Verification = Annotated[
    Literal["exact", "paper"], typer.Option(help="paper is approximate, for comparison.")
]
Raw = Annotated[bool, typer.Option("--raw", help="No chat template: continue the text.")]
Stop = Annotated[
    list[str],
    typer.Option(help="End the answer before this text; several: --stop A --stop B."),
]
Weights = Annotated[Quantization, typer.Option(help="Weights of a converted model.")]
RunBy = Annotated[
    Engine | None,
    typer.Option(
        metavar="ENGINE",
        help=f"What runs the target: {', '.join(get_args(Engine))}.",
        show_default="by what it is",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Longest sequence of the target, in tokens; memory is taken as it fills.",
        show_default="the model's own",
    ),
]
Threads = Annotated[int, typer.Option(min=1, max=256, help="Threads for one pass of the target.")]
MeasuringThreads = Annotated[
    int, typer.Option(min=1, max=256, help="Threads to measure parity and latency with.")
]
AdapterName = Annotated[
    str | None, typer.Option(help="Draft with what this adapter has learned.", show_default=False)
]
