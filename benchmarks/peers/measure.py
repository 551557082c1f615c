"""Take turns: every way to decode answers every prompt, one after the other, several times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from benchmarks.peers.plan import PLAIN, Contestant, Method, Setting
from benchmarks.peers.processes import WorkerError

# For thread pools that spin for a while after their work.
SETTLE_SECONDS = 0.05
TUNING_TOKENS = 64


@dataclass(frozen=True)
class Task:
    """A prompt as all engines get it."""

    task: str
    prompt: str
    tokens: list[int]
    """Target tokens, through the chat template."""


@dataclass(frozen=True)
class Run:
    """One answer; seconds are wall-clock, measured in the worker. See ``Trace.as_dict``."""

    tokens: list[int]
    decoded: int
    decode_seconds: float
    total_seconds: float
    rounds: int

    @property
    def first_seconds(self) -> float:
        """To the first token, or the first tokens where the first round gave several."""
        return self.total_seconds - self.decode_seconds


class Asked(Protocol):
    """What is needed of a worker."""

    contestant: Contestant
    version: str

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass
class Way:
    """A method of a running worker, at the setting that was chosen for it."""

    worker: Asked
    method: Method
    setting: Setting
    runs: dict[int, list[Run]] = field(default_factory=dict)
    """By prompt, one for each repetition."""
    readings: dict[int, list[Run]] = field(default_factory=dict)
    """The same of the long prompts, which are answered with a few tokens only."""
    failure: str = ""
    tuning: list[tuple[Setting, float]] = field(default_factory=list)
    """Tokens per second of the settings that were tried."""


@dataclass(frozen=True)
class Generation:
    """What all are asked for."""

    max_new_tokens: int
    temperature: float
    stop: list[int]


class Budget:
    """Time that may be spent; ``clock`` in seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._longest = 0.0

    def steps(self) -> Iterator[None]:
        """Go on as long as a step as long as the longest so far would still fit."""
        while self._clock() + self._longest < self._end:
            started = self._clock()
            yield
            self._longest = max(self._longest, self._clock() - started)


def turns(count: int, prompts: int, repeats: int) -> Iterator[tuple[int, int, list[int]]]:
    """Yield (repetition, prompt, order of the ``count`` ways): who begins rotates."""
    for repeat in range(repeats):
        for prompt in range(prompts):
            shift = (repeat + prompt) % count
            yield repeat, prompt, [*range(shift, count), *range(shift)]


def tune(
    workers: Sequence[tuple[Asked, Method]],
    prompts: Sequence[Task],
    generation: Generation,
    budget: Budget,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Way]:
    """Every method at the setting that decodes the tuning prompts fastest.

    A method with one setting is not tried. Where the budget or the engine gave no figures, the
    first setting stands.
    """
    tried = {
        index: [Way(worker, method, setting) for setting in method.settings]
        for index, (worker, method) in enumerate(workers)
        if len(method.settings) > 1
    }
    short = replace(generation, max_new_tokens=min(TUNING_TOKENS, generation.max_new_tokens))
    ways = [way for settings in tried.values() for way in settings]
    if ways:
        measure(ways, prompts, short, 1, budget, progress)
    result = []
    for index, (worker, method) in enumerate(workers):
        settings = tried.get(index, [])
        paces = [rate(list(way.runs.values())) for way in settings]
        best = paces.index(max(paces)) if paces else 0
        result.append(
            Way(
                worker,
                method,
                method.settings[best],
                tuning=list(zip(method.settings, paces, strict=False)),
            )
        )
    return result


def measure(
    ways: Sequence[Way],
    prompts: Sequence[Task],
    generation: Generation,
    repeats: int,
    budget: Budget,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Fill ``runs`` of all ways. Each repetition begins with everything that is learned forgotten.

    A way that fails is left out from then on and says why in ``failure``. When the budget ends,
    all ways have answered the same prompts equally often.

    Args:
        progress: called after each prompt with how many of how many turns are done.
    """
    for way in ways:
        _attempt(way, prompts[0], generation, limit=8)
    plan = turns(len(ways), len(prompts), repeats)
    total = repeats * len(prompts)
    for done, ((repeat, index, order), _) in enumerate(zip(plan, budget.steps(), strict=False)):
        if index == 0:
            _forget(ways)
        for each in order:
            run = _attempt(ways[each], prompts[index], generation, seed=repeat)
            if run:
                ways[each].runs.setdefault(index, []).append(run)
        progress(done + 1, total)


def _forget(ways: Sequence[Way]) -> None:
    for worker in {id(way.worker): way.worker for way in ways}.values():
        try:
            worker.ask({"fresh": True})
        except WorkerError as error:
            for way in ways:
                if way.worker is worker:
                    way.failure = way.failure or str(error)


def _attempt(
    way: Way, task: Task, generation: Generation, *, seed: int = 0, limit: int | None = None
) -> Run | None:
    if way.failure:
        return None
    try:
        return _answer(way, task, generation, seed=seed, limit=limit)
    except WorkerError as error:
        way.failure = str(error)
        return None


def _answer(
    way: Way, task: Task, generation: Generation, *, seed: int = 0, limit: int | None = None
) -> Run:
    wanted = generation.max_new_tokens
    answer = way.worker.ask(
        {
            "prompt": task.prompt,
            "tokens": task.tokens,
            "method": way.method.name,
            "setting": way.setting,
            "tuning": [{**setting, "tokens_per_second": pace} for setting, pace in way.tuning],
            "max_new_tokens": wanted if limit is None else min(limit, wanted),
            "temperature": generation.temperature,
            "stop": generation.stop,
            "seed": seed,
        }
    )
    time.sleep(SETTLE_SECONDS)
    return Run(**answer)


def rate(runs: Sequence[Sequence[Run]], seconds: str = "decode_seconds") -> float:
    """Tokens per second over prompts: of each the median time a token, weighted by its tokens.

    Args:
        runs: for each prompt its repetitions.
        seconds: ``decode_seconds``, over tokens after the first round, or ``total_seconds``.

    Returns:
        0.0 where no prompt had a token to decode.
    """
    tokens = time_taken = 0.0
    for repetitions in runs:
        counts = [
            run.decoded if seconds == "decode_seconds" else len(run.tokens) for run in repetitions
        ]
        paces = [
            getattr(run, seconds) / count
            for run, count in zip(repetitions, counts, strict=True)
            if count
        ]
        if paces:
            weight = statistics.fmean(counts)
            tokens += weight
            time_taken += weight * statistics.median(paces)
    return tokens / time_taken if time_taken else 0.0


def first_token(runs: Mapping[int, Sequence[Run]], prompts: Sequence[Task]) -> dict[str, Any]:
    """How long the first token takes: the mean over prompts of their median turns.

    Args:
        runs: by prompt; of those that are missing nothing is said.

    Returns:
        ``prompt_tokens``, a mean; ``first_token_seconds``; ``prompt_tokens_per_second``, tokens of
        prompts over those seconds. None where there are no runs.
    """
    seconds = {
        index: statistics.median(run.first_seconds for run in repetitions)
        for index, repetitions in runs.items()
        if repetitions
    }
    if not seconds:
        return dict.fromkeys(("prompt_tokens", "first_token_seconds", "prompt_tokens_per_second"))
    tokens = [len(prompts[index].tokens) for index in seconds]
    return {
        "prompt_tokens": statistics.fmean(tokens),
        "first_token_seconds": statistics.fmean(seconds.values()),
        "prompt_tokens_per_second": sum(tokens) / sum(seconds.values()),
    }


def rows(
    ways: Sequence[Way],
    prompts: Sequence[Task],
    generation: Generation,
    facts: Mapping[str, Any],
    long_prompts: Sequence[Task] = (),
) -> list[dict[str, Any]]:
    """The figures of every way, for each task and for all together.

    Args:
        long_prompts: what ``Way.readings`` are of; they have a row in which the tasks are together.
        facts: what is the same in all rows: target, machine and so on; ``context`` (tokens) may be
            None and is then the mean length of the task's prompts.
    """
    tasks = list(dict.fromkeys(prompt.task for prompt in prompts))
    result = []
    for task in [*tasks, "all"] if len(tasks) > 1 else tasks:
        members = [i for i, prompt in enumerate(prompts) if task in ("all", prompt.task)]
        part = [_row(way, ways, members, prompts, generation) for way in ways]
        for way, row in zip(ways, part, strict=True):
            row |= first_token({index: way.runs.get(index, []) for index in members}, prompts)
            if task == "all" or len(tasks) == 1:
                row["long_prompts"] = first_token(way.readings, long_prompts)
        fastest = max(
            (row["tokens_per_second"] or 0.0 for row in part if row["method"] == PLAIN),
            default=0.0,
        )
        own = {
            (row["engine"], row["precision"]): row["tokens_per_second"]
            for row in part
            if row["method"] == PLAIN
        }
        for row in part:
            pace, plain = row["tokens_per_second"], own.get((row["engine"], row["precision"]))
            row["task"] = task
            row["speedup_over_own_plain"] = pace / plain if pace and plain else None
            row["speedup_over_fastest_plain"] = pace / fastest if pace and fastest else None
            result.append({**row, **facts, "context": facts["context"] or row["context"]})
    return result


def _row(
    way: Way,
    ways: Sequence[Way],
    members: Sequence[int],
    prompts: Sequence[Task],
    generation: Generation,
) -> dict[str, Any]:
    answered = [index for index in members if way.runs.get(index)]
    runs = [way.runs[index] for index in answered]
    plain = next(
        (
            each
            for each in ways
            if each.method.name == PLAIN
            and each.worker.contestant.name == way.worker.contestant.name
        ),
        None,
    )
    same = None
    if generation.temperature == 0 and plain is not None and answered:
        same = sum(
            bool(plain.runs.get(index))
            and all(run.tokens == plain.runs[index][0].tokens for run in way.runs[index])
            for index in answered
        )
    flat = [run for repetitions in runs for run in repetitions]
    complete = min(map(len, runs), default=0)
    each_time = [rate([[repetitions[i]] for repetitions in runs]) for i in range(complete)]
    contestant = way.worker.contestant
    return {
        "engine": contestant.engine,
        "method": way.method.name,
        "version": way.worker.version,
        "precision": contestant.precision,
        "context": round(statistics.fmean(len(prompts[i].tokens) for i in members)),
        "tokens_per_second": rate(runs) or None,
        "identical": None if same is None else same == len(answered),
        "identical_prompts": same,
        "prompts": len(answered),
        "repeats": complete,
        "slowest_and_fastest_repetition": [min(each_time), max(each_time)] if each_time else None,
        "total_tokens_per_second": rate(runs, "total_seconds") or None,
        "block_efficiency": (
            sum(len(run.tokens) for run in flat) / sum(run.rounds for run in flat) if flat else None
        ),
        "setting": way.setting,
        "tuning": [{**setting, "tokens_per_second": pace} for setting, pace in way.tuning],
        "draft_length": way.setting.get("draft_length"),
        "unavailable": way.failure or None,
    }
