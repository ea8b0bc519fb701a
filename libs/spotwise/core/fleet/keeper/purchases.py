"""The planner's purchases: each is bought once, by its token.

Law: a purchase is asked for while the last order has it, one call at a time; again, with the same token and the same request,
only where it is unknown whether it was filled (`UNAVAILABLE`). No capacity, a refusal and a partial answer are final: what is
missing takes another purchase. So is that no order has had it for `ORDERED_S`: its planner is gone. Offers that rest,
and instances beyond `most`, are not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from spotwise.core.fleet.keeper.events import PricedOffer, PurchaseAnswered, RefusalKind
from spotwise.core.fleet.keeper.failed_starts import SHORTEST_S, OfferKey, Refusals
from spotwise.core.fleet.keeper.kept import KeptPurchase
from spotwise.core.messages.fleet import Purchase, PurchaseStatus

#: Seconds for which a purchase that no order has any more is reported.
REPORTED_S = 300.0
#: A planner repeats what it still wants each second; what it has not for so long, it does not want any more.
ORDERED_S = 10.0
#: Seconds of silence after which the status says that the provider has not answered.
LONG_S = 60.0
_RETRY_S = 2.0
_LONGEST_RETRY_S = 60.0
#: Places of an offer that are taken.
CountOf = Callable[[PricedOffer], int]
#: Unix time until which an offer rests, and why; (0, "") where it does not.
RestOf = Callable[[OfferKey, float], tuple[float, str]]


@dataclass(slots=True)
class _Bought:
    purchase: Purchase
    since_s: float
    asked: Purchase | None = None
    ordered_s: float = 0.0
    asked_s: float | None = None  # while a call is open
    ask_again_s: float = 0.0
    retry_s: float = _RETRY_S
    is_answered: bool = False
    got: int = 0
    problem: str = ""


class Purchases:
    """Purchases by token, in the order in which they came."""

    def __init__(self, kept: Sequence[KeptPurchase] = (), now: float = 0.0, refused_s: float = SHORTEST_S) -> None:
        self.refusals = Refusals(refused_s)
        self.offers: tuple[PricedOffer, ...] = ()
        self._bought: dict[str, _Bought] = {}
        self._ordered: frozenset[str] = frozenset()
        for each in kept:
            status = each.status
            self._bought[status.purchase.token] = _Bought(
                status.purchase,
                status.since_s,
                each.asked,
                now,
                is_answered=status.is_answered,
                got=status.got,
                problem=status.problem,
            )

    def order(self, purchases: Sequence[Purchase], now: float) -> None:
        """Take the purchases of the newest order; those that it lacks are not asked for again."""
        self._ordered = frozenset(each.token for each in purchases)
        for purchase in purchases:
            self._bought.setdefault(purchase.token, _Bought(purchase, now)).ordered_s = now

    def due(self, count_of: CountOf, rest_of: RestOf, here: Mapping[str, int], now: float) -> list[Purchase]:
        """Return what to ask the provider for now; `here`: instances by the token of their purchase."""
        asking = []
        for token, each in self._bought.items():
            if not each.is_answered and each.asked_s is None and now - each.ordered_s > ORDERED_S:
                each.is_answered = True
                each.problem = f"no planner has ordered it for {ORDERED_S:g} s" + (each.problem and f"; {each.problem}")
            if token not in self._ordered or each.is_answered or each.asked_s is not None or now < each.ask_again_s:
                continue
            if each.asked is None and here.get(token):
                each.is_answered = True
                each.problem = "an earlier watcher bought it, and left no record of it"
                continue
            if each.asked is None:
                asked, each.problem = self._allowed(each.purchase, count_of, rest_of, here, now)
                if asked is None:
                    each.is_answered = True
                    continue
                each.asked = asked
            each.asked_s = now
            asking.append(each.asked)
        return asking

    def answered(self, answer: PurchaseAnswered, now: float) -> None:
        """Note the provider's answer, however late."""
        each = self._bought.get(answer.token)
        if each is None or each.asked is None:
            return
        each.asked_s = None
        asked = each.asked
        if answer.kind is RefusalKind.UNAVAILABLE:
            if not each.is_answered:
                each.problem = answer.problem
                each.ask_again_s = now + each.retry_s
                each.retry_s = min(2 * each.retry_s, _LONGEST_RETRY_S)
            return
        each.is_answered = True
        each.got = max(each.got, len(answer.instances))
        asked_of = [offer for offer in self.offers if matches(offer, asked)]
        for instance in answer.instances:
            for offer in asked_of:
                if offer.type_name == instance.type_name and offer.zone in ("", instance.zone):
                    self.refusals.succeed(key_of(offer))
        missing = asked.count - len(answer.instances)
        if missing > 0:
            each.problem = answer.problem or f"{missing} of {asked.count} instances were not there"
            for offer in asked_of:
                self.refusals.refuse(key_of(offer), each.problem, now)

    def pending(self, offer: PricedOffer, here: Mapping[str, int]) -> int:
        """Return the instances of an offer that may still come from purchases without an answer."""
        return sum(
            max(0, each.asked.count - here.get(token, 0))
            for token, each in self._bought.items()
            if each.asked is not None and not each.is_answered and matches(offer, each.asked)
        )

    def is_asking(self, type_name: str) -> bool:
        """Return whether instances of a type may still come from a purchase without an answer."""
        return any(
            each.asked is not None and not each.is_answered and type_name in each.asked.type_names
            for each in self._bought.values()
        )

    def statuses(self, here: Mapping[str, int], now: float) -> tuple[PurchaseStatus, ...]:
        """Return the purchases of the last minutes, and forget older ones that no order has."""
        for token, each in list(self._bought.items()):
            is_old = now - each.since_s > REPORTED_S and token not in self._ordered
            if is_old and (each.is_answered or each.asked_s is None):
                del self._bought[token]
        return tuple(self._status(each, here, now) for each in self._bought.values())

    def kept(self, here: Mapping[str, int]) -> tuple[KeptPurchase, ...]:
        """Return the purchases for a successor."""
        return tuple(
            KeptPurchase(
                PurchaseStatus(
                    each.purchase, each.since_s, each.is_answered, max(each.got, here.get(token, 0)), each.problem
                ),
                each.asked,
            )
            for token, each in self._bought.items()
        )

    def _status(self, each: _Bought, here: Mapping[str, int], now: float) -> PurchaseStatus:
        problem = each.problem
        if each.asked_s is not None and now - each.asked_s > LONG_S:
            problem = f"the provider has not answered for {now - each.asked_s:.0f} s"
        got = max(each.got, here.get(each.purchase.token, 0))
        return PurchaseStatus(each.purchase, each.since_s, each.is_answered, got, problem)

    def _allowed(
        self, purchase: Purchase, count_of: CountOf, rest_of: RestOf, here: Mapping[str, int], now: float
    ) -> tuple[Purchase | None, str]:
        """Return the part of a purchase that may be asked for, or `None`, and why it is not all."""
        matching = [offer for offer in self.offers if offer.most and matches(offer, purchase)]
        if not matching:
            place = f" in {purchase.zone}" if purchase.zone else ""
            return None, f"the fleet file offers no {purchase.market} {' or '.join(purchase.type_names)}{place}"
        rooms: dict[str, int] = {}
        refused = ""
        for offer in matching:
            until_s, words = rest_of(key_of(offer), now)
            if until_s:
                refused = words
                continue
            room = offer.most - count_of(offer) - self.pending(offer, here)
            rooms[offer.type_name] = max(rooms.get(offer.type_name, 0), room)
        if not rooms:
            return None, f"refused lately: {refused}"
        count = min(purchase.count, max(rooms.values()))
        if count <= 0:
            return None, f"the fleet file allows no more {purchase.market} {' or '.join(rooms)}"
        types = tuple(name for name in purchase.type_names if rooms.get(name, 0) >= count)
        why = "" if count == purchase.count else f"the fleet file allows {count} more of {' or '.join(types)}"
        return replace(purchase, type_names=types, count=count), why


def matches(offer: PricedOffer, purchase: Purchase) -> bool:
    """Tell whether a purchase may take an offer."""
    is_of_it = offer.type_name in purchase.type_names and offer.market is purchase.market
    return is_of_it and purchase.zone in ("", offer.zone)


def key_of(offer: PricedOffer) -> OfferKey:
    """Return what an offer is known by."""
    return (offer.type_name, offer.market, offer.zone)
