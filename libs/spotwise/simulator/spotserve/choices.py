"""The configuration a system requests for a fleet size and a rate. An adaptive system calls `core.parallel`'s optimizer, for
the paper's models by the artifact's rules (P divides the padded layers, B up to the model's limit); a fixed one keeps P and M
of the trace's largest fleet and runs as many pipelines as fit (SpotServe, section 4.1; `Rerouting` and the ablation)."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.fleet.kept_choice import ChangeSeconds, KeptChoice
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import ConfigChoice, InstanceType, Supply
from spotwise.core.parallel.layer_tables import LayerTables
from spotwise.core.parallel.optimizer import choose, of_shape
from spotwise.core.parallel.policy import Policy, ServiceDemand
from spotwise.simulator.spotserve.run import SpotRun
from spotwise.simulator.spotserve.systems import SpotModel

#: More requests a second than any fleet serves.
_ANY_RATE = 1e9
#: Step of the rates that configurations are chosen for, so that similar rates share a cached answer.
_RATE_STEP = 0.01
#: A planner's defaults: the headroom of a load, and by how much and for how long another configuration is better before it
#: replaces one that serves.
_KEEPING = FleetPolicy()


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
        self._answers: dict[tuple[int, float, ParallelConfig | None], ConfigChoice | None] = {}
        self._kept = KeptChoice(_KEEPING.gain, _KEEPING.hold_s)
        self._binds = run.required_rate is not None  # what was chosen before a load was measured is not kept
        self._shape = system.shape
        if not system.adapts and self._shape is None:
            most = max(count for _, count in run.trace.counts())
            self._shape = self._chosen(most, run.required_rate or run.arrivals.rate)

    def config(
        self, instances: int, rate: float, now: float = 0.0, change: ChangeSeconds | None = None
    ) -> ParallelConfig | None:
        """Return the configuration for so many instances; `None` where the model does not fit.

        Args:
            change: what one takes, of a system that keeps its configuration. It keeps the shape: another D stops no pipeline
                that stays.
        """
        if self._run.system.adapts:
            return self._chosen(instances, rate) if change is None else self._to_keep(instances, rate, now, change)
        shape = self._shape
        data = instances * self._run.model.devices // shape.pipeline_devices if shape else 0
        return replace(shape, data=data, prompt_data=0) if shape and data else None

    @property
    def shape(self) -> ParallelConfig | None:
        """P, M and B of a system with a fixed shape, D 1."""
        return None if self._shape is None else replace(self._shape, data=1, prompt_data=0)

    def _to_keep(self, instances: int, rate: float, now: float, change: ChangeSeconds) -> ParallelConfig | None:
        rate *= _KEEPING.headroom
        new, kept, current = self._best(instances, rate), self._kept.choice, None
        if kept is not None and self._binds:
            current = self._best(instances, rate, self._full(kept).shape)
        self._binds = self._binds or now >= self._run.surroundings.window_s
        choice = self._kept.update(new, current, self._policy, now, change=change)
        return None if choice is None else self._full(choice)

    def _chosen(self, instances: int, rate: float) -> ParallelConfig | None:
        choice = self._best(instances, rate)
        return None if choice is None else self._full(choice)

    def _full(self, choice: ConfigChoice) -> ParallelConfig:
        """Return a choice with the largest B, with which all are run."""
        return replace(choice.config, max_batch=self._run.model.max_batch)

    def _best(self, instances: int, rate: float, shape: ParallelConfig | None = None) -> ConfigChoice | None:
        """Return the best choice, of all shapes or of one."""
        key = (instances, round(rate / _RATE_STEP) * _RATE_STEP, shape)
        if key not in self._answers:
            arrivals, model = self._run.arrivals, self._run.model
            demand = ServiceDemand(key[1], input_tokens=arrivals.input_tokens, output_tokens=arrivals.output_tokens)
            policy = self._policy if shape is None else of_shape(shape, self._policy)
            self._answers[key] = _choose(model, demand, instances, policy)
        return self._answers[key]


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
    # Instances of a trace are paid whether they serve or not, so that no configuration is cheaper than another.
    kind = InstanceType("instance", model.devices, model.device_bytes, 0.0, 0.0, model.cost)
    return choose(demand, [Supply(kind, spot=instances, held_spot=instances)], model.memory, policy)
