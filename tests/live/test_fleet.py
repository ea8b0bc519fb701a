"""A mesh that buys its instances: it grows, loses them, pays others, and gives back what is too many; no request notices."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from spotwise.core.messages.fleet import FleetInstance, FleetView, InstanceState, Market
from tests.live.market_mesh import NEW_TOKENS, PROMPTS, STARTS_S, MarketMesh, SteadyLoad
from tests.live.mesh import EXECUTED, MODEL, wait_for
from tests.live.oracle import greedy

#: The first test starts the mesh, and each later one waits for instances, on a machine that may be busy.
pytestmark = pytest.mark.timeout(300)
SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND
#: A second spot instance fits, an on-demand one beside both does not.
BUDGET = "1.6"
#: Instances take seconds to start, as machines do: where one is there in a second, the planner knows one request and not its
#: length, and buys a second one for it.
ENV = {"SPOTWISE_HOLD_S": "2", "SPOTWISE_MAX_UNREADY_S": "120", "SPOTWISE_MAX_QUEUE_S": "120", **EXECUTED}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MarketMesh]:
    """No instance at first; no spare ones, and any latency will do."""
    for prompt in PROMPTS:
        greedy(prompt, NEW_TOKENS)  # before the mesh takes the cores; it is kept
    options = ("--budget", BUDGET, "--spares", "0", "--latency-target", "600")
    with MarketMesh(tmp_path_factory.mktemp("fleet"), *options, env=ENV) as live:
        yield live


@pytest.fixture(scope="module")
def load(mesh: MarketMesh) -> Iterator[SteadyLoad]:
    """Requests that go on through the tests of this file, until `stop`."""
    with SteadyLoad(mesh) as steady:
        yield steady


def counts(view: FleetView) -> dict[Market, int]:
    """Running instances that stay, by market."""
    assert view.report is not None
    staying = [
        each.market
        for each in view.report.instances
        if each.state is InstanceState.RUNNING and each.leaves_at_s is None
    ]
    return {market: staying.count(market) for market in set(staying)}


def instance(view: FleetView, instance_id: str) -> FleetInstance:
    """An instance of a view."""
    assert view.report is not None
    (found,) = (each for each in view.report.instances if each.id == instance_id)
    return found


def first_to_leave(mesh: MarketMesh, among: set[str]) -> str:
    """Wait until one of these is under notice or gone; return it."""
    wait_for(lambda: bool(mesh.instances()) and not among <= set(mesh.staying()), lambda: f"one of {among} to leave")
    (left,) = among - set(mesh.staying())
    return left


def goes_on(load: SteadyLoad) -> None:
    """Wait until further requests have been served."""
    before = load.served
    wait_for(lambda: load.served >= before + 3, lambda: f"requests after {before}", STARTS_S)


def test_the_first_request_waits_for_the_first_instance(mesh: MarketMesh) -> None:
    """One spot instance, from which the model is learned."""
    answer = mesh.client().completions.create(
        model=MODEL,
        prompt=[*PROMPTS[0]],
        max_tokens=NEW_TOKENS,
        temperature=0,
        timeout=STARTS_S,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    assert tuple(answer.choices[0].token_ids) == greedy(PROMPTS[0], NEW_TOKENS)  # type: ignore[attr-defined]
    first = min(mesh.instances().values(), key=lambda each: each.launched_s)
    assert (first.market, first.state) == (SPOT, InstanceState.RUNNING)
    assert mesh.wait_for_view(lambda view: bool(view.config), "a choice").serving == "1,1,1"


def test_load_makes_it_grow(mesh: MarketMesh, load: SteadyLoad) -> None:
    """To two spot instances; the on-demand one that would bridge their start does not fit the budget."""
    view = mesh.wait_for_view(lambda view: counts(view) == {SPOT: 2} and view.serving == "2,1,1", "two that serve")
    assert "the cheapest for" in view.why
    goes_on(load)


def test_it_is_shown(mesh: MarketMesh, load: SteadyLoad) -> None:
    """For people and for programs."""
    shown = mesh.command("fleet").stdout
    assert "budget 1.6" in shown and "chosen: 2,1,1, serving: 2,1,1" in shown
    assert all(each in shown for each in mesh.staying())
    told = json.loads(mesh.command("fleet", "--json").stdout)
    assert {each["id"] for each in told["report"]["instances"]} == set(mesh.instances())
    assert told["budget_per_h"] == 1.6 and told["report"]["spent"] > 0


def test_planner_and_watcher_may_be_killed(mesh: MarketMesh, load: SteadyLoad) -> None:
    """The next ones go on; nothing is bought twice. (Those of later tests go on with a longer trace.)"""
    before = set(mesh.instances())
    mesh.kill_service("planner-0")
    mesh.wait_for_view(lambda view: counts(view) == {SPOT: 2} and view.serving == "2,1,1", "the next planner's view")
    killed = mesh.view()
    assert killed is not None and killed.report is not None
    incarnation = killed.report.incarnation
    mesh.kill_service("watcher-0")
    view = mesh.wait_for_view(
        lambda view: view.report is not None and view.report.incarnation != incarnation, "the next watcher's report"
    )
    assert view.report is not None
    assert {each.id for each in view.report.instances} == before
    goes_on(load)


def test_an_instance_that_is_taken_with_a_notice_is_replaced(mesh: MarketMesh, load: SteadyLoad) -> None:
    """By a spot instance of the third node; its requests move."""
    before, known = set(mesh.staying()), set(mesh.instances())
    mesh.take_in(1, 20.0, notice_s=12.0)
    mesh.kill_service("watcher-0")
    taken = first_to_leave(mesh, before)
    view = mesh.wait_for_view(lambda view: instance(view, taken).state is InstanceState.GONE, f"the end of {taken}")
    assert "node-1 leaves" in instance(view, taken).why_leaving
    mesh.wait_for_view(lambda view: counts(view) == {SPOT: 2} and view.serving == "2,1,1", "two that serve again")
    assert len(set(mesh.instances()) - known) == 1
    goes_on(load)


def test_where_no_spot_instance_can_be_had_one_is_bought_on_demand(mesh: MarketMesh, load: SteadyLoad) -> None:
    """After one was taken without notice: the trace has no node free."""
    before, known = set(mesh.staying()), set(mesh.instances())
    mesh.take_in(2, 5.0, notice_s=0.0)
    mesh.kill_service("watcher-0")
    taken = first_to_leave(mesh, before)
    view = mesh.wait_for_view(
        lambda view: counts(view) == {SPOT: 1, ON_DEMAND: 1} and view.serving == "2,1,1", "one of each market"
    )
    assert view.report is not None
    assert any("nodes of the trace are taken" in each.problem for each in view.report.purchases)
    assert instance(view, taken).state is InstanceState.GONE
    assert len(set(mesh.instances()) - known) == 1
    goes_on(load)


def test_a_price_that_jumps_is_followed(mesh: MarketMesh, load: SteadyLoad) -> None:
    """On demand is bought instead, and then spot given back."""
    known = set(mesh.instances())
    mesh.set_prices(spot=0.7, on_demand=0.3)
    view = mesh.wait_for_view(lambda view: counts(view) == {ON_DEMAND: 2} and view.serving == "2,1,1", "both on demand")
    assert view.report is not None
    released = [each for each in view.report.instances if each.why_leaving == "more than the load needs"]
    assert released[-1].market is SPOT
    assert len(set(mesh.instances()) - known) == 1
    goes_on(load)


def test_after_the_load_the_surplus_is_given_back(mesh: MarketMesh, load: SteadyLoad) -> None:
    """Every request has been served; one instance stays."""
    load.stop()
    known = set(mesh.instances())
    mesh.wait_for_view(lambda view: counts(view) == {ON_DEMAND: 1} and view.serving == "1,1,1", "one instance")
    mesh.wait_for_view(lambda view: "there is no load" in view.why, "a window without requests")
    assert set(mesh.instances()) == known
    mesh.wait_until_idle()
