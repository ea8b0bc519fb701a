"""The fleet keeper's role: it buys once, gives back what is empty, and reports what there is and what it costs."""

from __future__ import annotations

import pytest

from spotwise.core.fleet.keeper import events as k
from spotwise.core.fleet.keeper.accounts import GONE_SHOWN_S, MISSING_S
from spotwise.core.fleet.keeper.departures import ACCEPTED_S, LISTENED_S
from spotwise.core.fleet.keeper.failed_starts import LONGEST, SHORTEST_S
from spotwise.core.fleet.keeper.purchases import LONG_S, REPORTED_S
from spotwise.core.fleet.keeper.role import KEEP_S
from spotwise.core.fleet.prices import PriceSeries
from spotwise.core.messages.fleet import FleetOrder, InstanceState, Market
from spotwise.core.messages.members import MemberState
from spotwise.core.messages.mesh import InterruptionKind, InterruptionReported, Tick
from spotwise.core.spot.commands import PublishNotice, PublishReport
from tests.unit.core.fleet.keeping import START_S, TYPE, Keeping, bought, device, listed, of, offer, purchase

GONE = InstanceState.GONE


def given_back(commands: list[k.FleetKeeperCommand]) -> list[tuple[str, ...]]:
    """What was released."""
    return [each.instance_ids for each in of(commands, k.GiveBack)]


@pytest.fixture
def keeping() -> Keeping:
    return Keeping()


def test_nothing_is_bought_or_reported_before_the_fleet_was_listed(keeping: Keeping) -> None:
    """What there is already must be known first."""
    keeping.order(purchase())
    assert bought(keeping) == [] and of(keeping.feed(Tick(), 5.0), k.PublishFleet) == []
    keeping.lists()
    assert bought(keeping) == [purchase()]


def test_a_purchase_is_bought_once_however_often_it_is_ordered(keeping: Keeping) -> None:
    keeping.lists()
    for _ in range(3):
        keeping.order(purchase())
    keeping.feed(k.PurchaseAnswered("t1", (listed("i1"),)))
    keeping.order(purchase())
    assert bought(keeping) == [purchase()]
    (status,) = keeping.report().purchases
    assert (status.is_answered, status.got, status.problem) == (True, 1, "")


def test_an_earlier_order_changes_nothing(keeping: Keeping) -> None:
    keeping.lists()
    keeping.order(term=2, number=5)
    keeping.order(purchase("old"), term=1, number=9)
    keeping.order(purchase("late"), term=2, number=4)
    assert bought(keeping) == []
    keeping.order(purchase("new"), term=3, number=1)
    assert bought(keeping) == [purchase("new")]


def test_only_an_unknown_outcome_is_asked_for_again_with_the_same_token(keeping: Keeping) -> None:
    """After a pause that doubles, and not once no order has it."""
    keeping.lists()
    keeping.order(purchase())
    for pause_s in (2.0, 4.0):
        keeping.feed(k.PurchaseAnswered("t1", kind=k.RefusalKind.UNAVAILABLE, problem="throttled"))
        assert of(keeping.feed(Tick(), pause_s - 0.1), k.Buy) == []
        assert of(keeping.feed(Tick(), 0.2), k.Buy) == [k.Buy(purchase())]
    keeping.feed(k.PurchaseAnswered("t1", kind=k.RefusalKind.UNAVAILABLE, problem="throttled"))
    assert keeping.report().purchases[0].problem == "throttled"
    keeping.order()
    assert of(keeping.feed(Tick(), 1.0), k.Buy) == []
    assert not keeping.report().purchases[0].is_answered
    assert of(keeping.feed(Tick(), 8.0), k.Buy) == []
    status = keeping.report().purchases[0]
    assert status.is_answered and status.problem == "no planner has ordered it for 10 s; throttled"


@pytest.mark.parametrize("kind", [k.RefusalKind.NO_CAPACITY, k.RefusalKind.REFUSED])
def test_a_refused_offer_rests_for_twice_as_long_each_time(kind: k.RefusalKind, keeping: Keeping) -> None:
    """The purchase is not asked for again; another one only after the rest, which a success makes short again."""
    keeping.lists()
    for number, rest_s in enumerate(
        (SHORTEST_S, 2 * SHORTEST_S, 4 * SHORTEST_S, 8 * SHORTEST_S, 16 * SHORTEST_S, LONGEST * SHORTEST_S)
    ):
        token = f"t{number}"
        keeping.order(purchase(token))
        keeping.feed(k.PurchaseAnswered(token, kind=kind, problem="none left"))
        spot = next(each for each in keeping.report().offers if each.market is Market.SPOT)
        assert (spot.refused_until_s, spot.refusal) == (keeping.now - 1.0 + rest_s, "none left")
        keeping.order(purchase(f"{token}-again"), purchase(token))
        assert bought(keeping)[-1].token == token
        keeping.feed(Tick(), rest_s)
    keeping.order(purchase("there"))
    keeping.feed(k.PurchaseAnswered("there", (listed("i1", "there"),)))
    assert all(each.refused_until_s == 0 for each in keeping.report().offers)
    keeping.order(purchase("more"))
    keeping.feed(k.PurchaseAnswered("more", kind=kind, problem="none left"))
    assert keeping.report().offers[0].refused_until_s == keeping.now - 1.0 + SHORTEST_S
    problems = {each.purchase.token: each.problem for each in keeping.report().purchases}
    assert problems["more"] == "none left"


def test_what_a_partial_answer_lacks_is_a_short_refusal(keeping: Keeping) -> None:
    keeping.lists()
    keeping.order(purchase(count=3))
    keeping.feed(k.PurchaseAnswered("t1", (listed("i1"),)))
    report = keeping.report()
    assert (report.purchases[0].got, report.purchases[0].problem) == (1, "2 of 3 instances were not there")
    assert report.offers[0].refused_until_s == keeping.now - 1.0 + SHORTEST_S


def test_a_late_answer_is_taken(keeping: Keeping) -> None:
    """Meanwhile the status says how long it has been, and the planner goes elsewhere."""
    keeping.lists()
    keeping.order(purchase())
    keeping.order()
    keeping.feed(Tick(), REPORTED_S + LONG_S)
    (status,) = keeping.report().purchases
    assert not status.is_answered and "has not answered for 361 s" in status.problem and status.since_s == START_S
    keeping.feed(k.PurchaseAnswered("t1", (listed("i1"),)))
    report = keeping.report()
    assert [each.id for each in report.instances] == ["i1"]
    assert report.purchases == ()


def test_no_more_is_bought_than_the_file_allows(keeping: Keeping) -> None:
    """Instances that stay and purchases without an answer count; what is not offered is not asked for."""
    keeping.lists(listed("i1", "earlier"))
    keeping.order(purchase("a", 2), purchase("b", 3), purchase("c", 1), purchase("d", 1, zone="elsewhere"))
    assert [(each.token, each.count) for each in bought(keeping)] == [("a", 2), ("b", 1)]
    problems = {each.purchase.token: each.problem for each in keeping.report().purchases}
    assert problems == {
        "a": "",
        "b": f"the fleet file allows 1 more of {TYPE}",
        "c": f"the fleet file allows no more spot {TYPE}",
        "d": f"the fleet file offers no spot {TYPE} in elsewhere",
    }
    keeping.feed(device("i1"))
    keeping.release("i1")
    keeping.order(purchase("e"))
    assert bought(keeping)[-1].token == "e"


def test_an_instance_runs_from_its_first_ready_device_on(keeping: Keeping) -> None:
    """Whatever the provider says; devices are named after it, and another's are not taken for its."""
    keeping.lists(listed("i1"), listed("i1-2"))

    def states() -> dict[str, InstanceState]:
        return {each.id: each.state for each in keeping.report().instances}

    assert set(states().values()) == {InstanceState.STARTING}
    keeping.feed(device("i1-2-0", MemberState.STARTING))
    assert set(states().values()) == {InstanceState.STARTING}
    keeping.feed(device("i1-2-0"))
    assert states() == {"i1": InstanceState.STARTING, "i1-2": InstanceState.RUNNING}
    keeping.release("i1-2")
    assert states()["i1-2"] is InstanceState.LEAVING
    keeping.lists(listed("i1"), listed("i1-2", state=GONE))
    assert states()["i1-2"] is GONE
    keeping.feed(Tick(), GONE_SHOWN_S + 1)
    assert list(states()) == ["i1"]


def test_devices_of_a_released_instance_leave_and_then_it_is_given_back(keeping: Keeping) -> None:
    """As if their cloud reclaimed the machine: a notice each, one report; back before the deadline once all have left."""
    keeping.lists(listed("i1"))
    keeping.feed(device("i1-0"))
    keeping.feed(device("i1-1"))
    keeping.feed(device("fixed-0"))
    deadline_s = keeping.now + 60.0
    commands = keeping.release("i1")
    assert [
        (each.notice.worker_id, each.notice.deadline_s, each.notice.devices_stay)
        for each in of(commands, PublishNotice)
    ] == [
        ("i1-0", deadline_s, True),
        ("i1-1", deadline_s, True),
    ]
    (report,) = of(commands, PublishReport)
    assert report.report == InterruptionReported(
        "watcher-0", "release-i1", InterruptionKind.NOTICE, ("i1-0", "i1-1"), deadline_s, "too many"
    )
    assert keeping.report().instances[0].leaves_at_s == deadline_s
    keeping.feed(device("i1-0", MemberState.DRAINING))
    assert [each.again for each in of(keeping.feed(device("i1-1"), 1.0), PublishNotice)] == [True]
    assert of(keeping.feed(Tick(), 1.0), PublishReport)[0].again
    assert given_back(keeping.feed(device("i1-0", MemberState.LEFT))) == []
    assert given_back(keeping.feed(device("i1-1", MemberState.LEFT))) == [("i1",)]
    assert given_back(keeping.feed(Tick(), 1.0)) == []


def test_a_late_heartbeat_brings_no_device_back_that_has_left(keeping: Keeping) -> None:
    """Its instance is empty all the same once the others have left, too."""
    keeping.lists(listed("i1"))
    for name in ("i1-0", "i1-1"):
        keeping.feed(device(name))
    keeping.release("i1")
    keeping.feed(device("i1-0", MemberState.LEFT))
    keeping.feed(device("i1-0"))
    assert given_back(keeping.feed(device("i1-1", MemberState.LEFT))) == [("i1",)]


def test_an_instance_is_given_back_at_its_deadline_whatever_runs_on_it(keeping: Keeping) -> None:
    """A silent device has not left."""
    keeping.lists(listed("i1"))
    keeping.feed(device("i1"))
    keeping.release("i1", within_s=60.0)
    assert given_back(keeping.feed(Tick(), 59.9)) == []
    assert given_back(keeping.feed(Tick(), 0.1)) == [("i1",)]
    keeping.feed(k.ReleaseAnswered(("i1",), "throttled"))
    assert given_back(keeping.feed(Tick(), 2.0)) == [("i1",)]
    keeping.feed(k.ReleaseAnswered(("i1",)))
    assert given_back(keeping.feed(Tick(), ACCEPTED_S - 1)) == []
    assert given_back(keeping.feed(Tick(), 1.0)) == [("i1",)]


def test_an_instance_without_devices_is_given_back_once_they_would_have_been_heard(keeping: Keeping) -> None:
    """One that only starts has nothing to move; its device, ready too late, gets the notice."""
    keeping.lists(listed("i1"), listed("i2"))
    keeping.feed(device("i2", MemberState.STARTING))
    assert given_back(keeping.release("i1")) == []
    assert given_back(keeping.release("i2")) == [("i2",)]
    assert [each.notice.worker_id for each in of(keeping.feed(device("i2")), PublishNotice)] == ["i2"]
    assert given_back(keeping.feed(Tick(), LISTENED_S + 0.1)) == [("i1",)]


def test_instances_that_a_provider_takes_back_leave_together(keeping: Keeping) -> None:
    """One report for an event of several; an earlier deadline replaces a release's."""
    keeping.lists(listed("i1"), listed("i2"), listed("i3"))
    for name in ("i1", "i2", "i3"):
        keeping.feed(device(name))
    keeping.release("i1", within_s=600.0)
    deadline_s = keeping.now + 30.0
    notices = tuple(k.ProviderNotice(name, deadline_s, "event-7", "reclaimed") for name in ("i1", "i2"))
    commands = keeping.feed(k.NoticesRead(notices))
    (report,) = of(commands, PublishReport)
    assert (report.report.event_id, report.report.worker_ids) == ("event-7", ("i1", "i2"))
    assert {each.notice.deadline_s for each in of(commands, PublishNotice)} == {deadline_s}
    assert keeping.feed(k.NoticesRead(notices)) == []
    repeated = of(keeping.feed(Tick(), 2.0), PublishReport)
    assert [each.report.event_id for each in repeated] == ["event-7"]


def test_a_notice_of_the_machines_own_watcher_is_not_repeated(keeping: Keeping) -> None:
    """It notified its workers itself; the instance leaves all the same."""
    keeping.lists(listed("i1"))
    keeping.feed(device("i1"))
    deadline_s = keeping.now + 120.0
    foreign = InterruptionReported(
        "watcher-i1", "aws-1", InterruptionKind.NOTICE, ("i1",), deadline_s, "aws: terminate"
    )
    commands = keeping.feed(foreign)
    assert of(commands, PublishReport) == of(commands, PublishNotice) == []
    (instance,) = keeping.report().instances
    assert (instance.state, instance.leaves_at_s, instance.why_leaving) == (
        InstanceState.LEAVING,
        deadline_s,
        "aws: terminate",
    )


def test_lives_end_where_the_provider_takes_an_instance(keeping: Keeping) -> None:
    """One that was given back is only known to be longer; one that left at its notice would have lived until its deadline."""
    keeping.lists(*(listed(name) for name in ("taken", "noticed", "returned", "there")))
    keeping.feed(device("noticed"))
    keeping.feed(k.NoticesRead((k.ProviderNotice("noticed", START_S + 50.0, "e", "reclaimed"),)))
    keeping.feed(device("noticed", MemberState.LEFT), 20.0)
    keeping.release("returned", within_s=0.0)
    gone = [listed(name, state=GONE, gone_s=START_S + 30.0) for name in ("taken", "noticed", "returned")]
    keeping.lists(*gone, listed("there"), after_s=20.0)
    keeping.feed(Tick(), KEEP_S)
    lives = {(each.age_s, each.ended) for each in keeping.kept().lives}
    assert lives == {(30.0, True), (50.0, True), (30.0, False)}
    (learned,) = keeping.report().lives
    assert (learned.type_name, learned.lives, learned.ends) == (TYPE, 4, 2)
    assert sum(learned.hazard.per_s) > 0


def test_the_bill_is_exact_to_the_moment_of_a_price_that_is_read_late(keeping: Keeping) -> None:
    """From launch until gone, through a restart, at the price of each moment."""
    keeping.lists(listed("i1", launched_s=START_S - 10.0))
    assert keeping.report().spent == pytest.approx(0.011)
    keeping.feed(Tick(), 99.0)
    changed = k.PricedOffer(TYPE, Market.SPOT, 4, PriceSeries((0.0, START_S + 50.0), (3.6, 36.0)))
    keeping.feed(k.PricesRead((changed,)))
    assert keeping.report().spent == pytest.approx(0.060 + 0.51)
    keeping.feed(Tick(), 1000.0)
    keeping.feed(Tick(), KEEP_S)
    later = Keeping(keeping.kept(), keeping.now, incarnation=2)
    later.feed(k.PricesRead((changed,)))
    later.lists(listed("i1", state=GONE, gone_s=START_S + 1050.0))
    later.feed(Tick(), 10_000.0)
    assert later.report().spent == pytest.approx(0.060 + 10.0)
    assert later.report().instances == ()


def test_an_instance_that_is_no_longer_listed_has_gone_after_a_while(keeping: Keeping) -> None:
    """A provider may be behind."""
    keeping.lists()
    keeping.order(purchase())
    keeping.feed(k.PurchaseAnswered("t1", (listed("i1"),)))
    keeping.lists(after_s=1.0)
    keeping.lists(after_s=MISSING_S)
    assert keeping.report().instances[0].state is InstanceState.STARTING
    keeping.lists(after_s=1.0)
    assert keeping.report().instances[0].state is GONE


def test_a_restarted_keeper_goes_on(keeping: Keeping) -> None:
    """With the orders, the purchases and what leaves; an answer that was lost is asked for with the same request."""
    keeping.lists(listed("i1", "t0"))
    keeping.order(purchase("done"), purchase("open", 3), term=4, number=7)
    keeping.feed(k.PurchaseAnswered("done", kind=k.RefusalKind.NO_CAPACITY, problem="none left"))
    order = FleetOrder("planner-0", 4, 8, (purchase("done"), purchase("open", 3)), ())
    keeping.feed(order)
    keeping.feed(device("i1"))
    keeping.feed(k.NoticesRead((k.ProviderNotice("i1", keeping.now + 100.0, "e", "reclaimed"),)))
    keeping.feed(Tick(), KEEP_S)
    later = Keeping(keeping.kept(), keeping.now, incarnation=2)
    later.lists(listed("i1", "t0"))
    later.order(purchase("old"), term=4, number=6)
    assert bought(later) == []
    later.feed(order)
    assert bought(later) == bought(keeping)[1:] == [purchase("open", 2)]
    assert [each.notice.worker_id for each in of(later.feed(device("i1")), PublishNotice)] == ["i1"]
    assert given_back(later.feed(Tick(), 100.0)) == [("i1",)]
    assert keeping.feed(k.FleetKept(False)) == [] and keeping.feed(Tick(), 50.0) == []


def test_a_fleet_that_cannot_be_listed_says_so(keeping: Keeping) -> None:
    """Also where the provider does not answer."""
    keeping.feed(k.InstancesListed(problem="throttled"))
    assert keeping.report().problem == "throttled"
    keeping.feed(Tick(), 1.0)
    keeping.lists()
    keeping.feed(Tick(), 1.0)
    assert keeping.report().problem == ""
    keeping.feed(Tick(), LONG_S)
    assert "has not listed the instances" in keeping.report().problem


def test_what_is_never_listed_is_not_released(keeping: Keeping) -> None:
    """A release of an unknown instance waits until it is known."""
    keeping.lists()
    keeping.release("i1")
    keeping.feed(k.PricesRead((offer(),)))
    assert of(keeping.given, k.GiveBack) == []
