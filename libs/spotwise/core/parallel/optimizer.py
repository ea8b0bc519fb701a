"""Chooses the parallel configuration for a load, and the instances that it takes (SpotServe, section 4.1, Algorithm 1).

Law: among configurations within the supplies, if any has phi(C) >= alpha, the one with the least l_req; else the greatest phi.
Latencies within `latency_slack` of the least, or below `latency_target_s`, are equal; the preference decides among them.
With phases split (Splitwise) the same search covers (D_prompt, D_token, P, M, B); each pipeline is on one instance type.
Shapes (P, M, B) are bounded by their l_exe and greatest phi; only shapes that can still win are evaluated (`mixes.py`).
Mixes above the budget are not considered. The result is deterministic, within the supplies, and no slower with larger ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from spotwise.core.parallel.candidates import Shape, shapes
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.evaluation import Mixes, evaluate, evaluate_mix
from spotwise.core.parallel.instances import ConfigChoice, InstanceShare, Supply
from spotwise.core.parallel.memory import MemoryLimit
from spotwise.core.parallel.policy import Phases, Policy, Preference, ServiceDemand

#: Relative difference below which numbers are equal: they were added up in another order.
_ROUNDING = 1e-9


def choose(
    demand: ServiceDemand, supplies: Sequence[Supply], memory: MemoryLimit, policy: Policy | None = None
) -> ConfigChoice | None:
    """Return the configuration for a load and its instances; `None` where none within supplies and budget fits the model.
    `supplies`: one for each type; the default policy if left out.
    """
    return _Search(demand, supplies, memory, policy or Policy()).best()


def chosen_again(
    choice: ConfigChoice,
    demand: ServiceDemand,
    supplies: Sequence[Supply],
    memory: MemoryLimit,
    policy: Policy | None = None,
) -> ConfigChoice | None:
    """Return an earlier choice with its figures for another load or other supplies; `None` where it cannot be had there."""
    only = replace(of_shape(choice.config, policy or Policy()), batch_sizes=(choice.config.max_batch,))
    return _Search(demand, supplies, memory, only).again(choice)


def of_shape(config: ParallelConfig, policy: Policy) -> Policy:
    """Return the policy that tries only a configuration's P, M and arrangement of phases, with any D: another D of a shape
    stops no pipeline that stays.
    """
    return replace(
        policy,
        tensor_degrees=(config.tensor,),
        pipeline_degrees=(config.pipeline,),
        phases=Phases.SPLIT if config.is_split else Phases.TOGETHER,
    )


class _Search:
    def __init__(self, demand: ServiceDemand, supplies: Sequence[Supply], memory: MemoryLimit, policy: Policy) -> None:
        self._demand = demand
        self._supplies = supplies
        self._policy = policy
        self._families = [
            (shape, is_split)
            for shape in shapes(demand, supplies, memory, policy)
            for is_split in (False, True)
            if policy.phases in (Phases.EITHER, Phases.SPLIT if is_split else Phases.TOGETHER)
            and (shape.can_split or not is_split)
        ]

    def best(self) -> ConfigChoice | None:
        """Return the choice."""
        return self._fastest_that_keeps_up() or self._greatest_throughput()

    def again(self, choice: ConfigChoice) -> ConfigChoice | None:
        """Return a choice of the only shape, evaluated."""
        wanted = {share.type.name: (share.prompt_data, share.data) for share in choice.shares}
        for shape, _ in self._families:
            names = [self._supplies[speed.supply].type.name for speed in shape.speeds]
            counts = [wanted.get(name, (0, 0)) for name in names]
            have_room = all(sum(count) <= speed.most for count, speed in zip(counts, shape.speeds, strict=True))
            if have_room and wanted.keys() <= set(names):
                mixes = evaluate_mix(shape, counts, self._demand, self._supplies, self._policy)
                affordable = mixes.within(self._budget_per_h)
                return self._choice(affordable, 0) if affordable.instances.size else None
        return None

    def _fastest_that_keeps_up(self) -> ConfigChoice | None:
        rate = self._demand.arrival_rate
        bounded = sorted(
            (shape.least_execution_s(is_split=is_split), place, shape, is_split)
            for place, (shape, is_split) in enumerate(self._families)
            if shape.most_throughput(is_split=is_split) >= rate * (1 - _ROUNDING)
        )
        evaluated: list[Mixes] = []
        limit_s = math.inf
        for bound_s, _, shape, is_split in bounded:
            if bound_s > limit_s:
                break
            mixes = self._evaluate(shape, is_split)
            if (keeping_up := mixes.latency_s[mixes.throughput >= rate]).size:
                evaluated.append(mixes)
                limit_s = min(limit_s, self._as_fast_s(float(keeping_up.min())))
        if limit_s == math.inf:
            return None  # no configuration keeps up: the greatest throughput is chosen
        found = [
            best
            for mixes in evaluated
            if (best := self._preferred(mixes, (mixes.throughput >= rate) & (mixes.latency_s <= limit_s))) is not None
        ]
        return self._choice(*min(found, key=lambda entry: entry[0])[1:])

    def _as_fast_s(self, least_s: float) -> float:
        return max(least_s * (1 + self._policy.latency_slack + _ROUNDING), self._policy.latency_target_s or 0.0)

    def _greatest_throughput(self) -> ConfigChoice | None:
        bounded = sorted(
            (-shape.most_throughput(is_split=is_split), place, shape, is_split)
            for place, (shape, is_split) in enumerate(self._families)
        )
        evaluated: list[Mixes] = []
        greatest = 0.0
        for negative_bound, _, shape, is_split in bounded:
            if -negative_bound < greatest * (1 - _ROUNDING):
                break
            mixes = self._evaluate(shape, is_split)
            evaluated.append(mixes)
            greatest = max(greatest, float(mixes.throughput.max(initial=0.0)))
        enough = greatest * (1 - _ROUNDING)
        least_s = min(
            (float(mixes.execution_s[mixes.throughput >= enough].min(initial=math.inf)) for mixes in evaluated),
            default=0,
        )
        most_s = least_s * (1 + _ROUNDING)
        found = [
            best
            for mixes in evaluated
            if (best := self._preferred(mixes, (mixes.throughput >= enough) & (mixes.execution_s <= most_s)))
            is not None
        ]
        return self._choice(*min(found, key=lambda entry: entry[0])[1:]) if found else None

    def _evaluate(self, shape: Shape, is_split: bool) -> Mixes:
        return evaluate(shape, is_split, self._demand, self._supplies, self._policy).within(self._budget_per_h)

    @property
    def _budget_per_h(self) -> float | None:
        budget = self._policy.budget_per_h
        return None if budget is None else budget * (1 + _ROUNDING)

    def _preferred(self, mixes: Mixes, allowed: NDArray[np.bool_]) -> tuple[tuple[float, ...], Mixes, int] | None:
        columns = np.flatnonzero(allowed)
        if not columns.size:
            return None
        first_key = {
            Preference.FEWEST: mixes.instances,
            Preference.CHEAPEST: np.round(mixes.price_per_h, 9),
            Preference.MOST: -mixes.instances,
        }[self._policy.preference][columns]
        columns = columns[first_key == first_key.min()]
        instances = mixes.instances[columns]
        price = np.round(mixes.price_per_h[columns], 9)
        latency_s = np.round(mixes.latency_s[columns], 9)
        lost = -np.round(mixes.throughput[columns], 9)
        keys = {
            Preference.FEWEST: (instances, price, latency_s, lost),
            Preference.CHEAPEST: (price, instances, latency_s, lost),
            Preference.MOST: (-instances, latency_s, lost, price),
        }[self._policy.preference]
        first = int(np.lexsort(keys[::-1])[0])
        return tuple(float(key[first]) for key in keys), mixes, int(columns[first])

    def _choice(self, mixes: Mixes, column: int) -> ConfigChoice:
        prompt_data, data, shape = mixes.prompt_data[:, column], mixes.data[:, column], mixes.shape
        shares = []
        for row, speed in enumerate(shape.speeds):
            supply = self._supplies[speed.supply]
            prompts, decodes = int(prompt_data[row]), int(data[row])
            instances = -(-(prompts + decodes) * shape.config.pipeline_devices // supply.type.devices)
            if instances:
                shares.append(InstanceShare(supply.type, prompts, decodes, *supply.split(instances)))
        throughput = float(mixes.throughput[column])
        return ConfigChoice(
            replace(shape.config, data=int(data.sum()), prompt_data=int(prompt_data.sum())),
            tuple(shares),
            float(mixes.execution_s[column]),
            float(mixes.request_s[column]),
            throughput,
            float(mixes.price_per_h[column]),
            throughput >= self._demand.arrival_rate,
        )
