"""The configuration a system requests for a fleet size and a rate. An adaptive system calls `core.parallel`'s optimizer by the
artifact's rules (P divides the padded layers, B up to the model's limit); a fixed one keeps P and M of the trace's largest
fleet and runs as many pipelines as fit (SpotServe, section 4.1; `Rerouting` and the ablation)."""

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

#: Step of the rates that configurations are chosen for, so that similar rates share a cached answer.
_RATE_STEP = 0.01


class Choices:
    """Configurations of one run's system; answers are cached."""

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
        """Return the configuration for so many instances; `None` where the model does not fit."""
        if self._run.system.adapts:
            return self._chosen(instances, rate)
        shape = self._shape
        data = instances * self._run.model.devices // shape.pipeline_devices if shape else 0
        return replace(shape, data=data, prompt_data=0) if shape and data else None

    @property
    def shape(self) -> ParallelConfig | None:
        """P, M and B of a system with a fixed shape, D 1."""
        return None if self._shape is None else replace(self._shape, data=1, prompt_data=0)

    def _chosen(self, instances: int, rate: float) -> ParallelConfig | None:
        key = (instances, round(rate / _RATE_STEP) * _RATE_STEP)
        if key not in self._answers:
            self._answers[key] = self._best_config(*key)
        return self._answers[key]

    def _best_config(self, instances: int, rate: float) -> ParallelConfig | None:
        if instances < 1:
            return None
        arrivals, model = self._run.arrivals, self._run.model
        demand = ServiceDemand(rate, input_tokens=arrivals.input_tokens, output_tokens=arrivals.output_tokens)
        supply = Supply(self._type, spot=instances, held_spot=instances)
        choice = choose(demand, [supply], LeastDevices(model.least_devices), self._policy)
        return None if choice is None else replace(choice.config, max_batch=model.max_batch)
