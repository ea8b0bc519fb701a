"""Messages of the fleet: how instances are bought and how far they are, the load, what is wanted, and what is there.

Law: the planner decides, the watcher with the provider carries out. An order repeats all that is still to be done, so that a
lost one costs its interval; a purchase is known by its token, so that it is made once. An order of an earlier term, or an
earlier one of its term, is ignored.
Devices of an instance are named after it: `ID` or `ID-SUFFIX`.
"""

from __future__ import annotations

from enum import StrEnum

from spotwise.core.lives.survival import PiecewiseHazard
from spotwise.core.values import value


class Market(StrEnum):
    """Billing of an instance: spot (preemptible at short notice) or on-demand."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"


class InstanceState(StrEnum):
    """The state of an instance, which only moves forward.

    STARTING is billed but not ready; LEAVING accepts no more work; GONE is final, and listed for at least an hour.
    """

    STARTING = "starting"
    RUNNING = "running"
    LEAVING = "leaving"
    GONE = "gone"


@value
class LoadReported:
    """A gateway's requests since its last report.

    Attributes:
        number: number of the report, from 1 for each incarnation.
        arrivals_s: Unix time of each request's arrival.
        prompt_tokens: prompt tokens of the requests that arrived, in all.
        finished: requests that ended in order, with `output_tokens` in all.
        late: requests that have no token yet and came more than `load_meter.LATE_S` ago.
    """

    gateway_id: str
    incarnation: int
    number: int
    arrivals_s: tuple[float, ...] = ()
    prompt_tokens: int = 0
    finished: int = 0
    output_tokens: int = 0
    late: int = 0


@value
class FleetInstance:
    """An instance of the mesh.

    Attributes:
        launched_s: Unix time from which on it is paid.
        token: token of its purchase.
        zone: its failure domain; empty: none.
        price_per_h: dollars an hour, now.
        leaves_at_s: Unix time at which the provider reclaims it, or it is given back, at the latest; `None`: it stays.
        why_leaving: its notice, or the reason of its release.
    """

    id: str
    type_name: str
    market: Market
    state: InstanceState
    launched_s: float
    token: str
    zone: str = ""
    price_per_h: float = 0.0
    leaves_at_s: float | None = None
    why_leaving: str = ""


@value
class InstanceOffer:
    """What can be bought.

    Attributes:
        zone: empty: the provider chooses.
        price_per_h: dollars an hour, now.
        most: instances of it that the mesh may have at once.
        failed_starts: instances of its type in a row that were not ready in time, or ended before.
        refused_until_s: Unix time until which it is not asked for again; `refusal`: the provider's last words.
    """

    type_name: str
    market: Market
    price_per_h: float
    most: int
    zone: str = ""
    refused_until_s: float = 0.0
    refusal: str = ""
    failed_starts: int = 0


@value
class LearnedLives:
    """How long spot instances of a type live, from the fleet's own history: `ends` among `lives`."""

    type_name: str
    zone: str
    hazard: PiecewiseHazard
    lives: int
    ends: int


@value
class Purchase:
    """An order of `count` instances of any of some types, the preferred one first."""

    token: str
    type_names: tuple[str, ...]
    market: Market
    count: int
    zone: str = ""


@value
class PurchaseStatus:
    """What became of a purchase since Unix time `since_s`; `got`: instances that it brought; `problem`: why not all."""

    purchase: Purchase
    since_s: float
    is_answered: bool = False
    got: int = 0
    problem: str = ""


@value
class InstanceRelease:
    """An instance to give back: its devices leave at once, by Unix time `deadline_s` at the latest, and then it is released."""

    instance_id: str
    deadline_s: float
    reason: str


@value
class FleetReported:
    """The fleet as the watcher with the provider sees it.

    Attributes:
        at_s: Unix time.
        provider: its name; `problem`: why the fleet cannot be listed now, empty where it can.
        purchases: those of the last minutes.
        lives: for each type that had spot instances.
        spent: dollars for all instances of the mesh so far.
    """

    watcher_id: str
    incarnation: int
    at_s: float
    provider: str
    instances: tuple[FleetInstance, ...] = ()
    offers: tuple[InstanceOffer, ...] = ()
    purchases: tuple[PurchaseStatus, ...] = ()
    lives: tuple[LearnedLives, ...] = ()
    spent: float = 0.0
    problem: str = ""

    def is_newer_than(self, other: FleetReported) -> bool:
        """Return whether the fleet was seen later; a later incarnation of one watcher is newer whatever its clock says."""
        if self.watcher_id == other.watcher_id and self.incarnation != other.incarnation:
            return self.incarnation > other.incarnation
        return self.at_s > other.at_s


@value
class FleetOrder:
    """What the planner wants done, all of it each time; `number` grows within a term."""

    planner_id: str
    term: int
    number: int
    purchases: tuple[Purchase, ...] = ()
    releases: tuple[InstanceRelease, ...] = ()


@value
class ShowFleet:
    """Answer with the fleet, and why it is as it is (`FleetView`)."""


@value
class InstanceReason:
    """Why an instance is there."""

    instance_id: str
    reason: str


@value
class WantedInstances:
    """Instances of a type that the chosen configuration takes, and those held beside them."""

    type_name: str
    spot: int
    on_demand: int
    spares: int = 0


@value
class FleetView:
    """The planner's answer to `ShowFleet`.

    Attributes:
        report: the last one; `None`: no watcher has a provider.
        rate, cv, input_tokens, output_tokens: the load for which the configuration is chosen.
        config: the one that is chosen, `D,P,M`; empty: none can be.
        serving: the one that serves.
        throughput, request_s: requests a second of the chosen one, and seconds of a request; `None`: more requests come
            than it serves.
        price_per_h: dollars an hour of all instances, now; `budget_per_h`: of its limit, `None` for none.
        why: what the choice follows from, for people.
    """

    report: FleetReported | None
    rate: float = 0.0
    cv: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    config: str = ""
    serving: str = ""
    throughput: float = 0.0
    request_s: float | None = None
    price_per_h: float = 0.0
    budget_per_h: float | None = None
    wanted: tuple[WantedInstances, ...] = ()
    reasons: tuple[InstanceReason, ...] = ()
    why: str = ""
