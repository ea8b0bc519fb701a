"""Settings of a process of simulated workers, beside those of every worker."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from spotwise.core.cost_model import LinkCost
from spotwise.core.cost_profile import BUILT_IN, CostProfile, profile_from_json
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.worker.settings import WorkerSettings


class SimulatedWorkerSettings(WorkerSettings):
    """Some workers of one pool: who they are, and what they cost."""

    members: str = Field(
        "",
        pattern=r"^([A-Za-z0-9_-]+(,[A-Za-z0-9_-]+)*)?$",
        description="ids of the simulated workers of this process, separated by commas; where empty one, with the service's id",
    )
    profile: Path | None = Field(
        None,
        description="cost profile of a simulated worker, as spotwise profile writes it; a built-in one where unset",
    )
    speed: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="how many times as fast as its profile a simulated worker is"
    )
    simulated_kv: Literal["timed", "real"] = Field(
        "timed",
        description="hand-offs of simulated workers: timed lasts as long as the profile says, real pushes bytes by UCX",
    )

    @model_validator(mode="after")
    def _profile_is_one(self) -> Self:
        self.link(self.costs())
        return self

    @property
    def member_ids(self) -> tuple[str, ...]:
        """The workers of this process, in order, each once."""
        return tuple(dict.fromkeys(self.members.split(","))) if self.members else (self.service_id,)

    def costs(self) -> CostProfile:
        """Return what each worker costs, at speed 1.

        Raises:
            ValueError: the file cannot be read, or is no profile.
        """
        if self.profile is None:
            return BUILT_IN
        try:
            return profile_from_json(self.profile.read_bytes())
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.profile} is no cost profile: {error}") from error

    def num_blocks(self, costs: CostProfile) -> int:
        """Return the KV blocks of a worker: the profile's, or as many as were asked for in bytes."""
        tokens = costs.kv_tokens
        if "kv_cache_bytes" in self.model_fields_set:
            tokens = self.kv_cache_bytes // costs.kv_bytes_per_token
        return max(1, tokens // self.kv_block_size)

    def link(self, costs: CostProfile) -> LinkCost:
        """Return the link's cost at this speed.

        Raises:
            ValueError: the profile does not say it.
        """
        link = costs.known_link
        return LinkCost(link.latency_s / self.speed, link.bytes_per_s * self.speed)

    def policy(self, context_parity: float = math.inf) -> WorkerPolicy:
        """Return how each worker batches and gives memory; seconds in it are of the simulation's speed, as all others."""
        scaled = self.model_copy(update={"max_stall_ms": self.max_stall_ms / self.speed})
        return WorkerSettings.policy(scaled, context_parity)
