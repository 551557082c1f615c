"""``omnidraft export``: a drafter as a bundle for one backend."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omnidraft.cli import options as opt
from omnidraft.cli.inspect import inspect
from omnidraft.cli.output import steps
from omnidraft.runtime.storage.manifest import Backend, BundleQuantization, Layout


def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A Llama drafter: 'default', a folder, a GGUF file or a Hugging Face id.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder to write; a bundle that is there is replaced."),
    ],
    backend: Annotated[
        Backend, typer.Option(**opt.one_of(Backend), help="What will run the bundle.")
    ] = "onnx",
    layout: Annotated[
        Layout,
        typer.Option(
            **opt.one_of(Layout),
            help="Names of inputs and outputs: ours; with onnx those of transformers and "
            "onnxruntime-genai (genai); with executorch those of its LLM runners (llm-runner).",
        ),
    ] = "omnidraft",
    quantization: Annotated[
        BundleQuantization | None,
        typer.Option(
            **opt.one_of(BundleQuantization),
            help="How weights are stored.",
            show_default="by backend",
        ),
    ] = None,
    lora_rank: Annotated[
        int | None,
        typer.Option(
            **opt.whole(0, 1024), help="Rank of the LoRA inputs; 0: none.", show_default="32"
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            **opt.whole(16),
            help="Longest sequence, in tokens.",
            show_default="by backend",
        ),
    ] = None,
    soc: Annotated[
        str | None,
        typer.Option(
            metavar="CHIP", help="Chip that the qnn backend compiles for.", show_default="SM8650"
        ),
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Merge what this adapter has learned into the weights.",
            show_default=False,
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.txt",
            help="Text for onnx int4 and qnn; the built-in text is tried, too, and compared.",
            show_default="built-in text",
        ),
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(
            **opt.number(0, 1),
            help="Fail when top-1 or acceptance agreement with float32 is lower.",
            show_default="by quantization, and on the error of logits",
        ),
    ] = None,
    train_step: Annotated[
        bool,
        typer.Option(
            "--train-step/--no-train-step",
            help="Add a graph that trains the LoRA inputs; it holds the weights once more.",
            show_default=False,
        ),
    ] = False,
    share_weights: Annotated[
        bool,
        typer.Option(
            "--share-weights/--no-share-weights",
            help="With qnn: the weights once for both graphs. Only the chip can load that, not its "
            "emulation.",
            show_default=False,
        ),
    ] = False,
    threads: opt.MeasuringThreads = 2,
    as_json: opt.AsJson = False,
) -> None:
    """Write a drafter as a bundle for a backend.

    It is compared with float32, and written only when it agrees.

    The bundle holds the graphs, the tokenizer and omnidraft.json: what everything is, its sha256,
    and how far it agrees with the float32 model on held text. See `omnidraft inspect`.

    \b
    Examples:
      omnidraft export default --output bundle
      omnidraft export default --output bundle --layout genai
      omnidraft export default --output bundle --backend qnn --soc SM8650
      omnidraft export default --output bundle --backend gguf
    """
    from omnidraft.export.pipeline import export as write
    from omnidraft.export.recipes import Options

    options = Options(
        quantization,
        lora_rank,
        context or 0,
        soc,
        threads,
        min_agreement,
        train_step,
        layout=layout,
        share_weights=share_weights,
    )
    with steps(f"exporting {checkpoint}", quiet=as_json) as show:
        write(
            checkpoint,
            output,
            backend,
            options,
            calibration=calibration,
            adapter=adapter,
            progress=show,
        )
    inspect(output, as_json=as_json)
