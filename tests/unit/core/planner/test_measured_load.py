"""The market in the planner: when it decides, and what configuration groups are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.fleet.decision import Decided
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.membership.membership import Membership
from spotwise.core.messages.fleet import FleetOrder, InstanceState, LoadReported, Market
from spotwise.core.messages.members import Pool
from spotwise.core.messages.reshape import DeviceGroup, DeviceSurveyed
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.planner.commands import PublishFleetOrder
from spotwise.core.planner.device_watch import DeviceWatch
from spotwise.core.planner.fleet_planning import FleetPlanning, config_of
from tests.unit.core.fleet.fake_cloud import LOAD, SHAPE, FakeCloud, fleet_type

#: Any latency will do, so that the load alone decides.
POLICY = FleetPolicy(latency_target_s=60.0, spare_instances=0)
#: Requests a second that take several instances.
RATE = 12


def group(number: int, stages: int, shards: int, pool: Pool = Pool.MIXED) -> DeviceGroup:
    """A group of devices of its own."""
    devices = tuple(f"d-{number}-{place}" for place in range(stages * shards))
    return DeviceGroup(f"w-{number}", pool, stages, shards, devices)


@pytest.mark.parametrize(
    ("groups", "config"),
    [
        ([], None),
        ([group(0, 1, 1)], ParallelConfig(1, 1, 1)),
        ([group(0, 2, 3), group(1, 2, 3)], ParallelConfig(2, 2, 3)),
        ([group(0, 1, 2), group(1, 2, 1)], None),
        ([group(0, 1, 1, Pool.PROMPT), group(1, 1, 1, Pool.TOKEN)], ParallelConfig(1, 1, 1, prompt_data=1)),
        ([group(0, 1, 1, Pool.PROMPT)], None),
    ],
)
def test_groups_of_one_shape_are_a_configuration(groups: list[DeviceGroup], config: ParallelConfig | None) -> None:
    """Those of unequal shapes are none, and neither are prompt groups alone."""
    assert config_of(groups) == config


class StartingPlanner:
    """A planner's market beside a cloud and a gateway, one second after the other."""

    def __init__(self, cloud: FakeCloud, planner_id: str = "planner-0", policy: FleetPolicy = POLICY) -> None:
        self.cloud, self.number = cloud, 0
        membership = Membership(2.0)
        self.planning = FleetPlanning(planner_id, cloud.types, policy, DeviceWatch(membership))
        self.planning.surveyed(DeviceSurveyed("i-0", 1, 0, SHAPE))
        self.orders: list[FleetOrder] = []

    def hear(self, requests: int) -> None:
        """Take a second's reports."""
        now, self.number = self.cloud.now, self.number + 1
        arrivals = tuple(now - (place + 0.5) / max(1, requests) for place in range(requests))
        tokens = requests * LOAD.input_tokens, requests, requests * LOAD.output_tokens
        self.planning.loaded(LoadReported("gateway-0", 1, self.number, arrivals, *tokens), now)
        self.planning.reported(self.cloud.report(), now)

    def live(self, seconds: int, requests: int) -> None:
        """Act for some seconds, with so many requests in each; every instance that runs is a group."""
        for _ in range(seconds):
            self.hear(requests)
            running = [each.id for each in self.cloud.staying() if each.state is InstanceState.RUNNING]
            groups = [DeviceGroup(f"w-{each}", Pool.MIXED, 1, 1, (each,)) for each in running]
            for command in self.planning.advance(groups, self.cloud.now):
                if isinstance(command, PublishFleetOrder):
                    self.orders.append(command.order)
                    order = command.order
                    self.cloud.carry_out(Decided(purchases=order.purchases, releases=order.releases))
            self.cloud.step()


def served_fleet() -> FakeCloud:
    """A cloud whose instances serve `RATE`, chosen by a planner that has ended."""
    types = [fleet_type("fast")]
    cloud = FakeCloud.selling(types, {("fast", Market.SPOT): 1.0})
    first = StartingPlanner(cloud)
    first.planning.begin(1)
    first.live(90, requests=RATE)
    assert len(cloud.staying()) > 1
    return cloud


def test_a_planner_that_starts_beside_a_mesh_that_serves_measures_the_load_first() -> None:
    """For a window: nothing is bought or given back for a load that it has hardly seen."""
    cloud = served_fleet()
    before = set(cloud.instances)
    second = StartingPlanner(cloud, "planner-1", replace(POLICY, hold_s=1.0))
    second.planning.begin(2)
    second.live(29, requests=RATE)
    assert second.orders == []
    second.live(60, requests=RATE)
    assert set(cloud.instances) == before
    second.live(90, requests=0)
    assert len(cloud.staying()) == 1


def test_what_is_lost_while_the_load_is_measured_is_bought_again() -> None:
    """At once and not twice, as many as groups had; nothing else is bought or given back, also once the load is known."""
    cloud = served_fleet()
    second = StartingPlanner(cloud, "planner-1")
    second.planning.begin(2)
    second.live(3, requests=RATE)
    before = cloud.counts()
    for each in cloud.staying()[:2]:
        cloud.interrupt(each.id)
    second.live(2, requests=RATE)
    assert sum(purchase.count for purchase in second.orders[0].purchases) == 2
    assert cloud.counts() == before
    assert "the load is measured first" in second.planning.view((), cloud.now).why
    second.live(60, requests=RATE)
    assert cloud.counts() == before
    assert all(order.releases == () for order in second.orders)


def test_nothing_is_bought_again_for_a_fleet_that_cannot_be_listed() -> None:
    """What is missing may be there."""
    cloud = served_fleet()
    second = StartingPlanner(cloud, "planner-1")
    second.planning.begin(2)
    second.live(3, requests=RATE)
    cloud.problem = "the provider does not answer"
    cloud.interrupt(min(each.id for each in cloud.staying()))
    second.live(5, requests=RATE)
    assert second.orders == []


def test_a_planner_that_has_measured_the_load_before_its_term_decides_at_once() -> None:
    cloud = served_fleet()
    second = StartingPlanner(cloud, "planner-1")
    for _ in range(31):
        second.hear(RATE)
        cloud.step()
    cloud.interrupt(min(each.id for each in cloud.staying()))
    second.planning.begin(2)
    second.live(2, requests=RATE)
    assert [len(order.purchases) for order in second.orders[:1]] == [1]


def test_one_request_in_a_few_seconds_has_one_instance() -> None:
    """From the first one on, which counts as one in five seconds; spares left out."""
    types = [fleet_type("fast")]
    cloud = FakeCloud.selling(types, {("fast", Market.SPOT): 1.0})
    planning = StartingPlanner(cloud, policy=FleetPolicy(spare_instances=0))
    planning.planning.begin(1)
    for _ in range(20):
        planning.live(1, requests=1)
        planning.live(4, requests=0)
    assert len(cloud.instances) == 1


def test_a_mesh_that_does_not_serve_yet_buys_at_once() -> None:
    types = [fleet_type("fast")]
    planning = StartingPlanner(FakeCloud.selling(types, {("fast", Market.SPOT): 1.0}))
    planning.planning.begin(1)
    planning.live(2, requests=0)
    assert len(planning.orders[0].purchases) == 1
