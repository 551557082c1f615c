"""The state machine that trusts, gives up and withdraws weights, told nothing but counts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from omnidraft.runtime.learning.trial import (
    DRIFT_WINDOW,
    FEWEST,
    MAX_FAILURES,
    PATIENCE,
    Decision,
    Progress,
    Trial,
)

TOKENS = 100
"""Draft tokens of every answer."""


def decisions(gains: list[int], *, used: bool = False) -> list[Decision]:
    """What becomes of a candidate that is asked about after every answer."""
    progress = Progress()
    made = []
    for gain in gains:
        progress.trial.add(gain, TOKENS)
        made.append(progress.decide(used))
    return made


def test_a_candidate_that_predicts_more_is_promoted_after_the_fewest_answers() -> None:
    made = decisions([5] * FEWEST)
    assert made == [Decision.STEP] * (FEWEST - 1) + [Decision.PROMOTE]


def test_a_candidate_that_predicts_less_is_rolled_back_after_the_fewest_answers() -> None:
    made = decisions([-5] * FEWEST)
    assert made == [Decision.STEP] * (FEWEST - 1) + [Decision.ROLL_BACK]


def test_a_candidate_that_is_as_good_is_given_up_in_the_end() -> None:
    made = decisions([1, -1] * (PATIENCE // 2))
    assert made == [Decision.STEP] * (PATIENCE - 1) + [Decision.ROLL_BACK]


def test_luck_of_one_answer_promotes_nobody() -> None:
    assert set(decisions([0] * 20 + [40] + [0] * 20)) == {Decision.STEP}


@pytest.mark.parametrize(("gain", "promoted"), [(1, False), (3, True)])
def test_the_first_weights_must_be_worth_their_time(gain: int, promoted: bool) -> None:
    """One token in 200 is beyond chance when it comes every time, and less than a hundredth."""
    for used in (False, True):
        progress = Progress()
        for _ in range(FEWEST):
            progress.trial.add(gain, 200)
        assert (progress.decide(used) is Decision.PROMOTE) == (promoted or used)


def test_weights_that_bring_nothing_are_withdrawn_with_their_candidate() -> None:
    progress = Progress(steps=5, pending=3, rows=7.0)
    for _ in range(FEWEST):
        progress.defence.add(0, TOKENS)
    # Even while the candidate does well against them.
    for _ in range(FEWEST):
        progress.trial.add(5, TOKENS)
    assert progress.decide(used=True) is Decision.WITHDRAW
    assert (progress.withdrawals, progress.rollbacks, progress.promotions) == (1, 1, 0)
    assert progress.trial == progress.defence == Trial()
    assert (progress.steps, progress.pending, progress.rows) == (0, 0, 0.0)


def test_weights_are_defended_through_roll_backs() -> None:
    progress = Progress()
    for _ in range(FEWEST):
        progress.defence.add(10, TOKENS)
    defence = dataclasses.replace(progress.defence)
    progress.roll_back(used=True)
    assert progress.defence == defence
    progress.roll_back(used=False)
    assert progress.defence == Trial()


def fail(progress: Progress) -> None:
    for _ in range(FEWEST):
        progress.trial.add(-5, TOKENS)
    assert progress.decide(used=False) is Decision.ROLL_BACK


def test_learning_stops_after_failures_in_a_row_and_a_promotion_ends_the_row() -> None:
    progress = Progress()
    for _ in range(MAX_FAILURES - 1):
        fail(progress)
    for _ in range(FEWEST):
        progress.trial.add(5, TOKENS)
    assert progress.decide(used=False) is Decision.PROMOTE
    for _ in range(MAX_FAILURES - 1):
        fail(progress)
    assert not progress.stopped
    fail(progress)
    assert progress.stopped


@pytest.mark.parametrize(("later", "resumes"), [(60, False), (57, False), (30, True)])
def test_learning_resumes_when_acceptance_has_fallen(later: int, resumes: bool) -> None:
    progress = Progress()
    for _ in range(DRIFT_WINDOW):
        progress.watch(60, 100)
    for _ in range(MAX_FAILURES):
        fail(progress)
    assert progress.level == pytest.approx(0.6)
    for answers in range(1, DRIFT_WINDOW + 1):
        progress.watch(later, 100)
        assert progress.stopped or (resumes and answers == DRIFT_WINDOW)
    assert progress.stopped != resumes
    assert resumes == (progress.failures == 0)


def test_an_answer_without_proposals_says_nothing_of_acceptance() -> None:
    progress = Progress()
    progress.watch(0, 0)
    assert progress.recent == []


def test_few_candidates_that_are_no_better_are_trusted() -> None:
    """By simulation: about a seventh of those that are as good; fewer of those that are worse."""

    def trusted(mean: float) -> float:
        rng = np.random.default_rng(0)
        count = 0
        for _ in range(400):
            progress = Progress()
            for gain in rng.normal(mean, 10.0, PATIENCE).round().astype(int):
                progress.trial.add(int(gain), TOKENS)
                # Weights are in use: no worth is asked for beside chance.
                if (decision := progress.decide(used=True)) is not Decision.STEP:
                    count += decision is Decision.PROMOTE
                    break
        return count / 400

    as_good, worse, better = trusted(0.0), trusted(-1.0), trusted(5.0)
    assert worse < as_good < 0.2 and worse < 0.12
    assert better > 0.8
