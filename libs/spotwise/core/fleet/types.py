"""The types of instances that a mesh may have, and what a profiled model takes on each.

Law: a device is the machine of a profile (`spotwise profile`): it has the memory of the profiled worker, for weights and KV,
and its seconds, scaled to P stages of M shards (`parallel.scaled_cost`). One B fits the KV caches of all types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.costs.cost_profile import USUAL_MESSAGE_S, CostProfile
from spotwise.core.parallel.instances import InstanceType
from spotwise.core.parallel.memory import RealMemory
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.scaled_cost import ScaledCost

#: Largest B where none is given.
_USUAL_BATCH = 32
#: Between two devices of an instance.
_WITHIN_LATENCY_S = 1e-5


@dataclass(frozen=True, slots=True)
class MeasuredType:
    """Instances to measure a model on.

    Attributes:
        devices: devices of an instance.
        device_bytes: for weights and KV on a device; `None`: as the profiled worker had.
        local_bytes_per_s, network_bytes_per_s: within an instance, of a device; of an instance, each way.
    """

    name: str
    profile: CostProfile
    devices: int
    local_bytes_per_s: float
    network_bytes_per_s: float
    device_bytes: int | None = None

    def scaled_cost(self, shape: ModelShape, context_tokens: int) -> ScaledCost:
        """Return what a model costs on groups of these devices; `context_tokens`: that a sequence of a step attends to."""
        link = self.profile.link
        return ScaledCost(
            self.profile.iteration,
            shape,
            LinkCost(_WITHIN_LATENCY_S, self.local_bytes_per_s),
            LinkCost(USUAL_MESSAGE_S if link is None else link.latency_s, self.network_bytes_per_s),
            context_tokens,
        )


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """What the optimizer needs of a model on some types.

    Attributes:
        shape: with the KV that the engine caches.
        types: in the order given, without prices.
        max_batch: B.
    """

    shape: ModelShape
    types: tuple[InstanceType, ...]
    memory: RealMemory
    max_batch: int


def measured_model(
    types: Sequence[MeasuredType],
    shape: ModelShape,
    input_tokens: int,
    output_tokens: int,
    *,
    max_batch: int | None = None,
) -> MeasuredModel:
    """Return a model on types of instances, for requests of so many tokens.

    Args:
        shape: dimensions of the profiled model.
        max_batch: B; `None`: the largest power of two up to 32 whose usual requests fit each profiled KV cache.

    Raises:
        ValueError: a profile is of another model, or there is no type.
    """
    if not types:
        raise ValueError("a model is measured on at least one type of instance")
    shapes = [_profiled(shape, each.profile) for each in types]
    widest = max(shapes, key=lambda each: each.kv_layer_token_bytes)
    fitting = max(1, min(each.profile.kv_tokens for each in types) // (input_tokens + output_tokens))
    return MeasuredModel(
        widest,
        tuple(
            _instance_type(each, own, input_tokens + output_tokens // 2)
            for each, own in zip(types, shapes, strict=True)
        ),
        RealMemory(
            widest,
            input_tokens + output_tokens,
            prompt_tokens=1,
            whole_activations=0,
            sharded_activations=0,
            usable_share=1.0,
        ),
        max_batch or min(_USUAL_BATCH, 1 << (fitting.bit_length() - 1)),
    )


def _profiled(shape: ModelShape, profile: CostProfile) -> ModelShape:
    kv_layer_bytes, rest = divmod(profile.kv_bytes_per_token, shape.layers)
    # The engine may compute, and cache, in another precision than the model's folder has.
    if rest or kv_layer_bytes * 2 // shape.kv_layer_token_bytes not in (1, 2, 4):
        raise ValueError(
            f"the profile is of a model with {profile.kv_bytes_per_token:,} bytes of KV a token, and {shape.name} has "
            f"{shape.kv_token_bytes:,}; give the model that was profiled"
        )
    return replace(shape, kv_layer_token_bytes=kv_layer_bytes)


def _instance_type(measured: MeasuredType, shape: ModelShape, context_tokens: int) -> InstanceType:
    profile = measured.profile
    return InstanceType(
        measured.name,
        measured.devices,
        measured.device_bytes or shape.weight_bytes + profile.kv_tokens * shape.kv_token_bytes,
        None,
        None,
        measured.scaled_cost(shape, context_tokens),
    )


#: Between two instances, where neither the file nor the profile says: 10 Gbit/s.
USUAL_NETWORK_BYTES_PER_S = 1.25e9
#: Between two devices of an instance: PCIe 4.0 with 16 lanes, in practice.
USUAL_LOCAL_BYTES_PER_S = 10e9


@dataclass(frozen=True, slots=True)
class FleetType:
    """A type of instance.

    Attributes:
        devices, memory_bytes: devices of an instance; bytes of each for weights and KV, `None` as the profiled worker had.
        start_s: from its launch until it is ready, as a rule.
        profile: costs of a worker on one of its devices.
        local_bytes_per_s, network_bytes_per_s: within an instance; between two, `None` for the profile's link.
    """

    name: str
    devices: int
    memory_bytes: int | None
    start_s: float
    profile: CostProfile
    local_bytes_per_s: float = USUAL_LOCAL_BYTES_PER_S
    network_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.devices < 1 or (self.memory_bytes is not None and self.memory_bytes < 1):
            raise ValueError(f"{self.name} needs at least 1 device with memory")
        network = 1.0 if self.network_bytes_per_s is None else self.network_bytes_per_s
        if self.start_s < 0 or min(self.local_bytes_per_s, network) <= 0:
            raise ValueError(f"{self.name} starts in at least 0 s, and its links carry more than 0 bytes a second")

    @property
    def measured(self) -> MeasuredType:
        """The type as the optimizer measures it; shards of single devices exchange over the network."""
        link = self.profile.link
        known = USUAL_NETWORK_BYTES_PER_S if link is None else link.bytes_per_s
        network = known if self.network_bytes_per_s is None else self.network_bytes_per_s
        local = network if self.devices == 1 else self.local_bytes_per_s
        return MeasuredType(self.name, self.profile, self.devices, local, network, self.memory_bytes)
