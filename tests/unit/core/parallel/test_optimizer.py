"""Tests of the optimizer: the configuration that it chooses, and its instances."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import ConfigChoice, InstanceShare, InstanceType, Supply
from spotwise.core.parallel.memory import LeastDevices, RealMemory
from spotwise.core.parallel.optimizer import choose
from spotwise.core.parallel.policy import Latency, Phases, Policy, Preference, ServiceDemand
from tests.unit.core.parallel.builders import MODEL, engine_shape, machine, scaled
from tests.unit.core.parallel.exhaustive import every
from tests.unit.core.parallel.waits import waiting_s

ANY = LeastDevices(1)
LOAD = ServiceDemand(1.0, 1.0, input_tokens=100, output_tokens=20)


def chosen(demand: ServiceDemand, supplies: list[Supply], policy: Policy | None = None) -> ConfigChoice:
    choice = choose(demand, supplies, ANY, policy)
    assert choice is not None
    return choice


def small(**changes: object) -> Policy:
    """One stage, one shard, batches of one."""
    usual: dict[str, object] = {"pipeline_degrees": (1,), "tensor_degrees": (1,), "batch_sizes": (1,)}
    return Policy(**{**usual, **changes})  # type: ignore[arg-type]


def test_a_load_that_cannot_be_met_gets_the_greatest_throughput() -> None:
    """Under a load above every throughput the latency is infinite, and the configuration of greatest throughput is chosen."""
    supplies = [Supply(machine(), 1, 1)]
    demand = ServiceDemand(1000.0, 1.0, 100, 20)
    choice = chosen(demand, supplies)
    assert not choice.meets_demand
    assert choice.request_s == math.inf
    assert choice.throughput == pytest.approx(max(one.throughput for one in every(demand, supplies, ANY, Policy())))


def test_nothing_is_chosen_where_nothing_fits() -> None:
    assert choose(LOAD, [], ANY) is None
    assert choose(LOAD, [Supply(machine())], ANY) is None
    assert choose(LOAD, [Supply(machine(memory_bytes=1000), 9)], RealMemory(MODEL, 100)) is None
    assert choose(LOAD, [Supply(machine(), 1)], LeastDevices(5)) is None
    assert choose(LOAD, [Supply(machine(devices=1), 1)], ANY, small(phases=Phases.SPLIT)) is None


def test_pipelines_may_span_instances_and_share_them() -> None:
    """Three stages on two instances of two devices; three pipelines of one device on the same."""
    supply = Supply(machine(devices=2, cost=scaled()), 3)
    spanning = chosen(LOAD, [supply], small(pipeline_degrees=(3,), preference=Preference.MOST))
    assert (spanning.config, spanning.instances) == (ParallelConfig(2, 3, 1), 3)
    sharing = chosen(ServiceDemand(1e6, 1.0, 100, 20), [Supply(supply.type, 2)], small())
    assert (sharing.config, sharing.instances) == (ParallelConfig(4, 1, 1), 2)


def test_of_those_as_fast_the_preference_decides() -> None:
    """A slow load: one instance is enough; of two types that are as fast, the cheaper or the one with more devices."""
    cheap, large = machine("cheap", 1, spot=1.0), machine("large", 4, spot=9.0)
    supplies = [Supply(cheap, 9), Supply(large, 2)]
    demand = ServiceDemand(5.0, 1.0, 100, 1)
    policy = small(latency=Latency.EXECUTION, latency_slack=0.0)
    per_pipeline = chosen(ServiceDemand(0.0, 1.0, 100, 1), [Supply(cheap, 1)], policy).throughput
    assert 1 <= demand.arrival_rate / per_pipeline < 2
    fewest = chosen(demand, supplies, policy)
    assert fewest.shares == (InstanceShare(large, 0, 4, 1, 0),)
    cheapest = chosen(demand, supplies, small(latency=Latency.EXECUTION, preference=Preference.CHEAPEST))
    assert cheapest.shares == (InstanceShare(cheap, 0, 2, 2, 0),)
    most = chosen(demand, supplies, small(latency=Latency.EXECUTION, preference=Preference.MOST))
    assert most.shares == (InstanceShare(cheap, 0, 9, 9, 0), InstanceShare(large, 0, 8, 2, 0))


def test_pipelines_of_several_types_serve_together() -> None:
    """Two fast ones and a fifth of one more: one slow one gives a third; the mean latency is between theirs."""
    fast, slow = machine("fast", 1, cost=scaled()), machine("slow", 1, cost=scaled(slower=3.0))
    supplies = [Supply(fast, 1, 1), Supply(slow, 0, 6)]
    alone = chosen(LOAD, [supplies[0]], small(latency=Latency.EXECUTION))
    demand = ServiceDemand(alone.throughput * 2.2, 1.0, 100, 20)
    choice = chosen(demand, supplies, small(latency=Latency.EXECUTION))
    assert choice.shares == (InstanceShare(fast, 0, 2, 1, 1), InstanceShare(slow, 0, 1, 0, 1))
    assert alone.execution_s < choice.execution_s < 3 * alone.execution_s
    assert choice.price_per_h == pytest.approx(1 + 3 + 3)


def test_a_slow_and_cheap_type_is_enough_within_the_target() -> None:
    """Without one, the least latency is what counts."""
    fast, slow = machine("fast", 1, spot=10.0, cost=scaled()), machine("slow", 1, cost=scaled(slower=3.0))
    supplies = [Supply(fast, 9), Supply(slow, 9)]
    demand = ServiceDemand(0.1, 1.0, 100, 20)
    eager = chosen(demand, supplies, small(preference=Preference.CHEAPEST))
    assert [share.type.name for share in eager.shares] == ["fast"]
    patient = chosen(demand, supplies, small(preference=Preference.CHEAPEST, latency_target_s=10.0))
    assert [share.type.name for share in patient.shares] == ["slow"]
    assert patient.request_s <= 10.0


def test_the_request_waits_less_with_more_pipelines_and_the_execution_does_not() -> None:
    """Optimized for request latency, more pipelines are chosen than throughput requires; optimized for execution, they are
    not.
    """
    supplies = [Supply(machine(devices=1, cost=scaled()), 40)]
    one = chosen(LOAD, supplies, small(latency=Latency.EXECUTION)).throughput
    demand = ServiceDemand(one * 0.95, 1.0, 100, 20)
    assert chosen(demand, supplies, small(latency=Latency.EXECUTION)).config.data == 1
    assert chosen(demand, supplies, small()).config.data > 1


def test_phases_apart_share_pipelines_out_by_their_work() -> None:
    """The throughput is the lesser of the two; no other shares of as many pipelines have more."""
    supplies = [Supply(machine(devices=4, cost=scaled()), 3)]
    demand = ServiceDemand(1e6, 1.0, 100, 5)
    choice = chosen(demand, supplies, small(phases=Phases.SPLIT))
    prompt_s, step_s = scaled().prompt_s(choice.config, 100), scaled().step_s(choice.config)
    rates = [min(prompts / prompt_s, (12 - prompts) / (5 * step_s)) for prompts in range(1, 12)]
    assert choice.throughput == pytest.approx(max(rates))
    assert choice.config.is_split
    assert choice.config.pipelines <= 12


def test_phases_may_be_on_types_of_their_own() -> None:
    supplies = [
        Supply(machine("fast", 1, spot=9.0, cost=scaled()), 4),
        Supply(machine("slow", 1, spot=1.0, cost=scaled(slower=2.0)), 40),
    ]
    demand = ServiceDemand(8.0, 1.0, 400, 2)
    policy = small(phases=Phases.SPLIT, preference=Preference.CHEAPEST, latency_target_s=0.3)
    choice = chosen(demand, supplies, policy)
    kinds = [(share.type.name, bool(share.prompt_data), bool(share.data)) for share in choice.shares]
    assert kinds == [("fast", True, False), ("slow", False, True)]
    assert choice.meets_demand


def test_a_type_that_is_too_small_gives_nothing() -> None:
    """Pipelines of the small type would not fit, those of the other type do."""
    supplies = [Supply(machine("small", memory_bytes=1_000_000), 9), Supply(machine("large"), 2)]
    choice = choose(ServiceDemand(1000.0, 1.0, 100, 20), supplies, RealMemory(MODEL, 100, prompt_tokens=1), small())
    assert choice is not None
    assert [share.type.name for share in choice.shares] == ["large"]


def test_the_order_of_the_degrees_does_not_matter() -> None:
    """The choice depends neither on the order of the degrees nor on duplicates among them."""
    supplies = [Supply(machine(), 3)]
    one = Policy(batch_sizes=(4, 1, 2, 2), tensor_degrees=(4, 2, 1), pipeline_degrees=(3, 1, 2))
    other = Policy(batch_sizes=(1, 2, 4), tensor_degrees=(1, 2, 4), pipeline_degrees=(1, 2, 3))
    assert choose(LOAD, supplies, ANY, one) == choose(LOAD, supplies, ANY, other)


def test_a_thousand_devices_are_answered() -> None:
    """Three types, spot and on demand, phases together or apart, and all that keeps up is fast enough."""

    def of(name: str, devices: int, slower: float, spot: float) -> InstanceType:
        return machine(name, devices, spot=spot, on_demand=3 * spot, cost=scaled(slower=slower))

    supplies = [
        Supply(of("h", 8, 1, 30.0), 10, 15),
        Supply(of("a", 8, 2, 12.0), 30, 20),
        Supply(of("t", 4, 9, 2.0), 60, 40),
    ]
    assert sum(supply.instances * supply.type.devices for supply in supplies) == 1000
    policy = Policy(phases=Phases.EITHER, preference=Preference.CHEAPEST, latency_target_s=30.0)
    choice = chosen(ServiceDemand(40.0, 1.5, 100, 20), supplies, policy)
    assert choice.meets_demand
    assert choice.request_s <= 30.0


def test_with_phases_apart_a_request_waits_twice() -> None:
    supplies = [Supply(machine(devices=2, cost=scaled()), 1)]
    cost, demand = scaled(), ServiceDemand(2.0, 1.0, 100, 5)
    choice = chosen(demand, supplies, small(phases=Phases.SPLIT))
    waits_s = [
        waiting_s(2.0, 1.0, cost.prompt_s(choice.config, 100), 1),
        waiting_s(2.0, 1.0, 5 * cost.step_s(choice.config), 1),
    ]
    assert min(waits_s) > 0
    assert choice.request_s == pytest.approx(choice.execution_s + sum(waits_s))


def test_a_model_that_the_engine_cuts_has_the_shards_that_its_heads_allow() -> None:
    """Three of twelve KV heads, for devices too small for two shards' weights; no power of two is tried in their place."""
    model = engine_shape(layers=4, inputs=1000)
    memory = RealMemory(model, context_tokens=10, prompt_tokens=1)
    policy = Policy.of_model(model)
    assert policy.tensor_degrees == (1, 2, 3, 4)
    too_small_for_two = int(memory.device_bytes(ParallelConfig(1, 1, 3)) / 0.9) + 1
    supplies = [Supply(machine(devices=3, cost=scaled(model=model), memory_bytes=too_small_for_two), 1)]
    one_stage = replace(policy, pipeline_degrees=(1,), batch_sizes=(1,))
    choice = choose(LOAD, supplies, memory, one_stage)
    assert choice is not None and choice.config == ParallelConfig(1, 1, 3, 1)
