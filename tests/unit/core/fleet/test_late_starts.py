"""Fleets that do not become ready: what is late is given back whatever else runs, and it is not bought for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.fleet.decision import FleetDecision
from spotwise.core.fleet.keeper.failed_starts import BREAKER, LONGEST_S
from spotwise.core.fleet.lasting import MOST_PATIENCE
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.types import FleetType
from spotwise.core.messages.fleet import InstanceState, Market
from spotwise.core.parallel.model_shape import ModelShape
from tests.unit.core.fleet.fake_cloud import FAST, LOAD, PRICES, SHAPE, SLOW, FakeCloud, Sold, fleet_type, live

SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND
#: Half of the model: two instances of it are needed.
HALF = fleet_type("half", memory_bytes=80 * 2**30)
POLICY = FleetPolicy()
HOUR_S = 3600
#: Seconds between two decisions where hours pass.
STEP_S = 10


def fleet(types: list[FleetType], prices: dict[tuple[str, Market], float]) -> tuple[FakeCloud, FleetDecision]:
    cloud = FakeCloud.selling(types, prices)
    for sold in cloud.sold.values():
        sold.late = True
    return cloud, FleetDecision(types, POLICY, "planner", 1)


def heal(cloud: FakeCloud) -> None:
    for sold in cloud.sold.values():
        sold.late = False


def running(cloud: FakeCloud) -> int:
    return sum(each.state is InstanceState.RUNNING for each in cloud.instances.values())


@pytest.mark.parametrize("model", [SHAPE, None], ids=["model known", "model unknown"])
@pytest.mark.parametrize("prices", [PRICES, {("fast", SPOT): 1.0}], ids=["all markets", "spot only"])
def test_a_fleet_that_never_becomes_ready_is_given_back(
    model: ModelShape | None, prices: dict[tuple[str, Market], float]
) -> None:
    """Covered or not; in three hours it costs a small part of what it would, and heals once the cloud does."""
    types = [each for each in (FAST, SLOW) if any(name == each.name for name, _ in prices)]
    cloud, decision = fleet(types, prices)
    worst_per_h = spent = 0.0
    for _ in range(3 * HOUR_S // STEP_S):
        decided = live(cloud, decision, STEP_S, LOAD, model, STEP_S)
        worst_per_h = max(worst_per_h, cloud.price_per_h)
        spent += cloud.price_per_h * STEP_S / HOUR_S
    assert "did not become ready" in decided.why
    assert all(each.leaves_at_s is not None for each in cloud.instances.values()) or len(cloud.staying()) == 1
    assert spent < 0.25 * 3 * worst_per_h
    heal(cloud)
    live(cloud, decision, int(LONGEST_S * 1.5), LOAD, model, STEP_S)
    assert running(cloud) > 0


def test_a_model_that_needs_several_instances_comes_back_by_a_trial() -> None:
    """One instance cannot hold it: it is bought all the same, and once it is ready, the rest."""
    cloud, decision = fleet([HALF], {("half", SPOT): 1.0})
    live(cloud, decision, HOUR_S, step_s=STEP_S)
    assert cloud.report().offers[0].failed_starts >= BREAKER
    held = len(cloud.staying())
    assert held <= 1
    heal(cloud)
    decided = live(cloud, decision, int(LONGEST_S * 1.5), step_s=STEP_S)
    assert decided.choice is not None
    assert running(cloud) >= 2


def test_where_one_zone_does_not_start_instances_the_other_one_does() -> None:
    """The zone rests, not the market."""
    cloud = FakeCloud(
        [FAST], {("fast", SPOT, "a"): Sold(0.9, zone="a", late=True), ("fast", SPOT, "b"): Sold(1, zone="b")}
    )
    decision = FleetDecision([FAST], replace(POLICY, spare_instances=0), "planner", 1)
    live(cloud, decision, 240)
    assert {each.zone for each in cloud.staying() if each.state is InstanceState.RUNNING} == {"b"}


def test_instances_of_a_keeper_that_has_just_begun_are_not_late_at_once() -> None:
    """It takes them all for starting ones until it hears them, however old they are."""
    cloud, decision = fleet([FAST], {("fast", SPOT): 1.0})
    heal(cloud)
    live(cloud, decision, HOUR_S, step_s=STEP_S)
    count = len(cloud.instances)
    for each in list(cloud.instances.values()):
        cloud.instances[each.id] = replace(each, state=InstanceState.STARTING)
    successor = FleetDecision([FAST], POLICY, "planner", 2)
    live(cloud, successor, 60)
    assert cloud.releases == []
    assert len(cloud.instances) == count


def test_a_start_s_that_is_too_low_wastes_few_starts() -> None:
    """After each that was given up the next one is waited for longer, and what one took is remembered."""
    told = fleet_type("fast", start_s=5.0)
    really = fleet_type("fast", start_s=0.9 * 3.0 * MOST_PATIENCE * 5.0)
    cloud = FakeCloud.selling([really], {("fast", SPOT): 1.0})
    decision = FleetDecision([told], replace(POLICY, spare_instances=0), "planner", 1)
    live(cloud, decision, 2 * HOUR_S, step_s=STEP_S)
    assert running(cloud) > 0
    wasted = len(cloud.releases)
    for each in list(cloud.instances.values()):
        if each.state is InstanceState.RUNNING:
            cloud.interrupt(each.id)
    live(cloud, decision, HOUR_S, step_s=STEP_S)
    assert running(cloud) > 0
    assert len(cloud.releases) == wasted


def test_what_is_late_is_given_back_while_the_load_is_not_known() -> None:
    """A planner that takes over measures the load first; instances that do not start go before that."""
    cloud, decision = fleet([FAST], {("fast", SPOT): 1.0})
    live(cloud, decision, 3)
    had = {("fast", SPOT): 1}
    for _ in range(60):
        cloud.carry_out(decision.bring_back(had, cloud.report(), cloud.now))
        cloud.step()
    assert "i-0" in cloud.releases
