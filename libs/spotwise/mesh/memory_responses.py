"""Stored responses in a dictionary, for unit tests only."""

from __future__ import annotations

from spotwise.core.gateway.stored_response import ResponseLimits, StoredResponse
from spotwise.mesh.clock import Clock


class MemoryResponses:
    """See `ResponseStore`; responses expire by `clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stored: dict[str, tuple[StoredResponse, float]] = {}  # the oldest first, with the end of its time
        self._deleted: set[str] = set()

    async def put_response(self, response: StoredResponse, limits: ResponseLimits) -> None:
        """See `ResponseStore`."""
        self._forget_expired()
        if response.response_id in self._stored or response.response_id in self._deleted:
            return
        self._make_room(response.size_bytes, limits.scope_bytes, response.scope)
        self._make_room(response.size_bytes, limits.all_bytes)
        self._stored[response.response_id] = response, self._clock.now() + limits.kept_s

    async def get_response(self, response_id: str) -> StoredResponse | None:
        """See `ResponseStore`."""
        self._forget_expired()
        stored = self._stored.get(response_id)
        return None if stored is None else stored[0]

    async def delete_response(self, response_id: str) -> bool:
        """See `ResponseStore`."""
        self._forget_expired()
        self._deleted.add(response_id)
        return self._stored.pop(response_id, None) is not None

    def _forget_expired(self) -> None:
        now_s = self._clock.now()
        self._stored = {each: stored for each, stored in self._stored.items() if stored[1] > now_s}

    def _make_room(self, size_bytes: int, most_bytes: int, scope: str | None = None) -> None:
        others = [each for each, _ in self._stored.values() if scope in (None, each.scope)]
        used_bytes = sum(each.size_bytes for each in others)
        for each in others:
            if used_bytes + size_bytes <= most_bytes:
                return
            used_bytes -= each.size_bytes
            del self._stored[each.response_id]
