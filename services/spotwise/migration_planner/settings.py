"""Settings of the migration planner, in addition to every service's, and the instances that its fleet file names."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.types import FleetType
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.files.cost_profile import read_cost_profile
from spotwise.files.fleet_file import read_fleet
from spotwise.mesh.service.settings import ServiceSettings


class PlannerSettings(ServiceSettings):
    """What the planner moves, and when."""

    moves: bool = Field(
        True,
        description="move the requests of workers that leave; false: they finish them, or give them back at the deadline",
    )
    rebalances: bool = Field(
        True, description="also move requests away from a worker without free KV blocks, or that left the token pool"
    )
    move_margin_s: float = Field(
        1.0,
        ge=0,
        le=30,
        description="seconds between the end of the moves and a worker's deadline, at most a quarter of its notice",
    )
    planner_lease_s: float = Field(
        1.5, ge=0.3, le=30, description="seconds of silence of the active planner after which a standby takes over"
    )
    form_s: float = Field(
        60.0, gt=0, le=3600, description="seconds after which a re-shape whose new groups do not serve is abandoned"
    )
    reshape_drain_s: float = Field(
        120.0,
        gt=0,
        le=3600,
        description="seconds after which requests that have not left a retiring group are computed again",
    )
    replace_after_s: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="seconds of absence after which a device is replaced in its groups; set it above the time of a "
        "restart",
    )
    fleet_file: Path | None = Field(
        None, description="fleet file: which machines the mesh may buy, and for how much; unset: none"
    )
    budget_per_h: float | None = Field(None, gt=0, description="maximum dollars an hour; unset: no limit")
    on_demand_floor: int = Field(0, ge=0, description="minimum on-demand instances that serve")
    spare_instances: int = Field(1, ge=0, description="instances held beside those that serve")
    latency_target_s: float | None = Field(
        None,
        ge=0,
        description="seconds of a request that are fast enough; 0: a quarter more than the fastest fleet; unset: twice "
        "those of a request without load on the fewest instances",
    )
    load_headroom: float = Field(1.2, gt=0, description="factor on the measured load")
    hold_s: float = Field(
        30.0,
        ge=0,
        description="seconds that a configuration must stay cheaper or faster before it is taken, and a surplus before it "
        "is given back",
    )
    release_notice_s: float = Field(
        120.0, ge=0, description="maximum seconds in which devices leave an instance that is given back"
    )
    planner_metrics_port: int | None = Field(
        None, ge=0, le=65535, description="port of the planner's metrics; 0 takes a free one; unset: none"
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
            crossing=self.crossing,
        )


def types_of(path: Path) -> tuple[FleetType, ...]:
    """Return the types of a fleet file; raises `ValueError` where it is wrong, or a type has no profile that can be read."""
    types = []
    for each in read_fleet(path).types:
        if each.profile is None:
            raise ValueError(
                f"{path}: types.{each.name}.profile is missing; the planner chooses by what a device costs to compute on: "
                "make one with spotwise profile"
            )
        try:
            profile = read_cost_profile(each.profile)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{path}: types.{each.name}.profile: {each.profile} is no cost profile: {error}"
            ) from error
        types.append(each.fleet_type(profile))
    return tuple(types)
