"""Says in words why the fleet is as it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spotwise.core.fleet.state import FleetState, stays
from spotwise.core.fleet.targets import TypeTarget
from spotwise.core.fleet.types import FleetType
from spotwise.core.messages.fleet import (
    FleetInstance,
    FleetReported,
    InstanceReason,
    InstanceRelease,
    InstanceState,
    Market,
)
from spotwise.core.parallel.instances import ConfigChoice
from spotwise.core.parallel.policy import ServiceDemand


def why_chosen(
    choice: ConfigChoice | None,
    demand: ServiceDemand,
    budget_per_h: float | None,
    latency_target_s: float | None,
    *,
    is_blocked: bool,
) -> str:
    """Return what a choice follows from."""
    budget = "" if budget_per_h is None else f" within {budget_per_h:g} $/h"
    if choice is None:
        return f"no instances that can be had{budget} hold the model: those that are ready stay"
    taken = " and ".join(f"{share.instances} {share.type.name}" for share in choice.shares)
    load = f"{demand.arrival_rate:.3g} requests/s"
    if not choice.meets_demand:
        why = f"{choice.config} on {taken}{budget} serves most of {load}: {choice.throughput:.3g} requests/s"
    elif demand.arrival_rate == 0:
        why = f"{choice.config} on {taken} is the cheapest that holds the model: there is no load"
    else:
        enough = f", {round(latency_target_s, 3):g} s being enough" if latency_target_s else ""
        why = (
            f"{choice.config} on {taken}{budget} is the cheapest for {load}: {choice.request_s:.3g} s a request{enough}"
        )
    return f"{why}; the budget leaves no room to buy it beside what is held" if is_blocked else why


def why_failing(report: FleetReported) -> list[str]:
    """Return for each type whose instances do not start how many have not, in a row."""
    failed = {each.type_name: each.failed_starts for each in report.offers if each.failed_starts}
    return [f"late: the last {count} of {name} did not become ready" for name, count in failed.items()]


@dataclass(frozen=True, slots=True)
class FleetReasons:
    """What the reasons of instances follow from.

    Attributes:
        releases: those that are being given back; `surplus_s`: seconds until a type's surplus is.
        demand: `None` while the model is not known.
        serving: ids of instances in use.
    """

    state: FleetState
    types: Sequence[FleetType]
    targets: Sequence[TypeTarget]
    releases: Sequence[InstanceRelease]
    surplus_s: Mapping[str, float]
    demand: ServiceDemand | None
    serving: Collection[str]

    def of_instances(self, report: FleetReported, now: float) -> tuple[InstanceReason, ...]:
        """Return the reason of each instance that is listed and not gone."""
        found = {each.id: self._why_leaving(each) for each in report.instances if each.state is not InstanceState.GONE}
        for fleet_type in self.types:
            found |= self._of_type(fleet_type, now)
        return tuple(InstanceReason(each, reason) for each, reason in found.items())

    def _why_leaving(self, instance: FleetInstance) -> str:
        released = {each.instance_id: each.reason for each in self.releases}
        if stays(instance) and instance.id not in released:
            return f"of a type that the fleet does not have: {instance.type_name}"
        return f"leaves: {instance.why_leaving or released.get(instance.id) or 'no reason was given'}"

    def _of_type(self, fleet_type: FleetType, now: float) -> dict[str, str]:
        name, found = fleet_type.name, {}
        target = next((each for each in self.targets if each.type_name == name), TypeTarget(name, 0, 0, 0, 0))
        there: list[FleetInstance] = []
        for market in (Market.ON_DEMAND, Market.SPOT):
            state = self.state.market(name, market)
            there += (*state.running, *state.starting)
            for each in state.late:
                found[each.id] = f"late: starts for {now - each.launched_s:.0f} s, usually {fleet_type.start_s:g} s"
        there.sort(key=lambda each: (each.id not in self.serving, each.state is InstanceState.STARTING, each.id))
        floor = [each.id for each in there if each.market is Market.ON_DEMAND][: target.floor]
        others = [each.id for each in there if each.id not in floor]
        found |= dict.fromkeys(floor, "on-demand floor")
        serves = max(0, target.serving - len(floor))
        found |= dict.fromkeys(others[:serves], self._why_serving)
        found |= dict.fromkeys(others[serves : serves + target.spares], "spare")
        found |= dict.fromkeys(others[serves + target.spares :], self._why_surplus(name))
        return found

    @property
    def _why_serving(self) -> str:
        if self.demand is None:
            return "serves: the model is learned from it"
        if self.demand.arrival_rate == 0:
            return "serves: cheapest without load"
        return f"serves: cheapest for {self.demand.arrival_rate:.3g} requests/s"

    def _why_surplus(self, type_name: str) -> str:
        if type_name in self.surplus_s:
            return f"surplus: given back in {self.surplus_s[type_name]:.0f} s"
        if not self.targets:
            return "stays: no configuration can be had now"
        return "surplus: stays until all that is bought instead runs"
