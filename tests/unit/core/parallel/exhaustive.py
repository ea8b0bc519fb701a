"""The optimizer's question answered by trying everything: each mix of each shape, one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import Supply
from spotwise.core.parallel.memory import MemoryLimit
from spotwise.core.parallel.policy import Latency, Phases, Policy, Preference, ServiceDemand
from tests.unit.core.parallel.waits import waiting_s


@dataclass(frozen=True, slots=True)
class Tried:
    """A configuration and what it is worth."""

    config: ParallelConfig
    throughput: float
    execution_s: float
    latency_s: float
    instances: int
    price_per_h: float


def every(demand: ServiceDemand, supplies: Sequence[Supply], memory: MemoryLimit, policy: Policy) -> Iterator[Tried]:
    """Yield every configuration that can be had, phases together on any types, or apart on one type each."""
    for stages, shards, batch in product(policy.pipeline_degrees, policy.tensor_degrees, policy.batch_sizes):
        one = ParallelConfig(1, stages, shards, batch)
        most = [
            supply.instances * supply.type.devices // one.pipeline_devices if memory.allows(one, supply.type) else 0
            for supply in supplies
        ]
        if policy.phases is not Phases.SPLIT:
            for counts in product(*(range(count + 1) for count in most)):
                if any(counts):
                    yield from _tried(one, [0] * len(counts), list(counts), demand, supplies, policy)
        if policy.phases is not Phases.TOGETHER:
            for first, second in product(range(len(most)), repeat=2):
                for prompts, decodes in product(range(1, most[first] + 1), range(1, most[second] + 1)):
                    if first == second and prompts + decodes > most[first]:
                        continue
                    prompt_counts, counts_ = [0] * len(most), [0] * len(most)
                    prompt_counts[first], counts_[second] = prompts, decodes
                    yield from _tried(one, prompt_counts, counts_, demand, supplies, policy)


def _tried(
    one: ParallelConfig,
    prompts: list[int],
    data: list[int],
    demand: ServiceDemand,
    supplies: Sequence[Supply],
    policy: Policy,
) -> Iterator[Tried]:
    config = replace(one, data=sum(data), prompt_data=sum(prompts))
    costs = [supply.type.cost for supply in supplies]
    batch, tokens_in, tokens_out = one.max_batch, demand.input_tokens, demand.output_tokens

    def wait_s(service_s: float, servers: int) -> float:
        return waiting_s(demand.arrival_rate, demand.arrival_cv, service_s, servers, batch, demand.execution_cv)

    if config.is_split:
        first, second = prompts.index(sum(prompts)), data.index(sum(data))
        prompt_s, decode_s = costs[first].prompt_s(one, tokens_in), tokens_out * costs[second].step_s(one)
        apart_s = costs[first].execution_s(replace(one, prompt_data=1), tokens_in, tokens_out)
        handover_s = apart_s - costs[first].execution_s(one, tokens_in, tokens_out)
        throughput = min(config.prompt_data * batch / prompt_s, config.data * batch / decode_s)
        execution_s = prompt_s + handover_s + decode_s
    else:
        used = [(count, cost) for count, cost in zip(data, costs, strict=True) if count]
        throughput = sum(count * batch / cost.execution_s(one, tokens_in, tokens_out) for count, cost in used)
        execution_s = config.data * batch / throughput if throughput else math.inf
    if not math.isfinite(execution_s):
        return
    if policy.latency is Latency.EXECUTION:
        latency_s = execution_s
    elif config.is_split:
        latency_s = execution_s + wait_s(prompt_s, config.prompt_data) + wait_s(decode_s, config.data)
    else:
        latency_s = execution_s + wait_s(execution_s, config.data)
    needed = [
        -(-(prompt + decode) * one.pipeline_devices // supply.type.devices)
        for prompt, decode, supply in zip(prompts, data, supplies, strict=True)
    ]
    splits = [supply.split(instances) for supply, instances in zip(supplies, needed, strict=True)]
    price = sum(
        spot * (supply.type.spot_price_per_h or 0.0) + on_demand * (supply.type.on_demand_price_per_h or 0.0)
        for (spot, on_demand), supply in zip(splits, supplies, strict=True)
    )
    yield Tried(config, throughput, execution_s, latency_s, sum(needed), price)


def preferred(tried: Sequence[Tried], demand: ServiceDemand, policy: Policy) -> tuple[float, ...] | None:
    """Return what decides for the best of what was tried: whether it keeps up, and its two first numbers."""
    if not tried:
        return None
    enough = [one for one in tried if one.throughput >= demand.arrival_rate and math.isfinite(one.latency_s)]
    if enough:
        least_s = min(one.latency_s for one in enough)
        limit_s = max(least_s * (1 + policy.latency_slack + 1e-9), policy.latency_target_s or 0.0)
        found = [one for one in enough if one.latency_s <= limit_s]
    else:
        most = max(one.throughput for one in tried)
        found = [one for one in tried if one.throughput >= most * (1 - 1e-9)]
        least_s = min(one.execution_s for one in found)
        found = [one for one in found if one.execution_s <= least_s * (1 + 1e-9)]
    return min(ranked(one.instances, one.price_per_h, policy) for one in found)


def ranked(instances: int, price_per_h: float, policy: Policy) -> tuple[float, ...]:
    """Return instances and price as the preference has them; of most instances only these."""
    price = round(price_per_h, 6)
    return {
        Preference.FEWEST: (instances, price),
        Preference.CHEAPEST: (price, instances),
        Preference.MOST: (-instances,),
    }[policy.preference]
