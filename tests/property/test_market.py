"""A mesh that buys its own machines: whatever the market does, requests get their tokens, and in the end the fleet settles."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.core.fleet.delta import ROUNDING
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.types import FleetType
from spotwise.core.messages.fleet import InstanceState, Market
from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.role import SchedulerLimits
from spotwise.core.worker.policy import WorkerPolicy
from tests.property.devices import MODEL, Devices
from tests.property.market import FleetMarket, Sold
from tests.property.mesh_world import MeshWorld
from tests.property.planners import Planners
from tests.property.test_mesh_world import POLICIES, POOL_POLICIES, assert_nothing_held, assert_served
from tests.property.test_reshapes import POLICY

PROMPT, NEW = 8, 12
RAIN_S = 25.0
#: Until refused offers are asked for again, silent instances are given back, and some changes one after the other.
SETTLES_WITHIN_S = 350.0
STABLE_S = 20.0
NUM_BLOCKS = 24


def profile(name: str, speed: float) -> CostProfile:
    """Four requests at a time take about a second and a half."""
    cost = LinearIterationCost(0.1 / speed, 0.01 / speed, 0.0, 0.0, 0.0)
    return CostProfile(name, cost, None, MODEL.kv_token_bytes, 5 * (PROMPT + NEW))


#: Of one device, of two, and of one that does not hold the model alone.
SMALL = FleetType("small", 1, None, 2.0, profile("small", 1.0))
LARGE = FleetType("large", 2, None, 3.0, profile("large", 1.8))
HALF = FleetType("half", 1, 140_000, 1.0, profile("half", 1.0))
PRICES = {"small": 1.0, "large": 2.5, "half": 0.4}
TYPES = ([SMALL], [SMALL, LARGE], [HALF], [LARGE, HALF], [SMALL, LARGE, HALF])


@dataclass(frozen=True, slots=True)
class MarketCase:
    """A mesh with a market, as Hypothesis draws it.

    Attributes:
        seed: of everything that the world draws by itself.
        types: that are sold.
        most: instances of each type and market.
        every_s: seconds between two requests.
        adopted: instances of the first type that run already, one serving.
    """

    seed: int
    types: Sequence[FleetType]
    most: int
    every_s: float
    adopted: int
    fleet: FleetPolicy
    worker: WorkerPolicy
    pool: PoolPolicy

    def world(self) -> MarketWorld:
        """The mesh; requests come from now on."""
        return MarketWorld(self)


class MarketWorld:
    """A mesh with planners, devices and a market, into which requests come at a constant rate."""

    def __init__(self, case: MarketCase) -> None:
        rng = random.Random(case.seed)
        first = case.types[0]
        serves = case.adopted > 0 and first is not HALF
        pools = [Pool.MIXED] if serves else []
        limits = SchedulerLimits(max_queue_s=1000.0, max_unready_s=400.0)
        self.mesh = world = MeshWorld(
            rng, pools, NUM_BLOCKS, limits, case.worker, 0.05, 0.1, pool_policy=case.pool, load_report_s=1.0
        )
        self.planners = Planners(world, policy=POLICY, fleet_types=case.types, fleet_policy=case.fleet)
        self.devices = Devices(world, self.planners, first.devices, 0)
        sold = {
            (each.name, market): Sold(PRICES[each.name] * (1 if market is Market.SPOT else 3), case.most)
            for each in case.types
            for market in Market
        }
        self.market = FleetMarket(world, self.planners, self.devices, list(case.types), sold)
        if serves:
            self.market.adopt("w0", first.name)
        self.market.start()
        self.every_s = case.every_s
        self.requests = 0
        self.is_open = True
        world.at(0.1, self._request)

    def _request(self) -> None:
        if self.is_open:
            self.mesh.request(f"r{self.requests}", PROMPT, NEW)
            self.requests += 1
            self.mesh.at(self.every_s, self._request)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.mesh.run_until(self.mesh.now + seconds)

    # --- what it settles to ---------------------------------------------------------------------------------------------

    def unsettled(self) -> str:
        """Why the fleet is not what the decision has chosen; empty where it is."""
        view, deployment = self.planners.look(), self.planners.deployment
        if view is None or view.report is None:
            return "no planner acts"
        if not view.config:
            return f"nothing is chosen: {view.why}"
        if view.serving != view.config:
            return f"{view.serving} serves, and {view.config} is chosen"
        groups = self.devices.at_first if deployment is None else deployment.groups
        workers = {group.worker_id for group in groups}
        if deployment is not None and not deployment.stage.is_over:
            return f"the re-shape to {deployment.config} is under way"
        if workers != set(self.mesh.workers):
            return f"{workers} are to be, and {set(self.mesh.workers)} are there"
        states = {each.state for each in view.report.instances} - {InstanceState.GONE, InstanceState.RUNNING}
        if states:
            return f"some instances are {states}"
        there = Counter(each.type_name for each in self.market.there)
        wanted = Counter({each.type_name: each.spot + each.on_demand + each.spares for each in view.wanted})
        if there == +wanted or (not there - wanted and self._too_dear(wanted - there, view.budget_per_h)):
            return ""
        return f"{there} are there, and {wanted} are wanted: {view.reasons}"

    def _too_dear(self, missing: Counter[str], budget_per_h: float | None) -> bool:
        """Whether the budget has no room for what is missing: a floor has become dearer than all of it."""
        prices = {
            name: min(self.market.sold[name, each].series.at(self.mesh.now) for each in Market) for name in missing
        }
        return budget_per_h is not None and self.market.price_per_h + min(prices.values()) > budget_per_h

    def state(self) -> tuple[object, ...]:
        """What does not change any more once the fleet has settled."""
        deployment = self.planners.deployment
        change = None if deployment is None else (deployment.change, deployment.stage)
        return len(self.market.orders), len(self.market.there), change, tuple(self.mesh.workers)

    def settle(self) -> None:
        """Run until nothing has changed for `STABLE_S`, and all is as it has been chosen."""
        world, began_s = self.mesh, self.mesh.now
        since_s, before = world.now, self.state()
        while world.now - since_s < STABLE_S:
            self.run(1.0)
            why, state = self.unsettled(), self.state()
            if why or state != before:
                since_s, before = world.now, state
            assert world.now - began_s < SETTLES_WITHIN_S, why or f"it goes on and on: {self.market.orders[-3:]}"
        event(f"settles within {(since_s - began_s) // 50 * 50:.0f} s")

    def end(self) -> None:
        """No more requests come; those that are there end."""
        self.is_open = False
        self.mesh.run_until(self.mesh.now + 300.0, lambda: len(self.mesh.ended) == self.requests)
        assert len(self.mesh.ended) == self.requests, "a request never ended"
        self.run(15.0)


FLEETS = st.builds(
    FleetPolicy,
    window_s=st.just(8.0),
    decide_s=st.just(1.0),
    budget_per_h=st.sampled_from([None, None, 6.0, 12.0]),
    on_demand_floor=st.sampled_from([0, 0, 1]),
    spare_instances=st.integers(0, 1),
    latency_target_s=st.sampled_from([None, 0.0, 30.0]),
    hold_s=st.sampled_from(
        [8.0, 12.0]
    ),  # as by default no shorter than the window, whose noise would pass for a change
    late_factor=st.just(3.0),
    release_notice_s=st.just(20.0),
)


def cases(every_s: st.SearchStrategy[float]) -> st.SearchStrategy[MarketCase]:
    """Any mesh with a market."""
    return st.builds(
        MarketCase,
        st.integers(0, 2**32),
        st.sampled_from(TYPES),
        st.integers(2, 4),
        every_s,
        st.integers(0, 1),
        FLEETS,
        POLICIES,
        POOL_POLICIES,
    )


@settings(max_examples=30)
@given(cases(st.sampled_from([0.4, 1.0, 3.0])))
def test_a_mesh_buys_what_its_load_needs(case: MarketCase) -> None:
    """From nothing or from little, undisturbed: no request waits for ever, and no token is computed twice for a release."""
    world = case.world()
    world.settle()
    budget = case.fleet.budget_per_h
    assert budget is None or world.market.price_per_h <= budget * (1 + ROUNDING)
    world.end()
    assert set(world.mesh.ended.values()) == {"length"}
    assert not world.market.cut_off
    assert world.mesh.lost_attempts == []
    assert_served(world.mesh)
    assert_nothing_held(world.mesh)


@settings(max_examples=40)
@given(cases(st.sampled_from([0.7, 1.5])), st.sampled_from([0.0, 0.05, 0.3]))
def test_a_market_in_the_rain_costs_no_token(case: MarketCase, loss: float) -> None:
    """Instances are reclaimed, refused, late and dearer; planners and keepers die, stand still and are replaced; messages get
    lost, and come again."""
    world = case.world()
    rng, mesh, market, planners, devices = world.mesh.rng, world.mesh, world.market, world.planners, world.devices
    mesh.loss, mesh.repeats = loss, rng.choice([0.0, 0.3])
    market.problems, market.late_rate = rng.choice([0.0, 0.2, 0.6]), rng.choice([0.0, 0.3])
    devices.slowest_s, devices.fail_rate = rng.choice([0.5, 3.0]), rng.choice([0.0, 0.3])
    for sold in market.sold.values():
        sold.capacity = rng.choice([0, 1, 99, 99])
        if rng.random() < 0.3:
            mesh.at(rng.uniform(0, 10), partial(_refuse, world, sold, rng.uniform(1.0, 15.0)))
    for _ in range(rng.randint(0, 4)):
        notice_s = rng.choice([0.0, 1.0, 4.0, 10.0])
        take = partial(market.reclaim, rng.choice([1, 1, 2, 99]), notice_s, sooner=rng.random() < 0.3)
        mesh.at(rng.uniform(2.0, RAIN_S), take)
    for _ in range(rng.randint(0, 2)):
        key = rng.choice(list(market.sold))
        mesh.at(rng.uniform(2.0, RAIN_S), partial(market.change_price, key, rng.choice([0.3, 3.0, 6.0])))
    for _ in range(rng.randint(0, 2)):
        mesh.at(rng.uniform(0.5, RAIN_S), market.replace)
    if rng.random() < 0.3:
        mesh.at(rng.uniform(0.5, RAIN_S), partial(market.pause, rng.uniform(1.0, 8.0)))
    for _ in range(rng.randint(0, 2)):
        planner_id, at_s = f"planner-{rng.randrange(2)}", rng.uniform(0.2, RAIN_S - 5)
        mesh.at(at_s, partial(planners.kill, planner_id))
        mesh.at(at_s + rng.uniform(0.1, 4.0), partial(planners.start, planner_id))
    if rng.random() < 0.4:
        pause = partial(planners.pause, f"planner-{rng.randrange(2)}", rng.uniform(0.5, 6.0))
        mesh.at(rng.uniform(0.5, RAIN_S - 6), pause)
    world.run(RAIN_S)
    mesh.loss = mesh.repeats = market.problems = market.late_rate = devices.fail_rate = 0.0
    for sold in market.sold.values():
        sold.capacity = 99
    world.settle()
    world.end()
    assert_served(mesh, "fells_workers")
    assert_nothing_held(mesh)


def _refuse(world: MarketWorld, sold: Sold, seconds: float) -> None:
    sold.refuses_until_s = world.mesh.now + seconds
