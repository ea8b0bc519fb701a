"""Laws of the configuration optimizer: it is as good as trying everything, and more of anything is never worse."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.costs.cost_model import LinearIterationCost, LinkCost
from spotwise.core.parallel.candidates import shapes
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.evaluation import evaluate
from spotwise.core.parallel.instances import ConfigChoice, ExecutionCost, InstanceType, Supply, throughput
from spotwise.core.parallel.memory import LeastDevices, RealMemory
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.optimizer import choose, chosen_again
from spotwise.core.parallel.policy import Latency, Phases, Policy, Preference, ServiceDemand
from spotwise.core.parallel.scaled_cost import ScaledCost
from tests.unit.core.parallel.builders import TABLES
from tests.unit.core.parallel.exhaustive import every, preferred, ranked
from tests.unit.core.parallel.waits import waiting_s

MODEL = ModelShape("m", 6, 64, 1_000_000, 300_000, 700_000, 1_000)

seconds = st.floats(1e-4, 1e-1)


@st.composite
def costs(draw: st.DrawFn) -> ExecutionCost:
    """One worker's time on more devices, or measured layers."""
    if draw(st.booleans()):
        return TABLES
    worker = LinearIterationCost(draw(seconds), draw(seconds) / 100, 0.0, draw(seconds), 1e-6)
    link = LinkCost(draw(st.sampled_from([0.0, 1e-4])), draw(st.sampled_from([1e5, 1e9])))
    return ScaledCost(worker, MODEL, link, link, context_tokens=30, unsharded_s=draw(st.sampled_from([0.0, 1e-3])))


@st.composite
def supplies(draw: st.DrawFn, most_types: int = 2, most_instances: int = 3) -> list[Supply]:
    """Draw up to so many types of a few instances each, some of which are held."""
    found = []
    for number in range(draw(st.integers(1, most_types))):
        prices = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
        memory_bytes = draw(st.sampled_from([4_000_000, 1 << 30]))
        spot_price, on_demand_price = map(float, prices)
        devices, cost = draw(st.integers(1, 4)), draw(costs())
        kind = InstanceType(f"t{number}", devices, memory_bytes, spot_price, on_demand_price, cost)
        spot, on_demand = draw(st.integers(0, most_instances)), draw(st.integers(0, most_instances))
        held = draw(st.integers(0, spot)), draw(st.integers(0, on_demand))
        found.append(Supply(kind, spot, on_demand, *held))
    return found


demands = st.builds(
    ServiceDemand,
    st.one_of(st.just(0.0), st.floats(0.01, 100.0)),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    st.sampled_from([10, 512]),
    st.sampled_from([1, 40]),
)

policies = st.builds(
    Policy,
    batch_sizes=st.sampled_from([(1,), (1, 4)]),
    tensor_degrees=st.sampled_from([(1,), (1, 2)]),
    pipeline_degrees=st.sampled_from([(1,), (1, 2, 3)]),
    latency=st.sampled_from(list(Latency)),
    phases=st.sampled_from(list(Phases)),
    preference=st.sampled_from(list(Preference)),
    latency_slack=st.sampled_from([0.0, 0.05]),
    latency_target_s=st.sampled_from([None, 0.5, 5.0]),
)

#: Shares of what can be served, none of them a whole number of pipelines: sums of equal rates depend on the order of adding.
LOADS = st.sampled_from([None, 0.2003, 0.5007, 0.9011])
memories = st.sampled_from([LeastDevices(1), LeastDevices(2), RealMemory(MODEL, 100, prompt_tokens=10)])


def latency_of(choice: ConfigChoice, policy: Policy) -> float:
    return choice.request_s if policy.latency is Latency.REQUEST else choice.execution_s


@settings(max_examples=80)
@given(demands, supplies(), memories, policies, LOADS)
def test_the_choice_is_as_good_as_trying_everything(
    demand: ServiceDemand, had: list[Supply], memory: LeastDevices | RealMemory, policy: Policy, load: float | None
) -> None:
    """The choice meets the load if any does, is as fast, and as few or as cheap as the preference requires."""
    if load is not None:
        most = max((one.throughput for one in every(demand, had, memory, policy)), default=0.0)
        demand = replace(demand, arrival_rate=load * most)
    tried = list(every(demand, had, memory, policy))
    choice = choose(demand, had, memory, policy)
    best = preferred(tried, demand, policy)
    if choice is None or best is None:
        assert choice is None
        assert best is None
        return
    assert choice.meets_demand == any(one.throughput >= demand.arrival_rate for one in tried)
    assert ranked(choice.instances, choice.price_per_h, policy) == best
    latency_s = latency_of(choice, policy)
    same = [one.latency_s for one in tried if one.config == choice.config]
    assert any(one_s == latency_s or math.isclose(one_s, latency_s, rel_tol=1e-9) for one_s in same)
    if not choice.meets_demand:
        assert math.isclose(choice.throughput, max(one.throughput for one in tried), rel_tol=1e-9)


@settings(max_examples=80)
@given(demands, supplies(2, 4), policies)
def test_among_many_mixes_the_fastest_is_found(demand: ServiceDemand, had: list[Supply], policy: Policy) -> None:
    """The search beyond `MOST_TRIED` mixes, forced here for few, finds the same optimum as trying each."""
    policy = replace(policy, latency_slack=0.0, latency_target_s=None)
    with patch("spotwise.core.parallel.mixes.MOST_TRIED", 0):
        choice = choose(demand, had, LeastDevices(1), policy)
    tried = list(every(demand, had, LeastDevices(1), policy))
    if choice is None:
        assert not tried
        return
    enough = [one.latency_s for one in tried if one.throughput >= demand.arrival_rate]
    assert choice.meets_demand == bool(enough)
    if enough:
        assert math.isclose(latency_of(choice, policy), min(enough), rel_tol=1e-6)
    else:
        assert math.isclose(choice.throughput, max(one.throughput for one in tried), rel_tol=1e-9)


@settings(max_examples=60)
@given(demands, supplies(3), policies)
def test_no_mix_exceeds_the_bounds_of_its_shape(demand: ServiceDemand, had: list[Supply], policy: Policy) -> None:
    """A mix skipped for its bounds could not have won; with phases together the greatest throughput is the bound."""
    for shape in shapes(demand, had, LeastDevices(1), policy):
        for is_split in (False, True) if shape.can_split else (False,):
            mixes = evaluate(shape, is_split, demand, had, policy)
            most = shape.most_throughput(is_split=is_split)
            assert mixes.throughput.max() <= most * (1 + 1e-9)
            assert is_split or mixes.throughput.max() >= most * (1 - 1e-9)
            assert mixes.execution_s.min() >= shape.least_execution_s(is_split=is_split) * (1 - 1e-9)


@settings(max_examples=50)
@given(demands, supplies(3), memories, policies)
def test_a_choice_is_consistent_with_its_figures(
    demand: ServiceDemand, had: list[Supply], memory: LeastDevices | RealMemory, policy: Policy
) -> None:
    """The shares form the configuration, fit the supply and cost the price; a single type's phi is as defined."""
    choice = choose(demand, had, memory, policy)
    if choice is None:
        return
    config = choice.config
    assert sum(share.data for share in choice.shares) == config.data
    assert sum(share.prompt_data for share in choice.shares) == config.prompt_data
    by_name = {supply.type.name: supply for supply in had}
    price = 0.0
    for share in choice.shares:
        supply, kind = by_name[share.type.name], share.type
        assert memory.allows(config, kind)
        assert (share.prompt_data + share.data) * config.pipeline_devices <= share.instances * kind.devices
        assert (share.spot, share.on_demand) == supply.split(share.instances)
        price += share.spot * (kind.spot_price_per_h or 0) + share.on_demand * (kind.on_demand_price_per_h or 0)
    assert math.isclose(choice.price_per_h, price, abs_tol=1e-9)
    assert choice.meets_demand == (choice.throughput >= demand.arrival_rate)
    if len(choice.shares) == 1:
        phi = throughput(choice.shares[0].type.cost, config, demand.input_tokens, demand.output_tokens)
        assert math.isclose(choice.throughput, phi, rel_tol=1e-9)


@settings(max_examples=50)
@given(demands, supplies(), policies, st.integers(0, 1))
def test_more_to_be_had_is_never_worse(demand: ServiceDemand, had: list[Supply], policy: Policy, which: int) -> None:
    """With more supply the choice meets what it met before at no longer latency, or has no less throughput."""
    policy = replace(policy, latency_slack=0.0, latency_target_s=None)
    which = min(which, len(had) - 1)
    more = [replace(one, spot=one.spot + 1) if number == which else one for number, one in enumerate(had)]
    less_choice, more_choice = (choose(demand, some, LeastDevices(1), policy) for some in (had, more))
    if less_choice is None:
        return
    assert more_choice is not None
    if less_choice.meets_demand:
        assert more_choice.meets_demand
        assert latency_of(more_choice, policy) <= latency_of(less_choice, policy) * (1 + 1e-6)
    else:
        assert more_choice.throughput >= less_choice.throughput * (1 - 1e-6)


@settings(max_examples=50)
@given(demands, supplies(), policies, st.floats(1.0, 3.0))
def test_a_higher_load_is_never_served_faster(
    demand: ServiceDemand, had: list[Supply], policy: Policy, times: float
) -> None:
    """A configuration too slow for a load is too slow for a higher one, and a higher load never has a lower latency."""
    policy = replace(policy, latency_slack=0.0, latency_target_s=None)
    higher = replace(demand, arrival_rate=demand.arrival_rate * times)
    low_choice, high_choice = (choose(one, had, LeastDevices(1), policy) for one in (demand, higher))
    if low_choice is None or high_choice is None:
        assert low_choice is high_choice is None
        return
    assert low_choice.meets_demand or not high_choice.meets_demand
    if high_choice.meets_demand:
        assert latency_of(high_choice, policy) >= latency_of(low_choice, policy) * (1 - 1e-6)


@settings(max_examples=60)
@given(demands, supplies(), memories, policies, st.floats(0.0, 40.0))
def test_a_choice_within_a_budget_is_the_best_of_those_within_it(
    demand: ServiceDemand, had: list[Supply], memory: LeastDevices | RealMemory, policy: Policy, budget: float
) -> None:
    """Never above it, nothing where nothing fits it, and as good as trying everything that does."""
    choice = choose(demand, had, memory, replace(policy, budget_per_h=budget))
    tried = [one for one in every(demand, had, memory, policy) if one.price_per_h <= budget * (1 + 1e-9)]
    best = preferred(tried, demand, policy)
    if choice is None or best is None:
        assert choice is None
        assert best is None
        return
    assert choice.price_per_h <= budget * (1 + 1e-9)
    assert choice.meets_demand == any(one.throughput >= demand.arrival_rate for one in tried)
    assert ranked(choice.instances, choice.price_per_h, policy) == best


@settings(max_examples=40)
@given(demands, supplies(3), memories, policies)
def test_a_budget_without_bounds_changes_nothing(
    demand: ServiceDemand, had: list[Supply], memory: LeastDevices | RealMemory, policy: Policy
) -> None:
    assert choose(demand, had, memory, replace(policy, budget_per_h=math.inf)) == choose(demand, had, memory, policy)


@settings(max_examples=80)
@given(demands, supplies(3), memories, policies, st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_a_choice_again_has_the_same_figures(
    demand: ServiceDemand, had: list[Supply], memory: LeastDevices | RealMemory, policy: Policy, times: float
) -> None:
    """For the same load and supplies it is the same choice; for another load, what the optimizer says where it chooses it."""
    choice = choose(demand, had, memory, policy)
    if choice is None:
        return
    again = chosen_again(choice, demand, had, memory, policy)
    assert again is not None
    assert (again.config, again.shares, again.meets_demand) == (choice.config, choice.shares, choice.meets_demand)
    assert math.isclose(again.execution_s, choice.execution_s, rel_tol=1e-9)
    assert again.request_s == choice.request_s or math.isclose(again.request_s, choice.request_s, rel_tol=1e-6)
    if choice.price_per_h > 0:
        too_little = replace(policy, budget_per_h=choice.price_per_h / 2)
        assert chosen_again(choice, demand, had, memory, too_little) is None
    other = replace(demand, arrival_rate=demand.arrival_rate * times)
    chosen = choose(other, had, memory, policy)
    if chosen is not None and (chosen.config, chosen.shares) == (choice.config, choice.shares):
        later = chosen_again(choice, other, had, memory, policy)
        assert later is not None and later.meets_demand == chosen.meets_demand
        assert later.request_s == chosen.request_s or math.isclose(later.request_s, chosen.request_s, rel_tol=1e-6)
    names = [share.type.name for share in choice.shares]
    fewer = [
        replace(one, spot=0, on_demand=0, held_spot=0, held_on_demand=0) if one.type.name in names else one
        for one in had
    ]
    assert chosen_again(choice, demand, fewer, memory, policy) is None


@settings(max_examples=100)
@given(
    st.floats(0.0, 50.0),
    st.floats(0.0, 4.0),
    st.floats(0.01, 30.0),
    st.integers(1, 40),
    st.sampled_from([1, 2, 4, 8]),
    st.floats(0.0, 2.0),
    st.floats(1.0, 3.0),
)
def test_waits_grow_with_load_and_shrink_with_pipelines(
    rate: float, cv: float, service_s: float, servers: int, batch: int, service_cv: float, times: float
) -> None:
    """Never below nothing; with single requests they grow with what varies as well."""
    wait_s = waiting_s(rate, cv, service_s, servers, batch, service_cv)
    assert wait_s >= 0
    nearly = wait_s * (1 - 1e-9)
    assert waiting_s(rate * times, cv, service_s, servers, batch, service_cv) >= nearly
    assert waiting_s(rate, cv, service_s * times, servers, batch, service_cv) >= nearly
    assert waiting_s(rate, cv, service_s, servers + 1, batch, service_cv) <= wait_s * (1 + 1e-9)
    if batch == 1:
        assert waiting_s(rate, cv * times, service_s, servers, batch, service_cv) >= nearly
        assert waiting_s(rate, cv, service_s, servers, batch, service_cv * times) >= nearly


@given(
    st.sampled_from([1, 2, 3, 6]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 8),
    st.integers(1, 1000),
    st.integers(0, 9999),
)
def test_memory_follows_from_what_a_device_holds(
    stages: int, shards: int, batch: int, context_tokens: int, buffer_bytes: int
) -> None:
    """All devices of a pipeline hold at least the model and its KV; a smaller batch and more even parts need less."""
    memory = RealMemory(MODEL, context_tokens, buffer_bytes, prompt_tokens=10)
    config = ParallelConfig(1, stages, shards, batch)
    held_bytes = memory.device_bytes(config)
    kv_bytes = batch * context_tokens * MODEL.kv_token_bytes
    assert held_bytes * config.pipeline_devices >= MODEL.weight_bytes + kv_bytes + buffer_bytes
    assert memory.device_bytes(replace(config, max_batch=batch + 1)) > held_bytes
    assert memory.device_bytes(replace(config, tensor=2 * shards)) < held_bytes
    if stages < 6:
        assert memory.device_bytes(replace(config, pipeline=6)) < held_bytes
    fits = InstanceType("t", 1, math.ceil(held_bytes / memory.usable_share) + 1, 1.0, 1.0, TABLES)
    assert memory.allows(config, fits)
    assert not memory.allows(config, replace(fits, device_memory_bytes=int(held_bytes * 0.99 / memory.usable_share)))


@given(costs(), st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.sampled_from([1, 4]), st.integers(1, 600))
def test_an_execution_is_its_prompts_and_its_steps(
    cost: ExecutionCost, stages: int, shards: int, batch: int, tokens: int
) -> None:
    """However many pipelines there are, and twice as many serve twice as much."""
    config = ParallelConfig(1, stages, shards, batch)
    expected_s = cost.prompt_s(config, tokens) + 7 * cost.step_s(config)
    assert math.isclose(cost.execution_s(config, tokens, 7), expected_s, rel_tol=1e-9)
    assert cost.execution_s(replace(config, data=5), tokens, 7) == cost.execution_s(config, tokens, 7)
    assert cost.prompt_s(config, tokens + 1) > cost.prompt_s(config, tokens)
    single, double = (throughput(cost, replace(config, data=data), tokens, 7) for data in (1, 2))
    assert math.isclose(double, 2 * single, rel_tol=1e-9)
