"""The market of a whole mesh in one process: a provider that refuses, is late, loses answers and reclaims, and the keeper.

Instances that have started become devices; those that are reclaimed or given back take theirs with them. A keeper may be
replaced: its successor knows what the store has, and answers to its predecessor are lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from spotwise.core.fleet.keeper import events as k
from spotwise.core.fleet.keeper.kept import KeptFleet
from spotwise.core.fleet.keeper.role import FleetKeeperRole
from spotwise.core.fleet.prices import PriceSeries
from spotwise.core.fleet.types import FleetType
from spotwise.core.messages import mesh as m
from spotwise.core.messages.fleet import InstanceState, Market
from spotwise.core.spot.commands import PublishNotice, PublishReport
from tests.property.devices import Devices
from tests.property.mesh_world import MeshWorld
from tests.property.planners import Planners

KEEPER = "keeper"
LIST_S = 0.5
GONE = InstanceState.GONE
OfferKey = tuple[str, Market]


@dataclass
class Sold:
    """An offer; `most` as the fleet file says, `capacity` as the provider has it."""

    price_per_h: float
    most: int
    capacity: int = 99
    refuses_until_s: float = 0.0
    series: PriceSeries = field(default_factory=lambda: PriceSeries((0.0,), (0.0,)))

    def __post_init__(self) -> None:
        self.series = PriceSeries((0.0,), (self.price_per_h,))


class FleetMarket:
    """Provider and keeper.

    Attributes:
        instances: all that there were.
        problems: share of the provider's answers that are lost, whether or not it did what it was asked.
        late_rate: share of instances that start ten times as late.
        cut_off: devices that had a position as their instance was given back before its deadline.
        orders: of the planners, as they were sent.
    """

    def __init__(
        self, world: MeshWorld, planners: Planners, devices: Devices, types: list[FleetType], sold: dict[OfferKey, Sold]
    ) -> None:
        self.types = {each.name: each for each in types}
        self.sold = sold
        self.instances: dict[str, k.ListedInstance] = {}
        self.problems = 0.0
        self.late_rate = 0.0
        self.cut_off: list[str] = []
        self.orders: list[tuple[float, m.FleetOrder]] = []
        self.report: m.FleetReported | None = None
        self._world = world
        self._planners = planners
        self._devices = devices
        self._requests: dict[str, m.Purchase] = {}
        self._notices: dict[str, k.ProviderNotice] = {}
        self._store: KeptFleet | None = None
        self._incarnation = 0
        self._paused: list[Callable[[], None]] | None = None
        self.replaced = 0
        world.market = self

    # --- the keeper ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run a keeper, in the place of the one before."""
        self._incarnation += 1
        self._role = FleetKeeperRole(KEEPER, self._incarnation, "fake", LIST_S)
        self._paused = None
        self._feed(self._incarnation, k.FleetRestored(self._store))
        self._read_prices()

    def replace(self) -> None:
        """Let a new keeper take over."""
        self.replaced += 1
        self.start()

    def pause(self, seconds: float) -> None:
        """The keeper stands still for a while; what comes waits."""
        if self._paused is None:
            self._paused = []
            self._world.at(seconds, partial(self._resume, self._incarnation))

    def _resume(self, incarnation: int) -> None:
        if incarnation == self._incarnation and self._paused is not None:
            waiting, self._paused = self._paused, None
            for action in waiting:
                action()

    def receive(self, sender: str, message: Any) -> None:
        """A heartbeat or an order comes to the keeper, or is lost or repeated on the way."""
        self.publish(sender, KEEPER, message, lambda: self._feed(self._incarnation, message))

    def publish(self, sender: str, recipient: str, message: Any, deliver: Callable[[], None]) -> None:
        """Send a message that may be lost, or come again later."""
        world = self._world
        if world.repeats and not isinstance(message, m.Member) and world.rng.random() < world.repeats:
            world.at(world.delay(3.0), deliver)
        if not world.loses(message):
            world.transmit(sender, recipient, deliver)

    def ordered(self, planner_id: str, order: m.FleetOrder) -> None:
        """A planner orders."""
        self.orders.append((self._world.now, order))
        self.receive(planner_id, order)

    def tick(self, tick: m.Tick) -> None:
        """Time passes for the keeper, unless it stands still."""
        if self._paused is None:
            self._feed(self._incarnation, tick)

    def _feed(self, incarnation: int, event: Any) -> None:
        if incarnation != self._incarnation:
            return
        if self._paused is not None:
            self._paused.append(partial(self._feed, incarnation, event))
            return
        for command in self._role.handle(event, self._world.now):
            self._perform(command)

    def _later(self, action: Callable[[], None], most_s: float = 0.3) -> None:
        self._world.at(self._world.delay(most_s), action)

    def _perform(self, command: k.FleetKeeperCommand) -> None:
        world, incarnation = self._world, self._incarnation
        match command:
            case k.ListInstances():
                self._later(partial(self._list, incarnation))
            case k.Buy(purchase):
                self._later(partial(self._buy, incarnation, purchase))
            case k.GiveBack(instance_ids):
                self._later(partial(self._give_back, incarnation, instance_ids))
            case k.KeepFleet(kept):
                self._later(partial(self._keep, incarnation, kept), 0.1)
            case k.PublishFleet(report):
                self.report = report
                for planner_id in list(self._planners.roles):
                    self.publish(KEEPER, planner_id, report, partial(self._planners.feed, planner_id, report))
                self.publish(KEEPER, "scheduler", report, partial(world.feed_scheduler, report))
            case PublishReport(report):
                self._planners.receive_all(KEEPER, report)
            case PublishNotice(notice):
                if notice.worker_id in self._devices.incarnations and world.rng.random() >= world.loss:
                    world.transmit(KEEPER, notice.worker_id, partial(self._devices.receive, notice.worker_id, notice))

    def _keep(self, incarnation: int, kept: KeptFleet) -> None:
        is_ours = self._store is None or self._store.incarnation <= kept.incarnation
        if is_ours:
            self._store = kept
        self._feed(incarnation, k.FleetKept(is_ours))

    # --- the provider -------------------------------------------------------------------------------------------------

    @property
    def there(self) -> list[k.ListedInstance]:
        """The instances that have not gone."""
        return [each for each in self.instances.values() if each.state is not GONE]

    @property
    def price_per_h(self) -> float:
        """Dollars an hour of all instances."""
        return sum(self.sold[each.type_name, each.market].series.at(self._world.now) for each in self.there)

    def adopt(self, instance_id: str, type_name: str) -> None:
        """An instance runs already, with its devices."""
        self.instances[instance_id] = k.ListedInstance(
            instance_id, type_name, Market.ON_DEMAND, InstanceState.RUNNING, self._world.now
        )

    def change_price(self, key: OfferKey, factor: float) -> None:
        """An offer gets dearer or cheaper."""
        sold = self.sold[key]
        series, now = sold.series, self._world.now
        if now > series.times_s[-1]:
            sold.series = PriceSeries((*series.times_s, now), (*series.per_h, sold.price_per_h * factor))
        self._read_prices()

    def reclaim(self, count: int, notice_s: float, *, sooner: bool = False) -> None:
        """Take some spot instances, after a notice; `sooner`: half a second later their notice is cut short."""
        spot = [each.id for each in self.there if each.market is Market.SPOT]
        deadline_s = self._world.now + notice_s
        for instance_id in self._world.rng.sample(spot, min(count, len(spot))):
            self._take(instance_id, deadline_s, f"reclaim-{deadline_s:.3f}")
            if sooner:
                self._world.at(0.5, partial(self._take, instance_id, self._world.now + 0.5 + notice_s / 3, "sooner"))

    def _take(self, instance_id: str, deadline_s: float, event_id: str) -> None:
        known = self._notices.get(instance_id)
        if self.instances[instance_id].state is GONE or (known is not None and known.deadline_s <= deadline_s):
            return
        if deadline_s > self._world.now:
            self._notices[instance_id] = k.ProviderNotice(instance_id, deadline_s, event_id, "reclaimed")
        self._world.at(max(0.0, deadline_s - self._world.now), partial(self._end, instance_id))

    def _read_prices(self) -> None:
        offers = tuple(k.PricedOffer(*key, sold.most, sold.series) for key, sold in self.sold.items())
        self._feed(self._incarnation, k.PricesRead(offers))

    def _fails(self) -> bool:
        return self._world.rng.random() < self.problems

    def _list(self, incarnation: int) -> None:
        if self._fails():
            self._later(partial(self._feed, incarnation, k.InstancesListed(problem="throttled")), 2.0)
            return
        listed, notices = tuple(self.instances.values()), tuple(self._notices.values())
        self._later(partial(self._feed, incarnation, k.InstancesListed(listed)))
        self._later(partial(self._feed, incarnation, k.NoticesRead(notices)))

    def _buy(self, incarnation: int, purchase: m.Purchase) -> None:
        """Sell by token: one that brought instances brings the same again."""
        fails, now, token = self._fails(), self._world.now, purchase.token
        unknown = k.PurchaseAnswered(token, kind=k.RefusalKind.UNAVAILABLE, problem="timed out")
        answer = unknown
        known = tuple(each for each in self.instances.values() if each.token == token)
        if known:
            assert self._requests[token] == purchase, "one token, two requests"
            answer = k.PurchaseAnswered(token, known)
        elif not fails or self._world.rng.random() < 0.5:
            key = purchase.type_names[0], purchase.market
            sold = self.sold[key]
            here = Counter((each.type_name, each.market) for each in self.there)[key]
            count = 0 if now < sold.refuses_until_s else min(purchase.count, sold.capacity - here)
            self._requests[token] = purchase
            bought = tuple(self._launch(key, token) for _ in range(count))
            self._assert_allowed(key)
            kind = None if bought else k.RefusalKind.NO_CAPACITY
            answer = k.PurchaseAnswered(token, bought, kind, "" if count == purchase.count else "no capacity")
        self._later(partial(self._feed, incarnation, unknown if fails else answer), 1.0)

    def _assert_allowed(self, key: OfferKey) -> None:
        """No more than the file allows; an earlier keeper may have bought what its successor does not list yet."""
        leaving = {
            each.id for each in (self.report.instances if self.report else ()) if each.state is InstanceState.LEAVING
        }
        staying = [each for each in self.there if (each.type_name, each.market) == key and each.id not in leaving]
        assert self.replaced or len(staying) <= self.sold[key].most, "more than the file allows"

    def _launch(self, key: OfferKey, token: str) -> k.ListedInstance:
        rng, instance_id = self._world.rng, f"i{len(self.instances)}"
        self.instances[instance_id] = instance = k.ListedInstance(
            instance_id, *key, InstanceState.STARTING, self._world.now, token
        )
        start_s = self.types[key[0]].start_s * rng.uniform(0.5, 1.2) * (10 if rng.random() < self.late_rate else 1)
        self._world.at(start_s, partial(self._run, instance_id))
        return instance

    def _run(self, instance_id: str) -> None:
        instance = self.instances[instance_id]
        if instance.state is not GONE:
            self.instances[instance_id] = replace(instance, state=InstanceState.RUNNING)
            for device_id in self.device_ids(instance):
                self._later(partial(self._join, instance_id, device_id), 1.0)

    def _join(self, instance_id: str, device_id: str) -> None:
        if self.instances[instance_id].state is not GONE:
            self._devices.join(device_id)

    def device_ids(self, instance: k.ListedInstance) -> list[str]:
        """Return the devices of an instance."""
        known = [each for each in self._devices.incarnations if each.rpartition("-")[0] == instance.id]
        count = self.types[instance.type_name].devices
        return known or ([instance.id] if count == 1 else [f"{instance.id}-{number}" for number in range(count)])

    def _give_back(self, incarnation: int, instance_ids: tuple[str, ...]) -> None:
        fails = self._fails()
        if not fails or self._world.rng.random() < 0.5:
            for instance_id in instance_ids:
                self._note_cut_off(instance_id)
                self._end(instance_id)
        self._later(partial(self._feed, incarnation, k.ReleaseAnswered(instance_ids, "timed out" if fails else None)))

    def _note_cut_off(self, instance_id: str) -> None:
        report = self.report
        listed = {each.id: each for each in (report.instances if report else ())}
        deadline_s = listed[instance_id].leaves_at_s if instance_id in listed else None
        if deadline_s is not None and self._world.now < deadline_s:
            ids = self.device_ids(self.instances[instance_id])
            self.cut_off += [each for each in ids if self._devices.is_used(each)]

    def _end(self, instance_id: str) -> None:
        instance = self.instances[instance_id]
        self._notices.pop(instance_id, None)
        if instance.state is not GONE:
            self.instances[instance_id] = replace(instance, state=GONE, gone_s=self._world.now)
            for device_id in self.device_ids(instance):
                self._devices.kill(device_id, None)
