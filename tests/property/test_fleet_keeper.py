"""The fleet keeper against a provider that refuses, is late, loses answers and repeats, under lost and repeated orders, and
restarts of the keeper in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spotwise.core.fleet.keeper import events as k
from spotwise.core.fleet.keeper.kept import KeptFleet
from spotwise.core.fleet.keeper.role import FleetKeeperRole
from spotwise.core.fleet.prices import PriceSeries
from spotwise.core.messages.fleet import FleetOrder, FleetReported, InstanceRelease, InstanceState, Market, Purchase
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.mesh import Tick

TYPES = ("small", "large")
MOST = 4
TICK_S = 0.25
GONE = InstanceState.GONE
PLANNERS_S = 20.0


@dataclass
class Provider:
    """Sells by token: a token that brought instances brings the same again."""

    instances: dict[str, k.ListedInstance]
    requests: dict[str, Purchase]

    def sell(self, order: Purchase, count: int, now: float) -> list[k.ListedInstance]:
        known = [each for each in self.instances.values() if each.token == order.token]
        if known:
            assert self.requests[order.token] == order, "one token, two requests"
            return known
        self.requests[order.token] = order
        for number in range(count):
            instance_id = f"{order.token}-{number}"
            self.instances[instance_id] = k.ListedInstance(
                instance_id, order.type_names[0], order.market, InstanceState.RUNNING, now, order.token
            )
        return [each for each in self.instances.values() if each.token == order.token]

    def end(self, instance_id: str, now: float) -> None:
        if self.instances[instance_id].state is not GONE:
            self.instances[instance_id] = replace(self.instances[instance_id], state=GONE, gone_s=now)


class KeeperWorld(RuleBasedStateMachine):
    """A planner, a keeper and a provider; messages between them are lost, repeated and late."""

    @initialize()
    def begin(self) -> None:
        self.now = 1000.0
        self.provider = Provider({}, {})
        self.prices = PriceSeries((0.0,), (3.6,))
        self.orders: list[FleetOrder] = []
        self.store: KeptFleet | None = None
        self.incarnation = 0
        self.tokens = 0
        self.ever_kept: set[str] = set()
        self.crashes = 0
        self.newest = (0, 0)
        self.last: FleetReported | None = None
        self.start()

    def start(self) -> None:
        self.incarnation += 1
        self.open_buys: list[Purchase] = []
        self.open_returns: list[tuple[str, ...]] = []
        self.listing = self.unconfirmed = False
        self.final: set[str] = set()
        self.seen: set[str] = set(self.ever_kept)
        self.deadlines: dict[str, float] = {}
        self.newest = (0, 0) if self.store is None else (self.store.term, self.store.number)
        self.wanted: set[str] = set()
        self.role = FleetKeeperRole("watcher-0", self.incarnation, "fake", 1.0)
        self.feed(k.FleetRestored(self.store))
        self.feed_prices()

    def feed_prices(self) -> None:
        self.feed(
            k.PricesRead(tuple(k.PricedOffer(name, market, MOST, self.prices) for name in TYPES for market in Market))
        )

    def feed(self, event: k.FleetKeeperEvent) -> None:
        for command in self.role.handle(event, self.now):
            match command:
                case k.ListInstances():
                    assert not self.listing, "two listings at once"
                    self.listing = True
                case k.Buy(purchase):
                    self.check_purchase(purchase)
                    self.open_buys.append(purchase)
                case k.GiveBack(instance_ids):
                    self.open_returns.append(instance_ids)
                case k.PublishFleet(report):
                    self.last = report
                case k.KeepFleet(kept):
                    self.store = kept
                    self.ever_kept |= {each.id for each in kept.instances}
                    self.unconfirmed = True

    def check_purchase(self, purchase: Purchase) -> None:
        assert purchase.token in self.wanted, "bought what the newest order lacks"
        assert purchase.token not in self.final, "asked again after a final answer"
        assert purchase.token not in {each.token for each in self.open_buys}, "asked twice at once"
        if self.crashes == 0:
            names = purchase.type_names
            staying = sum(
                each.state is not GONE
                and each.id not in self.deadlines
                and each.type_name in names
                and each.market is purchase.market
                and each.token != purchase.token
                for each in self.provider.instances.values()
                if each.id in self.seen
            )
            assert staying + purchase.count <= MOST * len(names), "more than the file allows"

    @precondition(lambda self: self.unconfirmed)
    @rule()
    def confirm(self) -> None:
        """The store answers."""
        self.unconfirmed = False
        self.feed(k.FleetKept(True))

    # --- the planner --------------------------------------------------------------------------------------------------

    def send(self, order: FleetOrder) -> None:
        if (order.term, order.number) >= self.newest:
            self.newest = (order.term, order.number)
            self.wanted = {each.token for each in order.purchases}
            for release in order.releases:
                known = self.provider.instances.get(release.instance_id)
                if known is not None and known.state is not GONE and release.instance_id in self.seen:
                    before = self.deadlines.get(release.instance_id, release.deadline_s)
                    self.deadlines[release.instance_id] = min(before, release.deadline_s)
        self.feed(order)

    @rule(
        counts=st.lists(st.tuples(st.integers(1, 3), st.sampled_from(list(Market)), st.booleans()), max_size=3),
        releases=st.lists(st.integers(0, 8), max_size=2),
        keeps=st.booleans(),
        is_lost=st.booleans(),
        new_term=st.booleans(),
    )
    def order(
        self,
        counts: list[tuple[int, Market, bool]],
        releases: list[int],
        keeps: bool,
        is_lost: bool,
        new_term: bool,
    ) -> None:
        """The planner decides anew; the order may be lost."""
        purchases = list(self.orders[-1].purchases) if keeps and self.orders else []
        for count, market, is_either in counts:
            self.tokens += 1
            purchases.append(Purchase(f"t{self.tokens}", TYPES if is_either else TYPES[:1], market, count))
        ids = sorted(self.provider.instances)
        term = (self.orders[-1].term if self.orders else 1) + new_term
        number = 1 if new_term or not self.orders else self.orders[-1].number + 1
        given = tuple(InstanceRelease(ids[each], self.now + PLANNERS_S, "r") for each in releases if each < len(ids))
        self.orders.append(FleetOrder("planner", term, number, tuple(purchases), given))
        if not is_lost:
            self.send(self.orders[-1])

    @precondition(lambda self: self.orders)
    @rule(back=st.integers(1, 4))
    def repeat(self, back: int) -> None:
        """An order comes again, the last one or an old one."""
        self.send(self.orders[-min(back, len(self.orders))])

    # --- the provider -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.open_buys)
    @rule(which=st.integers(0, 5), how=st.sampled_from(["full", "partly", "none", "refused", "lost", "failed"]))
    def answer(self, which: int, how: str) -> None:
        """A purchase is answered, in any order; `lost`: it was filled, and that is unknown."""
        order = self.open_buys.pop(which % len(self.open_buys))
        known = any(each.token == order.token for each in self.provider.instances.values())
        if how in ("none", "refused") and not known:
            kind = k.RefusalKind.NO_CAPACITY if how == "none" else k.RefusalKind.REFUSED
            self.final.add(order.token)
            self.feed(k.PurchaseAnswered(order.token, kind=kind, problem=how))
        elif how == "failed":
            self.feed(k.PurchaseAnswered(order.token, kind=k.RefusalKind.UNAVAILABLE, problem=how))
        else:
            sold = self.provider.sell(order, 1 if how == "partly" else order.count, self.now)
            if how == "lost":
                self.feed(k.PurchaseAnswered(order.token, kind=k.RefusalKind.UNAVAILABLE, problem=how))
            else:
                self.final.add(order.token)
                self.see(sold)
                self.feed(k.PurchaseAnswered(order.token, tuple(sold)))

    @precondition(lambda self: self.listing)
    @rule(is_failed=st.booleans())
    def list_instances(self, is_failed: bool) -> None:
        """A listing is answered."""
        self.listing = False
        if is_failed:
            self.feed(k.InstancesListed(problem="throttled"))
            return
        listed = list(self.provider.instances.values())
        self.see(listed)
        self.feed(k.InstancesListed(tuple(listed)))

    def see(self, instances: Sequence[k.ListedInstance]) -> None:
        self.seen |= {each.id for each in instances if each.state is not GONE}

    @precondition(lambda self: self.open_returns)
    @rule(how=st.sampled_from(["done", "failed", "lost"]))
    def answer_release(self, how: str) -> None:
        """A release is answered; `lost`: it was carried out, and that is unknown."""
        instance_ids = self.open_returns.pop(0)
        if how != "failed":
            for instance_id in instance_ids:
                self.provider.end(instance_id, self.now)
        self.feed(k.ReleaseAnswered(instance_ids, None if how == "done" else how))

    @rule(which=st.integers(0, 8))
    def take_back(self, which: int) -> None:
        """The provider takes an instance without a notice."""
        if which < len(self.provider.instances):
            self.provider.end(sorted(self.provider.instances)[which], self.now)

    # --- devices, time and restarts -----------------------------------------------------------------------------------

    @rule(which=st.integers(0, 8), state=st.sampled_from([*MemberState]))
    def beat(self, which: int, state: MemberState) -> None:
        """A device of an instance sends a heartbeat."""
        if which < len(self.provider.instances):
            instance_id = sorted(self.provider.instances)[which]
            self.feed(Member(instance_id, MemberKind.DEVICE, 1, state, "h", 1, "h:1"))

    @rule(ticks=st.sampled_from([1, 8, 100]))
    def pass_time(self, ticks: int) -> None:
        for _ in range(ticks):
            self.now += TICK_S
            self.feed(Tick())

    @rule(per_h=st.sampled_from([3.6, 7.2, 36.0]), late_s=st.sampled_from([0.0, 1.0, 30.0]))
    def change_price(self, per_h: float, late_s: float) -> None:
        """A price that changed up to half a minute ago is read."""
        at_s = max(self.now - late_s, self.prices.times_s[-1] + 0.001)
        self.prices = PriceSeries((*self.prices.times_s, at_s), (*self.prices.per_h, per_h))
        self.feed_prices()

    @rule()
    def crash(self) -> None:
        """The keeper ends, and another one goes on with its record; answers to the first one are lost."""
        self.crashes += 1
        for order in self.open_buys[::2]:
            self.provider.sell(order, order.count, self.now)
        self.start()

    # --- laws ---------------------------------------------------------------------------------------------------------

    @invariant()
    def a_token_brings_no_more_than_its_purchase(self) -> None:
        ordered = {each.token: each.count for order in self.orders for each in order.purchases}
        counts: dict[str, int] = {}
        for each in self.provider.instances.values():
            counts[each.token] = counts.get(each.token, 0) + 1
        assert all(count <= ordered[token] for token, count in counts.items())

    def teardown(self) -> None:
        """In the end the bill is exact, what had to leave has been given back, and the report has what the provider has."""
        if not hasattr(self, "role"):
            return
        for _ in range(200):
            self.now += TICK_S
            self.feed(Tick())
            while self.open_returns:
                self.answer_release("done")
            if self.listing:
                self.list_instances(False)
        assert self.last is not None
        there = {each.id for each in self.provider.instances.values() if each.state is not GONE}
        assert {each.id for each in self.last.instances if each.state is not GONE} == there
        assert not there & {id_ for id_, deadline_s in self.deadlines.items() if deadline_s <= self.now - 2.0}
        paid = [self.provider.instances[id_] for id_ in sorted(self.seen)]
        expected = sum(
            self.prices.cost(each.launched_s, self.last.at_s if each.gone_s is None else each.gone_s) for each in paid
        )
        assert self.last.spent == pytest.approx(expected)


KeeperWorld.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestKeeper = KeeperWorld.TestCase
