"""Responses that are found again by their ids, so that a conversation goes on without being sent again."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.access.store_budget import size_of


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that is whole.

    Attributes:
        scope: whose it is: a hash of the caller's key; empty where the API is open.
        body: the response, JSON.
        items: the conversation that it follows on, its request's items included; a list in JSON.
    """

    response_id: str
    scope: str
    body: bytes
    items: bytes

    @property
    def size_bytes(self) -> int:
        """Room that it takes."""
        return size_of(self.body, self.items)
