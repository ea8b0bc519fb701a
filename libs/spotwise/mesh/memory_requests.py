"""Kept API requests in dictionaries, for unit tests only. Nothing expires; what ended stays."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spotwise.core.gateway.kept_request import (
    KeptAttempt,
    KeptEnding,
    KeptRequest,
    KeptState,
    KeptTokens,
    NotSaved,
    SavedTokens,
    owner_of,
    turn_of,
)
from spotwise.core.record import RequestRecord
from spotwise.mesh.request_store import NO_ATTEMPTS
from spotwise.wire import subjects


class MemoryRequests:
    """See `KeptRequestStore`; the part of `MemoryStore` that keeps API requests."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptState] = {}
        self._claims: dict[str, str] = {}
        self._saved: defaultdict[str, list[bytes]] = defaultdict(list)
        self._counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._forgotten: set[str] = set()

    async def put_record(self, record: RequestRecord) -> None:
        """See `MeshStore`."""
        raise NotImplementedError

    async def delete_record(self, choice_id: str) -> None:
        """See `MeshStore`."""
        raise NotImplementedError

    async def keep_request(
        self, request: KeptRequest, owner: str, attempts: Mapping[str, KeptAttempt] = NO_ATTEMPTS
    ) -> KeptState | None:
        """See `KeptRequestStore`."""
        if self._is_known(request.request_id) and not self._owns(request.request_id, owner):
            return None
        claimed = self._claims.get(request.claim)
        if request.claim and claimed not in (None, request.request_id):
            assert claimed is not None
            return await self.get_request(claimed)
        if request.claim:
            self._claims[request.claim] = request.request_id
        self._kept[request.request_id] = KeptState(request, owner, None, dict(attempts), ())
        return None

    async def claimed_request(self, claim: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        request_id = self._claims.get(claim)
        return None if request_id is None else await self.get_request(request_id)

    async def get_request(self, request_id: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        kept = self._kept.get(request_id)
        return (
            None
            if kept is None
            else replace(kept, chunks=tuple(self._saved[request_id]), saved_tokens=self._counts[request_id].total())
        )

    async def take_request(self, request_id: str, process: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        kept = self._kept.get(request_id)
        if kept is not None and kept.ending is None:
            self._kept[request_id] = replace(kept, owner=owner_of(process, turn_of(kept.owner) + 1))
        return await self.get_request(request_id)

    async def save_tokens(self, tokens: Sequence[KeptTokens]) -> list[SavedTokens]:
        """See `KeptRequestStore`."""
        return [self._save(each) for each in tokens]

    def _save(self, tokens: KeptTokens) -> SavedTokens:
        if not self._owns(tokens.request_id, tokens.owner):
            return NotSaved.TAKEN if self._is_known(tokens.request_id) else NotSaved.FORGOTTEN
        counts = self._counts[tokens.request_id]
        if tokens.first <= counts[tokens.choice] < tokens.first + tokens.count and tokens.chunk:
            self._saved[tokens.request_id].append(tokens.chunk)
            counts[tokens.choice] = tokens.first + tokens.count
        return counts[tokens.choice]

    async def end_request(self, request: KeptRequest, owner: str, ending: KeptEnding, keep_s: float) -> bool:
        """See `KeptRequestStore`."""
        if not self._owns(request.request_id, owner):
            return False
        self._kept[request.request_id] = replace(self._kept[request.request_id], ending=ending)
        if ending.state != "finished" and self._claims.get(request.claim) == request.request_id:
            del self._claims[request.claim]
        return True

    async def forget_request(self, request: KeptRequest) -> None:
        """See `KeptRequestStore`."""
        self._kept.pop(request.request_id, None)
        self._saved.pop(request.request_id, None)
        self._counts.pop(request.request_id, None)
        self._forgotten.add(request.request_id)
        if self._claims.get(request.claim) == request.request_id:
            del self._claims[request.claim]

    async def put_owned_record(self, record: RequestRecord, owner: str) -> bool:
        """See `KeptRequestStore`."""
        request_id = subjects.request_id_of(record.choice_id)
        if self._is_known(request_id) and not self._owns(request_id, owner):
            return False
        if (kept := self._kept.get(request_id)) is not None:
            attempt = KeptAttempt(record.epoch, record.stop)
            self._kept[request_id] = replace(kept, attempts={**kept.attempts, record.choice_id: attempt})
        await self.put_record(record)
        return True

    async def delete_owned_record(self, choice_id: str, owner: str) -> None:
        """See `KeptRequestStore`."""
        request_id = subjects.request_id_of(choice_id)
        if not self._is_known(request_id) or self._owns(request_id, owner):
            await self.delete_record(choice_id)

    def _is_known(self, request_id: str) -> bool:
        return request_id in self._kept or request_id in self._forgotten

    def _owns(self, request_id: str, owner: str) -> bool:
        """Tell whether an owner has a request; the one of a later turn than is known has it from now on."""
        kept = self._kept.get(request_id)
        if kept is not None and turn_of(owner) > turn_of(kept.owner):
            kept = self._kept[request_id] = replace(kept, owner=owner)
        return kept is not None and kept.owner == owner
