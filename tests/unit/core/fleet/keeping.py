"""What tests of the fleet keeper's role share: a role under a clock that the test moves, and the commands that it gave."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from spotwise.core.fleet.keeper import events as k
from spotwise.core.fleet.keeper.kept import KeptFleet
from spotwise.core.fleet.keeper.role import FleetKeeperRole
from spotwise.core.fleet.prices import PriceSeries
from spotwise.core.messages.fleet import FleetOrder, FleetReported, InstanceRelease, InstanceState, Market, Purchase
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.mesh import Tick

START_S = 10_000.0
TYPE = "small"
CommandT = TypeVar("CommandT")


def offer(market: Market = Market.SPOT, most: int = 4, per_h: float = 3.6, zone: str = "") -> k.PricedOffer:
    """An offer of the type that there is; 3.6 dollars an hour are a thousandth of a dollar a second."""
    return k.PricedOffer(TYPE, market, most, PriceSeries((0.0,), (per_h,)), zone)


def purchase(token: str = "t1", count: int = 1, market: Market = Market.SPOT, zone: str = "") -> Purchase:
    """A purchase of the type that there is."""
    return Purchase(token, (TYPE,), market, count, zone)


def listed(
    instance_id: str, token: str = "t1", launched_s: float = START_S, market: Market = Market.SPOT, **fields: object
) -> k.ListedInstance:
    """An instance as the provider lists it: running."""
    plain = k.ListedInstance(instance_id, TYPE, market, InstanceState.RUNNING, launched_s, token)
    return replace(plain, **fields)  # type: ignore[arg-type]


def device(device_id: str, state: MemberState = MemberState.READY, incarnation: int = 1) -> Member:
    """A device's heartbeat."""
    return Member(device_id, MemberKind.DEVICE, incarnation, state, "h", 1, "h:1")


class Keeping:
    """A keeper, its clock, and what it commanded."""

    def __init__(self, kept: KeptFleet | None = None, now: float = START_S, incarnation: int = 1) -> None:
        self.now = now
        self.role = FleetKeeperRole("watcher-0", incarnation, "local", 1.0)
        self.given: list[k.FleetKeeperCommand] = []
        self._number = 0
        self.feed(k.FleetRestored(kept))
        self.feed(k.PricesRead((offer(), offer(Market.ON_DEMAND, 2, 36.0))))

    def feed(self, event: k.FleetKeeperEvent, after_s: float = 0.0) -> list[k.FleetKeeperCommand]:
        """Advance the clock and feed an event; return the role's commands."""
        self.now += after_s
        commands = list(self.role.handle(event, self.now))
        if of(commands, k.KeepFleet):
            commands += self.role.handle(k.FleetKept(True), self.now)
        self.given += commands
        return commands

    def lists(self, *instances: k.ListedInstance, after_s: float = 0.0) -> list[k.FleetKeeperCommand]:
        """The provider lists these instances."""
        return self.feed(k.InstancesListed(instances), after_s)

    def order(
        self, *things: Purchase | InstanceRelease, term: int = 1, number: int | None = None
    ) -> list[k.FleetKeeperCommand]:
        """The planner orders."""
        self._number += 1
        purchases = tuple(each for each in things if isinstance(each, Purchase))
        releases = tuple(each for each in things if isinstance(each, InstanceRelease))
        return self.feed(FleetOrder("planner-0", term, self._number if number is None else number, purchases, releases))

    def release(self, instance_id: str, within_s: float = 60.0) -> list[k.FleetKeeperCommand]:
        """The planner orders a release."""
        return self.order(InstanceRelease(instance_id, self.now + within_s, "too many"))

    def report(self) -> FleetReported:
        """The next report."""
        return of(self.feed(Tick(), 1.0), k.PublishFleet)[0].report

    def kept(self) -> KeptFleet:
        """The last record that was written."""
        return of(self.given, k.KeepFleet)[-1].kept


def bought(keeping: Keeping) -> list[Purchase]:
    """What the provider was asked for, so far."""
    return [each.purchase for each in of(keeping.given, k.Buy)]


def of(commands: list[k.FleetKeeperCommand], wanted: type[CommandT]) -> list[CommandT]:
    """Return the commands of the given type."""
    return [command for command in commands if isinstance(command, wanted)]
