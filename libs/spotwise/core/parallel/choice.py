"""The answer of the optimizer: a configuration, and what each type of machine gives to it."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import InstanceType


@dataclass(frozen=True, slots=True)
class InstanceShare:
    """What a type gives to a choice.

    Attributes:
        type: the kind of machine.
        prompt_data: its pipelines that compute prompts only.
        data: its pipelines that decode, and where phases are together compute prompts as well.
        spot: instances as spot.
        on_demand: instances on demand.
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
    """What the optimizer chose.

    Attributes:
        config: the configuration.
        shares: what each type gives, in the order of supplies; those that give nothing are left out.
        execution_s: l_exe, mean over requests.
        request_s: l_req; infinite where the load is not kept up with.
        throughput: phi.
        price_per_h: dollars an hour.
        meets_demand: whether phi >= alpha.
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
