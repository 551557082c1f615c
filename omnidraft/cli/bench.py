"""``omnidraft bench``: every prompt plainly and speculatively, and the two compared."""

from __future__ import annotations

import copy

from rich.table import Table

from omnidraft import GenerationOptions, Session
from omnidraft.cli import options as opt
from omnidraft.cli.interruption import Interrupted
from omnidraft.cli.loading import generation_options, open_session
from omnidraft.cli.output import count, errors, print_json, print_table, stdout, steps
from omnidraft.cli.prompt import read_prompts
from omnidraft.runtime.bench import Comparison, Report, compare, fitting
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models.catalogue import DEFAULT_DRAFTER, DEFAULT_QUANTIZATION
from omnidraft.runtime.options import (
    DEFAULT_DRAFT_CONFIDENCE,
    DEFAULT_DRAFT_LENGTH,
    sampling_parameters,
)


def bench(
    prompts: opt.PromptFile,
    target: opt.Target,
    drafter: opt.Drafter = DEFAULT_DRAFTER,
    limit: opt.Limit = None,
    max_new_tokens: opt.MaxNewTokens = 128,
    temperature: opt.Temperature = 0.0,
    top_k: opt.TopK = 0,
    top_p: opt.TopP = 1.0,
    min_p: opt.MinP = 0.0,
    repetition_penalty: opt.Penalty = 1.0,
    seed: opt.Seed = 0,
    draft_length: opt.DraftLength = str(DEFAULT_DRAFT_LENGTH),
    draft_confidence: opt.DraftConfidence = DEFAULT_DRAFT_CONFIDENCE,
    tree: opt.Tree = None,
    verification: opt.Verification = "exact",
    raw: opt.Raw = False,
    quantization: opt.Weights = DEFAULT_QUANTIZATION,
    engine: opt.RunBy = None,
    threads: opt.Threads = None,
    context: opt.Context = None,
    adapter: opt.AdapterName = None,
    as_json: opt.AsJson = False,
) -> None:
    """Compare drafting with plain decoding.

    Every prompt is answered both ways, the two taking turns to go first.

    Without an adapter the n-gram cache starts empty, so that a run can be repeated.

    \b
    Examples:
      omnidraft bench prompts.jsonl --target smollm2-135m --limit 20
      omnidraft bench prompts.jsonl --target model.gguf --temperature 1 --json
    """
    options = generation_options(
        max_new_tokens,
        sampling_parameters(temperature, top_k, top_p, min_p, repetition_penalty),
        verification,
        seed,
        draft_length,
        draft_confidence,
        raw,
        tree=tree,
    )
    if options.draft_length == 0:
        raise OmniDraftError("bench compares drafting with plain decoding: --draft-length from 1")
    entries = read_prompts(prompts, limit)
    session = open_session(
        target,
        drafter,
        quantization,
        engine,
        threads,
        context,
        quiet=as_json,
        keep_ngrams=False,
        adapter=adapter,
    )
    entries = fitting(session, entries, raw=raw)
    done: Report | None = None
    try:
        with steps("warming up", quiet=as_json) as show:

            def told(report: Report) -> None:
                nonlocal done
                done = copy.deepcopy(report)
                show("answering", done.overall.prompts / len(entries), _so_far(done, len(entries)))

            compare(session, entries, options, told)
    except Interrupted:
        if done is not None:
            _print(done, session, options, as_json)
            errors.print(
                f"\nThese figures are of the first {done.overall.prompts} of "
                f"{count(len(entries), 'prompt')}."
            )
        raise
    assert done is not None  # there is at least one prompt
    _print(done, session, options, as_json)


def _so_far(report: Report, total: int) -> str:
    sums = report.overall
    text = (
        f"{sums.prompts} of {count(total, 'prompt')}, "
        f"{sums.speculative.block_efficiency:.2f} tokens a round, {sums.speedup:.2f}× as fast"
    )
    return f"{text}, {sums.identical} identical" if sums.compared else text


def _print(report: Report, session: Session, options: GenerationOptions, as_json: bool) -> None:
    if as_json:
        print_json(report.as_dict())
    else:
        _print_report(report, session, options)


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
        table.add_column(heading, justify="left" if heading == "task" else "right")

    def add(task: str, sums: Comparison, style: str = "") -> None:
        table.add_row(
            task,
            str(sums.prompts),
            f"{sums.speculative.block_efficiency:.2f}",
            f"{sums.speculative.acceptance_rate:.0%}",
            f"{sums.plain.tokens_per_second:.1f}",
            f"{sums.speculative.tokens_per_second:.1f}",
            f"{sums.speedup:.2f}×",
            f"{sums.identical}/{sums.prompts}" if sums.compared else "sampled",
            style=style,
        )

    for task, sums in report.tasks.items():
        if list(report.tasks) != ["all"]:  # the name of what has none
            add(task, sums)
    add("all", report.overall, "bold")
    console = stdout()
    print_table(table)
    for parting in report.partings:
        console.print(
            f"parted: {parting.task}, prompt {parting.prompt}, "
            f"after {count(parting.position, 'token')}; "
            f"the two largest logits were {parting.gap:.4f} apart"
        )
    if report.batch_noise > 0:
        console.print(
            "This target is not batch-invariant: scoring several tokens at once moved a logit by "
            f"up to {report.batch_noise:.4g}. Where the two largest are closer than that, a "
            "speculative answer may part from the plain one."
        )
