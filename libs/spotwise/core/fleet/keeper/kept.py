"""The record in the store that a keeper leaves to its successor.

Law: the record is written by the newest keeper only (its incarnation decides). It has all that a provider's listing does not
tell: the bill, the lives, the purchases that were answered, the instances that have to leave and those that did not start.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages.fleet import Market, Purchase, PurchaseStatus


@dataclass(frozen=True, slots=True)
class KeptLife:
    """A spot instance's life that is over, watched from age `first_seen_s`; `ended`: the provider took it."""

    type_name: str
    zone: str
    age_s: float
    ended: bool
    first_seen_s: float = 0.0


@dataclass(frozen=True, slots=True)
class InstanceLeave:
    """An instance has to leave by Unix time `deadline_s`; instances of one `event_id` go together.

    Attributes:
        is_reclaim: the provider takes it; otherwise it is given back.
        by_device: its devices' own watcher reports and notifies.
    """

    event_id: str
    deadline_s: float
    reason: str
    is_reclaim: bool = False
    by_device: bool = False


@dataclass(frozen=True, slots=True)
class KeptInstance:
    """An instance that is paid.

    Attributes:
        seen_s: Unix time from which on a keeper watched it.
        paid_until_s: Unix time up to which the settled bill has it.
        was_ready: one of its devices was.
        given_back: the provider was told to release it.
    """

    id: str
    type_name: str
    market: Market
    zone: str
    token: str
    launched_s: float
    seen_s: float
    paid_until_s: float
    was_ready: bool = False
    given_back: bool = False
    leave: InstanceLeave | None = None
    gone_s: float | None = None


@dataclass(frozen=True, slots=True)
class KeptPurchase:
    """A purchase, and what of it was asked of the provider: with its token never anything else. `None`: nothing yet."""

    status: PurchaseStatus
    asked: Purchase | None = None


@dataclass(frozen=True, slots=True)
class KeptFailedStart:
    """Failures to start: of a type `in_a_row`, or `rounds` of an offer (without `market`: of all of a type's).

    The last round rests from `began_s` until `until_s`, after instances that were `age_s` old.
    """

    type_name: str
    market: Market | None = None
    zone: str = ""
    in_a_row: int = 0
    rounds: int = 0
    began_s: float = 0.0
    until_s: float = 0.0
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KeptFleet:
    """The record; `term` and `number` are those of the last order, `settled` the dollars of what is paid for good."""

    incarnation: int
    term: int = 0
    number: int = 0
    settled: float = 0.0
    instances: tuple[KeptInstance, ...] = ()
    lives: tuple[KeptLife, ...] = ()
    purchases: tuple[KeptPurchase, ...] = ()
    failed_starts: tuple[KeptFailedStart, ...] = ()
