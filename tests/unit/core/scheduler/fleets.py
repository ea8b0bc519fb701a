"""Reports of a fleet for the tests."""

from __future__ import annotations

from collections.abc import Mapping

from spotwise.core.lives.survival import PiecewiseHazard
from spotwise.core.messages.fleet import FleetInstance, FleetReported, InstanceState, LearnedLives, Market
from spotwise.core.messages.members import DevicePlace, Member, MemberKind, MemberState


def constant(per_s: float) -> PiecewiseHazard:
    return PiecewiseHazard((0.0,), (per_s,))


def instance(
    id_: str,
    type_name: str = "a",
    *,
    market: Market = Market.SPOT,
    launched_s: float = 0.0,
    zone: str = "",
    state: InstanceState = InstanceState.RUNNING,
) -> FleetInstance:
    return FleetInstance(id_, type_name, market, state, launched_s, "token", zone)


def fleet(
    *instances: FleetInstance,
    hazards: Mapping[str, float | PiecewiseHazard] | None = None,
    at_s: float = 1000.0,
    watcher: str = "watcher",
    incarnation: int = 1,
) -> FleetReported:
    """A report; `hazards` by type name, or `TYPE/ZONE`."""
    lives = []
    for kind, hazard in (hazards or {}).items():
        type_name, _, zone = kind.partition("/")
        known = hazard if isinstance(hazard, PiecewiseHazard) else constant(hazard)
        lives.append(LearnedLives(type_name, zone, known, lives=9, ends=5))
    return FleetReported(watcher, incarnation, at_s, "local", instances, lives=tuple(lives))


def device(id_: str, leader_id: str, *, is_placed: bool = True, incarnation: int = 1) -> Member:
    place = DevicePlace(1, 1, 2, 0, 0, (0, 4), (0, 2)) if is_placed else None
    return Member(
        id_, MemberKind.DEVICE, incarnation, MemberState.READY, "host", 1, "", leader_id=leader_id, place=place
    )
