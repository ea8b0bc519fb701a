"""Memory budget of the store for entries that it keeps for a while, and the order of their eviction.

Law: all that is kept shares one budget, whatever the number of gateways; each kind has a share of it, and one scope (a key's,
or that of an open API) half of that. Sizes are bytes as they are written, with what the store needs to find them.
Entries that expire first are dropped first, those of the same scope before others; entries in use stay. An entry without room
all the same is not kept, and its request continues without it.
Registrations, leases, plans and keys are small, need no room of this budget, and are written also where the store is full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

#: What an entry takes beside its contents: its keys, and its places in indexes and sums.
ENTRY_BYTES = 1280
#: What a part of an entry takes beside its contents.
PART_BYTES = 32
DEFAULT_STORE_BYTES = 384 << 20
#: The store's own limit, as it is shipped.
SHIPPED_MAXMEMORY_BYTES = 640 << 20
#: A server's allocator rounds up, by so much at most.
ALLOCATED_PER_BYTE = 1.25
#: Of the store's limit, for what is no part of the budget: registrations, leases, keys, connections' buffers, replication.
HEADROOM_BYTES = 64 << 20
#: How long after a write that found no memory the store still counts as full.
FULL_FOR_S = 60.0


class Kind(StrEnum):
    """What is kept."""

    RECORDS = "records"  #: attempts that run
    LEDGERS = "ledgers"
    REQUESTS = "requests"  #: forms and tokens of API requests
    RESPONSES = "responses"  #: stored ones, with their conversations


_SHARES: Mapping[Kind, float] = MappingProxyType(
    {Kind.RECORDS: 1 / 4, Kind.LEDGERS: 1 / 12, Kind.REQUESTS: 1 / 3, Kind.RESPONSES: 1 / 3}
)
_SCOPES_SHARE = 0.5


class RoomVerdict(StrEnum):
    """Whether something is kept."""

    KEPT = "kept"
    NO_ROOM_FOR_SCOPE = "scope"  #: what is in use of its scope leaves none
    NO_ROOM = "all"  #: what is in use of all leaves none, or the server has no more memory
    TOO_LARGE = "large"  #: it is larger than a scope's share


@dataclass(frozen=True, slots=True)
class Room:
    """The room of one kind in bytes: of all, and of one scope; `scope_bytes` is 0 where scopes have no shares (ledgers)."""

    all_bytes: int
    scope_bytes: int


@dataclass(frozen=True, slots=True)
class StoreBudget:
    """The bytes of all that is kept."""

    total_bytes: int = DEFAULT_STORE_BYTES

    @property
    def server_bytes(self) -> int:
        """Memory that a server of the mesh's own may take: what is shipped, or more where the budget is larger."""
        return max(SHIPPED_MAXMEMORY_BYTES, int(self.total_bytes * ALLOCATED_PER_BYTE) + HEADROOM_BYTES)

    def room(self, kind: Kind) -> Room:
        """Return a kind's share. Members write ledgers who do not know whose request it is."""
        all_bytes = int(self.total_bytes * _SHARES[kind])
        return Room(all_bytes, 0 if kind is Kind.LEDGERS else int(all_bytes * _SCOPES_SHARE))


@dataclass(frozen=True, slots=True)
class RoomUse:
    """How full a kind's room is.

    Attributes:
        used_bytes: bytes of the entries that are kept; those that have just expired may still count.
        most_bytes: its room.
        full_unix_s: when the server had no more memory for it last; 0 for never.
    """

    used_bytes: int = 0
    most_bytes: int = 0
    full_unix_s: float = 0.0

    def is_full(self, now_unix_s: float) -> bool:
        """Whether the server had no more memory for it of late."""
        return now_unix_s - self.full_unix_s < FULL_FOR_S


def size_of(*contents: bytes) -> int:
    """Return what an entry with these contents takes."""
    return ENTRY_BYTES + sum(map(len, contents))
