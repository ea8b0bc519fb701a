"""What the market has a planner do: its orders, the re-shapes that it begins, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from spotwise.core.fleet.decision import REPORT_LASTS_S
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.membership.membership import Membership
from spotwise.core.messages import mesh as m
from spotwise.core.messages.fleet import InstanceState, Market
from spotwise.core.planner import commands as c
from spotwise.core.planner.device_watch import DeviceWatch
from spotwise.core.planner.fleet_planning import FleetPlanning
from spotwise.core.planner.replacement import REST_S
from tests.unit.core.builders import plain_member
from tests.unit.core.fleet.fake_cloud import SHAPE, fleet_type
from tests.unit.core.planner.reshape_bench import group

PAIR, ONE = fleet_type("pair", devices=2), fleet_type("one")
POLICY = FleetPolicy(spare_instances=0, latency_target_s=60.0, hold_s=3.0)


class Planning:
    """A planner's market, with a clock, instances, and devices that beat."""

    def __init__(self, *types: str, policy: FleetPolicy = POLICY) -> None:
        self.now = 1000.0
        self.membership = Membership(2.0)
        self.watch = DeviceWatch(self.membership)
        self.fleet = FleetPlanning("planner", [each for each in (PAIR, ONE) if each.name in types], policy, self.watch)
        self.types = types
        self.instances: list[m.FleetInstance] = []
        self.fleet.begin(1)

    def report(self, **fields: object) -> m.FleetReported:
        offers = tuple(m.InstanceOffer(name, Market.SPOT, 1.0, 4) for name in self.types)
        plain = m.FleetReported("watcher", 1, self.now, "fake", tuple(self.instances), offers)
        return replace(plain, **fields)  # type: ignore[arg-type]

    def run(self, instance_id: str, type_name: str, *device_ids: str, **fields: object) -> None:
        """An instance runs, with these devices."""
        plain = m.FleetInstance(instance_id, type_name, Market.SPOT, InstanceState.RUNNING, 990.0, "t", price_per_h=1.0)
        self.instances.append(replace(plain, **fields))  # type: ignore[arg-type]
        for device_id in device_ids:
            self.beat(device_id)

    def beat(self, device_id: str, **fields: object) -> None:
        """A device sends a heartbeat."""
        member = replace(plain_member(device_id, m.MemberKind.DEVICE), **fields)  # type: ignore[arg-type]
        self.membership.observe(member, self.now)
        self.watch.reported(member)

    def advance(
        self, seconds: float = 1.0, groups: Sequence[m.DeviceGroup] = (), *, reports: bool = True
    ) -> list[c.PlannerCommand]:
        self.now += seconds
        if reports:
            self.fleet.reported(self.report(), self.now)
        return self.fleet.advance(groups, self.now)

    def knows_the_model(self) -> None:
        self.fleet.surveyed(m.DeviceSurveyed("d", 1, 0, SHAPE))

    def wanted(self, groups: Sequence[m.DeviceGroup] = ()) -> c.ReshapeRequested | None:
        return self.fleet.reshape(groups, self.now)


def orders(commands: Sequence[c.PlannerCommand]) -> list[m.FleetOrder]:
    return [each.order for each in commands if isinstance(each, c.PublishFleetOrder)]


@pytest.fixture
def planning() -> Planning:
    return Planning("one")


def test_an_order_is_repeated_each_second_until_it_is_carried_out(planning: Planning) -> None:
    """Its number grows; a new term begins with another purchase, and number 1."""
    (first,) = orders(planning.advance())
    assert orders(planning.advance(0.5)) == []
    (second,) = orders(planning.advance(0.5))
    assert (first.term, first.number, second.number) == (1, 1, 2)
    assert first.purchases == second.purchases != ()
    status = m.PurchaseStatus(first.purchases[0], planning.now, is_answered=True, problem="no capacity")
    planning.now += 0.1
    planning.fleet.reported(planning.report(purchases=(status,), offers=()), planning.now)
    assert orders(planning.advance(1.0, reports=False)) == []
    planning.fleet.begin(2)
    (third,) = orders(planning.advance(1.0))
    assert (third.term, third.number) == (2, 1)
    assert third.purchases[0].token != first.purchases[0].token


def test_nothing_is_ordered_without_a_report_that_is_new_enough(planning: Planning) -> None:
    """Neither bought nor re-shaped: what was wanted then may not be there any more."""
    assert planning.advance(reports=False) == []
    planning.knows_the_model()
    planning.run("i0", "one", "i0")
    planning.advance()
    assert planning.wanted() is not None
    planning.fleet.begin(1)
    planning.advance()
    assert planning.advance(REPORT_LASTS_S + 1.0, reports=False) == []
    assert planning.wanted() is None


@pytest.mark.parametrize(
    ("watcher_id", "incarnation", "after_s", "is_taken"),
    [
        ("watcher", 1, 1.0, True),
        ("watcher", 1, -1.0, False),
        ("watcher", 2, -1.0, True),
        ("other", 1, 1.0, True),
        ("other", 1, -1.0, False),
    ],
)
def test_a_report_that_comes_late_changes_nothing(
    watcher_id: str,
    incarnation: int,
    after_s: float,
    is_taken: bool,
    planning: Planning,
) -> None:
    """Also one of a watcher that has been replaced; a watcher's later incarnation counts whatever its clock says."""
    planning.fleet.reported(planning.report(), planning.now)
    other = planning.report(watcher_id=watcher_id, incarnation=incarnation, at_s=planning.now + after_s)
    planning.fleet.reported(other, planning.now)
    assert (planning.fleet.view((), planning.now).report == other) is is_taken


def test_an_instance_is_ready_once_all_of_its_devices_are() -> None:
    """It may have positions then, unless it leaves, has gone, or one of its devices leaves."""
    planning = Planning("pair")
    planning.knows_the_model()
    planning.run("i0", "pair", "i0-0")
    planning.advance()
    assert planning.wanted() is None
    planning.beat("i0-1")
    planning.advance()
    order = planning.wanted()
    assert order is not None and order.device_ids == {"i0-0", "i0-1"}
    planning.fleet.begin(2)
    planning.beat("i0-0", state=m.MemberState.DRAINING, leaves_at_s=2000.0)
    planning.advance()
    assert planning.wanted() is None


@pytest.mark.parametrize(
    "fields", [{"leaves_at_s": 1030.0, "state": InstanceState.LEAVING}, {"state": InstanceState.GONE}]
)
def test_an_instance_that_goes_is_not_ready(fields: dict[str, object], planning: Planning) -> None:
    """Its devices may beat on for a while."""
    planning.knows_the_model()
    planning.run("i0", "one", "i0", **fields)
    planning.advance()
    assert planning.wanted() is None


def test_devices_of_other_types_and_of_no_instance_get_no_position() -> None:
    """What is chosen for a type may not fit another one."""
    dear = m.InstanceOffer("pair", Market.SPOT, 9.0, 4)
    planning = Planning("pair", "one")
    planning.knows_the_model()
    planning.run("i0", "pair", "i0-0", "i0-1", price_per_h=9.0)
    planning.run("i1", "one", "i1")
    planning.beat("foreign")
    planning.now += 1.0
    offers = (dear, m.InstanceOffer("one", Market.SPOT, 1.0, 4))
    planning.fleet.reported(planning.report(offers=offers), planning.now)
    planning.fleet.advance((), planning.now)
    order = planning.wanted()
    assert order is not None and order.device_ids == {"i1"}


def test_a_re_shape_that_came_to_nothing_is_ordered_again_after_a_rest_that_doubles(planning: Planning) -> None:
    """Refused and abandoned ones look alike: the mesh takes orders again, and serves something else."""
    planning.knows_the_model()
    planning.run("i0", "one", "i0")
    ordered = []
    for _ in range(40):
        planning.beat("i0")
        planning.advance()
        if planning.wanted() is not None:
            ordered.append(planning.now)
    gaps = [later - earlier for earlier, later in pairwise(ordered)]
    assert gaps == [REST_S + 1.0, 2 * REST_S + 1.0, *gaps[2:]]
    assert gaps[2:] in ([], [4 * REST_S + 1.0])


def test_what_serves_already_is_not_ordered_and_ends_the_rest(planning: Planning) -> None:
    planning.knows_the_model()
    planning.run("i0", "one", "i0")
    planning.advance()
    assert planning.wanted() is not None
    serving = [group("mixed-c1-0", "i0")]
    planning.beat("i0")
    planning.advance(1.0, serving)
    assert planning.wanted(serving) is None
    assert planning.wanted() is not None


def test_the_model_is_asked_of_one_device_each_second(planning: Planning) -> None:
    planning.run("i0", "one", "i0")
    planning.run("i1", "one", "i1")
    asked = [each for _ in range(4) for each in planning.advance(0.5) if isinstance(each, m.Send)]
    assert asked == [m.Send("i0", m.SurveyDevice("planner", 0))] * 2
    planning.knows_the_model()
    assert not any(isinstance(each, m.Send) for each in planning.advance(2.0))


def test_the_view_says_why_there_is_no_fleet_and_what_serves() -> None:
    assert "SPOTWISE_FLEET_FILE" in Planning().fleet.view((), 1000.0).why
    planning = Planning("one")
    assert "no spot watcher" in planning.fleet.view((), 1000.0).why
    planning.knows_the_model()
    planning.run("i0", "one", "i0")
    planning.run("i1", "one", state=InstanceState.GONE, price_per_h=5.0)
    planning.advance()
    view = planning.fleet.view([group("mixed-0", "i0", "x")], planning.now)
    assert (view.config, view.serving, view.price_per_h) == ("1,1,1", "1,1,2", 1.0)
    assert [each.instance_id for each in view.reasons] == ["i0"]
    uneven = planning.fleet.view([group("mixed-0", "i0", "x"), group("mixed-1", "y")], planning.now)
    assert uneven.serving == "1,1,1+1,1,2"


def test_more_requests_than_can_be_served_have_no_time_in_the_view(planning: Planning) -> None:
    """Not an infinite one, which no message carries."""
    planning.knows_the_model()
    planning.run("i0", "one", "i0")
    arrivals = tuple(planning.now + number / 1e5 for number in range(20_000))
    planning.fleet.loaded(m.LoadReported("gateway", 1, 1, arrivals, 100 * len(arrivals)), planning.now + 0.5)
    planning.advance()
    view = planning.fleet.view((), planning.now)
    assert view.config and view.rate > view.throughput
    assert view.request_s is None
