"""Online learning: the drafter's LoRA is trained on what the rounds of every answer showed.

    trainer = OnlineTrainer(TrainingStep(bundle), mapping, LearningOptions())
    trainer.add(buffer.end_prompt())            # after every answer
    if (lora := trainer.take()) is not None:    # before the next
        drafter.set_adapter(lora or None)

Two sets of weights are kept. The *trusted* one drafts. The *candidate* learns: gradients of its
loss are added up prompt by prompt, and every ``interval`` prompts AdamW makes a step. Each prompt
is a test before it is a lesson: how many draft tokens of the target's answer do both sets predict,
on text that neither has learned from? When the candidate is better beyond chance it becomes the
trusted one; when it is worse, or long no better, it goes back to the trusted one (roll-back). While
the trusted weights are more than a beginning they are tested likewise against the drafter without
any, and given up where that is as good: so what a task taught goes when another has come, and what
was trusted by luck.

Why so: one update changes acceptance by less than the chance differences between prompts, so
comparing observed acceptance before and after would decide by luck. Comparing both sets on the same
tokens removes the prompts' own differences, and adding up over a trial most of the rest: of
candidates that are no better a seventh is trusted, of those that are worse by a tenth of a prompt's
standard deviation a twentieth (simulated; fewer where ``WORTH`` is asked for, too).
"""

from __future__ import annotations

import copy
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Final, Literal, Self, TypeVar

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from omnidraft.runtime.errors import DamagedFileError
from omnidraft.runtime.learning.head import (
    AcceptanceHead,
    HeadProgress,
    HeadTrainer,
    HeadTraining,
    Lessons,
)
from omnidraft.runtime.learning.observations import (
    LearningBatch,
    LossName,
    Mapping,
    Objective,
    ObservedPrompt,
    batches,
)
from omnidraft.runtime.learning.optimizer import AdamW
from omnidraft.runtime.learning.training_step import TrainingBatch, TrainingStep

Weights = dict[str, NDArray[np.float32]]
HeadState = tuple[dict[str, NDArray[np.float32]], dict[str, NDArray[Any]], HeadProgress]
_Result = TypeVar("_Result")

# A difference counts when it is so many times its standard error, over so many prompts at least:
# the first steps of an optimizer may go astray, and two bad prompts in a row are nothing unusual.
TRUST: Final = 2.0
DISTRUST: Final = 2.0
FEWEST: Final = 8
# Part of the draft tokens that a LoRA must gain over none: it makes a draft step a fifth slower, a
# round by up to a twentieth, and a hundredth of the tokens brings about three times as much.
WORTH: Final = 0.01
# What a prompt's gain still counts after another: a candidate is not what it was 20 prompts ago.
FORGETTING: Final = 0.95
PATIENCE: Final = 64
"""Prompts after which a candidate that is still not better is given up."""
MAX_FAILURES: Final = 3
"""Candidates given up in a row after which learning stops."""
DRIFT_WINDOW: Final = 16
DRIFT: Final = 0.9
"""Learning resumes when acceptance falls below this part of what it was when learning stopped."""
DEFAULT_RANK: Final = 32
LEARNING_RATES: Final[dict[LossName, float]] = {
    "ce": 1e-3,
    "ngram": 1e-3,
    "hybrid": 3e-4,
    "dm": 3e-4,
    "kl": 3e-4,
    "alm": 3e-4,
}
"""AdamW's, by loss. At 1e-3 the divergences throw the default drafter off."""
# Prompts that may wait for the learning thread.
_QUEUE: Final = 64
# Of the learning thread: beside the answering ones it then has about a tenth of a core.
_NICE: Final = 10


@dataclass(frozen=True)
class LearningOptions:
    """How a drafter learns.

    Args:
        objective: the loss; None: that of an adapter that is there, or the default one.
        rank: of the LoRA; None: ``DEFAULT_RANK``, or that of an adapter that is there.
        learning_rate: AdamW's; None: the loss's of ``LEARNING_RATES``.
        interval: prompts for an update.
        budget: at most this share of the time is computed, 0 < budget ≤ 1; 0 does not learn.
        seed: of A's random start.
        head: how the acceptance head is trained; "none": there is to be none, also where there was
            one, which would not know what the LoRA learns now. None: as it was so far.
    """

    objective: Objective | None = None
    rank: int | None = None
    learning_rate: float | None = None
    interval: int = 4
    budget: float = 1.0
    seed: int = 0
    head: HeadTraining | Literal["none"] | None = None


@dataclass
class Trial:
    """A candidate against the trusted weights, on the same answers.

    Attributes:
        prompts: how many answers.
        gain: draft tokens that only the candidate predicts minus those that only the trusted
            weights do, the recent ones counting more (``FORGETTING``).
        squares: the variance of ``gain`` if there were no difference: likewise the sum of the
            squares of each prompt's gain.
        tokens: draft tokens of the answers, likewise.
    """

    prompts: int = 0
    gain: float = 0
    squares: float = 0
    tokens: float = 0

    def add(self, gain: int, tokens: int) -> None:
        self.prompts += 1
        self.gain = FORGETTING * self.gain + gain
        self.squares = FORGETTING**2 * self.squares + gain * gain
        self.tokens = FORGETTING * self.tokens + tokens

    def better(self, worth: float) -> bool:
        """Beyond chance, and by ``worth`` of the tokens at least."""
        least = max(TRUST * math.sqrt(self.squares), worth * self.tokens)
        return self.prompts >= FEWEST and self.gain > least

    def short_of(self, worth: float) -> bool:
        """By less than ``worth`` of the tokens, beyond chance."""
        most = worth * self.tokens - TRUST * math.sqrt(self.squares)
        return self.prompts >= FEWEST and self.gain < most

    @property
    def worse(self) -> bool:
        if self.prompts >= PATIENCE:
            return True
        return self.prompts >= FEWEST and self.gain < -DISTRUST * math.sqrt(self.squares)


@dataclass
class Progress:
    """What a trainer has done; a JSON object, kept with the adapter.

    Attributes:
        prompts: learned from.
        updates: steps of AdamW.
        promotions, rollbacks: candidates that became the trusted weights, and that were given up.
        withdrawals: trusted weights that were given up.
        failures: roll-backs since the last promotion.
        pending: prompts, and ``rows`` the weight of rows, whose gradients wait for an update.
        skipped: prompts that were not learned from, as too many waited.
        loss: what is minimised.
        steps, trial, defence: AdamW's, the candidate's ``Trial`` against the trusted weights, and
            theirs against the drafter without any.
        stopped: learning has stopped helping; ``level`` is the acceptance rate at that time.
        recent: acceptance rates of the last prompts.
        seconds: spent computing.
    """

    prompts: int = 0
    updates: int = 0
    promotions: int = 0
    rollbacks: int = 0
    withdrawals: int = 0
    failures: int = 0
    pending: int = 0
    rows: float = 0.0
    skipped: int = 0
    loss: LossName | None = None
    steps: int = 0
    trial: Trial = field(default_factory=Trial)
    defence: Trial = field(default_factory=Trial)
    stopped: bool = False
    level: float = 0.0
    recent: list[float] = field(default_factory=list)
    seconds: float = 0.0


class OnlineTrainer:
    """Learns from prompts, on a thread of its own or whenever it is given one.

    Args:
        step: of the drafter.
        mapping: of the pair.
        options: how to learn.
        lora: the trusted weights to go on from; empty: none yet.
        state, progress: as ``state`` gave them.
        head: learns beside the drafter, also when that has stopped.
        background: learn on a thread; otherwise ``add`` returns when it has learned.
    """

    def __init__(
        self,
        step: TrainingStep,
        mapping: Mapping,
        options: LearningOptions,
        *,
        lora: Weights | None = None,
        state: dict[str, NDArray[Any]] | None = None,
        progress: Progress | None = None,
        head: HeadTrainer | None = None,
        background: bool = False,
    ) -> None:
        self.options = options
        self.progress = progress or Progress()
        self._objective = options.objective or Objective(self.progress.loss or Objective().loss)
        self._step = step
        self._mapping = mapping
        self._none = _initial(step, options)
        self._used = bool(lora)  # whether the trusted weights are more than a beginning
        self._trusted = _copy(self._none) | dict(lora or {})
        self._candidate = _copy(self._trusted)
        self._optimizer = AdamW(self._candidate, self._learning_rate)
        self._gradients = {name: np.zeros_like(w) for name, w in self._trusted.items()}
        if state:
            self._restore(state)
        if self._objective.loss != (self.progress.loss or self._objective.loss):
            # Another loss's gradients have other sizes, and may want the candidate elsewhere.
            self._start_over()
        self.progress.loss = self._objective.loss
        self._head = head
        # What the head was after its last answer: it learns on while others look at it.
        self._head_state = head.state() if head else None
        self._proven = head.proven() if head else None
        self._fresh = False  # the trusted weights changed since they were last taken
        self._lock = threading.Lock()
        self._allowed = threading.Event()
        self._allowed.set()
        self._closing = threading.Event()
        self._running: ort.RunOptions | None = None
        self._error: BaseException | None = None
        self._queue: deque[Sequence[ObservedPrompt]] = deque()
        self._wake = threading.Condition()
        self._busy = False
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._work, name="omnidraft-learn", daemon=True)
            self._thread.start()

    # --- from the thread that answers -----------------------------------------------------------

    def add(self, prompt: Sequence[ObservedPrompt]) -> None:
        """Learn from an answer and its prompt, now or soon; after ``close`` no more.

        Of many that wait the oldest are left out: see ``full``.

        Raises:
            Exception: whatever ended the learning thread.
        """
        if self._error is not None:
            raise self._error
        useful = any(part.rounds for part in prompt) and self.options.budget > 0
        if not useful or self._closing.is_set():
            return
        if self._thread is None:
            self._learn(prompt)
            return
        with self._wake:
            if self.full:
                self._queue.popleft()
                self.progress.skipped += 1
            self._queue.append(prompt)
            self._wake.notify_all()

    def pause(self) -> None:
        """Compute nothing until ``resume``: a prompt is being read. What is under way is redone."""
        self._allowed.clear()
        with self._lock:
            if self._running is not None:
                self._running.terminate = True

    def resume(self) -> None:
        """Go on after ``pause``."""
        self._allowed.set()

    def resume_learning(self) -> None:
        """Learn again where learning had stopped."""
        with self._lock:
            self.progress.stopped = False
            self.progress.failures = 0

    def take(self) -> Weights | None:
        """The weights to draft with if they changed since this was last called; empty: none."""
        with self._lock:
            fresh, self._fresh = self._fresh, False
            return self._in_use() if fresh else None

    @property
    def proven_head(self) -> AcceptanceHead | None:
        """The acceptance head, once it predicts better than the drafter's confidence."""
        return self._proven

    @property
    def head_state(self) -> HeadState | None:
        """``HeadTrainer.state``, where a head learns."""
        return self._head_state

    @property
    def waiting(self) -> int:
        """How many prompts that were added are still to be learned from."""
        return self._busy + len(self._queue)

    @property
    def full(self) -> bool:
        """Whether the next prompt takes the place of one that waits."""
        return len(self._queue) >= _QUEUE

    def drain(self, timeout: float | None = None) -> None:
        """Wait until everything that was added has been learned from, at most ``timeout`` s.

        Raises:
            Exception: whatever ended the learning thread.
        """
        with self._wake:
            self._wake.wait_for(
                lambda: self._error or self._closing.is_set() or not (self._queue or self._busy),
                timeout,
            )
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread; what it has not learned from yet is forgotten."""
        self._closing.set()
        self.pause()
        self._allowed.set()
        with self._wake:
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state(self) -> tuple[Weights, dict[str, NDArray[Any]], Progress]:
        """The weights to draft with, empty for none, and what to go on with."""
        with self._lock:
            arrays: dict[str, NDArray[Any]] = {}
            for part, values in self._parts().items():
                arrays |= {f"{part}.{name}": array.copy() for name, array in values.items()}
            return self._in_use(), arrays, copy.deepcopy(self.progress)

    # --- learning -------------------------------------------------------------------------------

    def _parts(self) -> dict[str, Weights]:
        return {
            "candidate": self._candidate,
            "first": self._optimizer.first,
            "second": self._optimizer.second,
            "gradients": self._gradients,
        }

    def _in_use(self) -> Weights:
        return _copy(self._trusted) if self._used else {}

    def _restore(self, state: dict[str, NDArray[Any]]) -> None:
        for part, values in self._parts().items():
            for name, array in values.items():
                stored = state.get(f"{part}.{name}")
                if stored is None or stored.shape != array.shape:
                    raise DamagedFileError(
                        f"The adapter's learning state lacks a whole {part}.{name}. Delete the "
                        "adapter and learn it again."
                    )
                array[...] = stored
        self._optimizer.steps = self.progress.steps

    def _work(self) -> None:
        try:
            _be_nice()
            while True:
                with self._wake:
                    self._wake.wait_for(lambda: self._queue or self._closing.is_set())
                    if self._closing.is_set():
                        return
                    prompt = self._queue.popleft()
                    self._busy = True
                self._learn(prompt)
                with self._wake:
                    self._busy = False
                    self._wake.notify_all()
        except _ClosedError:
            pass
        except BaseException as error:
            self._error = error
            with self._wake:
                self._wake.notify_all()

    def _learn(self, prompt: Sequence[ObservedPrompt]) -> None:
        progress = self.progress
        self._watch(prompt)
        if self._head is not None:
            self._teach(self._head, prompt)
        if progress.stopped:
            return
        total = {name: np.zeros_like(values) for name, values in self._gradients.items()}
        gain, lead, compared, rows = 0, 0, 0, 0.0
        tried, defended = self._optimizer.steps > 0, self._used
        for batch in batches(prompt, self._objective, self._mapping):
            result = self._compute(partial(self._step.run, batch.training, self._candidate))
            for name, gradient in result.gradients.items():
                total[name] += gradient
            rows += len(batch.training.rows)
            if not (tried or defended) or not len(batch.answer):
                continue
            trusted = self._right(batch, self._trusted)
            compared += len(batch.answer)
            gain += int((result.best[batch.answer_rows] == batch.answer).sum()) - trusted
            if defended:
                lead += trusted - self._right(batch, self._none)
        with self._lock:
            if not all(np.isfinite(gradient).all() for gradient in total.values()):
                # Diverged: nothing can be learned from where the candidate is.
                self._roll_back()
                return
            for name, gradient in total.items():
                self._gradients[name] += gradient
            progress.prompts += 1
            progress.pending += 1
            progress.rows += rows
            if tried:
                progress.trial.add(gain, compared)
            if defended:
                progress.defence.add(lead, compared)
            if progress.pending >= self.options.interval:
                self._update()

    def _right(self, batch: LearningBatch, weights: Weights) -> int:
        """How many draft tokens of an answer the drafter predicts with ``weights``."""
        training = batch.training
        test = TrainingBatch(
            training.tokens, training.rows[batch.answer_rows], training.positions, training.mask
        )
        best = self._compute(partial(self._step.best, test, weights))
        return int((best == batch.answer).sum())

    def _teach(self, head: HeadTrainer, prompt: Sequence[ObservedPrompt]) -> None:
        rounds = [seen for part in prompt for seen in part.rounds]
        lessons = [seen.lessons for seen in rounds if seen.lessons is not None]
        for _ in range(head.add(Lessons.join(lessons)) if lessons else 0):
            self._compute(lambda _: head.update())
        self._head_state, self._proven = head.state(), head.proven()

    def _update(self) -> None:
        progress = self.progress
        if self._used and progress.defence.short_of(WORTH):
            self._trusted = _copy(self._none)
            self._used, self._fresh = False, True
            progress.withdrawals += 1
            self._roll_back()
            return
        if progress.trial.better(0 if self._used else WORTH):
            self._trusted = _copy(self._candidate)
            self._used = self._fresh = True
            progress.trial = Trial()
            progress.promotions += 1
            progress.failures = 0
        elif progress.trial.worse:
            self._roll_back()
            return
        scale = np.float32(1 / max(progress.rows, 1.0))
        gradients = {name: gradient * scale for name, gradient in self._gradients.items()}
        self._optimizer.learning_rate = self._learning_rate
        self._optimizer.step(self._candidate, gradients)
        progress.steps = self._optimizer.steps
        progress.updates += 1
        self._forget_gradients()

    @property
    def _learning_rate(self) -> float:
        """Smaller after every failure: too long a step is the likeliest reason for one."""
        rate = self.options.learning_rate
        if rate is None:
            rate = LEARNING_RATES[self._objective.loss]
        return float(rate / 2**self.progress.failures)

    def _start_over(self) -> None:
        """The candidate is what is trusted, and has no past."""
        self._candidate = _copy(self._trusted)
        self._optimizer = AdamW(self._candidate, self._learning_rate)
        self.progress.steps = 0
        self.progress.trial = Trial()
        if not self._used:
            self.progress.defence = Trial()
        self._forget_gradients()

    def _roll_back(self) -> None:
        progress = self.progress
        progress.rollbacks += 1
        progress.failures += 1
        self._start_over()
        if progress.failures >= MAX_FAILURES:
            progress.stopped = True
            progress.level = float(np.mean(progress.recent)) if progress.recent else 0.0
            progress.recent = []

    def _forget_gradients(self) -> None:
        for gradient in self._gradients.values():
            gradient.fill(0)
        self.progress.pending = 0
        self.progress.rows = 0.0

    def _watch(self, prompt: Sequence[ObservedPrompt]) -> None:
        """Follow the acceptance that is observed; resume where it has fallen since the stop."""
        progress = self.progress
        proposed = sum(part.proposed for part in prompt)
        if not proposed:
            return
        rate = sum(part.accepted for part in prompt) / proposed
        progress.recent = [*progress.recent, rate][-DRIFT_WINDOW:]
        if progress.stopped and len(progress.recent) == DRIFT_WINDOW:
            mean = float(np.mean(progress.recent))
            error = float(np.std(progress.recent)) / math.sqrt(DRIFT_WINDOW)
            if mean < DRIFT * progress.level and mean < progress.level - 2 * error:
                self.resume_learning()

    def _compute(self, call: Callable[[ort.RunOptions], _Result]) -> _Result:
        """Run a piece of work when that is allowed, and rest afterwards as the budget demands."""
        while True:
            self._allowed.wait()
            if self._closing.is_set():
                raise _ClosedError
            options = ort.RunOptions()
            with self._lock:
                self._running = options
            # ``pause`` may have come before there was anything to end.
            if not self._allowed.is_set():
                continue
            started = perf_counter()
            try:
                result = call(options)
            except Exception:
                if options.terminate:
                    continue
                raise
            finally:
                spent = perf_counter() - started
                with self._lock:
                    self._running = None
                    self.progress.seconds += spent
            if self.options.budget < 1:
                rest = spent * (1 / self.options.budget - 1)
                self._closing.wait(min(rest, threading.TIMEOUT_MAX))
            return result


class _ClosedError(Exception):
    """The trainer was closed while it computed."""


def _be_nice() -> None:
    """Let the thread that answers go first.

    ``pause`` ends a step only after the operator that runs, which may take 30 ms. Not the lowest
    priority: this thread may hold Python's lock.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < _NICE:
            os.setpriority(os.PRIO_PROCESS, thread, _NICE)


def _initial(step: TrainingStep, options: LearningOptions) -> Weights:
    """A is random and small, B is 0: at first the drafter is itself (LoRA, arXiv 2106.09685)."""
    rng = np.random.default_rng(options.seed)
    rank = options.rank or DEFAULT_RANK
    weights = {}
    for name, size in step.lora_sizes.items():
        if name.endswith(".A"):
            scale = 1 / math.sqrt(size)
            weights[name] = (scale * rng.standard_normal((size, rank))).astype(np.float32)
        else:
            weights[name] = np.zeros((rank, size), np.float32)
    return weights


def _copy(weights: Weights) -> Weights:
    return {name: values.copy() for name, values in weights.items()}
