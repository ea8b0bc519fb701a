"""Memory budget of the store for entries that it keeps for a while, and the order of their eviction.

Law: all that is kept shares one budget, whatever the number of gateways; each kind has a share of it, and one scope (a key's,
or that of an open API) half of that. Sizes are bytes as they are written, with what the store needs to find them.
Entries that expire first are dropped first, those of the same scope before others; entries in use stay. An entry without room
all the same is not kept, and its request continues without it.
Registrations, leases, plans and keys are small, need no room of this budget, and are written also where the store is full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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


class Shelf:
    """The entries of one kind. `mesh/redis/room.py` does the same in the store.

    Args:
        room: the kind's part of the budget.
        drop: forgets what an id stands for.
        stays: tells whether an entry is in use.
    """

    def __init__(
        self, room: Room, drop: Callable[[str], object], stays: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._room = room
        self._drop = drop
        self._stays = stays
        self._entries: dict[str, _Entry] = {}
        self._used: Counter[str] = Counter()

    @property
    def used_bytes(self) -> int:
        """Of all entries."""
        return self._used.total()

    def put(self, entry_id: str, scope: str, size_bytes: int, ends_s: float, now_s: float) -> RoomVerdict:
        """Count an entry in place of the one with its id, once the first to end have made room for it."""
        self.forget_expired(now_s)
        self.forget(entry_id)
        verdict = self._make_room(scope, size_bytes)
        if verdict is RoomVerdict.KEPT:
            self._entries[entry_id] = _Entry(scope, size_bytes, ends_s)
            self._used[scope] += size_bytes
        return verdict

    def grow(self, entry_id: str, more_bytes: int) -> RoomVerdict:
        """Count more of an entry; it is forgotten where there is no room."""
        if (entry := self._entries.get(entry_id)) is None:
            return RoomVerdict.KEPT
        verdict = self._make_room(entry.scope, more_bytes, entry_id)
        if verdict is RoomVerdict.KEPT:
            entry.size_bytes += more_bytes
            self._used[entry.scope] += more_bytes
        else:
            self.forget(entry_id)
        return verdict

    def ends(self, entry_id: str, ends_s: float) -> None:
        """Give an entry another end."""
        if (entry := self._entries.get(entry_id)) is not None:
            entry.ends_s = ends_s

    def forget(self, entry_id: str) -> None:
        """Forget an entry and what it stands for; idempotent."""
        self._drop(entry_id)
        if (entry := self._entries.pop(entry_id, None)) is not None:
            self._used[entry.scope] -= entry.size_bytes

    def forget_expired(self, now_s: float) -> None:
        """Forget what has come to its end."""
        for entry_id in [each for each, entry in self._entries.items() if entry.ends_s <= now_s]:
            self.forget(entry_id)

    def _make_room(self, scope: str, size_bytes: int, but: str = "") -> RoomVerdict:
        room, of_scope = self._room, self._room.scope_bytes
        if size_bytes > room.all_bytes or (of_scope and size_bytes > of_scope):
            return RoomVerdict.TOO_LARGE
        while of_scope and self._used[scope] + size_bytes > of_scope:
            if not self._forget_first((each for each, entry in self._entries.items() if entry.scope == scope), but):
                return RoomVerdict.NO_ROOM_FOR_SCOPE
        while self.used_bytes + size_bytes > room.all_bytes:
            if not self._forget_first(self._entries, but):
                return RoomVerdict.NO_ROOM
        return RoomVerdict.KEPT

    def _forget_first(self, entry_ids: Iterable[str], but: str) -> bool:
        first = min(entry_ids, key=lambda each: self._entries[each].ends_s, default=None)
        if first is None or first == but or self._stays(first):
            return False
        self.forget(first)
        return True


@dataclass(slots=True)
class _Entry:
    scope: str
    size_bytes: int
    ends_s: float
