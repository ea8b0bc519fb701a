"""The port of stored responses (Redis); every method raises `MeshError` where the store does not answer."""

from __future__ import annotations

from typing import Protocol

from spotwise.core.gateway.stored_response import ResponseLimits, StoredResponse


class ResponseStore(Protocol):
    """Responses by their ids."""

    async def put_response(self, response: StoredResponse, limits: ResponseLimits) -> None:
        """Store a response, unless it is or was deleted; the oldest of its scope, and of all, make room for it."""

    async def get_response(self, response_id: str) -> StoredResponse | None:
        """Return a response, or `None` where there is none (any more)."""

    async def delete_response(self, response_id: str) -> bool:
        """Remove a response, which is not stored again for a day; return whether there was one."""
