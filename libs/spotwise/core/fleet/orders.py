"""The planner's purchases and releases until they are carried out.

Law: a purchase is repeated with its token until a report answers it, or all of its instances are listed, or a report made
`_FORGOTTEN_S` later does not know it. A token is of the planner, its term and a number, and is never used twice.
A release is repeated with its first deadline until a report shows that the instance leaves, or does not list it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from spotwise.core.fleet.state import stays
from spotwise.core.messages.fleet import FleetReported, InstanceRelease, Market, Purchase

_FORGOTTEN_S = 60.0
#: A bought instance that is not listed so long after its purchase was answered does not come.
_LISTED_S = 120.0
_MOST_TOKEN = 64
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9._-]")


class OpenPurchases:
    """Purchases of one term."""

    def __init__(self, planner_id: str, term: int) -> None:
        self._planner_id = _NOT_ALLOWED.sub("_", planner_id)
        self._term = term
        self._number = 0
        self._open: dict[str, tuple[Purchase, float]] = {}

    @property
    def open(self) -> tuple[Purchase, ...]:
        """Those still to be carried out, in their order."""
        return tuple(purchase for purchase, _ in self._open.values())

    def buy(self, type_name: str, market: Market, count: int, zone: str, now: float) -> Purchase:
        """Order instances."""
        self._number += 1
        tail = f"-{self._term}-{self._number}"
        token = self._planner_id[: _MOST_TOKEN - len(tail)] + tail
        purchase = Purchase(token, (type_name,), market, count, zone)
        self._open[token] = purchase, now
        return purchase

    def update(self, report: FleetReported) -> None:
        """Close what a report answers or does not know."""
        listed = Counter(instance.token for instance in report.instances)
        answered = {status.purchase.token: status.is_answered for status in report.purchases}
        for token, (purchase, ordered_s) in list(self._open.items()):
            is_forgotten = token not in answered and report.at_s - ordered_s > _FORGOTTEN_S
            if answered.get(token) or listed[token] >= purchase.count or is_forgotten:
                del self._open[token]

    def coming(self, report: FleetReported) -> Sequence[tuple[Purchase, int]]:
        """Return all purchases, of other terms as well, with the instances of each that are not listed yet."""
        listed = Counter(instance.token for instance in report.instances)
        expected: dict[str, tuple[Purchase, int]] = {
            token: (each, each.count) for token, (each, _) in self._open.items()
        }
        for status in report.purchases:
            count = status.got if status.is_answered else status.purchase.count
            is_over = status.is_answered and report.at_s - status.since_s > _LISTED_S
            expected[status.purchase.token] = status.purchase, 0 if is_over else count
        missing = ((each, count - listed[each.token]) for each, count in expected.values())
        return [(each, count) for each, count in missing if count > 0]


class OpenReleases:
    """Releases of one term; their deadlines are fixed `notice_s` after their first mention."""

    def __init__(self, notice_s: float) -> None:
        self._notice_s = notice_s
        self._open: dict[str, InstanceRelease] = {}

    @property
    def open(self) -> tuple[InstanceRelease, ...]:
        """Those still to be carried out, in their order."""
        return tuple(self._open.values())

    @property
    def ids(self) -> frozenset[str]:
        """Their instances."""
        return frozenset(self._open)

    def release(self, instance_id: str, reason: str, now: float) -> None:
        """Give an instance back; one that is being given back keeps its deadline."""
        self._open.setdefault(instance_id, InstanceRelease(instance_id, now + self._notice_s, reason))

    def update(self, report: FleetReported) -> None:
        """Close those whose instances leave or are not listed."""
        staying = {instance.id for instance in report.instances if stays(instance)}
        self._open = {each.instance_id: each for each in self._open.values() if each.instance_id in staying}
