"""Whether a configuration fits the devices.

Law: a device holds its shard of its stage's layers, of the embedding or the head where its stage has one, the KV of its layers
for a batch of B sequences, what an iteration computes in passing, and a buffer of U_max bytes for what migrates to it
(SpotServe, sections 4.1 and 4.3). The fuller stage of a pipeline decides; where P is 1, one stage has both ends. A pipeline
that computes prompts only holds its batch's KV until that is handed over, so it is given no less room than one that decodes.

SpotServe's code knows no bytes, only the least number of devices that a model fits on (`LeastDevices`): its Table 1.

Invariants: what fits fits with a smaller batch, on larger devices, and with more of them in a pipeline where these share the
layers evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import InstanceType
from spotwise.core.parallel.model_shape import ModelShape


class MemoryLimit(Protocol):
    """Knows what fits."""

    def allows(self, config: ParallelConfig, instance_type: InstanceType) -> bool:
        """Return whether a pipeline of the configuration fits devices of that type."""


@dataclass(frozen=True, slots=True)
class LeastDevices:
    """A pipeline needs so many devices at least, whatever they are; the published code's rule.

    Attributes:
        devices: least P x M.
    """

    devices: int

    def allows(self, config: ParallelConfig, instance_type: InstanceType) -> bool:
        """Return whether a pipeline has enough devices."""
        return config.pipeline_devices >= self.devices


@dataclass(frozen=True, slots=True)
class RealMemory:
    """Bytes decide.

    Attributes:
        model: whose weights and KV they are.
        context_tokens: tokens of a sequence at its longest, prompt and answer.
        buffer_bytes: kept on each device for what migrates: U_max.
        prompt_tokens: tokens that one iteration computes at most.
        whole_activations: numbers of a token, in hidden sizes, that every shard has: what goes from layer to layer, a copy
            that is normed, a sum that is collected.
        sharded_activations: the same, shared out among shards: queries, keys and values, and what is inside the MLP.
        usable_share: of a device's memory; the rest is the runtime's.
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
            raise ValueError(f"nothing takes less than no memory: {self}")

    def device_bytes(self, config: ParallelConfig) -> float:
        """Return the bytes that the fullest device holds."""
        stages, shards, model = config.pipeline, config.tensor, self.model
        each = -(-model.layers // stages)
        last = -(-model.layers // each) - 1  # padding may leave the stages behind it empty
        held_layer_bytes = model.layer_bytes + config.max_batch * self.context_tokens * model.kv_layer_token_bytes
        first_bytes = each * held_layer_bytes + model.embedding_bytes
        last_bytes = (model.layers - last * each) * held_layer_bytes + model.head_bytes
        fullest_bytes = max(first_bytes, last_bytes) if last else first_bytes + model.head_bytes
        activations = self.whole_activations + self.sharded_activations / shards
        return (
            fullest_bytes / shards
            + activations * self.prompt_tokens * model.hidden_size * model.value_bytes
            + self.buffer_bytes
        )

    def allows(self, config: ParallelConfig, instance_type: InstanceType) -> bool:
        """Return whether the fullest device's bytes fit."""
        return self.device_bytes(config) <= self.usable_share * instance_type.device_memory_bytes
