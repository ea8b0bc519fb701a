"""Decides which instances a mesh has: how many of which type and market for its load, what is bought and what is given back.

Law: the configuration is the cheapest that is fast enough for the load with headroom, within the budget (`parallel.optimizer`);
it is kept until another one is needed or has been better for long enough (`kept_choice`). Missing instances are bought, and
surplus ones are given back once running instances have all that it takes (`fleet_delta`, `surplus`).
The on-demand floor and the spares are bought as far as the budget has room for them (`budget_room`).
Deterministic; every order is repeated until a report shows that it was carried out (`orders`).

Without a fleet that can be listed nothing is bought or given back. Without a choice, and while the load is not known, only
late instances are given back (`late_starts`): they serve nothing, whatever the mesh needs. While the load is not known, the
instances that the mesh has lost are bought again. Of a type whose instances do not start, one is tried where the demand is not
met.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from spotwise.core.fleet.budget_room import BudgetRoom
from spotwise.core.fleet.delta import (
    Surpluses,
    Urgency,
    WantedPurchase,
    ZonePurchase,
    first_given_back,
    is_shifting,
    wanted_purchases,
    within_budget,
)
from spotwise.core.fleet.keeper.failed_starts import BREAKER
from spotwise.core.fleet.kept_choice import ChangeSeconds, KeptChoice
from spotwise.core.fleet.lasting import Lasting, LateStarts
from spotwise.core.fleet.orders import OpenPurchases, OpenReleases
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.reasons import FleetReasons, why_chosen, why_failing
from spotwise.core.fleet.search import FleetSearch
from spotwise.core.fleet.state import FleetState, fleet_state
from spotwise.core.fleet.targets import TypeTarget, first_targets
from spotwise.core.fleet.types import FleetType
from spotwise.core.messages.fleet import (
    FleetReported,
    InstanceReason,
    InstanceRelease,
    Market,
    Purchase,
    WantedInstances,
)
from spotwise.core.parallel.instances import ConfigChoice
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.policy import ServiceDemand

#: A report older than this tells too little of the fleet to change it.
REPORT_LASTS_S = 15.0


@dataclass(frozen=True, slots=True)
class Decided:
    """What the fleet should be, and what is still to be done for it.

    Attributes:
        choice: the configuration; `None`: none can be had, or the model is not known yet.
        throughput: requests a second that it serves at most.
        targets: wanted instances of each type that it takes.
        purchases, releases: all of those that are to be carried out, old ones repeated.
        reasons: why each instance is there that is listed and not gone.
        why: one sentence.
        price_per_h: dollars an hour of all that stays or comes.
    """

    choice: ConfigChoice | None = None
    throughput: float = 0.0
    targets: tuple[WantedInstances, ...] = ()
    purchases: tuple[Purchase, ...] = ()
    releases: tuple[InstanceRelease, ...] = ()
    reasons: tuple[InstanceReason, ...] = ()
    why: str = ""
    price_per_h: float = 0.0


class FleetDecision:
    """The fleet's planner, of one term."""

    def __init__(self, types: Sequence[FleetType], policy: FleetPolicy, planner_id: str, term: int) -> None:
        """Plan with these types; raises `ValueError` where two have one name."""
        if len({each.name for each in types}) != len(types):
            raise ValueError("two types of instances have the same name; give each its own")
        self._types = tuple(types)
        self._policy = policy
        self._search = FleetSearch(types, policy)
        self._room = BudgetRoom(types, policy, self._search)
        self._kept = KeptChoice(policy.gain, policy.hold_s)
        self._serving = KeptChoice(policy.gain, policy.hold_s)
        self._purchases = OpenPurchases(planner_id, term)
        self._releases = OpenReleases(policy.release_notice_s)
        self._shifts = Lasting()
        self._surpluses = Surpluses([each.name for each in types], policy)
        self._late = LateStarts(types, policy)
        self._report: FleetReported | None = None
        self._state = FleetState({}, 0.0)
        self._decided_s: float | None = None
        self._last = Decided()

    def is_due(self, now: float) -> bool:
        """Return whether `decide` decides anew, `decide_s` after it did last."""
        return self._decided_s is None or now - self._decided_s >= self._policy.decide_s

    def decide(
        self,
        demand: ServiceDemand,
        report: FleetReported,
        model: ModelShape | None,
        now: float,
        *,
        serving: Collection[str] = (),
    ) -> Decided:
        """Return what the fleet should be; the last answer again within `decide_s`.

        Args:
            demand: as measured.
            report: the last one; an earlier one than before is not considered.
            model: `None` until it is known.
            serving: ids of instances whose devices have positions in groups.
        """
        if not self.is_due(now):
            return self._last
        if (problem := self._take(report, now)) is not None:
            return self._repeat(f"nothing is bought or given back: {problem}")
        state = self._state
        if model is None:
            return self._before_the_model(now, serving)
        if (problem := self._search.measure(model, demand)) is not None:
            return self._repeat(f"nothing is bought or given back: {problem}")
        choice = self._choose(demand, now)
        targets = self._room.targets(choice)
        meets_demand = choice is not None and self._search.running_meet(demand, state)
        bought, lacking_per_h = self._buy(targets, meets_demand=meets_demand, now=now)
        if not meets_demand:
            bought += self._try_failed(now)
        surplus_s = self._give_back(targets, bought, lacking_per_h, now, serving)
        budget_per_h, target_s = self._policy.budget_per_h, self._search.latency_target_s
        why = why_chosen(choice, demand, budget_per_h, target_s, is_blocked=lacking_per_h > 0)
        if self._room.floor < self._policy.on_demand_floor:
            why += f"; the budget has room for {self._room.floor} of {self._policy.on_demand_floor} instances on demand"
        return self._answer(choice, targets, surplus_s, why, demand, now, serving)

    def bring_back(self, had: Mapping[tuple[str, Market], int], report: FleetReported, now: float) -> Decided:
        """Return the purchases of what a mesh had, by type and market, and has lost, while its load is not known.

        Nothing is given back. The last answer again within `decide_s`.
        """
        if not self.is_due(now):
            return self._last
        if (problem := self._take(report, now)) is not None:
            return self._repeat(f"nothing is bought or given back: {problem}")
        wanted = []
        for name in (each.name for each in self._types):
            spot, on_demand = (had.get((name, market), 0) for market in (Market.SPOT, Market.ON_DEMAND))
            target = TypeTarget(name, spot + on_demand, 0, spot, on_demand)
            wanted += wanted_purchases(target, self._state, meets_demand=True, shift_gain=None)
        self._order(wanted, now)
        return self._repeat("the load is measured first; what is lost meanwhile is bought again")

    def config_on(
        self,
        ready: Mapping[str, int],
        demand: ServiceDemand,
        model: ModelShape,
        now: float,
        change: ChangeSeconds | None = None,
    ) -> ConfigChoice | None:
        """Return the configuration to serve with on so many ready instances of each type: the decided one where they can have
        it, otherwise their best, with hysteresis of its own: where what served cannot be had any more, its shape with another D
        is kept first. `None`: they cannot have the model.

        Args:
            change: what one takes, as far as it is known.
        """
        if self._search.measure(model, demand) is not None:
            return self._serving.choice
        supplies = self._state.supplies_of(self._search.types, ready)
        decided = self._kept.choice and self._search.again(self._kept.choice, demand, supplies, None)
        if decided is not None:
            return self._serving.take(decided)
        new = self._search.choose(demand, supplies, None)
        serving = self._serving.choice
        current = serving and (
            self._search.again(serving, demand, supplies, None) or self._search.alike(serving, demand, supplies, None)
        )
        return self._serving.update(new, current, self._search.policy(demand, None), now, change=change)

    def _take(self, report: FleetReported, now: float) -> str | None:
        """Take what a report says of the fleet; return why that is not enough to decide, `None` where it is."""
        self._decided_s = now
        if self._report is None or not self._report.is_newer_than(report):
            self._report = report
        report = self._report
        self._purchases.update(report)
        self._releases.update(report)
        age_s = now - report.at_s
        if report.problem or age_s > REPORT_LASTS_S:
            why = report.problem or f"the last report is {age_s:.0f} s old"
            return f"the fleet cannot be listed ({why})"
        self._state = self._listed(now)
        for each in (late := self._late.overdue(report, self._state, now)):
            self._releases.release(each.id, f"late: not ready after {now - each.launched_s:.0f} s", now)
        if late:
            self._state = self._listed(now)
        self._room.state = self._state
        return None

    def _listed(self, now: float) -> FleetState:
        assert self._report is not None
        coming = self._purchases.coming(self._report)
        state = fleet_state(self._report, self._types, coming, self._releases.ids, self._policy.late_factor, now)
        # A release that is still on its way to the watcher has not made its offer rest yet.
        return state.without_offers(self._late.avoided(state, now))

    def _choose(self, demand: ServiceDemand, now: float) -> ConfigChoice | None:
        state, budget, search = self._state, self._policy.budget_per_h, self._search
        supplies, kept = state.supplies(search.types), self._kept.choice
        new = search.choose(demand, supplies, budget)
        if new is not None:
            new = self._room.fitted(new, demand, supplies)
        left = budget if budget is None or kept is None else max(0.0, budget - self._room.floor_per_h(kept))
        current = kept and search.again(kept, demand, supplies, left)
        is_reachable = new is None or self._room.is_reachable(new)
        is_held = current is None or all(state.held(each.type.name) >= each.instances for each in current.shares)
        return self._kept.update(
            new, current, search.policy(demand, budget), now, is_held=is_held, is_reachable=is_reachable
        )

    def _buy(
        self, targets: Sequence[TypeTarget], *, meets_demand: bool, now: float
    ) -> tuple[list[ZonePurchase], float]:
        wanted = []
        for each in targets:
            shifted_s = self._shifts.lasts_s(each.type_name, is_shifting(each, self._state), now)
            gain = self._policy.gain if shifted_s is not None and shifted_s >= self._policy.hold_s else None
            wanted += wanted_purchases(each, self._state, meets_demand=meets_demand, shift_gain=gain)
        return self._order(wanted, now)

    def _try_failed(self, now: float) -> list[ZonePurchase]:
        """Buy an instance of each type whose instances do not start, if one is offered now and none is coming."""
        assert self._report is not None
        failing = {each.type_name for each in self._report.offers if each.failed_starts >= BREAKER}
        coming = {purchase.type_names[0] for purchase in self._purchases.open}
        trials = []
        for name in (each.name for each in self._types if each.name in failing - coming):
            markets = [
                (zones[0].price_per_h, each) for each in Market if (zones := self._state.market(name, each).zones)
            ]
            if markets and not any(self._state.market(name, each).starting for each in Market):
                trials.append(WantedPurchase(name, min(markets)[1], 1, Urgency.SPARE))
        return self._order(trials, now)[0]

    def _order(self, wanted: Sequence[WantedPurchase], now: float) -> tuple[list[ZonePurchase], float]:
        """Buy what is within the budget; return that, and the dollars an hour that what serves lacks."""
        bought, lacking_per_h = within_budget(wanted, self._state, self._policy.budget_per_h)
        for purchase in bought:
            self._purchases.buy(purchase.type_name, purchase.market, purchase.count, purchase.zone, now)
        return bought, lacking_per_h

    def _give_back(
        self,
        targets: Sequence[TypeTarget],
        bought: Sequence[ZonePurchase],
        lacking_per_h: float,
        now: float,
        serving: Collection[str],
    ) -> dict[str, float]:
        """Release what has been too many for long enough; return the seconds until the rest of each type's surplus is.
        `lacking_per_h`: dollars an hour of what serves that the budget does not have beside what is held.
        """
        assert self._report is not None
        surplus = self._surpluses.update(self._state, targets, bought, lacking_per_h, now)
        due, needed_per_h = dict(surplus.due), surplus.needed_per_h
        floor = self._room.kept_floor(targets, makes_way=surplus.makes_room and lacking_per_h > 0)
        for instance in first_given_back(due, self._state, self._report.lives, serving, floor, now):
            if due[instance.type_name] > 0 and needed_per_h > 0:
                due[instance.type_name] -= 1
                needed_per_h -= instance.price_per_h
                self._releases.release(instance.id, surplus.reason, now)
        return surplus.waiting_s

    def _before_the_model(self, now: float, serving: Collection[str]) -> Decided:
        """Have the instances from which the model is learned."""
        targets = first_targets([each.name for each in self._types], self._state, self._policy)
        self._buy(targets, meets_demand=True, now=now)
        why = "the model is not known yet: it is learned from the first instance"
        return self._answer(None, targets, {}, why, None, now, serving)

    def _repeat(self, why: str) -> Decided:
        self._last = replace(self._last, purchases=self._purchases.open, releases=self._releases.open, why=why)
        return self._last

    def _answer(
        self,
        choice: ConfigChoice | None,
        targets: Sequence[TypeTarget],
        surplus_s: Mapping[str, float],
        why: str,
        demand: ServiceDemand | None,
        now: float,
        serving: Collection[str],
    ) -> Decided:
        assert self._report is not None
        reasons = FleetReasons(
            self._state, self._types, targets, self._releases.open, surplus_s, demand, serving
        ).of_instances(self._report, now)
        throughput = 0.0
        if choice is not None and demand is not None:
            throughput = self._search.most_throughput(choice, demand, self._state.supplies(self._search.types))
        self._last = Decided(
            choice,
            throughput,
            tuple(each.wanted for each in targets),
            self._purchases.open,
            self._releases.open,
            reasons,
            "; ".join((why, *why_failing(self._report))),
            self._listed(now).price_per_h,
        )
        return self._last
