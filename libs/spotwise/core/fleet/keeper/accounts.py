"""The instances that are paid: their bill, and the lives of the spot instances among them.

Law: an instance is paid from its launch until it is gone, exact to the moment of each price's change. Prices may be read late,
so that the last `SETTLE_S` of a bill are computed afresh each time, and only what is older is settled.
A life ended where the provider took the instance; one that was given back, or has not ended, is only known to be longer.
Instances that had gone before a keeper first saw them are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spotwise.core.fleet.keeper.events import ListedInstance, PricedOffer
from spotwise.core.fleet.keeper.failed_starts import OfferKey
from spotwise.core.fleet.keeper.kept import KeptFleet, KeptInstance, KeptLife
from spotwise.core.fleet.prices import PriceSeries
from spotwise.core.lives.survival import Life, fit_hazard
from spotwise.core.messages.fleet import InstanceState, LearnedLives, Market

#: Prices are known so many seconds after they changed.
SETTLE_S = 180.0
#: Seconds for which an instance that has gone is reported.
GONE_SHOWN_S = 300.0
#: A provider that is behind does not list an instance yet; one missing for so many seconds has gone.
MISSING_S = 60.0
#: Lives kept of each type and zone, the newest.
LIVES_KEPT = 300
_HOUR_S = 3600.0


@dataclass(slots=True)
class Account:
    """An instance, as kept, and as the provider listed it last."""

    kept: KeptInstance
    listed: InstanceState
    missing_since_s: float | None = None

    @property
    def is_gone(self) -> bool:
        """Whether it has gone."""
        return self.kept.gone_s is not None


class Accounts:
    """All instances that a keeper knows, by id in the order in which it saw them."""

    def __init__(self, kept: KeptFleet | None) -> None:
        self.by_id: dict[str, Account] = {}
        self.settled = 0.0 if kept is None else kept.settled
        self.lives: list[KeptLife] = [] if kept is None else [*kept.lives]
        self._series: dict[OfferKey, PriceSeries] = {}
        self._learned: tuple[tuple[float, int], tuple[LearnedLives, ...]] | None = None
        for each in () if kept is None else kept.instances:
            state = InstanceState.STARTING if each.gone_s is None else InstanceState.GONE
            self.by_id[each.id] = Account(each, state)

    def price(self, offers: Sequence[PricedOffer]) -> None:
        """Take new prices; those of offers that are no more stay, for the instances bought then."""
        self._series.update({(each.type_name, each.market, each.zone): each.prices for each in offers})

    def take(self, instances: Sequence[ListedInstance], now: float, *, is_all: bool) -> list[str]:
        """Take a listing, or with `is_all` unset some instances; return the ids of those that have gone since the last."""
        gone = []
        for each in instances:
            account = self.by_id.get(each.id)
            if account is None:
                if each.state is InstanceState.GONE:
                    continue
                kept = KeptInstance(
                    each.id,
                    each.type_name,
                    each.market,
                    each.zone,
                    each.token,
                    each.launched_s,
                    seen_s=now,
                    paid_until_s=each.launched_s,
                )
                account = self.by_id[each.id] = Account(kept, each.state)
            if account.is_gone:
                continue
            account.missing_since_s = None
            account.listed = each.state
            if each.zone and not account.kept.zone:
                account.kept = replace(account.kept, zone=each.zone)
            if each.state is InstanceState.GONE:
                self._end(account, min(now, each.gone_s if each.gone_s is not None else now))
                gone.append(each.id)
        if is_all:
            gone += self._missing({each.id for each in instances}, now)
        return gone

    def here(self) -> dict[str, int]:
        """Return how many instances there are by the token of their purchase, those that have gone included."""
        counts: dict[str, int] = {}
        for account in self.by_id.values():
            counts[account.kept.token] = counts.get(account.kept.token, 0) + 1
        return counts

    def count(self, offer: PricedOffer) -> int:
        """Return the instances of an offer that stay."""
        return sum(
            not account.is_gone
            and account.kept.leave is None
            and (account.kept.type_name, account.kept.market) == (offer.type_name, offer.market)
            and offer.zone in ("", account.kept.zone)
            for account in self.by_id.values()
        )

    def is_starting(self, type_name: str) -> bool:
        """Return whether an instance of a type is there that was not ready yet, and stays."""
        return any(
            each.kept.type_name == type_name and not (each.is_gone or each.kept.was_ready) and each.kept.leave is None
            for each in self.by_id.values()
        )

    def price_of(self, kept: KeptInstance, now: float) -> float:
        """Return an instance's dollars an hour; 0 where it has no price."""
        series = self._series_of(kept)
        return 0.0 if series is None else series.at(now)

    def spent(self, now: float) -> float:
        """Return the dollars for all instances until now."""
        return self.settled + sum(self._due(account.kept, now) for account in self.by_id.values())

    def settle(self, now: float) -> None:
        """Settle what is old, and forget instances that went long ago."""
        for instance_id, account in list(self.by_id.items()):
            kept = account.kept
            if kept.gone_s is not None and now - kept.gone_s > max(GONE_SHOWN_S, SETTLE_S):
                self.settled += self._due(kept, now)
                del self.by_id[instance_id]
            elif kept.gone_s is None and now - kept.paid_until_s > 2 * SETTLE_S:
                self.settled += self._due(kept, now - SETTLE_S)
                account.kept = replace(kept, paid_until_s=now - SETTLE_S)

    def learned(self, now: float) -> tuple[LearnedLives, ...]:
        """Return the lives of spot instances by type and zone; those that go on count as far as they have come."""
        # Fitting takes longer than all else: ages change little in ten seconds.
        mark = (now // 10, len(self.lives))
        if self._learned is None or self._learned[0] != mark:
            self._learned = (mark, self._fitted(now))
        return self._learned[1]

    def _fitted(self, now: float) -> tuple[LearnedLives, ...]:
        seen: dict[tuple[str, str], list[Life]] = {}
        for life in self.lives:
            known = Life(life.age_s, life.ended, life.first_seen_s)
            seen.setdefault((life.type_name, life.zone), []).append(known)
        for account in self.by_id.values():
            kept = account.kept
            if kept.market is Market.SPOT and kept.gone_s is None:
                first_s = max(0.0, kept.seen_s - kept.launched_s)
                going_on = Life(max(first_s, now - kept.launched_s), False, first_s)
                seen.setdefault((kept.type_name, kept.zone), []).append(going_on)
        return tuple(
            LearnedLives(type_name, zone, fit_hazard(lives), len(lives), sum(life.ended for life in lives))
            for (type_name, zone), lives in sorted(seen.items())
            if sum(life.age_s - life.first_seen_s for life in lives) > 0
        )

    def _missing(self, listed: set[str], now: float) -> list[str]:
        gone = []
        for instance_id, account in self.by_id.items():
            if instance_id in listed or account.is_gone:
                continue
            if account.missing_since_s is None:
                account.missing_since_s = now
            elif now - account.missing_since_s > MISSING_S:
                self._end(account, account.missing_since_s)
                gone.append(instance_id)
        return gone

    def _end(self, account: Account, gone_s: float) -> None:
        kept = account.kept
        gone_s = max(gone_s, kept.launched_s)
        account.kept = replace(kept, gone_s=gone_s)
        account.listed = InstanceState.GONE
        if kept.market is not Market.SPOT:
            return
        is_reclaimed = kept.leave is not None and kept.leave.is_reclaim
        # Given back before the end of its notice, it would have lived until then.
        end_s = max(gone_s, kept.leave.deadline_s) if kept.leave and is_reclaimed and kept.given_back else gone_s
        first_s = max(0.0, kept.seen_s - kept.launched_s)
        age_s = max(first_s, end_s - kept.launched_s)
        life = KeptLife(kept.type_name, kept.zone, age_s, is_reclaimed or not kept.given_back, first_s)
        self.lives.append(life)
        same = [each for each in self.lives if (each.type_name, each.zone) == (life.type_name, life.zone)]
        if len(same) > LIVES_KEPT:
            self.lives.remove(same[0])

    def _due(self, kept: KeptInstance, until_s: float) -> float:
        series = self._series_of(kept)
        end_s = until_s if kept.gone_s is None else min(until_s, kept.gone_s)
        if series is None or end_s <= kept.paid_until_s:
            return 0.0
        first_s = max(kept.paid_until_s, min(series.times_s[0], end_s))
        before = (first_s - kept.paid_until_s) * series.per_h[0] / _HOUR_S
        return before + series.cost(first_s, end_s)

    def _series_of(self, kept: KeptInstance) -> PriceSeries | None:
        return _first(self._series, (kept.type_name, kept.market, kept.zone), (kept.type_name, kept.market, ""))


def _first(series: Mapping[OfferKey, PriceSeries], *keys: OfferKey) -> PriceSeries | None:
    return next((series[key] for key in keys if key in series), None)
