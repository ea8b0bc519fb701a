"""The port for acquiring and releasing instances, for the market step: no service uses it yet.

An order is identified by its token: repeating it returns its instances and buys nothing. A partial order is an answer; none at
all is `NoCapacity`. A provider sees and releases only its mesh's instances.
How to write a provider: docs/providers.md; its contract: tests/contracts/instances.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

#: Tags that begin so are a provider's own; a caller may not give them.
OWN_TAGS = "spotwise:"
#: Whose an instance is, and which order brought it.
MESH_TAG = "spotwise:mesh"
TOKEN_TAG = "spotwise:token"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Market(StrEnum):
    """How an instance is paid for: spot (preemptible at short notice) or on-demand."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"


class InstanceState(StrEnum):
    """The state of an instance; it only moves forward.

    STARTING is billed but not ready; LEAVING takes no more work; GONE is final, and listed for an hour at least.
    """

    STARTING = "starting"
    RUNNING = "running"
    LEAVING = "leaving"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """An order.

    Attributes:
        token: names this order; a new decision needs a new one. Up to 64 letters, digits, `.`, `_` and `-`.
        instance_types: the provider's names of types that will all do, the preferred one first.
        market: spot or on-demand. Who wants both gives two orders.
        count: instances wanted, at least 1.
        tags: to mark them with, besides the provider's own.
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
        id: the provider's name of it; unique for ever.
        instance_type: which of the types that were asked for.
        market: how it is paid for.
        state: when the provider was asked.
        launched_unix_s: when it was acquired; from then on it costs.
        token: of the order that brought it.
        tags: the caller's.
        address: under which its neighbours reach it; `None` where the provider gives it none, or not yet.
        zone: the failure domain, where the provider has such.
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


class ProviderError(Exception):
    """A provider did not do what was requested; the message says what to do."""


class NoCapacity(ProviderError):  # noqa: N818 - what happened, as the port's users name it
    """No capacity for these types now: try another type, the other market, or later with a new token.

    Attributes:
        instance_types: the types requested.
        market: the market requested.
    """

    def __init__(self, instance_types: Sequence[str], market: Market, why: str) -> None:
        super().__init__(f"no {market} capacity for {' or '.join(instance_types)}: {why}")
        self.instance_types = tuple(instance_types)
        self.market = market


class ProviderRefused(ProviderError):  # noqa: N818 - as above
    """The provider refuses until credentials, a limit or a name change. Nothing was bought."""


class ProviderUnavailable(ProviderError):  # noqa: N818 - as above
    """The provider did not answer or throttles: retry later with the same token, since the order may have been filled."""


class InstanceProvider(Protocol):
    """Acquires and releases the instances of one mesh; tasks may call it concurrently."""

    async def acquire(self, request: AcquireRequest) -> list[AcquiredInstance]:
        """Buy what was ordered, or as much of it as there is.

        The instances may still be starting. A token that was used before brings what it brought then, in its state of
        today, and no more: not even what was missing then.

        Returns:
            1 to `request.count` instances.

        Raises:
            NoCapacity: there is not even one.
            ProviderRefused: the order cannot be filled as it stands, or its instances are gone and forgotten.
            ProviderUnavailable: it is not known whether it was filled; order again with the same token.
        """

    async def release(self, instance_ids: Sequence[str]) -> None:
        """Give instances back; done when the provider has taken them, which `instances` may show as `LEAVING` for a while.

        Idempotent. Ids that are unknown, gone, or of another mesh are passed over.

        Raises:
            ProviderRefused, ProviderUnavailable: some may not have been given back; `instances` tells, and
                calling again is safe.
        """

    async def instances(self) -> list[AcquiredInstance]:
        """Return this mesh's instances, the ones gone lately included: those acquired first come first, then by id.

        Instances that another process acquired may take a few seconds to appear.

        Raises:
            ProviderRefused, ProviderUnavailable: it cannot tell.
        """

    async def close(self) -> None:
        """Let go of connections; idempotent. Instances stay as they are."""


def in_order(instances: Sequence[AcquiredInstance]) -> list[AcquiredInstance]:
    """Return instances in the order in which providers list them."""
    return sorted(instances, key=lambda each: (each.launched_unix_s, each.id))


def require_mesh_name(mesh: str) -> str:
    """Return a mesh's name as it was given.

    Raises:
        ValueError: it cannot mark instances.
    """
    if not _NAME.fullmatch(mesh):
        raise ValueError(f"mesh {mesh!r}: use 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first")
    return mesh
