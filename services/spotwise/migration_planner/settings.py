"""Settings of the migration planner, in addition to every service's."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.types import FleetType
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.migration_planner.fleet import types_of


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
    fleet_file: Path | None = Field(
        None, description="fleet file: which machines the mesh may buy, for how much; unset buys none"
    )
    budget_per_h: float | None = Field(None, gt=0, description="dollars an hour that no order exceeds; unset: no limit")
    on_demand_floor: int = Field(0, ge=0, description="on-demand instances that serve, at least")
    spare_instances: int = Field(1, ge=0, description="instances held beside those that serve")
    latency_target_s: float | None = Field(
        None,
        ge=0,
        description="seconds of a request that are fast enough; 0: as few as can be, and a quarter; unset: twice those of a "
        "request without load on the fewest instances",
    )
    load_headroom: float = Field(1.2, gt=0, description="the measured load is multiplied with it")
    hold_s: float = Field(
        30.0,
        ge=0,
        description="for so long a cheaper or faster configuration must be better before it is taken, and so long a surplus "
        "lasts before it is given back",
    )
    release_notice_s: float = Field(
        120.0, ge=0, description="seconds in which devices leave an instance that is given back, at most"
    )
    planner_metrics_port: int | None = Field(
        None, ge=0, le=65535, description="port of the planner's metrics; 0 takes a free one, unset serves none"
    )

    @field_validator("fleet_file")
    @classmethod
    def _is_a_fleet(cls, fleet_file: Path | None) -> Path | None:
        if fleet_file is not None:
            types_of(fleet_file)
        return fleet_file

    @property
    def fleet_types(self) -> tuple[FleetType, ...]:
        """The types of instances that may be bought."""
        return () if self.fleet_file is None else types_of(self.fleet_file)

    @property
    def fleet_policy(self) -> FleetPolicy:
        """What the fleet is for."""
        return FleetPolicy(
            budget_per_h=self.budget_per_h,
            on_demand_floor=self.on_demand_floor,
            spare_instances=self.spare_instances,
            latency_target_s=self.latency_target_s,
            headroom=self.load_headroom,
            hold_s=self.hold_s,
            release_notice_s=self.release_notice_s,
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
