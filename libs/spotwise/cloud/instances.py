"""The port for acquiring and releasing instances; the spot watcher with a fleet file uses it (docs/fleet.md).

An order is identified by its token: repeating it returns its instances and buys nothing. A partial order is an answer; none at
all is `NoCapacity`. A provider sees and releases only its mesh's instances.
How to write a provider: docs/providers.md; its contract: tests/contracts/instances.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from spotwise.core.fleet.prices import SpotPrice
from spotwise.core.messages.fleet import InstanceState, Market

#: Prefix of the provider's own tags, which a caller may not set.
OWN_TAGS = "spotwise:"
#: Tags that name an instance's mesh and its order.
MESH_TAG = "spotwise:mesh"
TOKEN_TAG = "spotwise:token"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """An order of instances.

    Attributes:
        token: identifies the order; a new order needs a new one. Up to 64 letters, digits, `.`, `_` and `-`.
        instance_types: the provider's names of acceptable types, the preferred one first.
        market: spot or on-demand; instances of both take two orders.
        count: number of instances, at least 1.
        tags: added to the provider's own.
    """

    token: str
    instance_types: tuple[str, ...]
    market: Market
    count: int
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.token):
            raise ValueError(
                f"token {self.token!r}: use 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first"
            )
        if not self.instance_types or not all(self.instance_types):
            raise ValueError("an order names one instance type at least")
        if self.count < 1:
            raise ValueError(f"an order is for 1 instance at least, not {self.count}")
        if own := [key for key in self.tags if key.startswith((OWN_TAGS, "aws:"))]:
            raise ValueError(f"tags {', '.join(sorted(own))}: these names are the provider's own; choose others")


@dataclass(frozen=True, slots=True)
class AcquiredInstance:
    """A machine of this mesh.

    Attributes:
        id: the provider's, never reused.
        instance_type: one of the requested types.
        market: its billing.
        state: when the provider listed it.
        launched_unix_s: when it was acquired; it is billed from then on.
        token: token of its order.
        tags: the caller's.
        address: at which other workers reach it; `None`: the provider assigns none, or has not yet.
        zone: the failure domain, if the provider has zones.
        gone_unix_s: when it was found gone, where the provider keeps that.
        seen_unix_s: when a keeper renewed its mark last, where the provider has marks (`MarkedProvider`).
    """

    id: str
    instance_type: str
    market: Market
    state: InstanceState
    launched_unix_s: float
    token: str
    tags: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None
    zone: str | None = None
    gone_unix_s: float | None = None
    seen_unix_s: float | None = None


class ProviderError(Exception):
    """A provider's request failed; the message names the cause and a remedy."""


class NoCapacity(ProviderError):  # noqa: N818 - what happened, as the port's users name it
    """No capacity for these types now; another type or market may have some, or a later order with a new token."""

    def __init__(self, instance_types: Sequence[str], market: Market, why: str) -> None:
        super().__init__(f"no {market} capacity for {' or '.join(instance_types)}: {why}")
        self.instance_types = tuple(instance_types)
        self.market = market


class ProviderRefused(ProviderError):  # noqa: N818 - as above
    """The provider refuses until credentials, a limit or a name change; nothing was bought."""


class ProviderUnavailable(ProviderError):  # noqa: N818 - as above
    """The provider did not answer or throttles; retry later with the same token, since the order may have been filled."""


class InstanceProvider(Protocol):
    """Acquires and releases the instances of one mesh; tasks may call it concurrently."""

    async def acquire(self, request: AcquireRequest) -> list[AcquiredInstance]:
        """Buy the ordered instances, or as many as there is capacity for.

        The instances may still be starting. A token that was used before returns the instances of the first call in their
        current state; it does not buy the instances that were missing then.

        Returns:
            1 to `request.count` instances.

        Raises:
            NoCapacity: not even one instance is available.
            ProviderRefused: the order cannot be filled unchanged, or its instances are gone and no longer listed.
            ProviderUnavailable: it is unknown whether the order was filled; repeat it with the same token.
        """

    async def release(self, instance_ids: Sequence[str]) -> None:
        """Release instances; returns once the provider has accepted, while `instances` may still list them as `LEAVING`.

        Idempotent. Ids that are unknown, gone, or of another mesh are ignored.

        Raises:
            ProviderRefused, ProviderUnavailable: some may not have been released; `instances` shows which, and a
                repeated call is safe.
        """

    async def instances(self) -> list[AcquiredInstance]:
        """Return this mesh's instances, recently gone ones included, ordered by launch time and id.

        Instances that another process acquired may take a few seconds to appear.

        Raises:
            ProviderRefused, ProviderUnavailable: the provider cannot list them.
        """

    async def close(self) -> None:
        """Close connections; idempotent, and without effect on instances."""


@dataclass(frozen=True, slots=True)
class InstanceNotice:
    """The provider takes an instance back at a Unix time; instances of one `event_id` go together."""

    instance_id: str
    deadline_unix_s: float
    event_id: str
    reason: str


@runtime_checkable
class ReclaimingProvider(InstanceProvider, Protocol):
    """A provider that knows by itself which instances it takes back; those that end abruptly are listed as gone."""

    async def notices(self) -> list[InstanceNotice]:
        """Return the notices that are in effect for instances of this mesh that are there, in order of deadline and id."""


@runtime_checkable
class PricedProvider(InstanceProvider, Protocol):
    """A provider that knows the market's prices."""

    async def spot_prices(self, instance_types: Sequence[str]) -> list[SpotPrice]:
        """Return the newest price of each type and zone, in order of type and zone.

        Raises:
            ProviderRefused, ProviderUnavailable: the prices cannot be read.
        """


@runtime_checkable
class MarkedProvider(InstanceProvider, Protocol):
    """A provider whose instances end themselves once their mark has not been renewed for `alone_s`."""

    @property
    def renewal_s(self) -> float:
        """Seconds between two renewals."""

    async def renew(self) -> None:
        """Renew the mark of all instances of this mesh.

        Raises:
            ProviderRefused, ProviderUnavailable: some may not have been renewed.
        """

    async def switch_faults(self) -> Sequence[str]:
        """Return why instances would not end themselves; empty: they would. Raises as `renew`."""


class KillableProvider(InstanceProvider, Protocol):
    """A provider whose instances can be ended without a grace period."""

    async def reclaim(self, instance_ids: Sequence[str]) -> None:
        """End instances at once, as a cloud that takes them back; otherwise like `release`."""


def in_order(instances: Sequence[AcquiredInstance]) -> list[AcquiredInstance]:
    """Return instances in the order of `InstanceProvider.instances`."""
    return sorted(instances, key=lambda each: (each.launched_unix_s, each.id))


def require_mesh_name(mesh: str) -> str:
    """Return a mesh's name unchanged.

    Raises:
        ValueError: the name is not valid in a tag.
    """
    if not _NAME.fullmatch(mesh):
        raise ValueError(f"mesh {mesh!r}: use 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first")
    return mesh
