"""The configuration a system requests for a fleet size and a rate. An adaptive system calls `core.parallel`'s optimizer, for
the paper's models by the artifact's rules (P divides the padded layers, B up to the model's limit); a fixed one keeps P and M
of the trace's largest fleet and runs as many pipelines as fit (SpotServe, section 4.1; `Rerouting` and the ablation)."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.parallel.choice import ConfigChoice
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import InstanceType, Supply
from spotwise.core.parallel.layer_tables import LayerTables
from spotwise.core.parallel.optimizer import choose
from spotwise.core.parallel.policy import Policy, ServiceDemand
from spotwise.simulator.spotserve.profiles import ON_DEMAND_PER_H, SPOT_PER_H
from spotwise.simulator.spotserve.run import SpotRun
from spotwise.simulator.spotserve.systems import SpotModel

#: More requests a second than any fleet serves.
_ANY_RATE = 1e9
#: Step of the rates that configurations are chosen for, so that similar rates share a cached answer.
_RATE_STEP = 0.01


def greatest_throughput(model: SpotModel, instances: int, input_tokens: int, output_tokens: int) -> ConfigChoice | None:
    """Return the configuration that serves most requests a second, as whole batches; `None` where the model does not fit."""
    demand = ServiceDemand(_ANY_RATE, input_tokens=input_tokens, output_tokens=output_tokens)
    return _choose(model, demand, instances, _policy(model))


class Choices:
    """Configurations of one run's system; answers are cached."""

    def __init__(self, run: SpotRun) -> None:
        model, system = run.model, run.system
        self._run = run
        self._policy = replace(_policy(model), phases=system.phases, latency=system.latency)
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
        arrivals, model = self._run.arrivals, self._run.model
        demand = ServiceDemand(rate, input_tokens=arrivals.input_tokens, output_tokens=arrivals.output_tokens)
        choice = _choose(model, demand, instances, self._policy)
        return None if choice is None else replace(choice.config, max_batch=model.max_batch)


def _policy(model: SpotModel) -> Policy:
    padded_layers = model.cost.padded_layers if isinstance(model.cost, LayerTables) else model.shape.layers
    policy = Policy.spotserve(padded_layers, max_batch=model.max_batch)
    if model.searched_as_published:
        return policy
    own = Policy.of_model(model.shape)
    return replace(
        policy,
        batch_sizes=(model.max_batch,),
        tensor_degrees=own.tensor_degrees,
        pipeline_degrees=own.pipeline_degrees,
    )


def _choose(model: SpotModel, demand: ServiceDemand, instances: int, policy: Policy) -> ConfigChoice | None:
    if instances < 1:
        return None
    kind = InstanceType("instance", model.devices, model.device_bytes, SPOT_PER_H, ON_DEMAND_PER_H, model.cost)
    return choose(demand, [Supply(kind, spot=instances, held_spot=instances)], model.memory, policy)
