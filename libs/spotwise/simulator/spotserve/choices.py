"""Which configuration a system wants for so many instances and such a load.

A system that adapts asks the optimizer of `core.parallel` with the rules of SpotServe's artifact: P divides the padded
layers, and batches may be as large as the model's limit. One that does not keeps the P and M chosen for the largest fleet of
the trace, and has as many pipelines as fit (SpotServe, section 4.1; `Rerouting` and the ablation in the artifact).
"""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import InstanceType, Supply
from spotwise.core.parallel.layer_tables import LayerTables
from spotwise.core.parallel.memory import LeastDevices
from spotwise.core.parallel.optimizer import choose
from spotwise.core.parallel.policy import Policy, ServiceDemand
from spotwise.simulator.spotserve.profiles import ON_DEMAND_PER_H, SPOT_PER_H
from spotwise.simulator.spotserve.run import SpotRun

#: Rates are chosen for in these steps, so that like rates are one question.
_RATE_STEP = 0.01


class Choices:
    """What one run's system wants; an answer is remembered."""

    def __init__(self, run: SpotRun) -> None:
        model, system = run.model, run.system
        self._run = run
        self._type = InstanceType("instance", model.devices, 1, SPOT_PER_H, ON_DEMAND_PER_H, model.cost)
        padded_layers = model.cost.padded_layers if isinstance(model.cost, LayerTables) else model.shape.layers
        policy = Policy.spotserve(padded_layers, max_batch=model.max_batch)
        self._policy = replace(policy, phases=system.phases, latency=system.latency)
        self._answers: dict[tuple[int, float], ParallelConfig | None] = {}
        self._shape = system.shape
        if not system.adapts and self._shape is None:
            most = max(count for _, count in run.trace.counts())
            self._shape = self._chosen(most, run.required_rate or run.arrivals.rate)

    def config(self, instances: int, rate: float) -> ParallelConfig | None:
        """Return what is wanted on so many instances; `None` where the model does not fit."""
        if self._run.system.adapts:
            return self._chosen(instances, rate)
        shape = self._shape
        data = instances * self._run.model.devices // shape.pipeline_devices if shape else 0
        return replace(shape, data=data, prompt_data=0) if shape and data else None

    @property
    def shape(self) -> ParallelConfig | None:
        """P, M and B of a system that keeps them, D 1."""
        return None if self._shape is None else replace(self._shape, data=1, prompt_data=0)

    def _chosen(self, instances: int, rate: float) -> ParallelConfig | None:
        key = (instances, round(rate / _RATE_STEP) * _RATE_STEP)
        if key not in self._answers:
            self._answers[key] = self._ask(*key)
        return self._answers[key]

    def _ask(self, instances: int, rate: float) -> ParallelConfig | None:
        if instances < 1:
            return None
        arrivals, model = self._run.arrivals, self._run.model
        demand = ServiceDemand(rate, input_tokens=arrivals.input_tokens, output_tokens=arrivals.output_tokens)
        supply = Supply(self._type, spot=instances, held_spot=instances)
        choice = choose(demand, [supply], LeastDevices(model.least_devices), self._policy)
        return None if choice is None else replace(choice.config, max_batch=model.max_batch)
