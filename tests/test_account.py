"""The account of the cost-aware policy."""

from __future__ import annotations

import pytest

from omnidraft.runtime.decoding.account import ALLOWANCE, CAP, CREDIT, LEAST_PROBE, START, Account


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
