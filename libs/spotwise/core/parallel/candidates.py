"""The pipeline shapes to try, and the speed and number of each on every instance type.

Law: a shape is (P, M, B). A pipeline stays within one type: n instances with g devices give floor(n x g / (P x M)) pipelines,
so that pipelines may share instances or span several, as in SpotServe's artifact.
A shape has no pipelines on a type that is too small or has no measurements for it.
Bounds hold for every mix of a shape's pipelines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import Supply
from spotwise.core.parallel.memory import MemoryLimit
from spotwise.core.parallel.policy import Phases, Policy, ServiceDemand


@dataclass(frozen=True, slots=True)
class TypeSpeed:
    """A shape on the type of supply number `supply`; seconds of a full batch.

    Attributes:
        most: pipelines that it can have.
        execution_s: both phases.
        handover_s: with phases split, the awaited part of the KV transfer to another pipeline.
    """

    supply: int
    most: int
    execution_s: float
    prompt_s: float
    decode_s: float
    handover_s: float


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of pipelines (`config`: one of them), and its speed on each type that can have one, in the order of supplies."""

    config: ParallelConfig
    speeds: tuple[TypeSpeed, ...]

    def least_execution_s(self, *, is_split: bool) -> float:
        """Return a lower bound on the seconds of a batch on any mix of these pipelines."""
        if not is_split:
            return min(speed.execution_s for speed in self.speeds)
        prompt_s = min(speed.prompt_s + speed.handover_s for speed in self.speeds)
        return prompt_s + min(speed.decode_s for speed in self.speeds)

    def most_throughput(self, *, is_split: bool) -> float:
        """Return an upper bound on the requests a second of any mix of these pipelines."""
        batch = self.config.max_batch
        if not is_split:
            return math.fsum(speed.most * batch / speed.execution_s for speed in self.speeds)
        # On one type the pipelines are shared out; on two, each kind may have all of its type's.
        return batch * max(
            prompts.most / (prompts.prompt_s + prompts.decode_s)
            if prompts is decodes
            else min(prompts.most / prompts.prompt_s, decodes.most / decodes.decode_s)
            for prompts in self.speeds
            for decodes in self.speeds
        )

    @property
    def can_split(self) -> bool:
        """Whether there can be a pipeline for prompts and one that decodes."""
        return sum(speed.most for speed in self.speeds) > 1


def shapes(demand: ServiceDemand, supplies: Sequence[Supply], memory: MemoryLimit, policy: Policy) -> list[Shape]:
    """Return every shape that has a pipeline on some type, by P, M and B."""
    devices = [supply.instances * supply.type.devices for supply in supplies]
    most_devices = max(devices, default=0)
    found = []
    for stages in sorted(set(policy.pipeline_degrees)):
        for shards in sorted(set(policy.tensor_degrees)):
            if stages * shards > most_devices:
                break
            for batch in sorted(set(policy.batch_sizes)):
                config = ParallelConfig(1, stages, shards, batch)
                speeds = [
                    _speed(config, number, supply, devices[number] // config.pipeline_devices, demand, policy.phases)
                    for number, supply in enumerate(supplies)
                    if devices[number] >= config.pipeline_devices and memory.allows(config, supply.type)
                ]
                if finite := tuple(speed for speed in speeds if math.isfinite(speed.execution_s)):
                    found.append(Shape(config, finite))
    return found


def _speed(
    config: ParallelConfig, number: int, supply: Supply, most: int, demand: ServiceDemand, phases: Phases
) -> TypeSpeed:
    cost = supply.type.cost
    prompt_s = cost.prompt_s(config, demand.input_tokens)
    decode_s = demand.output_tokens * cost.step_s(config)
    execution_s = cost.execution_s(config, demand.input_tokens, demand.output_tokens)
    if phases is Phases.TOGETHER or not math.isfinite(execution_s):
        return TypeSpeed(number, most, execution_s, prompt_s, decode_s, 0.0)
    apart_s = cost.execution_s(replace(config, prompt_data=1), demand.input_tokens, demand.output_tokens)
    return TypeSpeed(number, most, execution_s, prompt_s, decode_s, max(0.0, apart_s - prompt_s - decode_s))
