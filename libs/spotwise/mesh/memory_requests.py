"""Kept API requests in dictionaries, for unit tests only. Nothing expires; what ended stays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from spotwise.core.gateway.kept_request import KeptEnding, KeptRequest, KeptState, KeptTokens
from spotwise.core.record import RequestRecord
from spotwise.wire import subjects


class MemoryRequests:
    """See `KeptRequestStore`; the part of `MemoryStore` that keeps API requests."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptState] = {}
        self._claims: dict[str, str] = {}
        self._saved: defaultdict[str, list[bytes]] = defaultdict(list)

    async def put_record(self, record: RequestRecord) -> None:
        """See `MeshStore`."""
        raise NotImplementedError

    async def delete_record(self, choice_id: str) -> None:
        """See `MeshStore`."""
        raise NotImplementedError

    async def keep_request(self, request: KeptRequest, owner: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        if request.claim and (claimed := self._claims.get(request.claim)) is not None:
            return await self.get_request(claimed)
        if request.claim:
            self._claims[request.claim] = request.request_id
        self._kept[request.request_id] = KeptState(request, owner, None, ())
        return None

    async def claimed_request(self, claim: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        request_id = self._claims.get(claim)
        return None if request_id is None else await self.get_request(request_id)

    async def get_request(self, request_id: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        kept = self._kept.get(request_id)
        return None if kept is None else replace(kept, chunks=tuple(self._saved[request_id]))

    async def take_request(self, request_id: str, owner: str) -> KeptState | None:
        """See `KeptRequestStore`."""
        kept = self._kept.get(request_id)
        if kept is not None and kept.ending is None:
            self._kept[request_id] = replace(kept, owner=owner)
        return await self.get_request(request_id)

    async def save_tokens(self, owner: str, tokens: Sequence[KeptTokens]) -> set[str]:
        """See `KeptRequestStore`."""
        lost = set[str]()
        for each in tokens:
            kept = self._kept.get(each.request_id)
            if kept is not None and kept.owner != owner:
                lost.add(each.request_id)
            elif kept is not None and each.chunk:
                self._saved[each.request_id].append(each.chunk)
        return lost

    async def end_request(self, request: KeptRequest, owner: str, ending: KeptEnding, keep_s: float) -> bool:
        """See `KeptRequestStore`."""
        if not self._owns(request.request_id, owner):
            return False
        self._kept[request.request_id] = replace(self._kept[request.request_id], ending=ending)
        if ending.state != "finished":
            self._claims.pop(request.claim, None)
        return True

    async def put_owned_record(self, record: RequestRecord, owner: str) -> bool:
        """See `KeptRequestStore`."""
        request_id = subjects.request_id_of(record.choice_id)
        if request_id in self._kept and not self._owns(request_id, owner):
            return False
        await self.put_record(record)
        return True

    async def delete_owned_record(self, choice_id: str, owner: str) -> None:
        """See `KeptRequestStore`."""
        request_id = subjects.request_id_of(choice_id)
        if request_id not in self._kept or self._owns(request_id, owner):
            await self.delete_record(choice_id)

    def _owns(self, request_id: str, owner: str) -> bool:
        kept = self._kept.get(request_id)
        return kept is not None and kept.owner == owner
