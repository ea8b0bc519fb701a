"""Events and commands of the fleet keeper's role."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spotwise.core.fleet.keeper.kept import KeptFleet
from spotwise.core.fleet.prices import PriceSeries
from spotwise.core.messages.fleet import FleetOrder, FleetReported, InstanceState, Market, Purchase
from spotwise.core.messages.members import Member
from spotwise.core.messages.mesh import InterruptionReported, Tick
from spotwise.core.spot.commands import PublishNotice, PublishReport


@dataclass(frozen=True, slots=True)
class ListedInstance:
    """An instance as the provider lists it; `gone_s`: Unix time at which it was found gone, where the provider knows."""

    id: str
    type_name: str
    market: Market
    state: InstanceState
    launched_s: float
    token: str = ""
    zone: str = ""
    gone_s: float | None = None


@dataclass(frozen=True, slots=True)
class PricedOffer:
    """What can be bought, and its price by Unix time; `most`: instances of it at once, 0 where it is priced only."""

    type_name: str
    market: Market
    most: int
    prices: PriceSeries
    zone: str = ""


@dataclass(frozen=True, slots=True)
class ProviderNotice:
    """The provider reclaims an instance at Unix time `deadline_s`; instances of one `event_id` go together."""

    instance_id: str
    deadline_s: float
    event_id: str
    reason: str


class RefusalKind(StrEnum):
    """Why a provider brought nothing."""

    NO_CAPACITY = "no_capacity"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class FleetRestored:
    """What an earlier keeper of this mesh left; `None`: nothing. The first event."""

    kept: KeptFleet | None


@dataclass(frozen=True, slots=True)
class InstancesListed:
    """The provider listed the mesh's instances, or could not: `problem`."""

    instances: tuple[ListedInstance, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PurchaseAnswered:
    """A purchase brought instances, or none: `kind` and the provider's words `problem`."""

    token: str
    instances: tuple[ListedInstance, ...] = ()
    kind: RefusalKind | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseAnswered:
    """The provider accepted a release, or some may not have been released: `problem`."""

    instance_ids: tuple[str, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PricesRead:
    """All that can be bought from now on."""

    offers: tuple[PricedOffer, ...]


@dataclass(frozen=True, slots=True)
class NoticesRead:
    """The reclaims that the provider itself announces now."""

    notices: tuple[ProviderNotice, ...]


@dataclass(frozen=True, slots=True)
class FleetKept:
    """The store has the keeper's record; `is_ours`: or a newer keeper's, whose fleet it is then."""

    is_ours: bool


FleetKeeperEvent = (
    FleetOrder
    | Member
    | Tick
    | InterruptionReported
    | FleetRestored
    | InstancesListed
    | PurchaseAnswered
    | ReleaseAnswered
    | PricesRead
    | NoticesRead
    | FleetKept
)


@dataclass(frozen=True, slots=True)
class ListInstances:
    """Let the provider list the instances, and its notices; `InstancesListed` follows, also on failure."""


@dataclass(frozen=True, slots=True)
class Buy:
    """Buy; `PurchaseAnswered` follows, however late."""

    purchase: Purchase


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Release instances; `ReleaseAnswered` follows."""

    instance_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublishFleet:
    """Report the fleet."""

    report: FleetReported


@dataclass(frozen=True, slots=True)
class KeepFleet:
    """Write the record of the fleet; `FleetKept` follows unless the store fails."""

    kept: KeptFleet


FleetKeeperCommand = ListInstances | Buy | GiveBack | PublishFleet | KeepFleet | PublishReport | PublishNotice
