"""Asks the optimizer for a fleet's configuration, and remembers what configurations cost and hold.

Law: of those that are fast enough the cheapest, and without load the cheapest of all. The rate counts with headroom. Loads that
differ by less than `_STEP` are one load, so that noise changes nothing and an answer is computed once.
B is as large as the load needs, for requests join and leave a batch between two iterations: what is chosen runs with any.
Without a given target fast enough is `latency_factor` times a request without load on a type's fewest instances that hold the
model, of the slowest type: what is cheapest without load is fast enough until requests wait. Only the types, the model and the
requests' sizes count, so that no price, refusal, purchase or loss moves the target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.state import FleetState
from spotwise.core.fleet.types import FleetType, MeasuredModel, measured_model
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import ConfigChoice, ExecutionCost, InstanceType, Supply
from spotwise.core.parallel.memory import LeastDevices, MemoryLimit
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.optimizer import choose, chosen_again, of_shape
from spotwise.core.parallel.policy import Policy, Preference, ServiceDemand


class RememberedCost:
    """An `ExecutionCost` with the same answers as another one."""

    def __init__(self, cost: ExecutionCost) -> None:
        self._cost = cost
        self._prompts_s: dict[tuple[ParallelConfig, int], float] = {}
        self._steps_s: dict[ParallelConfig, float] = {}
        self._executions_s: dict[tuple[ParallelConfig, int, int], float] = {}

    def prompt_s(self, config: ParallelConfig, input_tokens: int) -> float:
        """Return the seconds of a full batch's prompts."""
        key = config, input_tokens
        if key not in self._prompts_s:
            self._prompts_s[key] = self._cost.prompt_s(config, input_tokens)
        return self._prompts_s[key]

    def step_s(self, config: ParallelConfig) -> float:
        """Return the seconds of one token of each sequence of a full batch."""
        if config not in self._steps_s:
            self._steps_s[config] = self._cost.step_s(config)
        return self._steps_s[config]

    def execution_s(self, config: ParallelConfig, input_tokens: int, output_tokens: int) -> float:
        """Return l_exe, the seconds of a full batch from its start to its last token."""
        key = config, input_tokens, output_tokens
        if key not in self._executions_s:
            self._executions_s[key] = self._cost.execution_s(*key)
        return self._executions_s[key]


class RememberedMemory:
    """A `MemoryLimit` with the same answers as another one, of types with names of their own."""

    def __init__(self, memory: MemoryLimit) -> None:
        self._memory = memory
        self._allows: dict[tuple[ParallelConfig, str], bool] = {}

    def allows(self, config: ParallelConfig, instance_type: InstanceType) -> bool:
        """Return whether a pipeline of the configuration fits devices of that type."""
        key = config, instance_type.name
        if key not in self._allows:
            self._allows[key] = self._memory.allows(config, instance_type)
        return self._allows[key]


_STEP = 1.05
_CV_STEP = 0.25
#: Any request is fast enough where there is none.
_ANY_LATENCY_S = 1e9
_REMEMBERED = 12


def rounded(demand: ServiceDemand) -> ServiceDemand:
    """Return a load that stands for all similar ones; its rate is no lower."""
    return ServiceDemand(
        _STEP ** math.ceil(_steps(demand.arrival_rate) - 1e-9) if demand.arrival_rate > 0 else 0.0,
        round(demand.arrival_cv / _CV_STEP) * _CV_STEP,
        round(_STEP ** round(_steps(demand.input_tokens))),
        round(_STEP ** round(_steps(demand.output_tokens))),
        round(demand.execution_cv / _CV_STEP) * _CV_STEP,
    )


class FleetSearch:
    """The optimizer for a fleet's types."""

    def __init__(self, types: Sequence[FleetType], policy: FleetPolicy) -> None:
        self._types = [each.measured for each in types]
        self._policy = policy
        self._instance_types: tuple[InstanceType, ...] = ()
        self._memory: MemoryLimit = LeastDevices(1)
        self._measured: MeasuredModel | None = None
        self._measured_for: tuple[ModelShape, int, int] | None = None
        self._answers: list[tuple[tuple[ServiceDemand, Sequence[Supply], Policy], ConfigChoice | None]] = []
        self._latency_target_s = policy.latency_target_s

    def measure(self, model: ModelShape, demand: ServiceDemand) -> str | None:
        """Take a model and the usual size of its requests; return why it cannot be, `None` where it can."""
        similar = rounded(demand)
        measured_for = model, similar.input_tokens, similar.output_tokens
        if self._measured is None or measured_for != self._measured_for:
            self._measured = None
            try:
                self._measured = measured_model(self._types, *measured_for)
            except ValueError as error:
                return str(error)
            self._measured_for = measured_for
            self._instance_types = tuple(replace(each, cost=RememberedCost(each.cost)) for each in self._measured.types)
            self._memory = RememberedMemory(self._measured.memory)
            self._answers.clear()
            if self._policy.latency_target_s is None:
                unloaded_s = [self._unloaded_s(each, similar) for each in self._instance_types]
                self._latency_target_s = self._policy.latency_factor * max(unloaded_s)
        return None

    @property
    def types(self) -> tuple[InstanceType, ...]:
        """The types with the model's costs, without prices."""
        return self._instance_types

    @property
    def latency_target_s(self) -> float | None:
        """Seconds of a request that are fast enough, as given or for the measured model; `None` before that."""
        return self._latency_target_s

    def policy(self, demand: ServiceDemand, budget_per_h: float | None) -> Policy:
        """Return the optimizer's policy for a load."""
        model, fleet = self._model, self._policy
        return replace(
            Policy.of_model(model.shape, fleet.phases),
            batch_sizes=tuple(1 << doublings for doublings in range(model.max_batch.bit_length())),
            preference=Preference.CHEAPEST,
            latency_slack=fleet.latency_slack,
            latency_target_s=self._latency_target_s if demand.arrival_rate > 0 else _ANY_LATENCY_S,
            budget_per_h=budget_per_h,
        )

    def choose(
        self, demand: ServiceDemand, supplies: Sequence[Supply], budget_per_h: float | None
    ) -> ConfigChoice | None:
        """Return the best configuration within supplies and budget; `None` where there is none."""
        return self._chosen(self._with_headroom(demand), supplies, self.policy(demand, budget_per_h))

    def again(
        self, choice: ConfigChoice, demand: ServiceDemand, supplies: Sequence[Supply], budget_per_h: float | None
    ) -> ConfigChoice | None:
        """Return a configuration with its present figures, for the B that fits the load best; `None` where it cannot be had."""
        policy, load = self.policy(demand, budget_per_h), self._with_headroom(demand)
        found = [
            each
            for batch in policy.batch_sizes
            if (each := chosen_again(_with_batch(choice, batch), load, supplies, self._memory, policy)) is not None
        ]
        keeping_up = [each for each in found if each.meets_demand]
        if keeping_up:
            return min(keeping_up, key=lambda each: each.request_s)
        return max(found, key=lambda each: each.throughput, default=None)

    def alike(
        self, choice: ConfigChoice, demand: ServiceDemand, supplies: Sequence[Supply], budget_per_h: float | None
    ) -> ConfigChoice | None:
        """Return the best configuration of a choice's shape, with any D; `None` where there is none."""
        policy = of_shape(choice.config, self.policy(demand, budget_per_h))
        return self._chosen(self._with_headroom(demand), supplies, policy)

    def most_throughput(self, choice: ConfigChoice, demand: ServiceDemand, supplies: Sequence[Supply]) -> float:
        """Return the requests a second that a configuration serves with the largest B."""
        full = _with_batch(choice, self._model.max_batch)
        found = chosen_again(full, self._with_headroom(demand), supplies, self._memory, self.policy(demand, None))
        return max(choice.throughput, 0.0 if found is None else found.throughput)

    def running_meet(self, demand: ServiceDemand, state: FleetState) -> bool:
        """Return whether the running instances alone serve a load, without headroom."""
        running = {each.name: state.running(each.name) for each in self.types}
        supplies = state.supplies_of(self.types, running)
        choice = self._chosen(rounded(demand), supplies, self.policy(demand, None))
        return choice is not None and choice.meets_demand

    def _unloaded_s(self, instance_type: InstanceType, demand: ServiceDemand) -> float:
        """Return the seconds of a request without load on a type's fewest instances that hold the model; 0 where none do."""
        idle, priced = replace(demand, arrival_rate=0.0), replace(instance_type, spot_price_per_h=1.0)
        policy = self.policy(idle, None)
        most_devices = 2 * max(policy.pipeline_degrees) * max(policy.tensor_degrees)  # with phases split there are two
        for doublings in range(most_devices.bit_length() + 1):
            choice = choose(idle, [Supply(priced, 1 << doublings)], self._memory, policy)
            if choice is not None:
                return choice.request_s
        return 0.0

    def _with_headroom(self, demand: ServiceDemand) -> ServiceDemand:
        return rounded(replace(demand, arrival_rate=demand.arrival_rate * self._policy.headroom))

    def _chosen(self, demand: ServiceDemand, supplies: Sequence[Supply], policy: Policy) -> ConfigChoice | None:
        question = demand, supplies, policy
        for known, answer in self._answers:
            if known == question:
                return answer
        answer = choose(demand, supplies, self._memory, policy)
        self._answers = [(question, answer), *self._answers[: _REMEMBERED - 1]]
        return answer

    @property
    def _model(self) -> MeasuredModel:
        assert self._measured is not None, "a model is measured first"
        return self._measured


def _with_batch(choice: ConfigChoice, batch: int) -> ConfigChoice:
    return replace(choice, config=replace(choice.config, max_batch=batch))


def _steps(value: float) -> float:
    return math.log(value) / math.log(_STEP)
