"""Orders purchases and releases from the load and the prices, and re-shapes the mesh to the instances that are there.

Law: while no watcher reports a fleet, nothing is ordered. A planner that finds a mesh that serves measures the load for a
window before it decides: load that it has not seen is not zero. Meanwhile it replaces the instances that groups lose.
Purchases and releases follow from the last report and the load of the last seconds (`fleet/decision.py`); the order contains
every purchase and release that is still to be done, and is repeated.
A re-shape that is only faster is ordered where it pays for what re-shapes have been measured to take (`fleet/kept_choice.py`).

The mesh is re-shaped to the configuration that the ready devices allow, as if an operator had ordered it, and only while
nothing else changes: interruptions come first (`replacement.py`). An order that came to nothing is given again later.

Source: SpotServe, section 4.1; the market, prices and hysteresis are ours.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from spotwise.core.fleet.decision import REPORT_LASTS_S, Decided, FleetDecision
from spotwise.core.fleet.demand import DemandWindow
from spotwise.core.fleet.devices import instance_of
from spotwise.core.fleet.kept_choice import ChangeSeconds
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.state import stays
from spotwise.core.fleet.types import FleetType
from spotwise.core.messages import mesh as m
from spotwise.core.messages.fleet import InstanceState, Market
from spotwise.core.messages.members import Pool
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.planner import commands as c
from spotwise.core.planner.change_cost import ChangeCost
from spotwise.core.planner.device_watch import DeviceWatch
from spotwise.core.planner.group_choice import written
from spotwise.core.planner.replacement import LONGEST_REST_S, REST_S, described

#: An order is repeated after so long while something of it is to be done.
ORDER_EVERY_S = 1.0
#: Number of the planner's own orders among those of operators.
OWN_ORDER = 0


class FleetPlanning:
    """What one planner knows of the load and the fleet, and what it decides while it has the lease."""

    def __init__(
        self,
        planner_id: str,
        types: Sequence[FleetType],
        policy: FleetPolicy,
        watch: DeviceWatch,
        cost: ChangeCost | None = None,
    ) -> None:
        """Plan with these types; `cost`: of changes so far, `None` where that is not known: then they cost nothing."""
        self._cost = cost
        self._planner_id = planner_id
        self._types = tuple(types)
        self._policy = policy
        self._watch = watch
        self._demand = DemandWindow(policy.window_s)
        self._report: m.FleetReported | None = None
        self._model: ModelShape | None = None
        self._term = 0
        self._decision: FleetDecision | None = None
        self._decided: Decided | None = None
        self._ordered_s = 0.0
        self._numbers = 0
        self._ready: dict[str, dict[str, list[str]]] = {}
        #: To serve with now; `None`: nothing can.
        self.wanted: ParallelConfig | None = None
        self._wanted_on: frozenset[str] = frozenset()
        self._reshaped_to: ParallelConfig | None = None
        self._rests_until_s = 0.0
        self._rest_s = REST_S
        self._asked_model_s = 0.0
        self._began_s: float | None = None
        self._has_measured = False
        self._had: Counter[tuple[str, Market]] = Counter()

    def loaded(self, report: m.LoadReported, now: float) -> None:
        """Count a gateway's requests."""
        self._demand.add(report, now)

    def reported(self, report: m.FleetReported, now: float) -> None:
        """Take what a watcher sees, unless a later report came first."""
        if self._report is None or not self._report.is_newer_than(report):
            self._report = report
            self._watch.instances_gone(each.id for each in report.instances if each.state is InstanceState.GONE)

    def surveyed(self, report: m.DeviceSurveyed) -> None:
        """Learn the model's shape from a device."""
        self._model = report.model

    def begin(self, term: int) -> None:
        """Decide from now on, anew."""
        self._term, self._numbers = term, 0
        self._decision = FleetDecision(self._types, self._policy, self._planner_id, term)
        self._decided, self.wanted, self._reshaped_to = None, None, None
        self._rests_until_s, self._rest_s = 0.0, REST_S
        self._began_s, self._has_measured = None, False
        self._had = Counter()

    def advance(self, groups: Sequence[m.DeviceGroup], now: float) -> list[c.PlannerCommand]:
        """Return the orders and questions that are due; `groups`: those that are to serve."""
        report, decision = self._report, self._decision
        if report is None or decision is None or now - report.at_s > REPORT_LASTS_S:
            self.wanted = None
            return []
        if not self._may_decide(groups, now):
            had = _instances_of(groups, report)
            self._had |= Counter((each.type_name, each.market) for each in had)
            self._decided = decision.bring_back(self._had, report, now)
            return [*self._ask_model(now), *self._order(now)]
        is_due = decision.is_due(now)
        before, self._ready = self._ready, self._find_ready(report)
        if not is_due and before == self._ready:
            return [*self._ask_model(now), *self._order(now)]
        demand = self._demand.demand(now)
        if is_due:
            serving = {each.id for each in _instances_of(groups, report)}
            self._decided = decision.decide(demand, report, self._model, now, serving=serving)
        if self._model is not None:
            counts = {name: len(instances) for name, instances in self._ready.items()}
            choice = decision.config_on(counts, demand, self._model, now, self._change_seconds(groups))
            self.wanted = None if choice is None else choice.config
            names = [] if choice is None else [each.type.name for each in choice.shares]
            self._wanted_on = frozenset(each for name in names for ids in self._ready[name].values() for each in ids)
        return [*self._ask_model(now), *self._order(now)]

    def reshape(self, groups: Sequence[m.DeviceGroup], now: float) -> c.ReshapeRequested | None:
        """Return the order of a re-shape that is due, where one can be ordered now."""
        wanted, serving = self.wanted, config_of(groups)
        if wanted is None or now < self._rests_until_s:
            return None
        if serving is not None and written(wanted) == written(serving):
            self._reshaped_to, self._rest_s = None, REST_S
            return None
        if self._reshaped_to is not None and written(wanted) == written(self._reshaped_to):
            self.refused(now)  # it was abandoned
            return None
        self._reshaped_to = wanted
        return c.ReshapeRequested(OWN_ORDER, m.ReshapeMesh(wanted), self._wanted_on)

    def refused(self, now: float) -> None:
        """Rest a while: the last order was refused, or came to nothing."""
        self._reshaped_to = None
        self._rests_until_s = now + self._rest_s
        self._rest_s = min(2 * self._rest_s, LONGEST_REST_S)

    def view(self, serving: Sequence[m.DeviceGroup], now: float) -> m.FleetView:
        """Return what there is, and why; `serving`: the groups that do."""
        report, decided = self._report, self._decided
        if not self._types:
            return m.FleetView(None, why="the planner has no fleet file (SPOTWISE_FLEET_FILE): nothing is bought")
        if report is None:
            return m.FleetView(
                None, why="no spot watcher with a provider reports (SPOTWISE_FLEET_FILE of a spot watcher)"
            )
        demand = self._demand.demand(now)
        choice = None if decided is None else decided.choice
        return m.FleetView(
            report,
            rate=demand.arrival_rate,
            cv=demand.arrival_cv,
            input_tokens=demand.input_tokens,
            output_tokens=demand.output_tokens,
            config="" if choice is None else written(choice.config),
            serving=described(serving),
            throughput=0.0 if decided is None else decided.throughput,
            request_s=None if choice is None or math.isinf(choice.request_s) else choice.request_s,
            price_per_h=sum(each.price_per_h for each in report.instances if each.state is not InstanceState.GONE),
            budget_per_h=self._policy.budget_per_h,
            wanted=() if decided is None else decided.targets,
            reasons=() if decided is None else decided.reasons,
            why="the load is measured first" if decided is None else decided.why,
        )

    def _change_seconds(self, groups: Sequence[m.DeviceGroup]) -> ChangeSeconds | None:
        """Return what a change of all groups to as many devices is expected to take, beside the weights' way."""
        if self._cost is None:
            return None
        return ChangeSeconds(self._cost.forming_s(groups, 0.0), self._cost.pause_s(groups, groups, len(groups)))

    def _may_decide(self, groups: Sequence[m.DeviceGroup], now: float) -> bool:
        """Return whether the load is known well enough; without any gateway's reports, after a window all the same."""
        if self._began_s is None:
            self._began_s = now
        if not self._has_measured:
            is_over = now - self._began_s >= self._policy.window_s
            self._has_measured = not groups or is_over or self._demand.is_measured(now)
        return self._has_measured

    def _find_ready(self, report: m.FleetReported) -> dict[str, dict[str, list[str]]]:
        """Return, by type, the instances all of whose devices may have positions, with these devices."""
        staying = {each.id: each for each in report.instances if stays(each)}
        usable: dict[str, list[str]] = {}
        for device_id in self._watch.usable():
            if (instance := instance_of(device_id, staying)) is not None:
                usable.setdefault(instance, []).append(device_id)
        ready: dict[str, dict[str, list[str]]] = {each.name: {} for each in self._types}
        devices = {each.name: each.devices for each in self._types}
        for instance, device_ids in usable.items():
            name = staying[instance].type_name
            if name in ready and len(device_ids) >= devices[name]:
                ready[name][instance] = device_ids
        return ready

    def _ask_model(self, now: float) -> list[m.Send]:
        if self._model is not None or now - self._asked_model_s < ORDER_EVERY_S:
            return []
        self._asked_model_s = now
        return [m.Send(device_id, m.SurveyDevice(self._planner_id, 0)) for device_id in self._watch.usable()[:1]]

    def _order(self, now: float) -> list[c.PublishFleetOrder]:
        decided = self._decided
        if decided is None or not (decided.purchases or decided.releases) or now - self._ordered_s < ORDER_EVERY_S:
            return []
        self._ordered_s = now
        self._numbers += 1
        order = m.FleetOrder(self._planner_id, self._term, self._numbers, decided.purchases, decided.releases)
        return [c.PublishFleetOrder(order)]


def _instances_of(groups: Sequence[m.DeviceGroup], report: m.FleetReported) -> list[m.FleetInstance]:
    """Return the instances that groups have devices on, those that are gone included."""
    instances = {each.id: each for each in report.instances}
    known = (instance_of(device_id, instances) for group in groups for device_id in group.device_ids)
    return [instances[each] for each in dict.fromkeys(known) if each is not None]


def config_of(groups: Sequence[m.DeviceGroup]) -> ParallelConfig | None:
    """Return the configuration that groups are; `None` where there are none, or they have unequal shapes."""
    shapes = {(group.stages, group.shards) for group in groups}
    prompts = sum(group.pool is Pool.PROMPT for group in groups)
    if len(shapes) != 1 or prompts == len(groups):
        return None
    ((stages, shards),) = shapes
    return ParallelConfig(len(groups) - prompts, stages, shards, prompt_data=prompts)
