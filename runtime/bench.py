"""Every prompt plainly and speculatively, side by side: how much faster, and is it the same?"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from omnidraft.runtime.answer import Answer
from omnidraft.runtime.decoding.decoder import check_prompt
from omnidraft.runtime.engines.invariance import batch_noise
from omnidraft.runtime.engines.model import common_length
from omnidraft.runtime.errors import ContextOverflowError, OmniDraftError, OptionError
from omnidraft.runtime.options import GenerationOptions
from omnidraft.runtime.session import Session
from omnidraft.runtime.statistics import Statistics
from omnidraft.runtime.text.chat import Message, checked_messages


@dataclass(frozen=True)
class Prompt:
    """A line of a prompt file."""

    task: str
    prompt: str | list[Message]
    """A text, or the messages of a conversation."""


@dataclass(frozen=True)
class Parting:
    """Where a speculative greedy answer left the plain one."""

    task: str
    prompt: int
    """Index of the prompt, from 0."""
    position: int
    """Tokens that agree before."""
    gap: float
    """Difference of the plain run's two largest logits there."""


@dataclass
class Comparison:
    """Sums over prompts.

    Attributes:
        compared: whether answers are to be the plain ones; sampled ones need not be without a seed.
        identical: those that are.
    """

    compared: bool = True
    prompts: int = 0
    identical: int = 0
    plain: Statistics = field(default_factory=Statistics)
    speculative: Statistics = field(default_factory=Statistics)

    def add(self, plain: Answer, speculative: Answer) -> None:
        self.prompts += 1
        self.identical += plain.token_ids == speculative.token_ids
        self.plain += plain.stats
        self.speculative += speculative.stats

    @property
    def speedup(self) -> float:
        """Speculative ÷ plain tokens per second."""
        plain = self.plain.tokens_per_second
        return self.speculative.tokens_per_second / plain if plain else 0.0

    def as_dict(self) -> dict[str, float | None]:
        return {
            "prompts": self.prompts,
            "identical": self.identical if self.compared else None,
            "block_efficiency": self.speculative.block_efficiency,
            "acceptance_rate": self.speculative.acceptance_rate,
            "plain_tokens_per_second": self.plain.tokens_per_second,
            "speculative_tokens_per_second": self.speculative.tokens_per_second,
            "speedup": self.speedup,
        }


@dataclass
class Report:
    """What ``compare`` found."""

    target: str
    drafter: str
    overall: Comparison
    tasks: dict[str, Comparison]
    batch_noise: float
    """Largest difference of a target's logit between scoring tokens at once and one at a time."""
    partings: list[Parting] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "drafter": self.drafter,
            "overall": self.overall.as_dict(),
            "tasks": {task: sums.as_dict() for task, sums in self.tasks.items()},
            "batch_noise": self.batch_noise,
            "partings": [vars(parting) for parting in self.partings],
        }


def read_prompts(path: Path, limit: int | None = None) -> list[Prompt]:
    """Read a prompt file, whose form ``parse_prompts`` tells.

    Raises:
        OmniDraftError: the file cannot be read; see also ``parse_prompts``.
    """
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OmniDraftError(
            f"{path} is not valid UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
        ) from error
    except OSError as error:
        raise OmniDraftError(
            f"the prompts cannot be read from {path}: {error.strerror or error}"
        ) from error
    return parse_prompts(text, str(path), limit)


def parse_prompts(text: str, source: str, limit: int | None = None) -> list[Prompt]:
    """The prompts of a text: one JSON object a line, with ``prompt`` and, if known, ``task``.

    Instead of ``prompt`` there may be ``messages``, a list of ``{"role": …, "content": …}``.

    Args:
        source: where it comes from, for messages.
        limit: only the first so many.

    Raises:
        OmniDraftError: a line is not of this form, or there is none.
    """
    prompts: list[Prompt] = []
    # Not splitlines: JSON may hold line separators of Unicode as they are.
    for number, line in enumerate(text.split("\n"), 1):
        if limit is not None and len(prompts) >= limit:
            break
        if not line.strip():
            continue
        try:
            prompts.append(prompt_of(line))
        except ValueError as error:
            raise OmniDraftError(
                f"{source}, line {number}: {error}. Expected is an object such as "
                '{"task": "math", "prompt": "What is 2 + 2?"}'
            ) from error
    if not prompts:
        raise OmniDraftError(f"{source} holds no prompts")
    return prompts


def prompt_of(line: str) -> Prompt:
    """A line of a prompt file.

    Raises:
        ValueError: what is wrong with it.
    """
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(entry, dict):
        raise ValueError("it is JSON, but no object")
    task = _text(entry, "task") if "task" in entry else "all"
    if "messages" not in entry:
        if "prompt" not in entry:
            raise ValueError("it has neither a field `prompt` nor `messages`")
        return Prompt(task, _text(entry, "prompt"))
    if "prompt" in entry:
        raise ValueError("it has a prompt or messages, not both")
    try:
        return Prompt(task, checked_messages(entry["messages"]))
    except OptionError as error:
        raise ValueError(str(error)) from error


def _text(entry: dict[str, Any], name: str) -> str:
    text = entry[name]
    if not isinstance(text, str):
        raise ValueError(f"its field `{name}` is not a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"its field `{name}` holds half a character") from error
    return text


def fitting(session: Session, prompts: Sequence[Prompt], *, raw: bool = False) -> list[Prompt]:
    """The prompts that fit the target's context; a warning names each of the others.

    Raises:
        ContextOverflowError: none does.
        OmniDraftError: see ``Session.encode``.
    """
    kept, reason = [], ""
    for number, prompt in enumerate(prompts, 1):
        tokens = session.encode(prompt.prompt, raw=raw)
        try:
            check_prompt(session.target.model, len(tokens))
        except ContextOverflowError as error:
            reason = f"prompt {number} is left out: {error}"
            warnings.warn(reason, stacklevel=2)
        else:
            kept.append(prompt)
    if not kept:
        raise ContextOverflowError(f"no prompt is left: {reason}")
    return kept


def compare(
    session: Session,
    prompts: Sequence[Prompt],
    options: GenerationOptions,
    progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Answer every prompt plainly and speculatively, the two taking turns to go first.

    Args:
        progress: called after each prompt with the figures so far.

    Raises:
        ContextOverflowError, OmniDraftError: see ``Session.stream``.
    """
    drafter = session.drafter.name if session.drafter else ""
    noise = max(batch_noise(session.target.model), session.target.largest_difference or 0.0)
    greedy = options.sampling.greedy
    compared = options.same_as_plain
    report = Report(session.target.name, drafter, Comparison(compared), {}, noise)
    plain_options = replace(options, draft_length=0, tree=None)
    _warm_up(session, prompts[0], options, plain_options)
    for index, prompt in enumerate(prompts):
        answers = {}
        for each in (options, plain_options) if index % 2 else (plain_options, options):
            session.forget()  # each is to read the whole prompt
            answers[each] = session.generate(prompt.prompt, each)
        plain, speculative = answers[plain_options], answers[options]
        report.overall.add(plain, speculative)
        report.tasks.setdefault(prompt.task, Comparison(compared)).add(plain, speculative)
        if greedy and plain.token_ids != speculative.token_ids:
            report.partings.append(_parting(session, index, prompt, options, plain, speculative))
        progress(report)
    return report


def _warm_up(session: Session, prompt: Prompt, *options: GenerationOptions) -> None:
    for each in options:
        session.generate(prompt.prompt, replace(each, max_new_tokens=min(8, each.max_new_tokens)))


def _parting(
    session: Session,
    index: int,
    prompt: Prompt,
    options: GenerationOptions,
    plain: Answer,
    speculative: Answer,
) -> Parting:
    position = common_length(plain.token_ids, speculative.token_ids)
    tokens = session.encode(prompt.prompt, raw=options.raw) + plain.token_ids[:position]
    model = session.target.model
    model.truncate(0)
    if len(tokens) > 1:
        model.forward(tokens[:-1], rows=1)
    largest = np.sort(model.forward(tokens[-1:])[0])[-2:]
    return Parting(prompt.task, index, position, float(largest[1] - largest[0]))
