"""The port of stored responses (Redis); every method raises `MeshError` where the store does not answer."""

from __future__ import annotations

from typing import Protocol

from spotwise.core.access.store_budget import RoomVerdict
from spotwise.core.gateway.kept_request import StoredResponse


class ResponseStore(Protocol):
    """Responses by their ids."""

    async def put_response(self, response: StoredResponse, kept_s: float) -> RoomVerdict:
        """Store a response for so long, unless it is or was deleted; the oldest of its scope, and of all, make room for it.
        Where it is too large, or there is no room all the same, none is stored.
        """

    async def get_response(self, response_id: str) -> StoredResponse | None:
        """Return a response, or `None` where there is none (any more)."""

    async def delete_response(self, response_id: str) -> bool:
        """Remove a response, which is not stored again for a day; return whether there was one."""
