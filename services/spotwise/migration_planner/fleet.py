"""The types of instances that a fleet file names, with what they cost to compute on."""

from __future__ import annotations

from pathlib import Path

from spotwise.core.fleet.types import FleetType
from spotwise.files.cost_profile import read_cost_profile
from spotwise.files.fleet_file import read_fleet


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
