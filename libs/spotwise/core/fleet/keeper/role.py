"""The keeper of a fleet: carries out purchases and releases at the provider.

Law: an order of an earlier term, or an earlier one of its term, is ignored. Nothing is bought before the fleet was listed.
An instance is STARTING until one of its devices was ready, then RUNNING; LEAVING from its release or notice on; GONE for good.
An instance that leaves is given back once it is empty (`departures.py`), and at its deadline in any case. One whose devices are
silent for `SILENT_S`, while other members are heard, is given back as well: it is paid, and serves nothing.
The offer of an instance that never became ready rests (`failed_starts.py`), also where the keeper itself ended it.
A keeper that learns of a newer one for its fleet does nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from spotwise.core.fleet.devices import instance_of
from spotwise.core.fleet.keeper import events as k
from spotwise.core.fleet.keeper.accounts import Account, Accounts
from spotwise.core.fleet.keeper.departures import Departures, GiveBacks
from spotwise.core.fleet.keeper.failed_starts import SHORTEST_S, FailedStarts, OfferKey
from spotwise.core.fleet.keeper.kept import InstanceLeave, KeptFleet
from spotwise.core.fleet.keeper.purchases import LONG_S, Purchases, key_of
from spotwise.core.messages import mesh as m
from spotwise.core.messages.fleet import InstanceState
from spotwise.core.spot.role import COMPUTING

REPORT_S = 1.0
#: Changes are reported at once, and so far apart at least.
_NEWS_S = 0.2
#: Silence of all devices of an instance after which it is given back; longer than a restart of their processes takes.
SILENT_S = 90.0
#: Where no member was heard for so long, the silence is this keeper's.
_HEARD_S = 5.0
#: Seconds at least between two writes of the record, but for new purchases and instances that have to leave.
KEEP_S = 5.0
_KEEP_PATIENCE_S = 10.0
_READY = (m.MemberState.READY, m.MemberState.DRAINING)


class FleetKeeperRole:
    """One mesh's keeper.

    Args:
        provider: its name.
        list_s: seconds between two listings.
    """

    def __init__(
        self, watcher_id: str, incarnation: int, provider: str, list_s: float, refused_s: float = SHORTEST_S
    ) -> None:
        self.watcher_id = watcher_id
        self._incarnation = incarnation
        self._provider = provider
        self._list_s = list_s
        self._refused_s = refused_s
        self._restore(None, 0.0)
        self._is_restored = False
        self._is_replaced = False
        self._is_listed = False
        self._problem: str | None = None
        self._listing_s: float | None = None  # while a listing is open
        self._list_at_s = 0.0
        self._report_at_s = 0.0
        self._reported_s = 0.0
        self._heard_s = self._ticked_s = 0.0
        self._silent_s: dict[str, float] = {}  # of instances that were ready
        self._keep_at_s = 0.0
        self._keeping: KeptFleet | None = None
        self._kept: KeptFleet | None = None
        self._commands: list[k.FleetKeeperCommand] = []
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            m.FleetOrder: self._order,
            m.Member: self._member,
            m.Tick: self._tick,
            m.InterruptionReported: self._interruption,
            k.FleetRestored: lambda event, now: self._restore(event.kept, now),
            k.InstancesListed: self._listed,
            k.PurchaseAnswered: self._purchase_answered,
            k.ReleaseAnswered: lambda event, now: self._give_backs.answered(event, now),
            k.PricesRead: self._prices_read,
            k.NoticesRead: self._notices_read,
            k.FleetKept: self._was_kept,
        }

    def handle(self, event: k.FleetKeeperEvent, now: float) -> Sequence[k.FleetKeeperCommand]:
        """Process an event and return the commands."""
        if self._is_replaced:
            return []
        self._commands = []
        self._handlers[type(event)](event, now)
        if self._is_restored and not self._is_replaced:
            self._advance(now)
        return self._commands

    # --- events -------------------------------------------------------------------------------------------------------

    def _restore(self, kept: KeptFleet | None, now: float) -> None:
        self._term = (0, 0) if kept is None else (kept.term, kept.number)
        self._accounts = Accounts(kept)
        self._purchases = Purchases(() if kept is None else kept.purchases, now, self._refused_s)
        self._failed = FailedStarts(self._refused_s, () if kept is None else kept.failed_starts)
        self._departures = Departures(self.watcher_id, now)
        self._give_backs = GiveBacks()
        self._is_restored = True
        leaving = [(id_, each.kept.leave) for id_, each in self._accounts.by_id.items() if not each.is_gone]
        self._departures.begin([(id_, leave) for id_, leave in leaving if leave is not None], now)

    def _order(self, order: m.FleetOrder, now: float) -> None:
        if (order.term, order.number) < self._term:
            return
        self._term = (order.term, order.number)
        self._purchases.order(order.purchases, now)
        self._leave(
            [
                (each.instance_id, InstanceLeave(f"release-{each.instance_id}", each.deadline_s, each.reason))
                for each in order.releases
            ],
            now,
        )

    def _member(self, member: m.Member, now: float) -> None:
        self._heard_s = now
        instance = self._instance_of(member)
        if instance is None:
            return
        if member.state not in (m.MemberState.LEFT, m.MemberState.LOST):
            self._silent_s.pop(instance.kept.id, None)
        if member.state in _READY and not instance.kept.was_ready:
            instance.kept = replace(instance.kept, was_ready=True)
            if instance.kept.leave is None:  # one that was given up came too late
                self._failed.started(instance.kept.type_name, instance.kept.market, instance.kept.zone)
            self._has_news(now)
        self._commands += self._departures.observe(instance.kept.id, member, now)

    def _tick(self, event: m.Tick, now: float) -> None:
        self._commands += self._departures.repeat(now)
        self._accounts.settle(now)
        self._leave_silent(now)

    def _leave_silent(self, now: float) -> None:
        """Give back the instances of which no device is heard any more."""
        passed_s, self._ticked_s = min(now - self._ticked_s, REPORT_S), now
        if now - self._heard_s > _HEARD_S:
            return
        silent = {}
        for instance_id, account in self._accounts.by_id.items():
            if account.kept.was_ready and account.kept.leave is None and not account.is_gone:
                silent[instance_id] = self._silent_s.get(instance_id, 0.0) + passed_s
        self._silent_s = silent
        over = [each for each, silent_s in silent.items() if silent_s > SILENT_S]
        self._leave([(each, InstanceLeave(f"silent-{each}", now, "its devices are gone")) for each in over], now)

    def _interruption(self, report: m.InterruptionReported, now: float) -> None:
        """The watcher of an instance's machine has a notice of its cloud."""
        if report.watcher_id == self.watcher_id or report.kind is not m.InterruptionKind.NOTICE:
            return
        found = {each.kept.id for id_ in report.worker_ids if (each := self._named(id_)) is not None}
        leave = InstanceLeave(report.event_id, report.deadline_s or now, report.reason, is_reclaim=True, by_device=True)
        self._leave([(instance_id, leave) for instance_id in sorted(found)], now)

    def _listed(self, event: k.InstancesListed, now: float) -> None:
        self._listing_s = None
        self._list_at_s = max(self._list_at_s, now) if event.problem is None else now + self._list_s
        self._problem = event.problem
        if event.problem is None:
            self._is_listed = True
            self._take(event.instances, now, is_all=True)

    def _purchase_answered(self, event: k.PurchaseAnswered, now: float) -> None:
        self._take(event.instances, now, is_all=False)
        self._purchases.answered(event, now)
        self._list_at_s = now
        self._has_news(now)

    def _prices_read(self, event: k.PricesRead, now: float) -> None:
        self._accounts.price(event.offers)
        self._purchases.offers = event.offers
        self._has_news(now)

    def _notices_read(self, event: k.NoticesRead, now: float) -> None:
        self._leave(
            [
                (each.instance_id, InstanceLeave(each.event_id, each.deadline_s, each.reason, is_reclaim=True))
                for each in event.notices
            ],
            now,
        )

    def _was_kept(self, event: k.FleetKept, now: float) -> None:
        self._is_replaced = not event.is_ours
        self._kept, self._keeping = self._keeping, None

    # --- what follows -------------------------------------------------------------------------------------------------

    def _take(self, instances: Sequence[k.ListedInstance], now: float, *, is_all: bool) -> None:
        before = len(self._accounts.by_id)
        gone = self._accounts.take(instances, now, is_all=is_all)
        for instance_id in gone:
            self._note_failed(self._accounts.by_id[instance_id], now)
            self._departures.forget(instance_id)
            self._give_backs.forget(instance_id)
        if gone or len(self._accounts.by_id) > before:
            self._has_news(now)

    def _leave(self, leaves: Sequence[tuple[str, InstanceLeave]], now: float) -> None:
        begun = []
        for instance_id, leave in leaves:
            account = self._accounts.by_id.get(instance_id)
            if account is None or account.is_gone:
                continue
            before = account.kept.leave
            if before is not None and before.deadline_s <= leave.deadline_s:
                continue
            if not leave.is_reclaim:
                self._note_failed(account, now)
            account.kept = replace(account.kept, leave=leave)
            begun.append((instance_id, leave))
        if begun:  # a successor must know of it: its devices go
            self._keep(now, at_once=True)
            self._commands += self._departures.begin(begun, now)
            self._has_news(now)

    def _note_failed(self, account: Account, now: float) -> None:
        """An instance ends, or is given back: it has failed to start where it was not ready, and nothing ended it before."""
        kept = account.kept
        if not kept.was_ready and kept.leave is None:
            self._failed.failed(kept.type_name, kept.market, kept.zone, kept.launched_s, now)

    def _taken(self, offer: k.PricedOffer) -> int:
        """Return the places of an offer that are taken; all but one where one instance of its type is tried at a time."""
        count = self._accounts.count(offer)
        if not self._failed.is_open(offer.type_name):
            return count
        is_trying = self._accounts.is_starting(offer.type_name) or self._purchases.is_asking(offer.type_name)
        return max(count, offer.most - (0 if is_trying else 1))

    def _rests(self, key: OfferKey, now: float) -> tuple[float, str]:
        """Return until when an offer rests, refused or because its instances do not start, and why."""
        return max(self._purchases.refusals.until(key, now), self._failed.until(key, now))

    def _advance(self, now: float) -> None:
        if self._listing_s is None and now >= self._list_at_s:
            self._listing_s = now
            self._list_at_s = now + self._list_s
            self._commands.append(k.ListInstances())
        if self._is_listed:
            asking = self._purchases.due(self._taken, self._rests, self._accounts.here(), now)
            if asking:  # what is asked for is written first: a successor must not ask for another count with its token
                self._keep(now, at_once=True)
            self._commands += [k.Buy(each) for each in asking]
        self._give_back(now)
        if now >= self._report_at_s and (self._is_listed or self._problem is not None):
            self._reported_s, self._report_at_s = now, now + REPORT_S
            self._commands.append(k.PublishFleet(self._report(now)))
        self._keep(now)

    def _give_back(self, now: float) -> None:
        due = []
        for instance_id, account in self._accounts.by_id.items():
            leave = account.kept.leave
            if leave is None or account.is_gone:
                continue
            is_due = now >= leave.deadline_s or self._departures.is_empty(instance_id, account.kept.seen_s, now)
            if is_due and self._give_backs.begin(instance_id, now):
                account.kept = replace(account.kept, given_back=True)
                due.append(instance_id)
        if due:
            self._commands.append(k.GiveBack(tuple(due)))

    def _keep(self, now: float, *, at_once: bool = False) -> None:
        if now < self._keep_at_s and not at_once:
            return
        record = KeptFleet(
            self._incarnation,
            *self._term,
            self._accounts.settled,
            tuple(account.kept for account in self._accounts.by_id.values()),
            tuple(self._accounts.lives),
            self._purchases.kept(self._accounts.here()),
            self._failed.kept(),
        )
        if record == self._kept or (at_once and record == self._keeping):
            return
        self._keep_at_s = now + (KEEP_S if self._keeping is None else _KEEP_PATIENCE_S)
        self._keeping = record
        self._commands.append(k.KeepFleet(record))

    def _report(self, now: float) -> m.FleetReported:
        problem = self._problem or ""
        if not problem and self._listing_s is not None and now - self._listing_s > LONG_S:
            problem = f"the provider has not listed the instances for {now - self._listing_s:.0f} s"
        return m.FleetReported(
            self.watcher_id,
            self._incarnation,
            now,
            self._provider,
            tuple(self._instance(account, now) for account in self._accounts.by_id.values()),
            tuple(self._offer(offer, now) for offer in self._purchases.offers if offer.most),
            self._purchases.statuses(self._accounts.here(), now),
            self._accounts.learned(now),
            self._accounts.spent(now),
            problem,
        )

    def _instance(self, account: Account, now: float) -> m.FleetInstance:
        kept = account.kept
        if account.is_gone:
            state = InstanceState.GONE
        elif kept.leave is not None or account.listed is InstanceState.LEAVING:
            state = InstanceState.LEAVING
        else:
            state = InstanceState.RUNNING if kept.was_ready else InstanceState.STARTING
        return m.FleetInstance(
            kept.id,
            kept.type_name,
            kept.market,
            state,
            kept.launched_s,
            kept.token,
            kept.zone,
            0.0 if account.is_gone else self._accounts.price_of(kept, now),
            None if kept.leave is None else kept.leave.deadline_s,
            "" if kept.leave is None else kept.leave.reason,
        )

    def _offer(self, offer: k.PricedOffer, now: float) -> m.InstanceOffer:
        until_s, words = self._rests(key_of(offer), now)
        price, failed = offer.prices.at(now), self._failed.in_a_row(offer.type_name)
        most = offer.most - self._taken(offer) + self._accounts.count(offer)
        return m.InstanceOffer(offer.type_name, offer.market, price, most, offer.zone, until_s, words, failed)

    def _has_news(self, now: float) -> None:
        self._report_at_s = min(self._report_at_s, max(now, self._reported_s + _NEWS_S))

    def _instance_of(self, member: m.Member) -> Account | None:
        return self._named(member.id) if member.kind in COMPUTING else None

    def _named(self, member_id: str) -> Account | None:
        """The instance that a device is named after."""
        instance_id = instance_of(member_id, self._accounts.by_id)
        return None if instance_id is None else self._accounts.by_id[instance_id]
