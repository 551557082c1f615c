"""The parts of the cost-aware policy, one by one: the account and the stopping rule."""

from __future__ import annotations

import pytest

from omnidraft.runtime.decoding.account import ALLOWANCE, CAP, CREDIT, LEAST_PROBE, START, Account
from omnidraft.runtime.decoding.calibration import Acceptance
from omnidraft.runtime.decoding.costs import Curve
from omnidraft.runtime.decoding.stopping_rule import MAX_DRAFT, StoppingRule


def rounds_until_a_try(account: Account, price: float) -> int:
    for count in range(10_000):
        account.open_round()
        if account.try_drafting(price, 0.0):
            return count
        account.allow()
    raise AssertionError("the allowance never pays for a try")


def test_a_try_is_paid_from_the_balance_and_saved_up_for() -> None:
    account = Account()
    assert account.try_drafting(START - LEAST_PROBE, 0.0)
    account = Account()
    price = START - LEAST_PROBE + 1.0
    assert not account.try_drafting(price, 0.0)
    assert rounds_until_a_try(account, price) == pytest.approx(1.0 / ALLOWANCE, abs=1)


def test_each_try_in_vain_makes_the_next_one_wait_longer() -> None:
    account = Account()
    waits = []
    for _ in range(4):
        waits.append(rounds_until_a_try(account, 1.5))
        account.drafted(-3.0, -3.0, 0.0)
        assert not account.drafting
    assert waits[0] < waits[1] < waits[2]
    assert waits[3] == waits[2], "but no longer than four times as long"


def test_what_was_won_is_soon_lost_and_the_credit_keeps_all_of_it() -> None:
    account = Account()
    assert account.try_drafting(0.5, 0.0)
    for _ in range(100):
        account.open_round()
        account.drafted(1.0, 1.0, 0.0)
    assert account.credit == CREDIT + 100
    lost = 0
    while account.drafting:
        account.open_round()
        account.drafted(-1.0, -1.0, 0.0)
        lost += 1
    assert lost == CAP
    account.looked_up(-2.5)
    assert account.credit == CREDIT + 100 - CAP - 2.5


def test_reading_leaves_a_reserve_once_drafting_is_known_to_pay() -> None:
    account = Account()
    assert account.try_drafting(0.5, 0.0)
    account.open_round()
    account.drafted(-50.0, 0.0, 50.0)
    assert account.drafting
    untried = Account()
    assert untried.try_drafting(0.5, 0.0)
    untried.drafted(-50.0, 0.0, 50.0)
    assert not untried.drafting, "a try pays for its reading in full"


def drawn(rule: StoppingRule, curve: Curve, step: float, score: float) -> int:
    rule.open_round(curve, step, 1.0)
    rule.limit = MAX_DRAFT
    count = 1
    while rule.go_on(score):
        count += 1
    return count


def test_the_rule_draws_further_where_tokens_are_likelier_or_cheaper() -> None:
    cheap, dear = Curve({1: 1.0, 32: 1.3}), Curve({1: 1.0, 32: 12.0})
    lengths = [
        drawn(StoppingRule(Acceptance()), curve, step, score)
        for curve, step, score in (
            (dear, 0.05, 0.5),
            (cheap, 0.05, 0.5),
            (cheap, 0.001, 0.99),
        )
    ]
    assert lengths == sorted(set(lengths)) and lengths[0] == 1 and lengths[-1] == MAX_DRAFT


def test_the_rule_asks_more_of_a_token_where_rounds_bring_more() -> None:
    curve = Curve({1: 1.0, 32: 2.5})
    rule = StoppingRule(Acceptance())
    before = drawn(rule, curve, 0.05, 0.8)
    for _ in range(200):
        rule.observe(10, 2.0)
    assert drawn(rule, curve, 0.05, 0.8) < before
    assert rule.rate > 1.0
