"""``omnidraft generate``: one answer, streamed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from omnidraft import GenerationOptions, Session
from omnidraft.cli import options as opt
from omnidraft.cli.loading import generation_options, keep_what_was_learned, open_session
from omnidraft.cli.output import errors, print_json, stdout
from omnidraft.cli.prompt import read_conversation, read_prompt
from omnidraft.cli.streaming import figures, print_answer
from omnidraft.runtime.answer import Answer
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models.catalogue import DEFAULT_DRAFTER, DEFAULT_QUANTIZATION
from omnidraft.runtime.options import (
    DEFAULT_DRAFT_CONFIDENCE,
    DEFAULT_DRAFT_LENGTH,
    MAX_LOGPROBS,
    sampling_parameters,
)
from omnidraft.runtime.session import Prompt


def generate(
    target: opt.Target,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The prompt; - reads stdin.", show_default=False),
    ] = None,
    prompt_option: Annotated[
        str | None,
        typer.Option(
            "--prompt", metavar="PROMPT", help="The same as an option.", show_default=False
        ),
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A text file that is the prompt; - is stdin.", show_default=False
        ),
    ] = None,
    system: opt.System = None,
    messages: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A conversation instead of a prompt: a JSON list of messages with role and "
            "content, in a file or from stdin (-).",
            show_default=False,
        ),
    ] = None,
    drafter: opt.Drafter = DEFAULT_DRAFTER,
    max_new_tokens: opt.MaxNewTokens = 256,
    temperature: opt.Temperature = 0.0,
    top_k: opt.TopK = 0,
    top_p: opt.TopP = 1.0,
    min_p: opt.MinP = 0.0,
    repetition_penalty: opt.Penalty = 1.0,
    seed: opt.Seed = None,
    draft_length: opt.DraftLength = str(DEFAULT_DRAFT_LENGTH),
    draft_confidence: opt.DraftConfidence = DEFAULT_DRAFT_CONFIDENCE,
    tree: opt.Tree = None,
    no_draft: opt.NoDraft = False,
    verification: opt.Verification = "exact",
    stop: opt.Stop = [],  # noqa: B006  Typer makes a list of its own for each call.
    raw: opt.Raw = False,
    logprobs: Annotated[
        int | None,
        typer.Option(
            **opt.whole(0, MAX_LOGPROBS),
            help="With --json: each token's log-probability, and those of N alternatives.",
            show_default=False,
        ),
    ] = None,
    quantization: opt.Weights = DEFAULT_QUANTIZATION,
    engine: opt.RunBy = None,
    threads: opt.Threads = None,
    context: opt.Context = None,
    adapter: opt.AdapterName = None,
    learn: opt.Learn = False,
    as_json: opt.AsJson = False,
) -> None:
    """Answer one prompt, streaming the text.

    Colours in a terminal tell how a token came about: green direct, cyan merged n-gram, magenta
    looked up in the text, yellow corrected by the target, uncoloured the target's own.

    What one answer teaches the n-gram cache is kept for the next. A sampled answer with --seed
    can be repeated: its tokens are those of --no-draft with the same seed.

    \b
    Examples:
      omnidraft generate "Why is the sky blue?" --target smollm2-135m
      omnidraft generate "Name a colour." --target model.gguf --temperature 0.7
      omnidraft generate "Why?" --target model.gguf --system "Answer in one word."
      git diff | omnidraft generate --target smollm2-135m --raw --stop END
    """
    options = generation_options(
        max_new_tokens,
        sampling_parameters(temperature, top_k, top_p, min_p, repetition_penalty),
        verification,
        seed,
        "0" if no_draft else draft_length,
        draft_confidence,
        raw,
        stop,
        None if no_draft else tree,
    )
    if logprobs is not None and not as_json:
        raise OmniDraftError("--logprobs are part of what --json prints: add it")
    options = replace(options, logprobs=logprobs)
    if raw and not (system is None and messages is None):
        raise OmniDraftError(
            "--raw is without a chat template, and --system and --messages need it"
        )
    given = (prompt, prompt_option, prompt_file)
    if messages is not None and any(each is not None for each in given):
        raise OmniDraftError("--messages are instead of a prompt: leave one of them")
    asked = read_conversation(lambda: read_prompt(*given), system, messages)
    session = open_session(
        target,
        drafter if options.draft_length != 0 else None,
        quantization,
        engine,
        threads,
        context,
        quiet=as_json,
        keep_ngrams=not options.repeatable,
        adapter=adapter,
        learn=learn,
    )
    if as_json:
        answer = session.generate(asked, options)
        print_json(_answer_as_dict(answer))
    else:
        _stream(session, asked, options)
    keep_what_was_learned(session, learn)


def _stream(session: Session, prompt: Prompt, options: GenerationOptions) -> None:
    print_answer(session, prompt, options)
    if session.last is not None and stdout().is_terminal:
        errors.print(figures(session.last.statistics), style="dim")


def _answer_as_dict(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "stats": answer.statistics.as_dict(),
        **_logprobs_as_dict(answer),
    }


def _logprobs_as_dict(answer: Answer) -> dict[str, Any]:
    if answer.logprobs is None:
        return {}
    return {
        "logprobs": [each.chosen for each in answer.logprobs],
        "top_logprobs": [
            [{"token": token, "logprob": value} for token, value in each.top]
            for each in answer.logprobs
        ],
    }
