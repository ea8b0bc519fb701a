"""The keeper and instances that never become ready: their offers rest, one is tried at a time, a successor knows of it."""

from __future__ import annotations

from spotwise.core.fleet.keeper import events as k
from spotwise.core.fleet.keeper.failed_starts import BREAKER
from spotwise.core.messages.fleet import InstanceOffer, InstanceRelease, InstanceState, Market
from spotwise.core.messages.members import MemberState
from tests.unit.core.fleet.keeping import START_S, Keeping, bought, device, listed, purchase

SPOT = Market.SPOT


def offer_of(keeping: Keeping, market: Market = SPOT) -> InstanceOffer:
    return next(each for each in keeping.report().offers if each.market is market)


def give_up(keeping: Keeping, *names: str) -> None:
    """The planner gives instances back that are not ready, and the provider ends them."""
    keeping.order(*(InstanceRelease(name, keeping.now + 60.0, "late") for name in names))
    keeping.lists(*(listed(name, state=InstanceState.GONE) for name in names), after_s=1.0)


def broken() -> Keeping:
    """A keeper whose type has failed to start often enough."""
    keeping = Keeping()
    names = [f"i{number}" for number in range(BREAKER)]
    keeping.lists(*map(listed, names), after_s=100.0)
    give_up(keeping, *names)
    return keeping


def test_the_offer_of_an_instance_that_was_given_back_before_it_was_ready_rests() -> None:
    """It is paid for nothing: the offer is not asked for, the others are."""
    keeping = Keeping()
    keeping.lists(listed("i1"), after_s=200.0)
    give_up(keeping, "i1")
    seen = offer_of(keeping)
    assert seen.refused_until_s >= START_S + 400.0
    assert seen.failed_starts == 1
    assert "late: the last one was not ready" in seen.refusal
    keeping.order(purchase("again"), purchase("other", market=Market.ON_DEMAND))
    assert [each.token for each in bought(keeping)] == ["other"]


def test_an_instance_that_ends_by_itself_before_it_is_ready_is_not_bought_again_at_once() -> None:
    """Its command fails, or its image shuts down: else it would be bought and die each second."""
    keeping = Keeping()
    keeping.lists(listed("i1"))
    keeping.lists(listed("i1", state=InstanceState.GONE), after_s=2.0)
    assert offer_of(keeping).refused_until_s > keeping.now
    keeping.order(purchase("again"))
    assert bought(keeping) == []


def test_one_that_was_ready_or_that_the_provider_takes_has_not_failed() -> None:
    keeping = Keeping()
    keeping.lists(listed("i1"), listed("i2"))
    keeping.feed(device("i1"))
    keeping.feed(k.NoticesRead((k.ProviderNotice("i2", keeping.now + 5.0, "e", "reclaimed"),)))
    keeping.release("i1")
    keeping.lists(listed("i1", state=InstanceState.GONE), listed("i2", state=InstanceState.GONE), after_s=10.0)
    assert offer_of(keeping).refused_until_s == offer_of(keeping).failed_starts == 0


def test_one_that_becomes_ready_after_it_was_given_up_opens_nothing() -> None:
    """Else a `start_s` that is too low would buy and end instances without a pause. It leaves as any other does."""
    keeping = Keeping()
    keeping.lists(listed("i1"), after_s=100.0)
    keeping.feed(device("i1", MemberState.STARTING))
    keeping.order(InstanceRelease("i1", keeping.now + 60.0, "late"))
    keeping.feed(device("i1"))
    assert offer_of(keeping).refused_until_s > keeping.now
    assert offer_of(keeping).failed_starts == 1
    assert [each.state for each in keeping.report().instances] == [InstanceState.LEAVING]


def test_after_several_failures_one_instance_at_a_time_is_tried() -> None:
    keeping = broken()
    assert all(each.refused_until_s > keeping.now for each in keeping.report().offers)
    keeping.lists(after_s=250.0)
    assert (offer_of(keeping).most, offer_of(keeping, Market.ON_DEMAND).most) == (1, 1)
    keeping.order(purchase("try", 3), purchase("beside", market=Market.ON_DEMAND))
    assert [(each.token, each.count) for each in bought(keeping)] == [("try", 1)]
    keeping.feed(k.PurchaseAnswered("try", (listed("n1", "try", keeping.now),)))
    assert offer_of(keeping).most == 1
    keeping.order(purchase("more"))
    assert len(bought(keeping)) == 1
    keeping.feed(device("n1"))
    assert (offer_of(keeping).most, offer_of(keeping).failed_starts) == (4, 0)
    keeping.order(purchase("all", 3))
    assert bought(keeping)[-1].count == 3


def test_a_successor_goes_on_with_the_rest() -> None:
    keeping = broken()
    after = Keeping(keeping.kept(), keeping.now + 1.0, incarnation=2)
    after.lists()
    assert offer_of(after).failed_starts == BREAKER
    assert offer_of(after).refused_until_s > after.now
