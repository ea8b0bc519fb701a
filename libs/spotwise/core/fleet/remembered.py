"""Remembers what configurations cost and hold, which the optimizer asks for again in each decision."""

from __future__ import annotations

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.execution import ExecutionCost
from spotwise.core.parallel.instances import InstanceType
from spotwise.core.parallel.memory import MemoryLimit


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
