"""The lease of a service's active process, and the fence at those that it orders."""

from __future__ import annotations

import pytest

from spotwise.core.membership.term import QUESTIONS, RENEWALS, TermFence, TermLease

LEASE_S = 1.5


def lease(*, needs_store: bool = False) -> TermLease:
    return TermLease(LEASE_S, needs_store=needs_store)


def test_a_term_lasts_as_long_as_the_lease_from_before_the_question() -> None:
    """The answer may take its time: the store's lease never outlasts what the process believes."""
    held = lease()
    assert held.held(7, 100.0)
    assert (held.term, held.until_s) == (7, 101.5)
    assert not held.held(7, 100.3)
    assert held.until_s == 101.8


def test_a_higher_term_begins_anew() -> None:
    """A process that lost the lease and got it back has missed what happened between."""
    held = lease()
    held.held(7, 100.0)
    assert held.held(9, 101.0)


def test_a_refusal_ends_the_term_once() -> None:
    held = lease()
    assert not held.refused()
    held.held(7, 100.0)
    assert held.refused()
    assert held.term is None
    assert not held.refused()


def test_a_store_that_is_away_ends_the_term_of_a_service_that_needs_it() -> None:
    planner = lease(needs_store=True)
    planner.held(7, 100.0)
    assert planner.store_is_away(100.5)
    assert planner.term is None


def test_a_store_that_is_away_extends_the_term_of_a_service_that_does_not() -> None:
    """The lease is in that store: no other can take it, and requests need a scheduler."""
    scheduler = lease()
    scheduler.held(7, 100.0)
    assert not scheduler.store_is_away(101.4)
    assert (scheduler.term, scheduler.until_s) == (7, 102.9)


def test_a_standby_leaves_the_lease_to_its_holder_after_the_store_was_away() -> None:
    """A store that has forgotten the lease gives it to the first that asks."""
    standby = lease()
    assert standby.may_ask(100.0, receives=True)
    standby.store_is_away(100.0)
    assert not standby.may_ask(101.4, receives=True)
    assert standby.may_ask(101.5, receives=True)


def test_a_standby_does_not_wait_for_a_holder_that_has_ended() -> None:
    standby = lease()
    standby.store_is_away(100.0)
    standby.holder_ended()
    assert standby.may_ask(100.1, receives=True)


def test_a_process_that_receives_nothing_does_not_ask() -> None:
    """The active one's lease ends so, and a standby that receives takes over."""
    assert not lease().may_ask(100.0, receives=False)


def test_a_new_term_is_above_all_that_were_seen() -> None:
    """Also where the store has forgotten them, and the clock was set back."""
    standby = lease()
    assert standby.least_term(1000.9) == 1000
    standby.saw(5000)
    assert standby.least_term(1000.9) == 5001
    standby.held(6000, 0.0)
    assert standby.least_term(1000.9) == 6001


def test_a_higher_term_elsewhere_ends_this_one() -> None:
    """The process was replaced, and has not heard of it from the store yet."""
    former = lease()
    former.held(7, 100.0)
    assert not former.saw(6)
    assert not former.saw(7)
    assert former.saw(8)
    assert former.term is None
    assert not former.saw(9)


def test_a_standby_asks_more_often_than_the_holder() -> None:
    """Between a lease's end and the next term lies one question's pause."""
    process = lease()
    assert process.pause_s == pytest.approx(LEASE_S / QUESTIONS)
    process.held(7, 100.0)
    assert process.pause_s == pytest.approx(LEASE_S / RENEWALS)
    assert process.answer_within_s + process.pause_s < LEASE_S


def test_a_fence_refuses_earlier_terms_only() -> None:
    fence = TermFence()
    assert [fence.refuses(term) for term in (5, 4, 5, 6, 5, 0)] == [False, True, False, False, True, False]
    assert fence.latest == 6
