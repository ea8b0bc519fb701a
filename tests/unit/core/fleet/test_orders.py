"""How long orders are repeated."""

from __future__ import annotations

import re

from spotwise.core.fleet.orders import OpenPurchases, OpenReleases
from spotwise.core.messages.fleet import FleetInstance, FleetReported, InstanceState, Market, PurchaseStatus


def report(at_s: float, *instances: FleetInstance, purchases: tuple[PurchaseStatus, ...] = ()) -> FleetReported:
    return FleetReported("w", 1, at_s, "fake", instances, purchases=purchases)


def instance(name: str, token: str = "", state: InstanceState = InstanceState.RUNNING) -> FleetInstance:
    return FleetInstance(name, "a", Market.SPOT, state, 0.0, token)


def test_tokens_are_distinct_and_of_allowed_characters() -> None:
    purchases = OpenPurchases("planner/β 1" * 20, 12)
    tokens = [purchases.buy("a", Market.SPOT, 1, "", 0.0).token for _ in range(3)]
    assert len(set(tokens)) == 3
    assert all(
        re.fullmatch(r"[A-Za-z0-9._-]{1,64}", token) and token.endswith(f"-12-{n}") for n, token in enumerate(tokens, 1)
    )


def test_a_purchase_is_repeated_until_it_is_answered() -> None:
    purchases = OpenPurchases("p", 1)
    bought = purchases.buy("a", Market.SPOT, 2, "z", 100.0)
    purchases.update(report(101.0))
    assert purchases.open == (bought,)
    assert purchases.coming(report(101.0)) == [(bought, 2)]
    asked = report(170.0, instance("i", bought.token), purchases=(PurchaseStatus(bought, 101.0),))
    purchases.update(asked)
    assert purchases.open == (bought,)
    assert purchases.coming(asked) == [(bought, 1)]
    answered = report(
        171.0, instance("i", bought.token), purchases=(PurchaseStatus(bought, 101.0, is_answered=True, got=2),)
    )
    purchases.update(answered)
    assert purchases.open == ()
    assert purchases.coming(answered) == [(bought, 1)]


def test_what_an_answered_purchase_did_not_bring_does_not_come() -> None:
    purchases = OpenPurchases("p", 1)
    bought = purchases.buy("a", Market.SPOT, 2, "", 0.0)
    status = PurchaseStatus(bought, 1.0, is_answered=True, got=1)
    assert purchases.coming(report(2.0, purchases=(status,))) == [(bought, 1)]
    assert purchases.coming(report(200.0, purchases=(status,))) == []


def test_a_purchase_that_no_report_knows_is_forgotten() -> None:
    """By the time of the report, not by the planner's: a watcher that is away may still carry it out."""
    purchases = OpenPurchases("p", 1)
    bought = purchases.buy("a", Market.SPOT, 1, "", 100.0)
    purchases.update(report(160.0))
    assert purchases.open == (bought,)
    purchases.update(report(160.1))
    assert purchases.open == ()


def test_a_purchase_whose_instances_are_all_listed_is_done() -> None:
    purchases = OpenPurchases("p", 1)
    bought = purchases.buy("a", Market.SPOT, 1, "", 100.0)
    purchases.update(report(101.0, instance("i", bought.token, InstanceState.GONE)))
    assert purchases.open == ()


def test_purchases_of_another_term_come_as_well() -> None:
    other = OpenPurchases("q", 1).buy("b", Market.ON_DEMAND, 3, "", 0.0)
    assert OpenPurchases("p", 2).coming(report(1.0, purchases=(PurchaseStatus(other, 0.5),))) == [(other, 3)]


def test_a_release_keeps_its_deadline_until_the_instance_leaves() -> None:
    releases = OpenReleases(120.0)
    releases.release("i", "too many", 10.0)
    releases.release("i", "too many", 50.0)
    releases.release("j", "too many", 50.0)
    assert [each.deadline_s for each in releases.open] == [130.0, 170.0]
    releases.update(report(60.0, instance("i"), instance("j", state=InstanceState.LEAVING)))
    assert releases.ids == {"i"}
    releases.update(report(61.0))
    assert releases.open == ()
