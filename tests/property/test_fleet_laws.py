"""Laws of the fleet's decision, in a cloud whose prices jump, and that refuses, is late, interrupts and loses orders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.costs.cost_profile import BUILT_IN, at_speed
from spotwise.core.fleet.decision import Decided, FleetDecision
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.messages.fleet import FleetInstance, FleetReported, InstanceState, Market
from spotwise.core.parallel.model_shape import ModelShape
from tests.unit.core.fleet.fake_cloud import LOAD, FakeCloud, fleet_type

#: Few layers, for a short search.
SMALL = ModelShape("small", 4, 8192, 4 * 2**30, 0, 0, 81920)
NAMES = ("a", "b")
MARKETS = [(name, market) for name in NAMES for market in Market]
STEP_S = 2.0
#: Steps within which the fleet settles, and those for which it is watched then.
SETTLES, WATCHED = 150, 60


@dataclass
class World:
    """A cloud and the decision for it."""

    cloud: FakeCloud
    decision: FleetDecision
    policy: FleetPolicy
    rate: float

    def __post_init__(self) -> None:
        self.last: FleetReported = self.cloud.report()
        self.given_back: set[str] = set()
        self.is_jumping: bool = False

    def step(self, *, loses_order: bool = False, reports_old: bool = False) -> Decided:
        """Decide once and carry it out; the laws of a single step hold."""
        cloud, before = self.cloud, self.cloud.report()
        report = self.last if reports_old else before
        self.last = report
        decided = self.decision.decide(replace(LOAD, arrival_rate=self.rate), report, SMALL, cloud.now)
        staying = {each.id for each in report.instances if each.leaves_at_s is None}
        assert {each.instance_id for each in decided.releases} <= staying
        if not loses_order:
            bought = len(cloud.instances)
            cloud.carry_out(decided)
            self._check(decided, len(cloud.instances) > bought)
        cloud.step(STEP_S)
        return decided

    def _check(self, decided: Decided, is_bought: bool) -> None:
        cloud, policy = self.cloud, self.policy
        for key, sold in cloud.sold.items():
            assert cloud.present(key) <= sold.most
        counts = {status.purchase.token: status.purchase.count for status in cloud.statuses.values()}
        assert all(count <= counts[token] for token, count in cloud.bought.items())
        if is_bought and policy.budget_per_h is not None and self.last.at_s == cloud.now and not self.is_jumping:
            assert cloud.price_per_h <= policy.budget_per_h * (1 + 1e-6)
        if self.last.at_s == cloud.now:
            self._check_floor(decided)
        self.given_back |= {each.instance_id for each in decided.releases}

    def _check_floor(self, decided: Decided) -> None:
        """An instance that is late goes whatever the floor, and so does one that the budget has no room for."""

        def of_the_floor(instances: Iterable[FleetInstance]) -> set[str]:
            running = [each for each in instances if each.state is InstanceState.RUNNING]
            return {each.id for each in running if each.market is Market.ON_DEMAND}

        surplus = {each.instance_id for each in decided.releases if "budget" not in each.reason} - self.given_back
        if surplus & of_the_floor(self.last.instances):
            assert len(of_the_floor(self.cloud.instances.values())) >= self.policy.on_demand_floor

    def settle(self) -> None:
        """Let the fleet become what it should be."""
        for _ in range(SETTLES):
            self.step()

    def is_quiet(self, before: Callable[[int], None] = lambda _: None) -> bool:
        """Return whether nothing is ordered for a while."""
        orders = []
        for number in range(WATCHED):
            before(number)
            decided = self.step()
            orders += [*decided.purchases, *decided.releases]
        return not orders


@st.composite
def worlds(draw: st.DrawFn, budgets: tuple[float | None, ...] = (None, 0.6, 3.0, 8.0, 20.0)) -> World:
    """Draw two types, what they cost, and a policy."""
    types = [
        fleet_type(
            name,
            draw(st.sampled_from([1, 2])),
            draw(st.sampled_from([0.0, 6.0])),
            replace(BUILT_IN, iteration=at_speed(BUILT_IN.iteration, draw(st.sampled_from([0.5, 1.0])))),
        )
        for name in NAMES
    ]
    price = st.sampled_from([0.5, 1.0, 1.05, 2.0, 3.0])
    cloud = FakeCloud.selling(types, {key: draw(price) for key in MARKETS}, draw(st.integers(1, 4)))
    policy = FleetPolicy(
        decide_s=0.0,
        hold_s=10.0,
        budget_per_h=draw(st.sampled_from(budgets)),
        on_demand_floor=draw(st.sampled_from([0, 0, 1])),
        spare_instances=draw(st.sampled_from([0, 1])),
        latency_target_s=draw(st.sampled_from([None, 0.0, 15.0])),
        late_factor=2.0,
    )
    rate = draw(st.sampled_from([0.0, 0.5, 2.0, 5.0, 50.0]))
    return World(cloud, FleetDecision(types, policy, "planner", 1), policy, rate)


#: Steps in which a refusal shows, and another choice runs.
MOMENT = 6
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["price", "refuse", "late", "interrupt", "load", "lose", "old", "nothing", "problem"]),
        st.integers(0, 99),
    ),
    max_size=40,
)


def happens(world: World, kind: str, number: int) -> None:
    """Let one of the things happen that do."""
    cloud = world.cloud
    sold = list(cloud.sold.values())[number % len(cloud.sold)]
    world.is_jumping = kind == "price"
    if kind == "price":
        sold.price_per_h = [0.4, 1.0, 2.5, 6.0][number % 4]
    elif kind == "refuse":
        sold.refuses = not sold.refuses
    elif kind == "late":
        sold.late = not sold.late
    elif kind == "load":
        world.rate = [0.0, 0.5, 2.0, 5.0, 50.0][number % 5]
    elif kind == "problem":
        cloud.problem = "" if cloud.problem else "the provider does not answer"
    elif kind == "interrupt" and (staying := cloud.staying()):
        cloud.interrupt(staying[number % len(staying)].id)


@settings(max_examples=40)
@given(worlds(), EVENTS)
def test_whatever_happens_limits_are_kept_and_the_fleet_settles(world: World, events: list[tuple[str, int]]) -> None:
    """Never more than can be had, nothing bought above the budget, each token once; then nothing is ordered any more."""
    for kind, number in events:
        happens(world, kind, number)
        world.step(loses_order=kind == "lose", reports_old=kind == "old")
    world.is_jumping, world.cloud.problem = False, ""
    for sold in world.cloud.sold.values():
        sold.late = False
    world.settle()
    if not any(sold.refuses for sold in world.cloud.sold.values()):
        assert world.is_quiet()
    decided = world.step()
    if any(sold.refuses for sold in world.cloud.sold.values()):
        # What refuses is asked again once in a while, and the choice counts on it for that moment.
        for _ in range(MOMENT):
            decided = decided if runs_all(world, decided) else world.step()
    if decided.choice is not None and world.policy.budget_per_h is None:
        assert runs_all(world, decided)


def runs_all(world: World, decided: Decided) -> bool:
    """Tell whether all that the choice takes runs."""
    running = world.cloud.counts()
    shares = () if decided.choice is None else decided.choice.shares
    return all(
        sum(running.get((share.type.name, market), 0) for market in Market) >= share.instances for share in shares
    )


@settings(max_examples=25)
@given(worlds((None,)), st.lists(st.floats(-0.04, 0.04), min_size=4, max_size=4))
def test_prices_that_wobble_by_less_than_the_gain_change_nothing(world: World, shares: list[float]) -> None:
    """After the fleet has settled, no instance is bought or given back. (At the edge of a budget they do change something: what
    can be had, and so the least latency.)
    """
    world.settle()
    usual = [sold.price_per_h for sold in world.cloud.sold.values()]

    def wobble(number: int) -> None:
        for place, sold in enumerate(world.cloud.sold.values()):
            sold.price_per_h = usual[place] * (1 + shares[(place + number) % 4])

    assert world.is_quiet(wobble)


@settings(max_examples=25)
@given(worlds((None,)), st.sets(st.sampled_from(MARKETS), max_size=3))
def test_what_is_refused_is_had_elsewhere(world: World, refusing: set[tuple[str, Market]]) -> None:
    """While a market that sells remains the model is served, and the floor is held where on-demand instances are sold."""
    for name, market in refusing:
        world.cloud.sold[name, market, ""].refuses = True
    for sold in world.cloud.sold.values():
        sold.most = 4
    for _ in range(40):
        decided = world.step()
    assert decided.choice is not None
    assert any(each.state is InstanceState.RUNNING for each in world.cloud.instances.values())
    chosen = [share.type.name for share in decided.choice.shares]
    if all((name, Market.ON_DEMAND) not in refusing for name in chosen):
        counts = world.cloud.counts()
        held = sum(counts.get((name, Market.ON_DEMAND), 0) for name in NAMES)
        assert held >= world.policy.on_demand_floor
