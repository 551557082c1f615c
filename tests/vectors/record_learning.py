"""Record what online learning decides and computes: ``python tests/vectors/record_learning.py``.

README.md describes the file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from omnidraft.runtime.decoding.observed import Round
from omnidraft.runtime.learning.batches import LearningBatch, batches
from omnidraft.runtime.learning.objective import Detail, Objective
from omnidraft.runtime.learning.observations import AdaptationBuffer, Mapping, ObservedPrompt
from omnidraft.runtime.learning.trainer import LearningOptions, OnlineTrainer
from omnidraft.runtime.learning.trial import Decision, Progress

VOCABULARY, TARGETS = 97, 40
SMALL = 24
Shape = tuple[int, ...]


def text(begin: int, end: int) -> list[int]:
    """The draft tokens at these places of an endless text; each follows from the one before."""
    tokens, token = [], 1
    for place in range(end):
        if place >= begin:
            tokens.append(token)
        token = (5 * token + 3) % VOCABULARY
    return tokens


def mapping() -> Mapping:
    """Every seventh target token has no surface."""
    plain = np.arange(TARGETS) % 7 != 0
    place = np.full(VOCABULARY, -1, np.int64)
    place[1] = 0
    one = np.array([1], np.int64)
    return Mapping(one, one, place, plain & False, plain)


def shown(words: list[int]) -> Round:
    """A round of the text, see README.md: the draft left it after the tokens that stood."""
    begin, context, accepted, last, unfinished, *counts = words
    stood, drafted = sum(counts[:accepted]), sum(counts) + unfinished
    drafts = text(begin + context, begin + context + stood) + [0] * (drafted - stood)
    history = np.array(text(begin, begin + context), np.int32)
    return Round(history, [0] * len(counts), drafts, counts, accepted, last, [], 0.0)


def rounds(rng: random.Random, count: int, begin: int, context: int, most: int) -> list[list[int]]:
    """Rounds of an answer; where its context would grow beyond ``most`` its older half goes."""
    made = []
    for _ in range(count):
        if context > most:
            begin, context = begin + context // 2, context - context // 2
        counts = [rng.choice((1, 1, 2, 3)) for _ in range(rng.choice((0, 1, 2, 4, 7)))]
        accepted = rng.randint(0, len(counts))
        last, unfinished = rng.randrange(TARGETS), rng.choice((0, 0, 2))
        made.append([begin, context, accepted, last, unfinished, *counts])
        context += sum(counts[:accepted]) + rng.choice((1, 1, 1, 2, 3))
    return made


def batch(made: LearningBatch) -> dict[str, Any]:
    inputs = made.training.inputs(VOCABULARY)
    inputs |= {"answer_rows": made.answer_rows, "answer": made.answer}
    recorded: dict[str, Any] = {
        "shapes": {name: list(values.shape) for name, values in inputs.items()},
        "sha256": {
            name: hashlib.sha256(values.tobytes()).hexdigest()[:12]
            for name, values in inputs.items()
            if values.size
        },
    }
    if len(made.training.tokens) <= SMALL:
        listed = ("tokens", "positions", "rows", "label", "label_weight", "answer_rows", "answer")
        recorded["values"] = {name: inputs[name].ravel().tolist() for name in listed}
    return recorded


def observation(seed: int) -> dict[str, Any]:
    """Answers by turns; after each what is kept and, of one that ended, its batches."""
    rng = random.Random(seed)
    max_bytes = (64_000_000, 6_000, 1_000)[seed % 3]
    buffer = AdaptationBuffer(mapping(), max_bytes=max_bytes, detail=Detail.TOKENS)
    answers = []
    for index in range(4):
        long, many = seed == 3 and index == 2, seed == 6 and index == 1
        made = rounds(
            rng,
            count=80 if long else 25 if many else rng.choice((1, 3, 10, 25)),
            begin=rng.randrange(50),
            context=1500 if many else rng.choice((0, 1, 7, 12, 600)),
            most=4096 if long else 40 if many else rng.choice((40, 4096)),
        )
        for each in made:
            buffer.observe(shown(each))
        answer: dict[str, Any] = {"rounds": made, "discarded": rng.random() < (0 if long else 0.2)}
        if answer["discarded"]:
            buffer.discard_prompt()
        else:
            parts = buffer.end_prompt()
            given = batches(parts, Objective(), mapping())
            answer["parts"] = [[len(p.rounds), p.accepted, p.proposed, p.nbytes] for p in parts]
            answer["batches"] = [batch(each) for each in given]
        answer["kept"] = [len(buffer.prompts), buffer.nbytes]
        answers.append(answer)
    return {"max_bytes": max_bytes, "answers": answers}


def trial(seed: int) -> dict[str, Any]:
    """A trainer's decisions; the worlds differ in what the candidate and the LoRA are worth."""
    rng = random.Random(seed)
    progress, used, interval = Progress(), False, rng.choice((1, 2, 4))
    answers, decisions = [], []
    for number in range(130):
        phase = (seed + number // 30) % 4
        gain, lead = ((0.2, 0.2), (-0.2, 0.1), (0.0, -0.2), (0.02, 0.0))[phase]
        compared = rng.randint(0, 60)
        won = round(rng.gauss(gain * compared, 0.1 * compared))
        led = round(rng.gauss(lead * compared, 0.1 * compared))
        proposed = rng.choice((0, 20, 20))
        accepted = min(proposed, rng.randint(0, 8 if number > 100 else 20))
        answers.append([won, led, compared, accepted, proposed])
        progress.watch(accepted, proposed)
        decisions.append("-")
        if progress.stopped:
            continue
        if progress.steps:
            progress.trial.add(won, compared)
        if used:
            progress.defence.add(led, compared)
        progress.prompts += 1
        progress.pending += 1
        if progress.pending < interval:
            continue
        decision = progress.decide(used)
        decisions[-1] = {"ROLL_BACK": "R", "STEP": "S", "PROMOTE": "P", "WITHDRAW": "W"}[
            decision.name
        ]
        if decision in (Decision.STEP, Decision.PROMOTE):
            progress.stepped(progress.steps + 1)
        used = decision is Decision.PROMOTE or (used and decision is not Decision.WITHDRAW)
    return {
        "interval": interval,
        "answers": answers,
        "decisions": "".join(decisions),
        "progress": dataclasses.asdict(progress),
    }


class ToyStep:
    """A step of known gradients: towards 1, from every label that weighs.

    ``slope`` says what that is worth: by how much of the tokens the likeliest one is more often the
    text's when B's values have come to 1. ``scale`` scales gradients.
    """

    def __init__(self) -> None:
        self.lora_sizes = {"lora.0.q.A": 3, "lora.0.q.B": 2}
        self.slope, self.scale = 0.0, 1.0

    def run(self, training: Any, lora: Any, options: object) -> Any:
        weight = np.float32(training.label_weight.sum() * self.scale)
        gradients = {name: weight * (values - np.float32(1)) for name, values in lora.items()}
        return SimpleNamespace(best=self.best(training, lora, options), gradients=gradients)

    def best(self, training: Any, lora: Any, options: object) -> Any:
        bound = 0.5 + self.slope * float(sum(lora["lora.0.q.B"].ravel().tolist())) / 4
        tokens = training.tokens[training.rows]
        following = (5 * tokens + 3) % VOCABULARY
        return np.where((7 * tokens) % VOCABULARY / VOCABULARY < bound, following, -1)


# Prompts, slope and scale of the gradients, and whether drafts stand.
PHASES = (
    (26, 1.0, 1.0, True),
    (20, -1.0, 1.0, True),
    (1, 1.0, float("nan"), True),
    (22, 1.0, 1.0, True),
    (68, 0.0, 1.0, True),
    (2, 0.0, float("inf"), True),
    (2, 1.0, 1.0, True),
    (27, 1.0, 1.0, False),
)


def training() -> dict[str, Any]:
    """A trainer on a toy step, stopped and begun again half-way from what it saved."""
    rng = random.Random(11)
    step = ToyStep()
    options = LearningOptions(rank=2, learning_rate=0.05, interval=2)
    trainer = OnlineTrainer(step, mapping(), options)  # type: ignore[arg-type]
    untrained = {name: values.ravel().tolist() for name, values in trainer._none.items()}
    buffer = AdaptationBuffer(mapping(), detail=Detail.TOKENS)
    phases = []
    for count, step.slope, step.scale, stands in PHASES:
        answers = []
        for _ in range(count):
            made = rounds(rng, 3, rng.randrange(50), rng.randint(1, 9), 4096)
            if not stands:
                made = [[*words[:2], 0, *words[3:]] for words in made]
            for words in made:
                buffer.observe(shown(words))
            parts: list[ObservedPrompt] = buffer.end_prompt()
            trainer.add(parts)
            taken = trainer.take()
            lora, state, p = trainer.state()
            answers.append(
                {
                    "rounds": made,
                    "taken": None if taken is None else len(taken),
                    "counts": [
                        p.prompts, p.updates, p.promotions, p.rollbacks, p.withdrawals,
                        p.failures, p.pending, p.steps, int(p.stopped),
                    ],
                    "sums": [
                        float(sum(values.sum(dtype=float) for values in each))
                        for each in (
                            lora.values(),
                            [v for k, v in state.items() if k.startswith("candidate.")],
                        )
                    ],
                }
            )  # fmt: skip
        trainer = OnlineTrainer(
            step, mapping(), options, lora=lora, state=state, progress=p  # type: ignore[arg-type]
        )  # fmt: skip
        phases.append({"slope": step.slope, "scale": str(step.scale), "answers": answers})
    progress = dataclasses.asdict(p)
    progress["seconds"] = 0.0
    return {
        "untrained": untrained,
        "phases": phases,
        "lora": {name: values.ravel().tolist() for name, values in lora.items()},
        "state": {name: values.ravel().tolist() for name, values in state.items()},
        "progress": progress,
    }


def main() -> None:
    recorded = {
        "observations": [observation(seed) for seed in range(8)],
        "trials": [trial(seed) for seed in range(8)],
        "training": training(),
    }
    path = Path(__file__).with_name("learning.json")
    path.write_text(json.dumps(recorded, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
