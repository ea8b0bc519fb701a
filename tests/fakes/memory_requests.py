"""Kept API requests and records of attempts in dictionaries, for unit tests only. What ended stays until its time is over."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import orjson

from spotwise.core.access.store_budget import PART_BYTES, Kind, RoomVerdict, StoreBudget, size_of
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
from spotwise.core.requests.record import RequestRecord
from spotwise.mesh.ports.ports import NoRoomError
from spotwise.mesh.ports.requests import NO_ATTEMPTS
from spotwise.mesh.process.clock import Clock
from spotwise.mesh.redis.records import RECORD_TTL_S
from spotwise.mesh.redis.requests import KEPT_TTL_S
from spotwise.wire import subjects
from spotwise.wire.codec_records import encode_record
from tests.fakes.shelf import Shelf


class MemoryRequests:
    """See `KeptRequestStore`; the part of `MemoryStore` that keeps API requests and records."""

    def __init__(self, clock: Clock, budget: StoreBudget) -> None:
        self._clock = clock
        self._budget = budget
        self._kept: dict[str, KeptState] = {}
        self._claims: dict[str, str] = {}
        self._saved: defaultdict[str, list[bytes]] = defaultdict(list)
        self._counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._records: dict[str, RequestRecord] = {}
        self._forgotten: set[str] = set()
        self.requests = Shelf(budget.room(Kind.REQUESTS), self._drop, self._runs)
        self.records = Shelf(budget.room(Kind.RECORDS), lambda each: self._records.pop(each, None), lambda _: True)

    async def put_record(self, record: RequestRecord) -> None:
        now_s, size = self._clock.now(), size_of(encode_record(record))
        if record.choice_id not in self._records:
            verdict = self.records.put(record.choice_id, record.tenant, size, now_s + RECORD_TTL_S, now_s)
            if verdict is not RoomVerdict.KEPT:
                raise NoRoomError("the records of requests that run leave no room in the store for another")
        self._records[record.choice_id] = record

    async def get_record(self, choice_id: str) -> RequestRecord | None:
        return self._records.get(choice_id)

    async def delete_record(self, choice_id: str) -> None:
        self.records.forget(choice_id)

    async def keep_request(
        self, request: KeptRequest, owner: str, attempts: Mapping[str, KeptAttempt] = NO_ATTEMPTS
    ) -> KeptState | RoomVerdict:
        now_s, request_id = self._clock.now(), request.request_id
        self.requests.forget_expired(now_s)
        if self._is_known(request_id) and not self._owns(request_id, owner):
            return RoomVerdict.KEPT
        claimed = self._claims.get(request.claim)
        if request.claim and claimed not in (None, request_id):
            assert claimed is not None
            if (known := await self.get_request(claimed)) is not None:
                return known
        if request_id not in self._kept:
            size = size_of(orjson.dumps(replace(request, body="")), request.body.encode())
            verdict = self.requests.put(request_id, request.scope, size, now_s + KEPT_TTL_S, now_s)
            if verdict is not RoomVerdict.KEPT:
                return verdict
        if request.claim:
            self._claims[request.claim] = request_id
        self._kept[request_id] = KeptState(request, owner, None, dict(attempts), ())
        return RoomVerdict.KEPT

    async def claimed_request(self, claim: str) -> KeptState | None:
        request_id = self._claims.get(claim)
        return None if request_id is None else await self.get_request(request_id)

    async def get_request(self, request_id: str) -> KeptState | None:
        self.requests.forget_expired(self._clock.now())
        kept = self._kept.get(request_id)
        if kept is None:
            return None
        return replace(kept, chunks=tuple(self._saved[request_id]), saved_tokens=self._counts[request_id].total())

    async def take_request(self, request_id: str, process: str) -> KeptState | None:
        kept = self._kept.get(request_id)
        if kept is not None and kept.ending is None:
            self._kept[request_id] = replace(kept, owner=owner_of(process, turn_of(kept.owner) + 1))
        return await self.get_request(request_id)

    async def save_tokens(self, tokens: Sequence[KeptTokens]) -> list[SavedTokens]:
        saved: list[SavedTokens] = []
        without_room: set[str] = set()
        for each in tokens:
            saved.append(NotSaved.NO_ROOM if each.request_id in without_room else self._save(each))
            if saved[-1] is NotSaved.NO_ROOM:
                without_room.add(each.request_id)
        return saved

    def _save(self, tokens: KeptTokens) -> SavedTokens:
        request_id = tokens.request_id
        if not self._owns(request_id, tokens.owner):
            return NotSaved.TAKEN if self._is_known(request_id) else NotSaved.FORGOTTEN
        counts = self._counts[request_id]
        if tokens.first <= counts[tokens.choice] < tokens.first + tokens.count and tokens.chunk:
            if self.requests.grow(request_id, PART_BYTES + len(tokens.chunk)) is not RoomVerdict.KEPT:
                return NotSaved.NO_ROOM
            self._saved[request_id].append(tokens.chunk)
            counts[tokens.choice] = tokens.first + tokens.count
        return counts[tokens.choice]

    async def end_request(self, request: KeptRequest, owner: str, ending: KeptEnding, keep_s: float) -> bool:
        if not self._owns(request.request_id, owner):
            return False
        self._kept[request.request_id] = replace(self._kept[request.request_id], ending=ending)
        self.requests.ends(request.request_id, self._clock.now() + keep_s)
        if ending.state != "finished" and self._claims.get(request.claim) == request.request_id:
            del self._claims[request.claim]
        return True

    async def forget_request(self, request: KeptRequest) -> None:
        kept = self._kept.get(request.request_id)
        for choice_id in () if kept is None else kept.attempts:
            await self.delete_record(choice_id)
        self._forgotten.add(request.request_id)
        self.requests.forget(request.request_id)

    async def put_owned_record(self, record: RequestRecord, owner: str) -> bool:
        request_id = subjects.request_id_of(record.choice_id)
        if self._is_known(request_id) and not self._owns(request_id, owner):
            return False
        if (kept := self._kept.get(request_id)) is not None:
            attempt = KeptAttempt(record.epoch, record.stop)
            self._kept[request_id] = replace(kept, attempts={**kept.attempts, record.choice_id: attempt})
        await self.put_record(record)
        return True

    async def delete_owned_record(self, choice_id: str, owner: str) -> None:
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

    def _runs(self, request_id: str) -> bool:
        kept = self._kept.get(request_id)
        return kept is not None and kept.ending is None

    def _drop(self, request_id: str) -> None:
        kept = self._kept.pop(request_id, None)
        self._saved.pop(request_id, None)
        self._counts.pop(request_id, None)
        if kept is not None and self._claims.get(kept.request.claim) == request_id:
            del self._claims[kept.request.claim]
