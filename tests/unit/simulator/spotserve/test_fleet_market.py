"""A simulated fleet that core's own decision and keeper buy, and its bill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.costs.cost_profile import BUILT_IN
from spotwise.core.fleet.keeper.events import PricedOffer
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.prices import PriceSeries
from spotwise.core.fleet.types import FleetType
from spotwise.core.messages.fleet import Market
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.files.prices import PriceList
from spotwise.files.spot_traces import SpotTrace
from spotwise.files.tables import TraceError
from spotwise.simulator.spotserve.arrivals import SpotArrivals
from spotwise.simulator.spotserve.fleet import PaidLife
from spotwise.simulator.spotserve.own_fleet import COMPARED, RequestSize, own_model
from spotwise.simulator.spotserve.pricing import FleetPricing, NodePlace, PurchaseTerms, read_nodes
from spotwise.simulator.spotserve.run import STALL_S, SpotOutcome, SpotRun
from spotwise.simulator.spotserve.serving import serve
from spotwise.simulator.spotserve.systems import SpotSurroundings
from tests.unit.simulator.spotserve import spot_worlds as tiny

SIZE = RequestSize(1140, 209)
SHAPE = ModelShape("llama2-70b", 80, 8192, 135 * 2**30 // 80, 0, 0, 4096)
KIND = FleetType("big", 1, None, 10.0, BUILT_IN)
#: Weights come within seconds.
AROUND = SpotSurroundings(grace_s=30.0, network_bytes_per_s=50e9, storage_bytes_per_s=50e9)


def terms(policy: FleetPolicy, *, on_demand: int = 0, limit: int | None = None) -> PurchaseTerms:
    """Offers of four spot instances, and of on-demand ones at twice their price."""
    sold = ((Market.SPOT, 4, 36.0), (Market.ON_DEMAND, on_demand, 72.0))
    offers = tuple(
        PricedOffer(KIND.name, market, most, PriceSeries((0.0,), (price,))) for market, most, price in sold if most
    )
    return PurchaseTerms(KIND, offers, policy, limit, refused_s=2.0)


def run(
    trace: SpotTrace, times_s: Sequence[float], market: PurchaseTerms, system: str = "spotwise", drain_s: float = 600.0
) -> SpotRun:
    arrivals = SpotArrivals("own", tuple(times_s), SIZE.input_tokens, SIZE.output_tokens)
    model = own_model(BUILT_IN, SHAPE, SIZE, AROUND)
    return SpotRun(trace, arrivals, model, replace(COMPARED[system]), AROUND, drain_s=drain_s, market=market)


#: For the load below, and longer than it takes.
STAYS = tiny.trace((0.0, "add", "a b c d"), end_s=400.0)
SHORT = tiny.trace((0.0, "add", "a b c d"), end_s=120.0)
#: Without spares, any latency is fast enough, and what is too much goes after 20 s.
SPARING = FleetPolicy(spare_instances=0, latency_target_s=1e6, hold_s=20.0, release_notice_s=30.0)


def most_at_once(lives: Sequence[PaidLife]) -> int:
    changes = sorted([(life.from_s, 1) for life in lives] + [(life.to_s, -1) for life in lives])
    counts = [sum(change for _, change in changes[: place + 1]) for place in range(len(changes))]
    return max(counts, default=0)


@pytest.fixture(scope="module")
def heavy() -> SpotOutcome:
    """What became of a burst of 3,000 requests."""
    return serve(run(STAYS, [20.0 + n / 30 for n in range(3000)], terms(SPARING)))


def test_a_light_load_has_one_instance_and_a_heavy_one_more(heavy: SpotOutcome) -> None:
    light = serve(run(SHORT, [20.0 + 10 * n for n in range(10)], terms(SPARING)))
    assert (most_at_once(light.lives), len(light.lives)) == (1, 1)
    assert light.spent == pytest.approx(light.ended_s * 0.01)
    assert most_at_once(heavy.lives) > 1 and not heavy.unfinished
    assert sum(life.to_s == heavy.ended_s for life in heavy.lives) == 1  # the others were given back
    assert heavy.spent == pytest.approx(sum(life.seconds() for life in heavy.lives) * 0.01)
    assert len(heavy.requests) == 3000


def test_a_queue_is_load_after_its_last_arrival(heavy: SpotOutcome) -> None:
    """What was bought for a burst is not given back while requests still wait for their first token."""
    first_back_s = min(life.to_s for life in heavy.lives if life.to_s < heavy.ended_s)
    waiting = sum(each.finished_s > first_back_s + 10 for each in heavy.requests)
    assert first_back_s > 120.0 + SPARING.hold_s and waiting < 100


def test_nothing_is_computed_again_where_the_notice_is_long_enough() -> None:
    """The successor of an instance under notice is bought at once, and requests move to it with their KV."""
    trace = tiny.trace((0.0, "add", "a"), (60.0, "add", "b"), (150.0, "remove", "a"), end_s=300.0)
    outcome = serve(run(trace, [15.0 + n for n in range(250)], terms(SPARING)))
    assert [(life.node, life.market) for life in outcome.lives] == [("a", Market.SPOT), ("b", Market.SPOT)]
    assert outcome.lives[1].from_s == pytest.approx(120.0, abs=2.0)  # 30 s before
    assert 130.0 <= outcome.lives[0].to_s <= 150.0
    assert (outcome.recomputed_tokens, outcome.unfinished) == (0, ())


def test_without_spot_instances_on_demand_ones_serve() -> None:
    trace = tiny.trace((0.0, "add", "a"), (60.0, "remove", "a"), end_s=300.0)
    outcome = serve(run(trace, [20.0 + n for n in range(200)], terms(SPARING, on_demand=2)))
    assert {life.market for life in outcome.lives} == {Market.SPOT, Market.ON_DEMAND}
    assert not outcome.unfinished
    nothing = serve(run(trace, [20.0, 200.0], terms(SPARING), drain_s=50.0))
    assert (len(nothing.requests), [each.arrived_s for each in nothing.unfinished]) == (1, [200.0])


@pytest.mark.parametrize("limit", [None, 0])
def test_purchases_that_never_come_end_the_run_with_a_report(limit: int | None) -> None:
    """The only node leaves for good, or nothing may be bought: the market advances four times a second, but not for a year."""
    trace = tiny.trace((0.0, "add", "a"), (60.0, "remove", "a"), end_s=100.0)
    outcome = serve(run(trace, [80.0], terms(SPARING, limit=limit), drain_s=3e7))
    assert (len(outcome.unfinished), outcome.why_unfinished) == (1, "no instance is left")
    assert outcome.ended_s == 100.0 + STALL_S


def test_a_budget_and_the_limit_bound_what_is_held() -> None:
    burst = [20.0 + n / 30 for n in range(600)]
    bounded = FleetPolicy(spare_instances=0, latency_target_s=1e6, budget_per_h=72.0)
    most = [most_at_once(serve(run(SHORT, burst, market)).lives) for market in (terms(SPARING), terms(bounded))]
    assert most == [4, 2]
    assert most_at_once(serve(run(SHORT, burst, terms(SPARING, limit=1))).lives) == 1


def test_a_system_that_chooses_nothing_cannot_buy() -> None:
    with pytest.raises(ValueError, match="rerouting chooses no configurations"):
        run(SHORT, [20.0], terms(SPARING), system="rerouting")
    assert len(serve(run(SHORT, [20.0, 30.0], terms(SPARING), system="restart")).requests) == 2


@st.composite
def traces(draw: st.DrawFn) -> SpotTrace:
    """Up to five stays of nodes within 120 s, with a notice or without."""
    events: list[tuple[float, str, str]] = []
    for number in range(draw(st.integers(1, 5))):
        begins_s = draw(st.integers(0, 80))
        events.append((float(begins_s), "add", f"n{number}"))
        if draw(st.booleans()):
            events.append((float(begins_s + draw(st.integers(5, 60))), "remove", f"n{number}"))
    return tiny.trace(*sorted(events), end_s=160.0)


@given(traces(), st.integers(0, 1), st.sampled_from([1, 3]), st.integers(1, 40))
@settings(max_examples=25)
def test_laws_of_any_trace(trace: SpotTrace, on_demand: int, limit: int, requests: int) -> None:
    """A spot instance lives within a stay of its node, alone; no more than the limit are held; each request is answered once,
    or open at the bound; the same run gives the same outcome.
    """
    times_s = [5.0 + 120.0 * n / requests for n in range(requests)]
    market = terms(SPARING, on_demand=on_demand, limit=limit)
    first, second = (serve(run(trace, times_s, market)) for _ in range(2))
    assert figures(first) == figures(second)
    stays = list(trace.lives())
    spot = [life for life in first.lives if life.market is Market.SPOT]
    for life in spot:
        (stay,) = [each for each in stays if each.node == life.node]
        assert stay.from_s <= life.from_s <= life.to_s
        assert stay.to_s is None or life.to_s <= stay.to_s
    for node in {life.node for life in spot}:
        assert most_at_once([life for life in spot if life.node == node]) == 1
    assert most_at_once(first.lives) <= limit
    assert len(first.requests) + len(first.unfinished) == requests
    assert sorted(first.arrivals_s()) == times_s
    if on_demand:
        assert not first.unfinished


def figures(outcome: SpotOutcome) -> tuple[object, ...]:
    return outcome.requests, outcome.unfinished, outcome.lives, outcome.changes, outcome.spent


SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND
TRACE = tiny.trace((0.0, "add", "a b c"), (30.0, "remove", "b"), (60.0, "add", "b"), end_s=100.0)
PRICES = PriceList(
    "prices.csv",
    {
        ("x", "east", SPOT): PriceSeries((0.0, 10.0), (36.0, 72.0)),
        ("x", None, SPOT): PriceSeries((0.0, 80.0), (360.0, 0.0)),
        ("x", None, ON_DEMAND): PriceSeries((0.0,), (3600.0,)),
    },
)


def tiny_outcome() -> SpotOutcome:
    return serve(tiny.run(TRACE, (1.0, 40.0)))


def test_each_stay_is_paid_at_the_prices_of_its_zone_and_market() -> None:
    """a stays in the east; b has two stays, elsewhere; c is on demand."""
    pricing = FleetPricing(PRICES, "x", "west", {"a": NodePlace("east"), "c": NodePlace(market=ON_DEMAND)})
    pricing.require_prices(TRACE)
    a, b, c = 10 * 0.01 + 90 * 0.02, 30 * 0.1 + 20 * 0.1, 100 * 1.0
    assert tiny_outcome().ended_s == 100.0
    assert pricing.bill(tiny_outcome().lives) == pytest.approx(a + b + c)


def test_a_run_may_begin_later_than_the_prices() -> None:
    pricing = FleetPricing(PRICES, "x", "west", begins_s=70.0)
    assert pricing.bill(tiny_outcome().lives) == pytest.approx(3 * 10 * 0.1)


def test_with_constant_prices_the_bill_is_the_cost_of_the_instance_hours() -> None:
    pricing = FleetPricing(PriceList.flat(7.0), "")
    assert pricing.bill(tiny_outcome().lives) == pytest.approx(tiny_outcome().cost(7.0, 7.0))


def test_a_missing_price_is_noticed_before_the_run() -> None:
    late = PriceList("late.csv", {("x", None, SPOT): PriceSeries((20.0,), (1.0,))})
    with pytest.raises(TraceError, match=r"late\.csv has no price of x, spot before 20 s"):
        FleetPricing(late, "x").require_prices(TRACE)


def test_a_file_of_nodes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("node,zone,market\na,east,on-demand\nb,,\n")
    assert read_nodes(path, TRACE) == {"a": NodePlace("east", ON_DEMAND), "b": NodePlace()}
    path.write_text("node\nc\n")
    assert read_nodes(path, TRACE) == {"c": NodePlace()}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("zone\neast\n", "line 1: no column node; a file of nodes begins with node"),
        ("node\nd\n", "line 2: 'd' is no node of the trace tiny"),
        ("node\na\na\n", "line 3: a is listed twice"),
        ("node,market\na,mine\n", "line 2: market is 'mine'; write spot or on_demand"),
    ],
)
def test_a_malformed_file_of_nodes_is_an_error_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=rf"nodes\.csv, {said}"):
        read_nodes(path, TRACE)
