"""Decides if a configuration fits the devices' memory.

Law: a device holds its shard of its stage's layers, of the embedding or the head, the KV of its layers for B sequences, an
iteration's activations, and a migration buffer of U_max bytes (SpotServe, sections 4.1 and 4.3).
The fullest stage decides; a pipeline for prompts only needs as much memory, as it holds its batch's KV until the hand-off.
SpotServe's code counts devices instead of bytes (`LeastDevices`): its Table 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import InstanceType
from spotwise.core.parallel.model_shape import ModelShape


class MemoryLimit(Protocol):
    """Decides which configurations fit."""

    def allows(self, config: ParallelConfig, instance_type: InstanceType) -> bool:
        """Return whether a pipeline of the configuration fits devices of that type."""


@dataclass(frozen=True, slots=True)
class LeastDevices:
    """A pipeline needs at least `devices` devices (P x M), as in the published code."""

    devices: int

    def allows(self, config: ParallelConfig, instance_type: InstanceType) -> bool:
        """Return whether a pipeline has enough devices."""
        return config.pipeline_devices >= self.devices


@dataclass(frozen=True, slots=True)
class RealMemory:
    """Decides by bytes.

    Attributes:
        context_tokens: tokens of the longest sequence, prompt and output.
        buffer_bytes: U_max, kept on each device for migration.
        prompt_tokens: most tokens that one iteration computes.
        whole_activations: a token's on every shard, in hidden sizes: residual stream, its normed copy, a collected sum.
        sharded_activations: those divided among shards: queries, keys, values, and the MLP's.
        usable_share: usable share of a device's memory, above 0 and up to 1; the rest is the runtime's.
    """

    model: ModelShape
    context_tokens: int
    buffer_bytes: int = 0
    prompt_tokens: int = 2048
    whole_activations: float = 3.0
    sharded_activations: float = 8.0
    usable_share: float = 0.9

    def __post_init__(self) -> None:
        if min(self.context_tokens, self.prompt_tokens) < 1 or not 0 < self.usable_share <= 1:
            raise ValueError(f"sequences have tokens, and of memory a share above 0 and up to 1 is usable: {self}")
        if min(self.buffer_bytes, self.whole_activations, self.sharded_activations) < 0:
            raise ValueError(f"memory sizes must be at least 0: {self}")

    def device_bytes(self, config: ParallelConfig) -> float:
        """Return the bytes that the fullest device holds, of a configuration that the model can have."""
        stages, shards, model = config.pipeline, config.tensor, self.model
        last = model.last_stage(stages)  # in the papers' cut there may be empty ones behind it
        kv_bytes = config.max_batch * self.context_tokens * model.kv_layer_token.most(shards)
        held_layer_bytes = model.layer.most(shards) + kv_bytes
        first_bytes = len(model.stage_layers(0, stages)) * held_layer_bytes + model.embedding.most(shards)
        last_bytes = len(model.stage_layers(last, stages)) * held_layer_bytes + model.head.most(shards)
        fullest_bytes = max(first_bytes, last_bytes) if last else first_bytes + model.head.most(shards)
        activations = self.whole_activations + self.sharded_activations / shards
        return (
            fullest_bytes + activations * self.prompt_tokens * model.hidden_size * model.value_bytes + self.buffer_bytes
        )

    def allows(self, config: ParallelConfig, instance_type: InstanceType) -> bool:
        """Return whether the model can be cut like this, and the fullest device's bytes fit."""
        if self.model.partition is not None and self.model.why_not(config.pipeline, config.tensor) is not None:
            return False
        return self.device_bytes(config) <= self.usable_share * instance_type.device_memory_bytes
