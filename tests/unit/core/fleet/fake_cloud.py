"""A provider and its watcher that may refuse, be late, lose orders and report late, and that remembers what it did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from spotwise.core.costs.cost_profile import BUILT_IN, CostProfile, at_speed
from spotwise.core.fleet.decision import Decided, FleetDecision
from spotwise.core.fleet.keeper.failed_starts import FailedStarts
from spotwise.core.fleet.types import FleetType
from spotwise.core.messages.fleet import (
    FleetInstance,
    FleetReported,
    InstanceOffer,
    InstanceState,
    Market,
    Purchase,
    PurchaseStatus,
)
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.policy import ServiceDemand

#: Llama2-70B, of which the built-in profile is.
SHAPE = ModelShape("llama2-70b", 80, 8192, 135 * 2**30 // 80, 0, 0, 4096)
LOAD = ServiceDemand(2.0, 1.0, 1140, 209)
#: A watcher's refusal lasts so long.
REFUSED_S = 60.0


def fleet_type(
    name: str, devices: int = 1, start_s: float = 5.0, profile: CostProfile = BUILT_IN, memory_bytes: int | None = None
) -> FleetType:
    """Return a type whose every device holds the model, by default."""
    return FleetType(name, devices, memory_bytes, start_s, profile)


#: Two types, one twice as fast as the other, and what they cost.
FAST = fleet_type("fast")
SLOW = fleet_type("slow", profile=replace(BUILT_IN, iteration=at_speed(BUILT_IN.iteration, 0.5)))
PRICES = {
    ("fast", Market.SPOT): 1.0,
    ("fast", Market.ON_DEMAND): 3.0,
    ("slow", Market.SPOT): 0.4,
    ("slow", Market.ON_DEMAND): 1.5,
}


@dataclass
class Sold:
    """What one market of a type sells."""

    price_per_h: float
    most: int = 8
    refuses: bool = False
    late: bool = False
    zone: str = ""


@dataclass
class FakeCloud:
    """Instances by id; time passes with `step`."""

    types: list[FleetType]
    sold: dict[tuple[str, Market, str], Sold]
    now: float = 1000.0
    instances: dict[str, FleetInstance] = field(default_factory=dict)
    statuses: dict[str, PurchaseStatus] = field(default_factory=dict)
    refused_until_s: dict[tuple[str, Market, str], float] = field(default_factory=dict)
    bought: Counter[str] = field(default_factory=Counter)
    releases: list[str] = field(default_factory=list)
    problem: str = ""
    failed: FailedStarts = field(default_factory=FailedStarts)

    @classmethod
    def selling(cls, types: list[FleetType], prices: dict[tuple[str, Market], float], most: int = 8) -> FakeCloud:
        """Return a cloud with offers without zones."""
        return cls(types, {(name, market, ""): Sold(price, most) for (name, market), price in prices.items()})

    def report(self) -> FleetReported:
        """Return the fleet as it is."""
        offers = tuple(
            InstanceOffer(
                *(*key[:2], sold.price_per_h, min(sold.most, self._room(key)), key[2]),
                refused_until_s=max(self.refused_until_s.get(key, 0.0), self.failed.until(key, self.now)[0]),
                failed_starts=self.failed.in_a_row(key[0]),
            )
            for key, sold in self.sold.items()
        )
        instances = tuple(
            replace(each, price_per_h=self.sold[each.type_name, each.market, each.zone].price_per_h)
            for each in self.instances.values()
        )
        return FleetReported(
            "watcher", 1, self.now, "fake", instances, offers, tuple(self.statuses.values()), problem=self.problem
        )

    def step(self, seconds: float = 1.0) -> None:
        """Let time pass: instances start and leave."""
        self.now += seconds
        start_s = {each.name: each.start_s for each in self.types}
        for each in list(self.instances.values()):
            is_late = self.sold[each.type_name, each.market, each.zone].late
            if (
                each.state is InstanceState.STARTING
                and not is_late
                and self.now - each.launched_s >= start_s[each.type_name]
            ):
                self.instances[each.id] = replace(each, state=InstanceState.RUNNING)
                self.failed.started(each.type_name, each.market, each.zone)
            if each.leaves_at_s is not None and self.now >= each.leaves_at_s:
                self.instances[each.id] = replace(each, state=InstanceState.GONE)

    def carry_out(self, decided: Decided) -> None:
        """Do what is ordered."""
        for purchase in decided.purchases:
            if purchase.token not in self.statuses:
                self._buy(purchase)
        for release in decided.releases:
            instance = self.instances[release.instance_id]
            if instance.leaves_at_s is None:
                self.releases.append(instance.id)
                if instance.state is InstanceState.STARTING:
                    self.failed.failed(
                        instance.type_name, instance.market, instance.zone, instance.launched_s, self.now
                    )
                self.instances[instance.id] = replace(
                    instance, state=InstanceState.LEAVING, leaves_at_s=self.now + 2.0, why_leaving=release.reason
                )

    def interrupt(self, instance_id: str) -> None:
        """Give notice of an instance's end."""
        self.instances[instance_id] = replace(
            self.instances[instance_id],
            state=InstanceState.LEAVING,
            leaves_at_s=self.now + 30.0,
            why_leaving="reclaimed",
        )

    def staying(self) -> list[FleetInstance]:
        """Return the instances that are there and not under notice."""
        return [
            each
            for each in self.report().instances
            if each.state in (InstanceState.STARTING, InstanceState.RUNNING) and each.leaves_at_s is None
        ]

    def counts(self) -> dict[tuple[str, Market], int]:
        """Return the staying instances by type and market."""
        return dict(Counter((each.type_name, each.market) for each in self.staying()))

    @property
    def price_per_h(self) -> float:
        """Dollars an hour of the staying instances."""
        return sum(each.price_per_h for each in self.staying())

    def present(self, key: tuple[str, Market, str]) -> int:
        """Return the instances of an offer that are not gone."""
        return sum(
            (each.type_name, each.market, each.zone) == key and each.state is not InstanceState.GONE
            for each in self.instances.values()
        )

    def _room(self, key: tuple[str, Market, str]) -> int:
        """Return the instances of an offer that there may be: as the keeper does, one more where its type is only tried."""
        if not self.failed.is_open(key[0]):
            return self.sold[key].most
        is_trying = any(
            each.type_name == key[0] and each.state is InstanceState.STARTING and each.leaves_at_s is None
            for each in self.instances.values()
        )
        return self.present(key) + (not is_trying)

    def _buy(self, purchase: Purchase) -> None:
        key = purchase.type_names[0], purchase.market, purchase.zone
        sold = self.sold[key]
        rests = self.failed.until(key, self.now)[0] > self.now
        got = 0 if sold.refuses or rests else min(purchase.count, max(0, self._room(key) - self.present(key)))
        if sold.refuses:
            self.refused_until_s[key] = self.now + REFUSED_S
        for _ in range(got):
            name = f"i-{len(self.instances)}"
            self.bought[purchase.token] += 1
            self.instances[name] = FleetInstance(
                name,
                purchase.type_names[0],
                purchase.market,
                InstanceState.STARTING,
                self.now,
                purchase.token,
                purchase.zone,
            )
        self.statuses[purchase.token] = PurchaseStatus(
            purchase, self.now, is_answered=True, got=got, problem="" if got == purchase.count else "no capacity"
        )


def live(
    cloud: FakeCloud,
    decision: FleetDecision,
    seconds: int,
    demand: ServiceDemand = LOAD,
    model: ModelShape | None = SHAPE,
    step_s: int = 1,
) -> Decided:
    """Let a fleet live for some seconds with a decision every `step_s`; return the last one."""
    decided = Decided()
    for _ in range(seconds // step_s):
        decided = decision.decide(demand, cloud.report(), model, cloud.now)
        cloud.carry_out(decided)
        cloud.step(step_s)
    return decided
