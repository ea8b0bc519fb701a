"""Which shapes of pipelines may be tried, how fast each is on each type of machine, and how many of it there could be.

Law: a shape is (P, M, B). A pipeline stays within one type, so that n instances of a type with g devices each give
floor(n x g / (P x M)) pipelines: instances may be shared by pipelines, and a pipeline may span instances, as in SpotServe's
artifact. A shape has no pipelines on a type that is too small for it, or that has no numbers for it.

Invariants: a shape that is returned has a pipeline on some type at least; bounds hold for whatever mix of its pipelines.
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
    """A shape on a type.

    Attributes:
        supply: number of the supply.
        most: pipelines that it can have.
        execution_s: of a batch, both phases.
        prompt_s: of a batch's prompts.
        decode_s: of all tokens of a batch.
        handover_s: with phases apart, what of the way of a batch's KV to another pipeline is waited for.
    """

    supply: int
    most: int
    execution_s: float
    prompt_s: float
    decode_s: float
    handover_s: float


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of pipelines, and how fast it is where.

    Attributes:
        config: one pipeline of it.
        speeds: on each type that can have one, in the order of supplies.
    """

    config: ParallelConfig
    speeds: tuple[TypeSpeed, ...]

    def least_execution_s(self, *, is_split: bool) -> float:
        """Return the seconds that no mix of these pipelines is faster than."""
        if not is_split:
            return min(speed.execution_s for speed in self.speeds)
        prompt_s = min(speed.prompt_s + speed.handover_s for speed in self.speeds)
        return prompt_s + min(speed.decode_s for speed in self.speeds)

    def most_throughput(self, *, is_split: bool) -> float:
        """Return the requests a second that no mix of these pipelines exceeds."""
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
    """Return every shape that has a pipeline somewhere, by P, M and B."""
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
