"""What the commands load and pair, showing what takes time."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from omnidraft import GenerationOptions, SamplingParameters, Session, Verification
from omnidraft.cli.options import VerificationName
from omnidraft.cli.output import steps
from omnidraft.opening import adapter_choice, open_pair
from omnidraft.runtime.engines import Engine
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.models.catalogue import Quantization
from omnidraft.runtime.options import read_draft_length
from omnidraft.runtime.session import default_ngram_folder


def open_models(
    target: str,
    drafter: str | None,
    quantization: Quantization,
    engine: Engine | None,
    threads: int | None,
    *,
    context: int | None = None,
    learnable: bool = False,
    quiet: bool = False,
) -> tuple[LoadedModel, LoadedModel | None]:
    """``open_pair``, showing what takes time."""
    with steps("loading", quiet=quiet) as show:
        return open_pair(
            target,
            drafter,
            quantization,
            engine,
            threads,
            context=context,
            learnable=learnable,
            progress=show,
        )


def open_session(
    target: str,
    drafter: str | None,
    quantization: Quantization,
    engine: Engine | None,
    threads: int | None,
    context: int | None,
    *,
    quiet: bool,
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
        target,
        drafter,
        quantization,
        engine,
        threads,
        context=context,
        learnable=adapter is not None,
        quiet=quiet,
    )
    return Session(
        target_model,
        drafter_model,
        ngram_folder=default_ngram_folder() if keep_ngrams else None,
        adapter=choice,
    )


def keep_what_was_learned(session: Session, learn: bool) -> None:
    """Keep the n-gram cache and measured costs, or the adapter, for the next session.

    Raises:
        OmniDraftError: they cannot be written, and learning was asked for. Otherwise that is a
            warning: the answers are there.
    """
    try:
        if session.learner:
            session.close()
        else:
            session.save()
    except OmniDraftError as error:
        if learn:
            raise
        warnings.warn(str(error), stacklevel=1)


def generation_options(
    max_new_tokens: int,
    sampling: SamplingParameters,
    verification: VerificationName,
    seed: int | None,
    draft_length: str,
    draft_confidence: float,
    raw: bool,
    stop: Sequence[str] = (),
    tree: int | None = None,
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
        stop,
        tree=tree,
    )
