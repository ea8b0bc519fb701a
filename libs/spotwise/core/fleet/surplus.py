"""Which instances are given back first.

Law: of a type the dearest first, of equal prices on demand first, but never an on-demand one of the floor. In a market late
ones first, then those whose devices serve nothing, then those that the provider is expected to take soonest, then by id.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spotwise.core.fleet.fleet_state import FleetState
from spotwise.core.fleet.learned_hazards import LearnedHazards
from spotwise.core.fleet.market import Market
from spotwise.core.fleet_messages import FleetInstance, LearnedLives


def first_given_back(
    types: Collection[str],
    state: FleetState,
    lives: Sequence[LearnedLives],
    serving: Collection[str],
    floor: int,
    now: float,
) -> list[FleetInstance]:
    """Return the late and running instances of types that may be given back, in order; `serving`: ids of those in use."""
    on_demand = sum(len(found.running) for (_, market), found in state.markets.items() if market is Market.ON_DEMAND)
    free = max(0, on_demand - floor)
    hazards = LearnedHazards(lives)
    ordered: list[tuple[tuple[float | bool | str, ...], FleetInstance]] = []
    for (type_name, market), found in state.markets.items():
        if type_name in types:
            ordered += [
                (
                    (
                        each not in found.late,
                        -each.price_per_h,
                        market is Market.SPOT,
                        each.id in serving,
                        hazards.remaining_s(each, now),
                        each.id,
                    ),
                    each,
                )
                for each in (*found.late, *found.running)
            ]
    given_back = []
    for key, each in sorted(ordered, key=lambda entry: entry[0]):
        is_late = not key[0]
        if each.market is Market.ON_DEMAND and not is_late:
            if not free:
                continue
            free -= 1
        given_back.append(each)
    return given_back
