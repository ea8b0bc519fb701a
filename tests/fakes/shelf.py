"""The eviction of one kind of entries, as the store's scripts do it (`mesh/redis/room.py`), for stores in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spotwise.core.access.store_budget import Room, RoomVerdict


class Shelf:
    """The entries of one kind.

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
