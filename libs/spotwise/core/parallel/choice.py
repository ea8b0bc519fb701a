"""The optimizer's result: a configuration, and the instances of each type that it takes."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import InstanceType


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
