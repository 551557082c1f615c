"""An answer as it comes: its text, in the colours of origin where it is a terminal."""

from __future__ import annotations

import io
import sys
import threading
from contextlib import closing

from rich.text import Text

from omnidraft import GenerationOptions, Origin, Session
from omnidraft.cli.output import count, errors, harmless, stdout
from omnidraft.runtime.engines.model import LimitedContext
from omnidraft.runtime.session import Prompt
from omnidraft.runtime.statistics import Statistics

_STYLES = {
    Origin.DIRECT: "green",
    Origin.MERGED: "cyan",
    Origin.CORRECTED: "yellow",
    Origin.FREE: "default",
    Origin.LOOKUP: "magenta",
}


def print_answer(
    session: Session,
    prompt: Prompt,
    options: GenerationOptions,
    cancelled: threading.Event | None = None,
) -> str:
    """Print an answer to stdout as it comes, and say on stderr if it was cut; returns its text.

    Raises:
        See ``Session.stream``.
    """
    console = stdout(soft_wrap=True)
    coloured = console.is_terminal
    if not coloured and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # the model's text, byte for byte
    texts: list[str] = []
    # Closed also when printing fails: the models are then free for what is done at the end.
    with closing(session.stream(prompt, options, cancelled=cancelled)) as pieces:
        try:
            for piece in pieces:
                texts.append(piece.text)
                if coloured:
                    console.print(Text(harmless(piece.text), _STYLES[piece.origin]), end="")
                else:
                    print(piece.text, end="", flush=True)
        finally:
            if texts:
                print(flush=True)
    if session.last is not None and session.last.finish_reason == "length":
        errors.print(_cut(session, options), style="dim", soft_wrap=True)
    return "".join(texts)


def figures(stats: Statistics) -> str:
    """What was decoded, and how fast."""
    return (
        f"{count(stats.target_tokens, 'token')}, {stats.tokens_per_second:.1f} a second, "
        f"{stats.block_efficiency:.2f} a round, {stats.acceptance_rate:.0%} accepted, "
        f"{stats.ngram_accepted} of {count(stats.ngram_hits, 'n-gram')} accepted"
    )


def _cut(session: Session, options: GenerationOptions) -> str:
    """Why an answer that did not end was cut."""
    assert session.last is not None
    tokens, model = session.last.statistics.target_tokens, session.target.model
    words = count(tokens, "token")
    if tokens >= options.max_new_tokens:
        return f"The answer was cut after {words}; --max-new-tokens allows more."
    text = f"The answer was cut after {words}: the context of {model.max_length} is full"
    own = model.own_length if isinstance(model, LimitedContext) else model.max_length
    return f"{text}; --context allows more." if own > model.max_length else f"{text}."
