"""What the fleet's decision orders, in a cloud that is a dictionary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.fleet.decision import Decided, FleetDecision
from spotwise.core.fleet.kept_choice import ChangeSeconds
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.lives.survival import PiecewiseHazard
from spotwise.core.messages.fleet import InstanceState, LearnedLives, Market, WantedInstances
from tests.unit.core.fleet.fake_cloud import FAST, LOAD, PRICES, SHAPE, SLOW, FakeCloud, Sold, fleet_type, live

SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND
#: Any configuration is fast enough, so that the cheapest that keeps up is chosen.
CHEAP = FleetPolicy(latency_target_s=60.0, spare_instances=0)
#: What is fast enough by default.
USUAL = FleetPolicy(spare_instances=0)
IDLE, LIGHT = replace(LOAD, arrival_rate=0.0), replace(LOAD, arrival_rate=0.2)


def fleet(policy: FleetPolicy = CHEAP) -> tuple[FakeCloud, FleetDecision]:
    types = [FAST, SLOW]
    return FakeCloud.selling(types, PRICES), FleetDecision(types, policy, "planner", 1)


def reasons(decided: Decided) -> dict[str, str]:
    return {each.instance_id: each.reason for each in decided.reasons}


def test_before_the_model_is_known_the_cheapest_instance_is_bought() -> None:
    """Spot where there is no floor; one that refuses is not asked."""
    cloud, decision = fleet()
    cloud.sold["slow", SPOT, ""].refuses = True
    decided = live(cloud, decision, 3, model=None)
    assert cloud.counts() == {("fast", SPOT): 1}
    assert decided.choice is None
    assert decided.targets == (WantedInstances("fast", 1, 0),)
    assert reasons(decided) == {"i-0": "serves: the model is learned from it"}


def test_before_the_model_is_known_the_floor_is_bought_on_demand() -> None:
    cloud, decision = fleet(replace(CHEAP, on_demand_floor=2))
    live(cloud, decision, 3, model=None)
    assert cloud.counts() == {("slow", ON_DEMAND): 2}


def test_a_load_is_served_by_the_cheapest_that_keeps_up() -> None:
    """Hedged on demand until spot has come; the dearer ones are given back after a while."""
    cloud, decision = fleet()
    decided = live(cloud, decision, 2)
    assert cloud.counts()["slow", SPOT] == cloud.counts()["slow", ON_DEMAND] > 0
    decided = live(cloud, decision, 60)
    assert decided.choice is not None and decided.choice.meets_demand
    assert set(cloud.counts()) == {("slow", SPOT)}
    assert "cheapest for 2 requests/s" in decided.why
    assert set(reasons(decided).values()) >= {"serves: cheapest for 2 requests/s"}
    assert decided.price_per_h == pytest.approx(cloud.price_per_h)


def test_a_light_load_is_served_by_what_serves_without_load() -> None:
    """One request in five seconds: no instance is bought beside the one that is there, though more would be faster."""
    cloud, decision = fleet(USUAL)
    live(cloud, decision, 60, IDLE)
    known = set(cloud.instances)
    decided = live(cloud, decision, 200, LIGHT)
    assert cloud.counts() == {("slow", SPOT): 1}
    assert set(cloud.instances) == known
    assert "s a request, " in decided.why and decided.why.endswith("s being enough")


def test_as_the_load_rises_instances_are_bought_for_requests_that_would_wait() -> None:
    """No request takes more than twice what it takes without load."""
    cloud, decision = fleet(USUAL)
    idle = live(cloud, decision, 60, IDLE).choice
    assert idle is not None
    held = []
    for rate in (0.2, 1.0, 2.0, 4.0):
        decided = live(cloud, decision, 200, replace(LOAD, arrival_rate=rate))
        assert decided.choice is not None and decided.choice.request_s <= 2 * idle.request_s
        held.append(len(cloud.staying()))
    assert held[0] == 1 and held == sorted(held) and held[-1] > 2


def test_where_the_target_is_0_a_light_load_buys_what_makes_it_faster() -> None:
    cloud, decision = fleet(replace(USUAL, latency_target_s=0.0))
    idle = live(cloud, decision, 60, IDLE).choice
    decided = live(cloud, decision, 200, LIGHT)
    assert len(cloud.staying()) > 1
    assert idle is not None and decided.choice is not None and decided.choice.request_s < idle.request_s
    assert "enough" not in decided.why


def test_what_is_fast_enough_by_default_does_not_follow_the_market() -> None:
    """Nor what is held: the reason names the same seconds while the cheapest type is refused, lost and dear."""
    cloud, decision = fleet(USUAL)
    enough = {live(cloud, decision, 60, LIGHT).why.split(", ")[-1]}
    cloud.sold["slow", SPOT, ""].refuses = cloud.sold["slow", ON_DEMAND, ""].refuses = True
    cloud.interrupt(cloud.staying()[0].id)
    for _ in range(60):
        enough.add(live(cloud, decision, 1, LIGHT).why.split(", ")[-1])
    assert set(cloud.counts()) == {("fast", SPOT)}
    cloud.sold["fast", SPOT, ""].price_per_h = 9.0
    enough.add(live(cloud, decision, 60, LIGHT).why.split(", ")[-1])
    assert len(enough) == 1 and "being enough" in enough.pop()


def test_spares_are_named_and_a_surplus_is_given_back_after_a_while() -> None:
    cloud, decision = fleet(replace(CHEAP, spare_instances=1))
    decided = live(cloud, decision, 20, replace(LOAD, arrival_rate=6.0))
    assert any(each.startswith("surplus: given back in") for each in reasons(decided).values())
    decided = live(cloud, decision, 100, replace(LOAD, arrival_rate=6.0))
    many = len(cloud.staying())
    assert list(reasons(decided).values()).count("spare") == 1
    decided = live(cloud, decision, 25, IDLE)
    assert len(cloud.staying()) == many
    decided = live(cloud, decision, 60, IDLE)
    assert len(cloud.staying()) == 2
    assert decided.targets == (WantedInstances("slow", 1, 0, 1),)
    assert "there is no load" in decided.why


def test_the_floor_is_held_on_demand() -> None:
    cloud, decision = fleet(replace(CHEAP, on_demand_floor=1))
    decided = live(cloud, decision, 120)
    assert cloud.counts()["slow", ON_DEMAND] == 1
    assert cloud.counts()["slow", SPOT] >= 1
    assert "on-demand floor" in reasons(decided).values()


def test_a_refused_market_is_replaced_and_comes_back() -> None:
    cloud, decision = fleet()
    cloud.sold["slow", SPOT, ""].refuses = True
    live(cloud, decision, 20)
    assert ("slow", SPOT) not in cloud.counts() and cloud.counts()
    cloud.sold["slow", SPOT, ""].refuses = False
    live(cloud, decision, 200)
    assert set(cloud.counts()) == {("slow", SPOT)}


def test_an_interrupted_instance_is_replaced_at_once() -> None:
    cloud, decision = fleet()
    live(cloud, decision, 60)
    held = len(cloud.staying())
    cloud.interrupt(cloud.staying()[0].id)
    decided = live(cloud, decision, 1)
    assert len(cloud.staying()) >= held
    assert "leaves: reclaimed" in reasons(decided).values()


def test_a_late_instance_does_not_count_and_its_market_is_left_alone() -> None:
    cloud, decision = fleet()
    cloud.sold["slow", SPOT, ""].late = True
    decided = live(cloud, decision, 20, IDLE)
    assert cloud.counts()["slow", SPOT] == 1
    assert any(each.startswith("late: starts for 1") for each in reasons(decided).values())
    live(cloud, decision, 70, IDLE)
    assert cloud.counts() == {("fast", SPOT): 1}
    assert cloud.instances["i-0"].state is InstanceState.GONE
    assert cloud.bought == {"planner-1-1": 1, "planner-1-2": 1, "planner-1-3": 1}
    cloud.sold["slow", SPOT, ""].late = False
    live(cloud, decision, 400, IDLE)
    assert cloud.counts() == {("slow", SPOT): 1}


def test_nothing_is_bought_above_the_budget() -> None:
    """Nor does the hedge or the spare make it dearer; the choice is what the budget allows."""
    cloud, decision = fleet(replace(CHEAP, budget_per_h=1.3, spare_instances=1))
    high = replace(LOAD, arrival_rate=50.0)
    for _ in range(100):
        decided = live(cloud, decision, 1, high)
        assert cloud.price_per_h <= 1.3
    assert decided.choice is not None and not decided.choice.meets_demand
    assert cloud.price_per_h == pytest.approx(1.2)
    assert "serves most of 50 requests/s" in decided.why


def test_a_price_above_the_budget_is_left_at_once() -> None:
    cloud, decision = fleet(replace(CHEAP, budget_per_h=2.5))
    live(cloud, decision, 100)
    cloud.sold["slow", SPOT, ""].price_per_h = 2.6
    live(cloud, decision, 60)
    assert cloud.price_per_h <= 2.5
    assert ("fast", SPOT) in cloud.counts()


def test_an_instance_makes_room_for_the_floor_where_the_budget_has_none() -> None:
    """Three spot instances leave less than one on demand costs; one of them goes."""
    cloud, decision = fleet(replace(CHEAP, budget_per_h=2.6))
    high = replace(LOAD, arrival_rate=50.0)
    live(cloud, decision, 60, high)
    floored = FleetDecision([FAST, SLOW], replace(CHEAP, budget_per_h=2.6, on_demand_floor=1), "planner", 2)
    live(cloud, floored, 200, high)
    assert sum(count for (_, market), count in cloud.counts().items() if market is ON_DEMAND) == 1
    assert cloud.price_per_h <= 2.6


#: The fastest is chosen that the budget allows.
FAST_ENOUGH = replace(CHEAP, latency_target_s=0.0, on_demand_floor=1, budget_per_h=4.0)


def test_a_floor_above_the_budget_takes_another_type() -> None:
    cloud, decision = fleet(FAST_ENOUGH)
    cloud.sold["fast", ON_DEMAND, ""].price_per_h = 30.0
    decided = live(cloud, decision, 60, IDLE)
    assert decided.choice is not None
    assert cloud.counts() == {("slow", ON_DEMAND): 1}
    assert "no room" not in decided.why


def test_an_instance_of_the_floor_makes_room_for_its_successor() -> None:
    """The mesh had a slow one as its floor, and takes a fast one, beside a spot instance; all three are above the budget."""
    cloud, decision = fleet(replace(FAST_ENOUGH, hold_s=5.0))
    cloud.sold["fast", SPOT, ""].refuses = cloud.sold["fast", ON_DEMAND, ""].refuses = True
    live(cloud, decision, 40, IDLE)
    assert ("slow", ON_DEMAND) in cloud.counts()
    cloud.sold["fast", SPOT, ""].refuses = cloud.sold["fast", ON_DEMAND, ""].refuses = False
    decided = live(cloud, decision, 200, replace(LOAD, arrival_rate=0.2))
    assert decided.choice is not None and {share.type.name for share in decided.choice.shares} == {"fast"}
    assert cloud.counts() == {("fast", ON_DEMAND): 1, ("fast", SPOT): 1}
    assert cloud.price_per_h <= 4.0


def test_a_spare_above_the_budget_is_not_kept() -> None:
    """An instance on demand costs more than the budget; two spot instances serve, and there is no third as a spare."""
    cloud = FakeCloud.selling([FAST], {("fast", SPOT): 1.0, ("fast", ON_DEMAND): 3.0}, most=2)
    high = replace(LOAD, arrival_rate=50.0)
    live(cloud, FleetDecision([FAST], replace(CHEAP, on_demand_floor=1), "planner", 1), 5, IDLE)
    assert cloud.counts() == {("fast", ON_DEMAND): 1}
    poor = FleetDecision([FAST], replace(CHEAP, budget_per_h=2.6, spare_instances=1), "planner", 2)
    live(cloud, poor, 100, high)
    assert cloud.counts() == {("fast", SPOT): 2}


def test_a_floor_that_cannot_be_had_keeps_no_mesh_from_its_first_instance() -> None:
    """Refused, or above the budget: the model is learned from a spot instance."""
    cloud, decision = fleet(replace(CHEAP, budget_per_h=1.2, on_demand_floor=1))
    live(cloud, decision, 3, model=None)
    assert cloud.counts() == {("slow", SPOT): 1}
    cloud, decision = fleet(replace(CHEAP, on_demand_floor=1))
    for name in ("fast", "slow"):
        cloud.sold[name, ON_DEMAND, ""].refuses = True
    live(cloud, decision, 5, model=None)
    assert cloud.counts() == {("slow", SPOT): 1}


def test_of_equal_instances_the_one_goes_that_is_idle_or_is_taken_soonest() -> None:
    """The youngest lives longest here; the one that serves stays."""
    cloud, decision = fleet(replace(CHEAP, spare_instances=2))
    live(cloud, decision, 100, IDLE)
    ids = [each.id for each in cloud.staying()]
    assert len(ids) == 3
    for age_s, name in zip((5000.0, 900.0, 100.0), ids, strict=True):
        cloud.instances[name] = replace(cloud.instances[name], launched_s=cloud.now - age_s)
    lives = (LearnedLives("slow", "", PiecewiseHazard((0.0, 500.0), (1e-5, 1e-3)), 9, 5),)
    fewer = FleetDecision([FAST, SLOW], replace(CHEAP, hold_s=0.0), "planner", 2)
    report = replace(cloud.report(), lives=lives)
    decided = fewer.decide(IDLE, report, SHAPE, cloud.now, serving=ids[:1])
    assert [each.instance_id for each in decided.releases] == [ids[1], ids[2]]
    assert decided.releases[0].deadline_s == cloud.now + 120.0


def test_zones_that_refuse_are_passed_over() -> None:
    types = [FAST]
    sold = {
        ("fast", SPOT, "z1"): Sold(1.0, zone="z1", refuses=True),
        ("fast", SPOT, "z2"): Sold(1.2, most=2, zone="z2"),
    }
    cloud, decision = FakeCloud(types, sold), FleetDecision(types, CHEAP, "planner", 1)
    live(cloud, decision, 5, IDLE)
    assert [each.zone for each in cloud.staying()] == ["z2"]
    assert [each.purchase.zone for each in cloud.statuses.values()] == ["z1", "z2"]


@pytest.mark.parametrize(("age_s", "problem"), [(0.0, "no answer"), (60.0, "")])
def test_a_fleet_that_cannot_be_listed_is_left_alone(age_s: float, problem: str) -> None:
    cloud, decision = fleet()
    live(cloud, decision, 60)
    held = cloud.counts()
    report = replace(cloud.report(), instances=(), problem=problem, at_s=cloud.now - age_s)
    decision.decide(LOAD, cloud.report(), SHAPE, cloud.now)
    late = FleetDecision([FAST, SLOW], CHEAP, "planner", 2).decide(LOAD, report, SHAPE, cloud.now)
    assert late.purchases == late.releases == ()
    assert "cannot be listed" in late.why
    assert cloud.counts() == held


def test_an_older_report_is_not_considered() -> None:
    cloud, decision = fleet()
    old = cloud.report()
    live(cloud, decision, 60)
    decided = decision.decide(LOAD, old, SHAPE, cloud.now)
    assert decided.purchases == ()
    assert decided.choice is not None


def test_decisions_are_made_at_most_so_often() -> None:
    cloud, decision = fleet()
    assert decision.is_due(cloud.now)
    first = decision.decide(LOAD, cloud.report(), SHAPE, cloud.now)
    assert [decision.is_due(cloud.now + after_s) for after_s in (0.0, 0.5, 1.0)] == [False, False, True]
    assert decision.decide(replace(LOAD, arrival_rate=50.0), cloud.report(), SHAPE, cloud.now + 0.5) is first
    assert decision.decide(replace(LOAD, arrival_rate=50.0), cloud.report(), SHAPE, cloud.now + 1.0) is not first


def test_a_profile_of_another_model_is_told() -> None:
    cloud, decision = fleet()
    decided = decision.decide(LOAD, cloud.report(), replace(SHAPE, name="small", layers=8), cloud.now)
    assert decided.purchases == ()
    assert "give the model that was profiled" in decided.why


def test_without_any_instance_that_holds_the_model_all_stays() -> None:
    tiny = fleet_type("tiny", memory_bytes=2**30)
    cloud = FakeCloud.selling([tiny], {("tiny", SPOT): 1.0})
    decision = FleetDecision([tiny], CHEAP, "planner", 1)
    live(cloud, decision, 3, model=None)
    decided = live(cloud, decision, 100)
    assert decided.choice is None and len(cloud.staying()) == 1
    assert "those that are ready stay" in decided.why
    assert reasons(decided) == {"i-0": "stays: no configuration can be had now"}


def test_types_need_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="same name"):
        FleetDecision([FAST, FAST], CHEAP, "planner", 1)


def test_the_configuration_is_the_decided_one_where_it_is_ready() -> None:
    """On fewer instances the best of these; on none, none. The decided one comes back at once."""
    cloud, decision = fleet()
    decided = live(cloud, decision, 60, replace(LOAD, arrival_rate=6.0))
    assert decided.choice is not None and decided.choice.instances > 1
    ready = {share.type.name: share.instances for share in decided.choice.shares}
    demand = replace(LOAD, arrival_rate=6.0)
    chosen = decision.config_on({**ready, "fast": 5}, demand, SHAPE, cloud.now)
    assert chosen is not None and chosen.config == decided.choice.config
    one = decision.config_on({"slow": 1}, demand, SHAPE, cloud.now)
    assert one is not None and str(one.config) == "1,1,1,32"
    assert decision.config_on({}, demand, SHAPE, cloud.now) is None
    again = decision.config_on(ready, demand, SHAPE, cloud.now)
    assert again is not None and again.config == decided.choice.config


def test_after_a_loss_the_shape_is_kept_and_a_faster_one_comes_when_it_pays() -> None:
    """Six pipelines of one instance serve, one is lost, and the load is light: now pipelines of two are faster. A change that
    takes an hour is not worth that before they have been the best for an hour; one that takes no time comes after the hold.
    """

    def serving_six() -> FleetDecision:
        decision = FleetDecision([FAST], replace(CHEAP, latency_target_s=0.0), "planner", 1)
        first = decision.config_on({"fast": 6}, replace(LOAD, arrival_rate=1e3), SHAPE, 0.0)
        assert first is not None and (first.config.data, first.config.pipeline_devices) == (6, 1)
        return decision

    def devices(decision: FleetDecision, change: ChangeSeconds | None, at_s: float) -> int:
        choice = decision.config_on({"fast": 5}, replace(LOAD, arrival_rate=0.01), SHAPE, at_s, change)
        assert choice is not None
        return choice.config.pipeline_devices

    slow, quick = serving_six(), serving_six()
    hour = ChangeSeconds(forms_s=3600.0, pause_s=1.0)
    assert {devices(slow, hour, 10.0 + second) for second in range(0, 3600, 60)} == {1}
    assert devices(slow, hour, 3700.0) == 1 and devices(slow, hour, 3740.0) == 2
    assert [devices(quick, None, at_s) for at_s in (10.0, 39.0, 40.0)] == [1, 1, 2]


def test_a_configuration_that_serves_is_not_changed_for_a_little() -> None:
    """With more instances ready than it has, but fewer than decided, what serves stays for a while."""
    cloud, decision = fleet(replace(CHEAP, latency_target_s=0.0))
    demand = replace(LOAD, arrival_rate=0.5)
    decided = live(cloud, decision, 60, demand)
    assert decided.choice is not None
    (share,) = decided.choice.shares
    name, least = share.type.name, decided.choice.config.pipeline_devices
    fewer = decision.config_on({name: least - 1}, demand, SHAPE, 5000.0)
    assert fewer is not None
    beside = {name: least - 1, "slow": 1}
    assert decision.config_on(beside, demand, SHAPE, 5001.0) == fewer
