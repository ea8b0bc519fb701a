"""Responses that are found again by their ids, so that a conversation goes on without being sent again."""

from __future__ import annotations

from dataclasses import dataclass


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
    body: str
    items: str

    @property
    def size_bytes(self) -> int:
        """Room that it takes."""
        return len(self.body.encode()) + len(self.items.encode())


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """How much is stored, and for how long. What would be too much makes room for itself: the oldest go.

    Attributes:
        kept_s: how long a response is stored.
        scope_bytes: room of one scope's, in bytes.
        all_bytes: room of all, in bytes.
    """

    kept_s: float
    scope_bytes: int
    all_bytes: int
