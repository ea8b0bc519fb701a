"""Reserves budget for the on-demand floor and the spares beside a choice.

Law: where the budget has no room for the on-demand floor, another choice is taken whose floor is cheaper; where there is none,
the floor is as much of it as the budget has room for. Spares are as many as it has room for then.
A choice that meets the demand, and leaves room for floor and spares as well, comes before one that leaves none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from spotwise.core.fleet.delta import ROUNDING, cost_beside
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.search import FleetSearch
from spotwise.core.fleet.state import FleetState
from spotwise.core.fleet.targets import TypeTarget, fleet_targets
from spotwise.core.fleet.types import FleetType
from spotwise.core.messages.fleet import Market
from spotwise.core.parallel.instances import ConfigChoice, Supply
from spotwise.core.parallel.policy import ServiceDemand


class BudgetRoom:
    """The budget of one policy, in a fleet that changes.

    Attributes:
        state: the fleet as it is.
        floor: the policy's on-demand floor, as far as the budget had room for it last.
    """

    def __init__(self, types: Sequence[FleetType], policy: FleetPolicy, search: FleetSearch) -> None:
        self.state = FleetState({}, 0.0)
        self.floor = policy.on_demand_floor
        self._types = tuple(types)
        self._policy = policy
        self._search = search

    def fitted(self, choice: ConfigChoice, demand: ServiceDemand, supplies: Sequence[Supply]) -> ConfigChoice:
        """Return a choice that the budget has room for with its floor: this one, or another one; sets `floor`."""
        budget_per_h = self._policy.budget_per_h
        if budget_per_h is None:
            return choice
        choice = self._within_floor(choice, demand, supplies, budget_per_h)
        beside_per_h = self.floor_per_h(choice) + self._spares_per_h(choice)
        left_per_h = budget_per_h - beside_per_h
        smaller = self._search.choose(demand, supplies, left_per_h) if left_per_h > 0 else None
        both_meet = smaller is not None and smaller.meets_demand and choice.meets_demand
        return smaller if smaller is not None and both_meet and self._is_within(smaller, budget_per_h) else choice

    def targets(self, choice: ConfigChoice | None) -> tuple[TypeTarget, ...]:
        """Return the targets of a choice, with as many spares as the budget has room for."""
        for spares in range(self._policy.spare_instances, 0, -1):
            targets = self._targets(choice, spares=spares)
            if self._has_room_for(targets):
                return targets
        return self._targets(choice, spares=0)

    def is_reachable(self, choice: ConfigChoice) -> bool:
        """Return whether the budget has room for what serves of a choice beside what is held."""
        budget_per_h = self._policy.budget_per_h
        return budget_per_h is None or cost_beside(self._targets(choice), self.state) <= budget_per_h * (1 + ROUNDING)

    def kept_floor(self, targets: Sequence[TypeTarget], *, makes_way: bool) -> int:
        """Return how many on-demand instances are not given back.

        Args:
            targets: what the fleet should be.
            makes_way: what serves waits for the budget's room: an instance of the floor must not keep its successor out.
        """
        if not makes_way or not self._has_room_for(targets):
            return self.floor
        return sum(
            min(each.on_demand, len(self.state.market(each.type_name, Market.ON_DEMAND).running)) for each in targets
        )

    def floor_per_h(self, choice: ConfigChoice) -> float:
        """Return the dollars an hour that the floor costs more than a choice."""
        return self._cost_per_h(choice, spares=0) - self._cost_per_h(choice, spares=0, floor=0)

    def _within_floor(
        self, choice: ConfigChoice, demand: ServiceDemand, supplies: Sequence[Supply], budget_per_h: float
    ) -> ConfigChoice:
        """Return a choice that is within the budget with its floor, or with the largest part of the floor that is."""
        for floor in range(self._policy.on_demand_floor, -1, -1):
            self.floor = floor
            if (found := self._affordable(choice, demand, supplies, budget_per_h)) is not None:
                return found
        self.floor = self._policy.on_demand_floor
        return choice

    def _affordable(
        self, choice: ConfigChoice, demand: ServiceDemand, supplies: Sequence[Supply], budget_per_h: float
    ) -> ConfigChoice | None:
        """Return a choice that is within the budget with its floor: this one, or the best of those with cheaper floors."""
        if self._is_within(choice, budget_per_h):
            return choice
        premiums = {each.name: self._floor_premium_per_h(each.name) for each in self._types}
        found = []
        for premium in sorted(set(premiums.values())):
            left_per_h = budget_per_h - premium
            cheap = [each for each in supplies if premiums[each.type.name] <= premium]
            for within in (supplies, cheap):
                other = self._search.choose(demand, within, left_per_h) if left_per_h > 0 else None
                if other is not None and self._is_within(other, budget_per_h):
                    found.append(other)
        return max(found, key=lambda each: (each.meets_demand, each.throughput * (not each.meets_demand)), default=None)

    def _floor_premium_per_h(self, type_name: str) -> float:
        """Return the dollars an hour that a floor of a type costs more than spot instances."""
        spot, on_demand = (
            self.state.market(type_name, market).price_per_h for market in (Market.SPOT, Market.ON_DEMAND)
        )
        return 0.0 if spot is None or on_demand is None else self.floor * max(0.0, on_demand - spot)

    def _is_within(self, choice: ConfigChoice, budget_per_h: float) -> bool:
        """Return whether a choice with its floor, and without spares, costs no more than the budget."""
        return self._cost_per_h(choice, spares=0) <= budget_per_h * (1 + ROUNDING)

    def _spares_per_h(self, choice: ConfigChoice) -> float:
        return self._cost_per_h(choice) - self._cost_per_h(choice, spares=0)

    def _cost_per_h(self, choice: ConfigChoice, *, spares: int | None = None, floor: int | None = None) -> float:
        return self._price_per_h(self._targets(choice, spares=spares, floor=floor))

    def _has_room_for(self, targets: Sequence[TypeTarget]) -> bool:
        budget_per_h = self._policy.budget_per_h
        return budget_per_h is None or self._price_per_h(targets) <= budget_per_h * (1 + ROUNDING)

    def _price_per_h(self, targets: Sequence[TypeTarget]) -> float:
        return math.fsum(each.price_per_h(self.state) for each in targets)

    def _targets(
        self, choice: ConfigChoice | None, *, spares: int | None = None, floor: int | None = None
    ) -> tuple[TypeTarget, ...]:
        policy = replace(
            self._policy,
            spare_instances=self._policy.spare_instances if spares is None else spares,
            on_demand_floor=self.floor if floor is None else floor,
        )
        return fleet_targets(choice, self.state, policy)
