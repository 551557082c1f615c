"""The ``omnidraft`` command."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from omnidraft import GenerationOptions, Origin, SamplingParameters, Session, Verification
from omnidraft.adapt_cli import AdapterOption, adapt
from omnidraft.adapters_cli import adapters_app
from omnidraft.opening import adapter_choice
from omnidraft.output import AsJson, errors, open_models, print_json, progress_bar, stdout, steps
from omnidraft.profile_cli import profile
from omnidraft.runtime.bench import Comparison, Report, compare, read_prompts
from omnidraft.runtime.doctor import examine
from omnidraft.runtime.engines import Engine
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models.cache import list_models
from omnidraft.runtime.models.catalogue import DEFAULT_DRAFTER, DEFAULT_QUANTIZATION, Quantization
from omnidraft.runtime.models.resolve import model_path, pull
from omnidraft.runtime.options import (
    DEFAULT_DRAFT_CONFIDENCE,
    DEFAULT_DRAFT_LENGTH,
    read_draft_length,
    sampling_parameters,
)
from omnidraft.runtime.session import Answer, default_ngram_folder
from omnidraft.runtime.storage.manifest import Backend, BundleQuantization

if TYPE_CHECKING:
    from omnidraft.export.parity import Verified
    from omnidraft.runtime.storage.bundle import Bundle, Graph, Latency

app = typer.Typer(
    help="One small draft model makes any local language model answer faster, losslessly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
models_app = typer.Typer(help="Fetch, list and find models.", no_args_is_help=True)
app.add_typer(models_app, name="models")
app.add_typer(adapters_app, name="adapters")
app.command()(profile)
app.command()(adapt)

_STYLES = {
    Origin.DIRECT: "green",
    Origin.MERGED: "cyan",
    Origin.CORRECTED: "yellow",
    Origin.FREE: "default",
    Origin.LOOKUP: "magenta",
}

Target = Annotated[
    str, typer.Option(help="Model name, folder, GGUF file or Hugging Face id.", show_default=False)
]
Drafter = Annotated[
    str, typer.Option(help="Model name, folder, GGUF file or Hugging Face id of the drafter.")
]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Generate at most so many tokens.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy decoding.")]
TopK = Annotated[
    int, typer.Option(max=2**31 - 1, help="Keep the k most probable tokens; 0 is off.")
]
TopP = Annotated[float, typer.Option(help="Keep the smallest set with this probability; 1 is off.")]
MinP = Annotated[float, typer.Option(help="Keep tokens at least so probable relative to the best.")]
Penalty = Annotated[float, typer.Option(help="Repetition penalty; 1 is off.")]
Seed = Annotated[int | None, typer.Option(min=0, max=2**64 - 1, help="Repeat a sampled run.")]
DraftLengthOption = Annotated[
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
VerificationOption = Annotated[
    Literal["exact", "paper"], typer.Option(help="paper is approximate, for comparison.")
]
Raw = Annotated[bool, typer.Option("--raw", help="No chat template: continue the text.")]
QuantizationOption = Annotated[Quantization, typer.Option(help="Weights of a converted model.")]
EngineOption = Annotated[
    Engine | None, typer.Option(help="What runs the target.", show_default="by what it is")
]
Threads = Annotated[int, typer.Option(min=1, max=256, help="Threads for one pass of the target.")]
MeasuringThreads = Annotated[
    int, typer.Option(min=1, max=256, help="Threads to measure parity and latency with.")
]


@app.command()
def generate(
    target: Target,
    prompt: Annotated[str, typer.Option(help="The prompt; - reads stdin.", show_default=False)],
    drafter: Drafter = DEFAULT_DRAFTER,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = None,
    draft_length: DraftLengthOption = str(DEFAULT_DRAFT_LENGTH),
    draft_confidence: DraftConfidence = DEFAULT_DRAFT_CONFIDENCE,
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Plain decoding.")] = False,
    verification: VerificationOption = "exact",
    raw: Raw = False,
    quantization: QuantizationOption = DEFAULT_QUANTIZATION,
    engine: EngineOption = None,
    threads: Threads = 2,
    adapter: AdapterOption = None,
    learn: Annotated[
        bool, typer.Option("--learn", help="Go on learning, and keep it in the adapter.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Answer one prompt, streaming the text.

    Colours in a terminal tell how a token came about: green direct, cyan merged n-gram, magenta
    looked up in the text, yellow corrected by the target, uncoloured the target's own.

    What one answer teaches the n-gram cache is kept for the next. A sampled answer with --seed
    starts from an empty one, so that it can be repeated.
    """
    options = _options(
        max_new_tokens,
        sampling_parameters(temperature, top_k, top_p, min_p, repetition_penalty),
        verification,
        seed,
        "0" if no_draft else draft_length,
        draft_confidence,
        raw,
    )
    text = _read_prompt(prompt)
    session = _open(
        target,
        drafter if options.draft_length != 0 else None,
        quantization,
        engine,
        threads,
        keep_ngrams=options.sampling.greedy or seed is None,
        adapter=adapter,
        learn=learn,
    )
    if as_json:
        answer = session.generate(text, options)
        print_json(_answer_as_dict(answer))
    else:
        _stream(session, text, options)
    try:
        session.save()
    except OmniDraftError as error:
        if learn:
            raise
        warnings.warn(str(error), stacklevel=1)  # the answer is there


@app.command()
def bench(
    prompts: Annotated[Path, typer.Argument(help="JSON lines of {task, prompt}.")],
    target: Target,
    drafter: Drafter = DEFAULT_DRAFTER,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N prompts.")] = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = 0,
    draft_length: DraftLengthOption = str(DEFAULT_DRAFT_LENGTH),
    draft_confidence: DraftConfidence = DEFAULT_DRAFT_CONFIDENCE,
    verification: VerificationOption = "exact",
    raw: Raw = False,
    quantization: QuantizationOption = DEFAULT_QUANTIZATION,
    engine: EngineOption = None,
    threads: Threads = 2,
    adapter: AdapterOption = None,
    as_json: AsJson = False,
) -> None:
    """Answer every prompt plainly and speculatively, and compare.

    Without an adapter the n-gram cache starts empty, so that a run can be repeated.
    """
    options = _options(
        max_new_tokens,
        sampling_parameters(temperature, top_k, top_p, min_p, repetition_penalty),
        verification,
        seed,
        draft_length,
        draft_confidence,
        raw,
    )
    if options.draft_length == 0:
        raise OmniDraftError("bench compares drafting with plain decoding: --draft-length from 1")
    entries = read_prompts(prompts, limit)
    session = _open(
        target,
        drafter,
        quantization,
        engine,
        threads,
        keep_ngrams=False,
        adapter=adapter,
    )
    with progress_bar() as progress:
        bar = progress.add_task("", total=len(entries))

        def show(report: Report) -> None:
            sums = report.overall
            progress.update(
                bar,
                completed=sums.prompts,
                description=f"{sums.speculative.block_efficiency:.2f} tokens a round, "
                f"{sums.speedup:.2f}×, {sums.identical}/{sums.prompts} identical",
            )

        report = compare(session, entries, options, show)
    if as_json:
        print_json(report.as_dict())
    else:
        _print_report(report, session, options)


@app.command("export")
def export_command(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="A Llama drafter: 'default', a folder, a GGUF file or a Hugging Face id."
        ),
    ],
    output: Annotated[
        Path, typer.Option(help="Folder to write; a bundle that is there is replaced.")
    ],
    backend: Annotated[Backend, typer.Option(help="What will run the bundle.")] = "onnx",
    quantization: Annotated[
        BundleQuantization | None,
        typer.Option(help="How weights are stored.", show_default="by backend"),
    ] = None,
    lora_rank: Annotated[
        int, typer.Option(min=0, max=1024, help="Rank of the LoRA inputs; 0: none.")
    ] = 32,
    context: Annotated[
        int | None,
        typer.Option(min=16, help="Longest sequence, in tokens.", show_default="by backend"),
    ] = None,
    soc: Annotated[
        str | None,
        typer.Option(help="Chip that the qnn backend compiles for.", show_default="SM8650"),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Text for onnx int4 and qnn; the built-in text is tried, too, and compared.",
            show_default="built-in text",
        ),
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Fail when top-1 or acceptance agreement with float32 is lower.",
            show_default="by quantization, and on the error of logits",
        ),
    ] = None,
    train_step: Annotated[
        bool,
        typer.Option(
            "--train-step/--no-train-step",
            help="Add a graph that trains the LoRA inputs; it holds the weights once more.",
        ),
    ] = False,
    threads: MeasuringThreads = 2,
    as_json: AsJson = False,
) -> None:
    """Write a drafter as a bundle for one backend, and prove it equal to float32.

    The bundle holds the graphs, the tokenizer and omnidraft.json: what everything is, its sha256,
    and how far it agrees with the float32 model on held text. See `omnidraft inspect`.
    """
    from omnidraft.export.pipeline import export
    from omnidraft.export.recipes import Options

    options = Options(
        quantization, lora_rank, context or 0, soc, threads, min_agreement, train_step
    )
    with steps(f"exporting {checkpoint}") as show:
        export(checkpoint, output, backend, options, calibration=calibration, progress=show)
    inspect(output, as_json=as_json)


@app.command()
def inspect(
    folder: Annotated[Path, typer.Argument(help="A bundle that `omnidraft export` wrote.")],
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Measure parity and latency again, and compare."),
    ] = False,
    threads: MeasuringThreads = 2,
    as_json: AsJson = False,
) -> None:
    """Show what a bundle holds, how it was checked and how fast it was.

    Every file's sha256 is compared with the manifest. With --verify the bundle must also agree with
    float32 as its manifest says; no checkpoint is needed for that.
    """
    from omnidraft.runtime.storage.bundle import Bundle

    bundle = Bundle.load(folder)
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


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what is installed, what works, and what to do about what is missing."""
    findings = examine()
    if as_json:
        print_json({"findings": [vars(finding) for finding in findings]})
    else:
        marks = {"ok": "[green]✓[/]", "optional": "[yellow]–[/]", "problem": "[red]✗[/]"}
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(width=1)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for finding in findings:
            detail = Text(finding.detail)
            if finding.remedy:
                detail.append(f"\n→ {finding.remedy}", "bold")
            table.add_row(marks[finding.state], finding.subject, detail)
        stdout().print(table)
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(1)


@models_app.command("list")
def models_list(as_json: AsJson = False) -> None:
    """List the models known by name and those in the cache."""
    listed = list_models()
    if as_json:
        print_json({"models": [{**vars(m), "path": m.path and str(m.path)} for m in listed]})
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("model", "weights", "size", "licence", ""):
        table.add_column(heading, justify="right" if heading == "size" else "left")
    for model in listed:
        size = f"{model.size / 1e6:.0f} MB" if model.path else "–"
        table.add_row(
            model.name, model.quantization or "not fetched", size, model.licence, model.description
        )
    stdout().print(table)


@models_app.command("pull")
def models_pull(
    name: Annotated[str, typer.Argument(help="Model name, GGUF file, folder or Hugging Face id.")],
    quantization: QuantizationOption = DEFAULT_QUANTIZATION,
) -> None:
    """Fetch a model and convert it into the cache; check and mend one that is there."""
    with steps(f"pulling {name}") as show:
        path = pull(name, quantization, progress=show)
    print(path)


@models_app.command("path")
def models_path(
    name: Annotated[str, typer.Argument(help="Model name.")],
    quantization: QuantizationOption = DEFAULT_QUANTIZATION,
) -> None:
    """Print where a fetched model lies."""
    print(model_path(name, quantization))


def main() -> None:
    """Run the command. What a user can mend ends with a message and exit code 2."""
    warnings.showwarning = lambda message, *_, **__: errors.print(
        Text(f"warning: {message}", "yellow"), soft_wrap=True
    )
    # What is half done is cleared away on either.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        app()
    except OmniDraftError as error:
        errors.print(Text(f"error: {error}", "red"), soft_wrap=True)
        sys.exit(2)
    except _Interrupted as interruption:
        errors.print("\ninterrupted")
        sys.exit(128 + interruption.signum)
    except BrokenPipeError:
        # Whoever read our output has gone.
        _forget_output()
        sys.exit(141)
    except OSError as error:
        # No permission, a name that is too long, nowhere to print to.
        errors.print(Text(f"error: {error}", "red"), soft_wrap=True)
        _forget_output()
        sys.exit(2)


def _forget_output() -> None:
    """Keep Python from complaining at exit about output that cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Interrupted(BaseException):
    """Ctrl-C or SIGTERM. Not KeyboardInterrupt, of which Typer would make exit code 1."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise _Interrupted(signum)


def _options(
    max_new_tokens: int,
    sampling: SamplingParameters,
    verification: Literal["exact", "paper"],
    seed: int | None,
    draft_length: str,
    draft_confidence: float,
    raw: bool,
) -> GenerationOptions:
    choices = {"exact": Verification.EXACT, "paper": Verification.PAPER}
    return GenerationOptions(
        max_new_tokens,
        sampling,
        choices[verification],
        seed,
        read_draft_length(draft_length),
        draft_confidence,
        raw,
    )


def _read_prompt(prompt: str) -> str:
    if prompt != "-":
        return prompt
    if sys.stdin is None:
        raise OmniDraftError("there is no stdin to read the prompt from: pass it as --prompt")
    data = sys.stdin.buffer.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise OmniDraftError(
            f"stdin is not valid UTF-8: byte {error.start} is 0x{data[error.start]:02x}. "
            "Convert it first, for example with iconv -t UTF-8"
        ) from error


def _open(
    target: str,
    drafter: str | None,
    quantization: Quantization,
    engine: Engine | None,
    threads: int,
    *,
    keep_ngrams: bool,
    adapter: str | None = None,
    learn: bool = False,
) -> Session:
    if learn and adapter is None:
        raise OmniDraftError("--learn needs the name of an adapter to learn: --adapter")
    if adapter is not None and drafter is None:
        raise OmniDraftError("plain decoding has no use for --adapter: leave it out, or draft")
    choice = adapter_choice(adapter, learn) if adapter is not None else None
    target_model, drafter_model = open_models(
        target, drafter, quantization, engine, threads, learnable=adapter is not None
    )
    return Session(
        target_model,
        drafter_model,
        ngram_folder=default_ngram_folder() if keep_ngrams else None,
        adapter=choice,
    )


def _stream(session: Session, prompt: str, options: GenerationOptions) -> None:
    console = stdout(soft_wrap=True)
    coloured = console.is_terminal
    if not coloured and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # the model's text, byte for byte
    begun = False
    try:
        for piece in session.stream(prompt, options):
            begun = True
            if coloured:
                console.print(Text(piece.text, _STYLES[piece.origin]), end="")
            else:
                print(piece.text, end="", flush=True)
    finally:
        if begun:
            print(flush=True)
    if session.last is not None and coloured:
        stats = session.last.statistics
        errors.print(
            f"[dim]{stats.target_tokens} tokens, {stats.tokens_per_second:.1f} a second, "
            f"{stats.block_efficiency:.2f} a round, {stats.acceptance_rate:.0%} accepted, "
            f"{stats.ngram_accepted} of {stats.ngram_hits} n-grams accepted[/]"
        )


def _answer_as_dict(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "stats": answer.statistics.as_dict(),
    }


def _print_bundle(bundle: Bundle, verified: Verified | None) -> None:
    from omnidraft.export.parity import parity_text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    g = bundle.geometry
    table.add_row("drafter", bundle.name)
    table.add_row("backend", f"{bundle.backend}, weights {bundle.quantization}")
    if bundle.soc is not None:
        table.add_row("chip", f"{bundle.soc.name} ({bundle.soc.htp_architecture})")
        if (emulation := bundle.soc.emulation) is not None:
            table.add_row(
                "emulation",
                f"relative difference from the CPU {emulation.relative_error:.2%}, "
                f"top-1 agreement {emulation.top1_agreement:.1%}, {emulation.positions} positions",
            )
    table.add_row(
        "geometry",
        f"{g.layers} layers × {g.hidden_size}, feed-forward {g.feed_forward_size}, {g.heads} "
        f"heads ({g.kv_heads} key) × {g.head_size}, {g.vocab_size:,} tokens, "
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
    for name, entry in bundle.files.items():
        table.add_row("file", f"{name}, {entry.size / 1e6:.2f} MB, sha256 {entry.sha256[:12]}… ✓")
    table.add_row("size", f"{bundle.size / 1e6:.1f} MB")
    if bundle.parity is not None:
        table.add_row("parity", parity_text(bundle.parity, bundle.thresholds))
    for latency in bundle.latency:
        table.add_row("latency", _latency_text(latency))
    if verified is not None:
        table.add_row("found now", parity_text(verified.parity))
        table.add_row("", _latency_text(verified.latency))
        if verified.other_processor:
            table.add_row("", "This is another processor: its latency is not the one above.")
    table.add_row("versions", ", ".join(f"{name} {v}" for name, v in bundle.versions.items()))
    stdout().print(table)


def _passes_text(graph: Graph) -> str:
    if graph.tokens is not None:
        return f"{graph.tokens} tokens a pass"
    if graph.most_tokens is not None:
        return f"passes of up to {graph.most_tokens} tokens"
    return "passes of any length"


def _latency_text(latency: Latency) -> str:
    kind = ", emulated" if latency.emulated else ""
    return (
        f"a token takes {latency.milliseconds:.2f} ms (p50) to {latency.p95_milliseconds:.2f} ms "
        f"(p95), {latency.steps} steps at context {latency.context}, {latency.threads} threads, "
        f"{latency.processor}{kind}"
    )


def _print_report(report: Report, session: Session, options: GenerationOptions) -> None:
    # Short headings: the table fits 80 columns.
    table = Table(box=None, pad_edge=False, caption="/s: tokens a second", caption_justify="left")
    for heading in (
        "task",
        "prompts",
        "tok/round",
        "accepted",
        "plain/s",
        "drafted/s",
        "speedup",
        "identical",
    ):
        table.add_column(heading, justify="left" if heading == "task" else "right", no_wrap=True)

    def add(task: str, sums: Comparison, style: str = "") -> None:
        table.add_row(
            task,
            str(sums.prompts),
            f"{sums.speculative.block_efficiency:.2f}",
            f"{sums.speculative.acceptance_rate:.0%}",
            f"{sums.plain.tokens_per_second:.1f}",
            f"{sums.speculative.tokens_per_second:.1f}",
            f"{sums.speedup:.2f}×",
            f"{sums.identical}/{sums.prompts}" if options.sampling.greedy else "sampled",
            style=style,
        )

    for task, sums in report.tasks.items():
        add(task, sums)
    add("all", report.overall, "bold")
    console = stdout()
    console.print(table)
    for parting in report.partings:
        console.print(
            f"parted: {parting.task}, prompt {parting.prompt}, after {parting.position} tokens; "
            f"the two largest logits were {parting.gap:.4f} apart"
        )
    if report.batch_noise > 0:
        console.print(
            "This target is not batch-invariant: scoring several tokens at once moved a logit by "
            f"up to {report.batch_noise:.4g}. Where the two largest are closer than that, a "
            "speculative answer may part from the plain one."
        )
