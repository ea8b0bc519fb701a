"""Stored responses in a dictionary, for unit tests only."""

from __future__ import annotations

from spotwise.core.access.store_budget import Kind, RoomVerdict, StoreBudget
from spotwise.core.gateway.kept_request import StoredResponse
from spotwise.mesh.process.clock import Clock
from tests.fakes.shelf import Shelf


class MemoryResponses:
    """See `ResponseStore`; responses expire by `clock`."""

    def __init__(self, clock: Clock, budget: StoreBudget) -> None:
        self._clock = clock
        self._stored: dict[str, StoredResponse] = {}
        self._deleted: set[str] = set()
        self.shelf = Shelf(budget.room(Kind.RESPONSES), lambda each: self._stored.pop(each, None))

    async def put_response(self, response: StoredResponse, kept_s: float) -> RoomVerdict:
        now_s, response_id = self._clock.now(), response.response_id
        if await self.get_response(response_id) is not None or response_id in self._deleted:
            return RoomVerdict.KEPT
        verdict = self.shelf.put(response_id, response.scope, response.size_bytes, now_s + kept_s, now_s)
        if verdict is RoomVerdict.KEPT:
            self._stored[response_id] = response
        return verdict

    async def get_response(self, response_id: str) -> StoredResponse | None:
        self.shelf.forget_expired(self._clock.now())
        return self._stored.get(response_id)

    async def delete_response(self, response_id: str) -> bool:
        is_stored = await self.get_response(response_id) is not None
        self._deleted.add(response_id)
        self.shelf.forget(response_id)
        return is_stored
