"""The ports of kept API requests and of stored responses (Redis): see `core/gateway/kept_request.py`. Every method raises
`MeshError` where the store does not answer. A request that the store has forgotten has no other owner: its gateway continues
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # see `ports.py`
    from spotwise.core.access.store_budget import RoomVerdict
    from spotwise.core.gateway.kept_request import (
        KeptAttempt,
        KeptEnding,
        KeptRequest,
        KeptState,
        KeptTokens,
        SavedTokens,
        StoredResponse,
    )
    from spotwise.core.requests.record import RequestRecord

NO_ATTEMPTS: Mapping[str, KeptAttempt] = MappingProxyType({})


class KeptRequestStore(Protocol):
    """API requests, their owners and their tokens. What no owner writes to for an hour expires."""

    async def keep_request(
        self, request: KeptRequest, owner: str, attempts: Mapping[str, KeptAttempt] = NO_ATTEMPTS
    ) -> KeptState | RoomVerdict:
        """Keep a request, which is new or was forgotten; answers that have ended make room for it. Return whether it is kept,
        or the one that has the same claim, and keep nothing then.
        """

    async def claimed_request(self, claim: str) -> KeptState | None:
        """Return the request that has a claim, or `None` where none has."""

    async def get_request(self, request_id: str) -> KeptState | None:
        """Return what is kept, or `None` where there is nothing (any more)."""

    async def take_request(self, request_id: str, process: str) -> KeptState | None:
        """Make a process the owner of a request that has not ended, in the next turn, and return what is kept of it then."""

    async def save_tokens(self, tokens: Sequence[KeptTokens]) -> list[SavedTokens]:
        """Append tokens in this order, those that follow on what is saved of their choice; return how each stands then. A
        request whose tokens have no room is forgotten.
        """

    async def end_request(self, request: KeptRequest, owner: str, ending: KeptEnding, keep_s: float) -> bool:
        """Note how a request ended, and forget it after `keep_s`; return whether `owner` owns it, and nothing is written
        otherwise. A failed or cancelled one loses its claim.
        """

    async def forget_request(self, request: KeptRequest) -> None:
        """Forget all that is kept of a request, and its claim; no owner writes it again."""

    async def put_owned_record(self, record: RequestRecord, owner: str) -> bool:
        """Write an attempt's record, and note it with its request; return whether it was written: not where the request has
        another owner. Raises `NoRoomError` where it is the first of its choice and has no room.
        """

    async def delete_owned_record(self, choice_id: str, owner: str) -> None:
        """Remove a record, unless another gateway owns its request; idempotent."""


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
