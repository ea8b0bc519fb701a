"""What is too many, and which instances are given back first.

Law: a surplus is given back once it has lasted for `hold_s` without a break, while running instances have all that the targets
take and nothing of the type is bought. A fleet above its budget makes room at once, and so does one whose budget has kept out
what serves for `hold_s`; then no more is given back than that takes.
Of a type the dearest first, of equal prices on demand first, but never an on-demand one of the floor. In a market late
ones first, then those whose devices serve nothing, then those that the provider is expected to take soonest, then by id.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from spotwise.core.fleet.delta import ROUNDING, ZonePurchase
from spotwise.core.fleet.lasting import Lasting
from spotwise.core.fleet.learned_hazards import LearnedHazards
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.state import FleetState
from spotwise.core.fleet.targets import TypeTarget
from spotwise.core.messages.fleet import FleetInstance, LearnedLives
from spotwise.core.messages.market import Market


@dataclass(frozen=True, slots=True)
class Surplus:
    """What is given back now.

    Attributes:
        due: instances of each type.
        waiting_s: seconds until the surplus of each other type is due.
        makes_room: whether the budget needs it, `needed_per_h` dollars an hour of it.
    """

    due: dict[str, int]
    waiting_s: dict[str, float]
    makes_room: bool
    needed_per_h: float

    @property
    def reason(self) -> str:
        """Why it is given back."""
        return "the budget has no room for it" if self.makes_room else "more than the load needs"


class Surpluses:
    """The surplus of each type, and for how long it has lasted."""

    def __init__(self, type_names: Sequence[str], policy: FleetPolicy) -> None:
        self._type_names = tuple(type_names)
        self._policy = policy
        self._lasting = Lasting()
        self._blocked = Lasting()

    def update(
        self,
        state: FleetState,
        targets: Sequence[TypeTarget],
        bought: Sequence[ZonePurchase],
        lacking_per_h: float,
        now: float,
    ) -> Surplus:
        """Return what has been too many for long enough.

        Args:
            state: the fleet as it is.
            targets: what it should be.
            bought: what is bought now.
            lacking_per_h: dollars an hour of what serves that the budget does not have beside what is held.
            now: Unix time.
        """
        policy, by_name = self._policy, {each.type_name: each for each in targets}
        is_covered = bool(targets) and all(state.running(each.type_name) >= each.serving for each in targets)
        budget_per_h = math.inf if policy.budget_per_h is None else policy.budget_per_h
        over_per_h = max(0.0, state.price_per_h - budget_per_h * (1 + ROUNDING))
        blocked_s = self._blocked.lasts_s("", lacking_per_h > 0, now)
        makes_room = over_per_h > 0 or (blocked_s is not None and blocked_s >= policy.hold_s)
        due: dict[str, int] = {}
        waiting_s: dict[str, float] = {}
        for name in self._type_names:
            target = by_name.get(name)
            wanted = {} if target is None else {Market.SPOT: target.spot, Market.ON_DEMAND: target.on_demand}
            surplus = state.surplus(name, wanted, in_all=not makes_room)
            is_free = (is_covered or makes_room) and not any(purchase.type_name == name for purchase in bought)
            lasted_s = self._lasting.lasts_s(name, surplus > 0 and is_free, now)
            if lasted_s is not None and (makes_room or lasted_s >= policy.hold_s):
                due[name] = surplus
            elif lasted_s is not None:
                waiting_s[name] = policy.hold_s - lasted_s
        return Surplus(due, waiting_s, makes_room, max(over_per_h, lacking_per_h) if makes_room else math.inf)


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
