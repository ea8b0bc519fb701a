"""Instance types with their costs, how many instances of each are available, and the choice of a configuration for them.

Law: an instance is spot, which the provider may reclaim, or on demand; both run equally fast.
Available: instances held or starting, less those under notice, plus requestable ones (N_t, SpotServe, section 4.1).
The cheaper kind is taken first; at equal prices on demand, since it is not reclaimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spotwise.core.parallel.config import ParallelConfig


@dataclass(frozen=True, slots=True)
class InstanceType:
    """A kind of machine.

    Attributes:
        devices, device_memory_bytes: accelerators of one instance, and the memory of each.
        spot_price_per_h, on_demand_price_per_h: dollars an hour; `None` where it is not sold as that.
        cost: execution cost on its devices.
    """

    name: str
    devices: int
    device_memory_bytes: int
    spot_price_per_h: float | None
    on_demand_price_per_h: float | None
    cost: ExecutionCost

    def __post_init__(self) -> None:
        if self.devices < 1 or self.device_memory_bytes < 1:
            raise ValueError(f"{self.name} needs at least 1 device with memory")
        if min(self.spot_price_per_h or 0.0, self.on_demand_price_per_h or 0.0) < 0:
            raise ValueError(f"no price of {self.name} may be below 0")


@dataclass(frozen=True, slots=True)
class Supply:
    """The available instances of a type, held, starting or requestable, none under notice.

    Attributes:
        held_spot, held_on_demand: held or starting.
        spot_prices, on_demand_prices: dollars an hour of each, in the order in which they are taken; empty: the type's.
    """

    type: InstanceType
    spot: int = 0
    on_demand: int = 0
    held_spot: int = 0
    held_on_demand: int = 0
    spot_prices: tuple[float, ...] = ()
    on_demand_prices: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not (0 <= self.held_spot <= self.spot and 0 <= self.held_on_demand <= self.on_demand):
            raise ValueError(f"held instances of {self.type.name} must be among the available ones: {self}")
        name = self.type.name
        for prices, count in ((self.spot_prices, self.spot), (self.on_demand_prices, self.on_demand)):
            if prices and len(prices) != count:
                raise ValueError(f"{count} instances of {name} are available, and {len(prices)} have a price")
        if self.spot and self.type.spot_price_per_h is None:
            raise ValueError(f"{name} is not sold as spot; give it a `spot_price_per_h`, or no spot instances")
        if self.on_demand and self.type.on_demand_price_per_h is None:
            raise ValueError(f"{name} is not sold on demand; give it an `on_demand_price_per_h`, or none such")

    @property
    def instances(self) -> int:
        """Available instances."""
        return self.spot + self.on_demand

    @property
    def held(self) -> int:
        """Instances held or starting."""
        return self.held_spot + self.held_on_demand

    def split(self, instances: int) -> tuple[int, int]:
        """Return how many of so many instances are spot and how many on demand, the cheaper first; too many: `ValueError`."""
        if instances > self.instances:
            raise ValueError(f"{instances} instances of {self.type.name} are not available, {self.instances} are")
        if self._spot_first:
            spot = min(instances, self.spot)
            return spot, instances - spot
        on_demand = min(instances, self.on_demand)
        return instances - on_demand, on_demand

    def price_per_h(self, instances: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the dollars an hour of each of several numbers of instances, the cheaper first."""
        spot = np.minimum(instances, self.spot) if self._spot_first else np.maximum(instances - self.on_demand, 0)
        return _sum_of_first(spot, self.type.spot_price_per_h or 0.0, self.spot_prices) + _sum_of_first(
            instances - spot, self.type.on_demand_price_per_h or 0.0, self.on_demand_prices
        )

    @property
    def _spot_first(self) -> bool:
        spot_price, on_demand_price = self.type.spot_price_per_h, self.type.on_demand_price_per_h
        return spot_price is not None and (on_demand_price is None or spot_price < on_demand_price)


def _sum_of_first(instances: NDArray[np.int64], price: float, prices: tuple[float, ...]) -> NDArray[np.float64]:
    if not prices:
        return instances * np.float64(price)
    sums: NDArray[np.float64] = np.concatenate(([0.0], np.cumsum(prices)))
    return sums[instances]


class ExecutionCost(Protocol):
    """Seconds of a full batch on one pipeline of a configuration; infinite without measurements, so that it is not chosen."""

    def prompt_s(self, config: ParallelConfig, input_tokens: int) -> float:
        """Return the seconds of a full batch's prompts, one-time costs of the batch included."""

    def step_s(self, config: ParallelConfig) -> float:
        """Return the seconds of one token of each sequence of a full batch."""

    def execution_s(self, config: ParallelConfig, input_tokens: int, output_tokens: int) -> float:
        """Return l_exe, the seconds of a full batch from its start to its last token, an awaited KV transfer included."""


def throughput(cost: ExecutionCost, config: ParallelConfig, input_tokens: int, output_tokens: int) -> float:
    """Return phi, the most requests a second that a configuration serves.
    A request without tokens to compute or to decode raises `ValueError`.
    """
    if min(input_tokens, output_tokens) < 1:
        raise ValueError(f"a request has at least 1 token in and 1 out, not {input_tokens} and {output_tokens}")
    batch = config.max_batch
    if not config.is_split:
        return config.data * batch / cost.execution_s(config, input_tokens, output_tokens)
    prompts_per_s = config.prompt_data * batch / cost.prompt_s(config, input_tokens)
    return min(prompts_per_s, config.data * batch / (output_tokens * cost.step_s(config)))


@dataclass(frozen=True, slots=True)
class InstanceShare:
    """An instance type's contribution to a choice: pipelines for prompts only, pipelines that decode (where phases are together
    they compute prompts as well), and instances.
    """

    type: InstanceType
    prompt_data: int
    data: int
    spot: int
    on_demand: int

    @property
    def instances(self) -> int:
        """Instances of that type."""
        return self.spot + self.on_demand


@dataclass(frozen=True, slots=True)
class ConfigChoice:
    """The optimizer's choice.

    Attributes:
        shares: contribution of each type that has one, in the order of supplies.
        execution_s, request_s: l_exe, mean over requests; l_req, infinite where throughput is below the arrival rate.
        throughput: phi, requests a second.
        price_per_h: dollars an hour.
        meets_demand: tells that phi >= alpha.
    """

    config: ParallelConfig
    shares: tuple[InstanceShare, ...]
    execution_s: float
    request_s: float
    throughput: float
    price_per_h: float
    meets_demand: bool

    @property
    def instances(self) -> int:
        """Instances in all."""
        return sum(share.instances for share in self.shares)
