"""Settings of a process of simulated workers, in addition to every worker's."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from spotwise.core.costs.cost_model import NO_LINK, LinkCost
from spotwise.core.costs.cost_profile import BUILT_IN, USUAL_HOST_LINK, CostProfile, at_speed
from spotwise.core.messages.members import Pool
from spotwise.core.messages.numerics import Numerics
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.worker.settings import Cost, WorkerSettings

#: Memory of a machine to that of its devices: GPU servers have several times as much.
_HOST_TO_DEVICE = 4


class SimulatedWorkerSettings(WorkerSettings):
    """Ids and costs of simulated workers, all in one pool."""

    members: str = Field(
        "",
        pattern=r"^([A-Za-z0-9_-]+(,[A-Za-z0-9_-]+)*)?$",
        description="comma-separated ids of the simulated workers of this process; default: one, with the service's id",
    )
    speed: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="speed of a simulated worker relative to its profile"
    )
    simulated_kv: Literal["timed", "real"] = Field(
        "timed",
        description="hand-offs of simulated workers: timed (take the profile's time) or real (push bytes over UCX)",
    )

    @model_validator(mode="after")
    def _profile_is_one(self) -> Self:
        self.link(self.costs())
        return self

    @model_validator(mode="after")
    def _has_no_adapters(self) -> Self:
        if self.adapters:
            raise ValueError("SPOTWISE_ADAPTERS: a simulated worker computes nothing, and serves no adapters; unset it")
        return self

    @property
    def member_ids(self) -> tuple[str, ...]:
        """The workers of this process, in order, each once."""
        return tuple(dict.fromkeys(self.members.split(","))) if self.members else (self.service_id,)

    def costs(self) -> CostProfile:
        """Return each worker's cost profile at speed 1: the configured one, or the built-in one; raises `ValueError` where the
        file cannot be read, or is no profile.
        """
        return self.cost_profile() or BUILT_IN

    @property
    def numerics(self) -> Numerics | None:
        """The numerics that its workers claim to have: those of `dtype`, for trials with several classes; `auto`: none."""
        return None if self.dtype == "auto" else Numerics(self.dtype, "simulated")

    def num_blocks(self, costs: CostProfile) -> int:
        """Return the KV blocks of a worker: the profile's, or those of `kv_cache_bytes` where it is a number."""
        tokens = costs.kv_tokens
        if self.kv_cache_bytes != "auto":
            tokens = self.kv_cache_bytes // costs.kv_bytes_per_token
        return max(1, tokens // self.kv_block_size)

    def num_host_blocks(self, costs: CostProfile) -> int:
        """Return the host blocks of a worker: four times its KV blocks, or those of `kv_host_bytes` where it is set."""
        if not self.swaps:
            return 0
        if self.kv_host_bytes is None:
            return _HOST_TO_DEVICE * self.num_blocks(costs)
        return max(1, self.kv_host_bytes // costs.kv_bytes_per_token // self.kv_block_size)

    def link(self, costs: CostProfile) -> LinkCost:
        """Return the link's cost at this speed (a mixed worker needs none); raises `ValueError` where the profile has none."""
        is_mixed = self.pool in (None, Pool.MIXED)
        return self._at_speed(NO_LINK if costs.link is None and is_mixed else costs.known_link)

    def host_link(self, costs: CostProfile) -> LinkCost:
        """Return the cost of the link between device and host at this speed."""
        return self._at_speed(costs.host_link or USUAL_HOST_LINK)

    def _at_speed(self, link: LinkCost) -> LinkCost:
        return LinkCost(link.latency_s / self.speed, link.bytes_per_s * self.speed)

    def worker_policy(self, context_parity: float = math.inf, cost: Cost | None = None) -> WorkerPolicy:
        """Return how each worker batches and allocates memory, in seconds at the simulation's speed."""
        starve_limit_ms = None if self.starve_limit_ms is None else self.starve_limit_ms / self.speed
        scaled = self.model_copy(
            update={
                "max_stall_ms": self.max_stall_ms / self.speed,
                "preempt_after_ms": self.preempt_after_ms / self.speed,
                "starve_limit_ms": starve_limit_ms,
            }
        )
        return WorkerSettings.worker_policy(scaled, context_parity, at_speed(cost or BUILT_IN.iteration, self.speed))
