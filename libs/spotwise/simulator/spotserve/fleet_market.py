"""The market of a simulated fleet: core's own decision and keeper buy and give back instances, while a trace takes them.

The decision has a planner's inputs: the load of the last seconds, prices, the keeper's reports. A spot instance has a node of
the trace as in a mesh (`files.traced_nodes`); one on demand stays until it is given back. Purchases are answered at once, and
instances are ready `start_s` later. One that leaves is given back once no pipeline uses it.

Simulated seconds are the Unix time of all messages. No message is lost or late: that is for the whole-mesh test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Protocol

from spotwise.core.fleet.decision import FleetDecision
from spotwise.core.fleet.demand import DemandWindow
from spotwise.core.fleet.keeper import events as k
from spotwise.core.fleet.keeper.role import FleetKeeperRole
from spotwise.core.fleet.kept_choice import ChangeSeconds
from spotwise.core.gateway.load_meter import LATE_S, LoadMeter
from spotwise.core.messages.fleet import FleetOrder, FleetReported, InstanceState, Market, Purchase
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.mesh import Tick
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import ConfigChoice
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.files.traced_nodes import TracedNodes
from spotwise.simulator.spotserve.fleet import InstanceEvent, PaidLife, SpotInstance, Stage
from spotwise.simulator.spotserve.pipelines import Job
from spotwise.simulator.spotserve.pricing import PurchaseTerms
from spotwise.simulator.world.events import EventQueue

#: Between two advances of the market, and two listings of instances: as those of a mesh on one computer.
MARKET_TICK_S, _LIST_S = 0.25, 1.0
_GONE = InstanceState.GONE


class UsesInstances(Protocol):
    """A system, as the market sees it."""

    def uses(self, instance: str) -> bool:
        """Return whether a pipeline has devices of an instance, or data still leaves it."""


class FleetMarket:
    """Provider, keeper and decision.

    Args:
        max_batch: B of all pipelines.
        nodes: nodes of the spot instances.
        running: returns the requests that are computed now.
        happens: takes what happens to instances.
    """

    def __init__(
        self,
        terms: PurchaseTerms,
        model: ModelShape,
        max_batch: int,
        nodes: TracedNodes,
        events: EventQueue,
        running: Callable[[], Collection[Job]],
        happens: Callable[[InstanceEvent], None],
    ) -> None:
        self._terms = terms
        self._model = model
        self._max_batch = max_batch
        self._nodes = nodes
        self._events = events
        self._running = running
        self._happens = happens
        self._keeper = FleetKeeperRole("keeper", 1, "simulated", _LIST_S, terms.refused_s)
        self._decision = FleetDecision((terms.kind,), terms.policy, "planner", 1)
        self._load = LoadMeter("gateway", 1)
        self._demand = DemandWindow(terms.policy.window_s)
        self._open: list[Job] = []
        self._listed: dict[str, k.ListedInstance] = {}
        self._machines: dict[str, SpotInstance] = {}
        self._node_of: dict[str, int] = {}  # of spot instances that are there
        self._noticed: dict[str, float] = {}
        self._fed: deque[k.FleetKeeperEvent] = deque()
        self._is_feeding = False
        self._report: FleetReported | None = None
        self._orders = 0
        self._was_ready = False
        #: Configurations that instances were bought for, each from its time on.
        self.chosen: list[tuple[float, ParallelConfig | None]] = []

    def begin(self) -> None:
        """Open the market."""
        self._feed(k.FleetRestored(None), k.PricesRead(self._terms.offers))

    def arrived(self, job: Job) -> None:
        """Count a request."""
        self._load.arrived(job.input_tokens, self._now)
        self._open.append(job)

    def advance(self, system: UsesInstances) -> bool:
        """Let the time pass: reports, heartbeats and orders that are due; return whether it was decided anew."""
        self._count_ended()
        if self._load.is_due(self._now):
            for load in self._load.reports(self._late(), self._now):
                self._demand.add(load, self._now)
        here = [each.id for each in self._listed.values() if each.state is InstanceState.RUNNING]
        used = [instance_id for instance_id in here if system.uses(instance_id)]
        self._feed(*(_device(id_, left=id_ in self._noticed and id_ not in used) for id_ in here), Tick())
        if self._report is None or not self._decision.is_due(self._now):
            return False
        demand = self._demand.demand(self._now)
        model = self._model if self._was_ready else None  # a planner asks the first device
        decided = self._decision.decide(demand, self._report, model, self._now, serving=used)
        config = self._full(decided.choice)
        if not self.chosen or self.chosen[-1][1] != config:
            self.chosen.append((self._now, config))
        if decided.purchases or decided.releases:
            self._orders += 1
            self._feed(FleetOrder("planner", 1, self._orders, decided.purchases, decided.releases))
        return True

    def config_on(self, instances: int, change: ChangeSeconds | None = None) -> ParallelConfig | None:
        """Return the configuration to serve with on so many instances; `None` where they cannot have the model."""
        demand = self._demand.demand(self._now)
        ready = {self._terms.kind.name: instances}
        choice = self._decision.config_on(ready, demand, self._model, self._now, change)
        return self._full(choice)

    def lives(self, end_s: float) -> tuple[PaidLife, ...]:
        """Return the stays that are paid, up to the end of the simulation."""
        return tuple(
            PaidLife(
                self._machines[each.id].node,
                each.id,
                each.market,
                each.launched_s,
                end_s if each.gone_s is None else each.gone_s,
            )
            for each in self._listed.values()
        )

    def spent(self, end_s: float) -> float:
        """Return the dollars for all instances."""
        series = {(each.market, each.zone): each.prices for each in self._terms.offers}
        bills = (
            series[each.market, each.zone].cost(each.launched_s, end_s if each.gone_s is None else each.gone_s)
            for each in self._listed.values()
        )
        return sum(bills)

    def _full(self, choice: ConfigChoice | None) -> ParallelConfig | None:
        """Return a chosen configuration with the largest batches: it was chosen for those that the load needs."""
        return None if choice is None else replace(choice.config, max_batch=self._max_batch)

    @property
    def _now(self) -> float:
        return self._events.now

    def _count_ended(self) -> None:
        for job in self._open:
            if job.finished_s is not None:
                self._load.finished(job.output_tokens)
        self._open = [job for job in self._open if job.finished_s is None]

    def _late(self) -> int:
        waiting = [job for job in self._open if not job.decoded and self._now - job.arrived_s > LATE_S]
        running = self._running() if waiting else ()
        return sum(job not in running for job in waiting)

    # --- the keeper ---------------------------------------------------------------------------------------------------

    def _feed(self, *events: k.FleetKeeperEvent) -> None:
        self._fed += events
        if self._is_feeding:
            return
        self._is_feeding = True
        while self._fed:
            for command in self._keeper.handle(self._fed.popleft(), self._now):
                self._perform(command)
        self._is_feeding = False

    def _perform(self, command: k.FleetKeeperCommand) -> None:
        match command:
            case k.ListInstances():
                self._feed(k.InstancesListed(tuple(self._listed.values())), k.NoticesRead(tuple(self._notices())))
            case k.Buy(purchase):
                self._feed(self._buy(purchase))
            case k.GiveBack(instance_ids):
                self._end(instance_ids)
                self._feed(k.ReleaseAnswered(instance_ids))
            case k.KeepFleet():
                self._feed(k.FleetKept(is_ours=True))
            case k.PublishFleet(report):
                self._report = report
                self._note_leaving(report)

    def _note_leaving(self, report: FleetReported) -> None:
        noticed = []
        for each in report.instances:
            leaves_s = each.leaves_at_s
            if each.state is not _GONE and leaves_s is not None and self._noticed.get(each.id) != leaves_s:
                self._noticed[each.id] = self._machines[each.id].leaves_s = leaves_s
                noticed.append(self._machines[each.id])
        self._happened(Stage.NOTICED, noticed)

    # --- the provider -------------------------------------------------------------------------------------------------

    def _buy(self, purchase: Purchase) -> k.PurchaseAnswered:
        is_spot = purchase.market is Market.SPOT
        free = self._nodes.free(frozenset(self._node_of.values()), self._now) if is_spot else []
        here = sum(each.state is not _GONE for each in self._listed.values())
        room = purchase.count if self._terms.limit is None else max(0, self._terms.limit - here)
        count = min(purchase.count, room, len(free) if is_spot else room)
        bought = [self._launch(purchase, free[place] if is_spot else None) for place in range(count)]
        kind = None if count else k.RefusalKind.NO_CAPACITY
        problem = "" if count == purchase.count else "as many as there is room for"
        return k.PurchaseAnswered(purchase.token, tuple(bought), kind, problem)

    def _launch(self, purchase: Purchase, node: int | None) -> k.ListedInstance:
        now, kind = self._now, self._terms.kind
        instance_id = f"instance-{len(self._listed) + 1}"
        listed = k.ListedInstance(
            instance_id, kind.name, purchase.market, InstanceState.STARTING, now, purchase.token, purchase.zone
        )
        name = instance_id if node is None else self._nodes.stays[node].node
        machine = SpotInstance(name, instance_id, purchase.market, now + kind.start_s)
        self._listed[instance_id], self._machines[instance_id] = listed, machine
        if node is not None:
            self._node_of[instance_id] = node
            if (end_s := self._nodes.end_s(node)) is not None:
                self._events.at(end_s, self._end, (instance_id,))
        self._happened(Stage.ANNOUNCED, [machine])
        self._events.at(machine.ready_s, self._ready, instance_id)
        return listed

    def _ready(self, instance_id: str) -> None:
        if self._listed[instance_id].state is _GONE:
            return
        self._listed[instance_id] = replace(self._listed[instance_id], state=InstanceState.RUNNING)
        self._was_ready = True
        self._happened(Stage.READY, [self._machines[instance_id]])
        self._feed(_device(instance_id))

    def _end(self, instance_ids: Iterable[str]) -> None:
        ended = [each for each in instance_ids if self._listed[each].state is not _GONE]
        for instance_id in ended:
            self._listed[instance_id] = replace(self._listed[instance_id], state=_GONE, gone_s=self._now)
            self._node_of.pop(instance_id, None)
        self._happened(Stage.GONE, [self._machines[each] for each in ended])

    def _notices(self) -> Iterable[k.ProviderNotice]:
        for instance_id, node in self._node_of.items():
            end_s = self._nodes.end_s(node)
            if end_s is not None and end_s - self._nodes.notice_s(node) <= self._now < end_s:
                yield k.ProviderNotice(instance_id, end_s, f"trace-{end_s:g}", f"{self._nodes.stays[node].node} leaves")

    def _happened(self, stage: Stage, machines: list[SpotInstance]) -> None:
        if machines:
            self._happens(InstanceEvent(self._now, stage, tuple(machines)))


def _device(instance_id: str, *, left: bool = False) -> Member:
    state = MemberState.LEFT if left else MemberState.READY
    return Member(instance_id, MemberKind.DEVICE, 1, state, "", 0, "")
