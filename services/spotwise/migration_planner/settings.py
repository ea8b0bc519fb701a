"""Settings of the migration planner, in addition to every service's."""

from __future__ import annotations

from pydantic import Field

from spotwise.core.planner.policy import PlannerPolicy
from spotwise.mesh.settings import ServiceSettings


class PlannerSettings(ServiceSettings):
    """What the planner moves, and when."""

    moves: bool = Field(
        True,
        description="move the requests of workers that leave; without, these finish them or give them back at the deadline",
    )
    rebalances: bool = Field(
        True, description="also move requests away from a worker that runs out of KV blocks, or left the token pool"
    )
    move_margin_s: float = Field(
        1.0, ge=0, le=30, description="kept free before a worker's deadline, at most a quarter of its notice"
    )
    planner_lease_s: float = Field(
        1.5, ge=0.3, le=30, description="silence of the planner after which another one takes over"
    )
    form_s: float = Field(
        60.0, gt=0, le=3600, description="a re-shape whose new groups do not serve after so many seconds is abandoned"
    )
    reshape_drain_s: float = Field(
        120.0,
        gt=0,
        le=3600,
        description="requests that have not left a group that retires after so long are computed again",
    )
    replace_after_s: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="a device that is absent for so many seconds is replaced in its groups; longer than a restart takes",
    )
    planner_metrics_port: int | None = Field(
        None, ge=0, le=65535, description="port of the planner's metrics; 0 takes a free one, unset serves none"
    )

    @property
    def policy(self) -> PlannerPolicy:
        """How the role plans."""
        return PlannerPolicy(
            moves=self.moves,
            rebalances=self.rebalances,
            margin_s=self.move_margin_s,
            member_timeout_s=self.member_timeout_s,
            form_s=self.form_s,
            reshape_drain_s=self.reshape_drain_s,
            replace_after_s=self.replace_after_s,
        )
