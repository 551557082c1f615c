"""Online learning: the drafter's LoRA is trained on what the rounds of every answer showed.

    trainer = OnlineTrainer(TrainingStep(bundle), mapping, LearningOptions())
    trainer.add(buffer.end_prompt())            # after every answer
    if (lora := trainer.take()) is not None:    # before the next
        drafter.set_adapter(lora or None)

Two sets of weights are kept. The *trusted* one drafts. The *candidate* learns: gradients of its
loss are added up prompt by prompt, and every ``interval`` prompts AdamW makes a step. Each prompt
is a test before it is a lesson: how many draft tokens of the target's answer do both sets predict,
on text that neither has learned from? A candidate that is better beyond chance becomes the trusted
one. One that is worse, or no better for long, goes back to the trusted one (roll-back). The trusted
weights are tested likewise against the drafter without any, and given up where that is as good
(withdrawal). So what one task taught goes when another has come, and so does what was trusted by
luck. ``trial`` decides all this.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.errors import DamagedFileError
from omnidraft.runtime.learning.batches import LearningBatch, batches
from omnidraft.runtime.learning.head import AcceptanceHead
from omnidraft.runtime.learning.head_trainer import HeadProgress, HeadTrainer, HeadTraining
from omnidraft.runtime.learning.lessons import Lessons
from omnidraft.runtime.learning.objective import LEARNING_RATES, Objective
from omnidraft.runtime.learning.observations import Mapping, ObservedPrompt
from omnidraft.runtime.learning.optimizer import AdamW
from omnidraft.runtime.learning.training_step import TrainingBatch, TrainingStep
from omnidraft.runtime.learning.trial import Decision, Progress
from omnidraft.runtime.learning.worker import Worker

Weights = dict[str, NDArray[np.float32]]
HeadState = tuple[dict[str, NDArray[np.float32]], dict[str, NDArray[Any]], HeadProgress]

DEFAULT_RANK: Final = 32


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
        head: how the acceptance head is trained. "none": there is to be none; one that the adapter
            has is dropped, for it would not follow what the LoRA learns. None: as it was so far.
    """

    objective: Objective | None = None
    rank: int | None = None
    learning_rate: float | None = None
    interval: int = 4
    budget: float = 1.0
    seed: int = 0
    head: HeadTraining | Literal["none"] | None = None


class OnlineTrainer(Worker[Sequence[ObservedPrompt]]):
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
        super().__init__(options.budget)
        self.options = options
        self.progress = progress or Progress()
        self.objective = options.objective or Objective(self.progress.loss or Objective().loss)
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
        if self.objective.loss != (self.progress.loss or self.objective.loss):
            # Another loss's gradients have other sizes, and may want the candidate elsewhere.
            self.progress.start_over(self._used)
            self._start_over()
        self.progress.loss = self.objective.loss
        self._head = head
        # What the head was after its last answer: it learns on while others look at it.
        self._head_state = head.state() if head else None
        self._proven = head.proven() if head else None
        self._fresh = False  # the trusted weights changed since they were last taken
        if background:
            self.start()

    # --- from the thread that answers -----------------------------------------------------------

    def add(self, prompt: Sequence[ObservedPrompt]) -> None:
        """Learn from an answer and its prompt, now or soon; after ``close`` no more.

        Of many that wait the oldest are left out: see ``full``.

        Raises:
            Exception: whatever ended the learning thread.
        """
        useful = any(part.rounds for part in prompt) and self.options.budget > 0
        if useful and self.put(prompt):
            self.progress.skipped += 1

    def resume_learning(self) -> None:
        """Learn again where learning had stopped."""
        with self._lock:
            self.progress.resume()

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

    def spent(self, seconds: float) -> None:
        """See ``Worker.spent``."""
        self.progress.seconds += seconds

    def work(self, prompt: Sequence[ObservedPrompt]) -> None:
        """Learn from an answer and its prompt."""
        progress = self.progress
        progress.watch(sum(part.accepted for part in prompt), sum(part.proposed for part in prompt))
        if self._head is not None:
            self._teach(self._head, prompt)
        if progress.stopped:
            return
        total = {name: np.zeros_like(values) for name, values in self._gradients.items()}
        gain, lead, compared, rows = 0, 0, 0, 0.0
        tried, defended = self._optimizer.steps > 0, self._used
        for batch in batches(prompt, self.objective, self._mapping):
            result = self.compute(partial(self._step.run, batch.training, self._candidate))
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
                progress.roll_back(self._used)
                self._start_over()
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
        best = self.compute(partial(self._step.best, test, weights))
        return int((best == batch.answer).sum())

    def _teach(self, head: HeadTrainer, prompt: Sequence[ObservedPrompt]) -> None:
        rounds = [seen for part in prompt for seen in part.rounds]
        lessons = [seen.lessons for seen in rounds if seen.lessons is not None]
        for _ in range(head.add(Lessons.join(lessons)) if lessons else 0):
            self.compute(lambda _: head.update())
        self._head_state, self._proven = head.state(), head.proven()

    def _update(self) -> None:
        progress = self.progress
        decision = progress.decide(self._used)
        if decision is Decision.WITHDRAW:
            self._trusted = _copy(self._none)
            self._used, self._fresh = False, True
        if decision in (Decision.WITHDRAW, Decision.ROLL_BACK):
            self._start_over()
            return
        if decision is Decision.PROMOTE:
            self._trusted = _copy(self._candidate)
            self._used = self._fresh = True
        scale = np.float32(1 / max(progress.rows, 1.0))
        gradients = {name: gradient * scale for name, gradient in self._gradients.items()}
        self._optimizer.learning_rate = self._learning_rate
        self._optimizer.step(self._candidate, gradients)
        progress.stepped(self._optimizer.steps)
        self._forget_gradients()

    @property
    def _learning_rate(self) -> float:
        """Smaller after every failure: too long a step is the likeliest reason for one."""
        rate = self.options.learning_rate
        if rate is None:
            rate = LEARNING_RATES[self.objective.loss]
        return float(rate / 2**self.progress.failures)

    def _start_over(self) -> None:
        """The candidate is what is trusted, and has no past."""
        self._candidate = _copy(self._trusted)
        self._optimizer = AdamW(self._candidate, self._learning_rate)
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        for gradient in self._gradients.values():
            gradient.fill(0)


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
