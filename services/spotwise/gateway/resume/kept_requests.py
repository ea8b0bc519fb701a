"""Requests that outlive their connection or their gateway (ADR 39).

Every stream, and every request with an `Idempotency-Key` or `X-Spotwise-Resumable: true`, is kept in the store: its form at
once, its tokens every second (`token_saver.py`). Any gateway can take it over from there: the store knows one owner at a time,
and a gateway that has lost a request ends its own attempts. A resumable request (the latter two) continues for a while without
its client, and its answer is kept for a while; any other one is cancelled when its client leaves.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from spotwise.core.access.store_budget import Kind, RoomVerdict
from spotwise.core.gateway import commands as g
from spotwise.core.gateway.kept_request import KeptEnding, KeptRequest, KeptState, owner_of, turn_of
from spotwise.core.messages.mesh import LedgerEntry
from spotwise.gateway.access.auth import caller_scope, key_name
from spotwise.gateway.access.quotas import Continued, Reservation
from spotwise.gateway.generate.answer import Generate, GenerationResponse
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.generate.prepared_request import PreparedBody, PreparedRequest
from spotwise.gateway.generate.stream_position import StreamPosition
from spotwise.gateway.resume.kept_forms import (
    after_attempt,
    claim_of,
    form_of,
    owned,
    read_chunks,
    saved_tokens,
    tokens_to_go_on,
)
from spotwise.gateway.resume.owners import Owners
from spotwise.gateway.resume.ports import KeepingGeneration, KeepingLimits, KeepingStore, RequestPreprocessor
from spotwise.gateway.resume.request_log import CANCELLED, RequestLog, cancelled, ending_of
from spotwise.gateway.resume.store_turns import StoreTurns
from spotwise.gateway.schema.parameters import WARNING_HEADER
from spotwise.http.errors import ApiError, GenerationError, bad_request
from spotwise.http.request_ids import name_request

#: How long a stream that is not resumable is kept after its end, for a client whose gateway died with the last events.
ENDED_STREAM_KEPT_S = 30.0
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(slots=True)
class _Running:
    form: KeptRequest
    prepared: PreparedRequest
    reservation: Reservation
    log: RequestLog | None = None

    @property
    def owner(self) -> str:
        """Its owner as the store knows it, unless it was taken over; empty where it has ended."""
        return self.prepared.sequences[0].spec.owner


class KeptRequests:
    """The kept requests of a gateway.

    Args:
        generation: the mesh.
        store: keeps them.
        metrics: the gateway's.
        limits: this process and its patience.
        preprocessor: from bodies to prepared requests and answers.
    """

    def __init__(
        self,
        generation: KeepingGeneration,
        store: KeepingStore,
        metrics: GatewayMetrics,
        limits: KeepingLimits,
        preprocessor: RequestPreprocessor,
    ) -> None:
        self._generation = generation
        self._store = store
        self._preprocessor = preprocessor
        self._metrics = metrics
        self._limits = limits
        self._owner = owner_of(limits.process)
        self._turns = StoreTurns(limits.store_timeout_s)
        self._owners = Owners(store, self._turns, limits.process)
        self._running: dict[str, _Running] = {}
        self._tasks = set[asyncio.Task[None]]()
        generation.when_forgotten(self._keep_again)

    async def respond(self, request: Request, prepared_body: PreparedBody, arrived_s: float) -> Response:
        """Answer a request for a new answer, or for one that the caller began before.

        Raises:
            ApiError: 400, 404, 409 or 422, there is no such answer to go on with.
            GenerationError: the store is away.
        """
        prepared = prepared_body.prepared
        key = _idempotency_key(request)
        is_resumable = bool(key) or request.headers.get("x-spotwise-resumable", "").strip().lower() in ("true", "1")
        body_hash = prepared_body.body_hash
        if event_id := request.headers.get("last-event-id", ""):
            position = StreamPosition.parse(event_id)
            return await self._go_on(request, position.request_id, position, arrived_s, body_hash=body_hash)
        claim = claim_of(prepared.scope, key)
        if claim:
            known = await self._turns.result(self._store.claimed_request(claim))
            if known is not None:
                return await self._go_on(request, known.request.request_id, None, arrived_s, body_hash=body_hash)
        reservation = await self._preprocessor.reserve(request, prepared)
        if not prepared.stream and not is_resumable:
            generate = self._generation.generate
            return self._preprocessor.response(
                prepared_body.endpoint, prepared, generate, arrived_s, reservation=reservation
            )
        form = form_of(prepared_body, key_name=key_name(request), claim=claim, is_resumable=is_resumable)
        try:
            kept = await self._turns.result(self._store.keep_request(form, self._owner))
            if is_resumable and kept in (RoomVerdict.NO_ROOM_FOR_SCOPE, RoomVerdict.TOO_LARGE):
                raise _too_much_kept()
        except BaseException:
            reservation.cancel()
            raise
        if isinstance(kept, KeptState):  # another connection claimed it meanwhile
            reservation.cancel()
            return await self._go_on(request, kept.request.request_id, None, arrived_s, body_hash=body_hash)
        if kept is not RoomVerdict.KEPT:
            self._metrics.count_not_kept(Kind.REQUESTS)
            warning = {WARNING_HEADER: "not kept"}
            ids = prepared_body.endpoint, prepared, self._generation.generate, arrived_s
            return self._preprocessor.response(*ids, headers=warning, reservation=reservation)
        running = _Running(form, owned(prepared, self._owner), reservation)
        return self._begin(running, _resumable(request, running.prepared), None, arrived_s)

    async def resume(self, request: Request, request_id: str, arrived_s: float) -> Response:
        """Stream an answer that the caller began before, from its `Last-Event-ID` on; raises as `respond`."""
        event_id = request.headers.get("last-event-id", "")
        position = StreamPosition.parse(event_id) if event_id else None
        if position is not None and position.request_id != request_id:
            raise bad_request("'Last-Event-ID' is of another request.", code="invalid_event_id")
        return await self._go_on(request, request_id, position, arrived_s, as_stream=True)

    async def state(self, request: Request, request_id: str) -> KeptState:
        """Return what is kept of a request of the caller's.

        Raises:
            ApiError: 404, there is none.
            GenerationError: the store is away.
        """
        if (running := self._running.get(request_id)) is not None:
            await self._turns.result(self._generation.save(*_choice_ids(running.prepared)))
        kept = await self._turns.result(self._store.get_request(request_id))
        if kept is None or kept.request.scope != caller_scope(request):
            raise unknown_request(request_id)
        return kept

    async def ledger(self, form: KeptRequest) -> list[LedgerEntry]:
        """Return the request's ledger, in order of time."""
        return await self._turns.result(self._store.get_ledger(form.request_id))

    async def cancel(self, request: Request, request_id: str) -> None:
        """Cancel a request of the caller's, wherever it runs; raises as `state`."""
        kept = await self.state(request, request_id)
        running = self._running.get(request_id)
        if running is not None and running.log is not None and running.owner == kept.owner:
            running.log.cancel()
            await running.log.over
            kept = await self.state(request, request_id)
        if kept.ending is not None:
            return
        taken = await self._turns.result(self._store.take_request(request_id, self._limits.process))
        attempts = {} if taken is None or taken.ending is not None else taken.attempts
        try:  # the ending first: the gateway that streams it tells its client why it has ended
            if taken is not None and taken.ending is None:
                kept_s = self._kept_s(kept.request)
                await self._turns.result(self._store.end_request(kept.request, taken.owner, CANCELLED, kept_s))
        finally:
            if (running := self._running.get(request_id)) is not None:
                self._step_down(running)
        for choice_id, attempt in attempts.items():
            self._generation.close(choice_id, attempt.epoch)

    async def has(self, request: Request, request_id: str, endpoint: str) -> bool:
        """Tell whether a request of the caller's to an endpoint is kept; raises `GenerationError` where the store is away."""
        kept = await self._turns.result(self._store.get_request(request_id))
        return kept is not None and (kept.request.scope, kept.request.endpoint) == (caller_scope(request), endpoint)

    async def forget(self, request: Request, request_id: str) -> None:
        """Forget a request of the caller's, and its answer; one that runs is cancelled. Raises as `state`."""
        await self.cancel(request, request_id)
        kept = await self.state(request, request_id)
        await self._turns.result(self._store.forget_request(kept.request))

    async def _go_on(
        self,
        request: Request,
        request_id: str,
        position: StreamPosition | None,
        arrived_s: float,
        *,
        body_hash: str | None = None,
        as_stream: bool = False,
    ) -> Response:
        kept = await self.state(request, request_id)
        if body_hash not in (None, kept.request.body_hash):
            message = "The body differs from that of the request which this key or event id belongs to."
            raise ApiError(422, message, code="idempotency_mismatch")
        name_request(request, request_id)
        running = self._running.get(request_id)
        if running is None or running.log is None or running.owner != kept.owner:
            running = None
        prepared = await self._preprocessor.prepare_again(kept.request) if running is None else running.prepared
        if position is not None and len(position.choices) != len(prepared.sequences):
            raise bad_request("'Last-Event-ID' is of another request.", code="invalid_event_id")
        if running is None:
            running = await self._taken(request, kept, prepared)
        prepared = _resumable(request, replace(running.prepared, stream=True) if as_stream else running.prepared)
        self._metrics.count_resumed()
        return self._begin(running, prepared, position, arrived_s, {"Idempotent-Replayed": "true"})

    async def _keep_again(self, request_id: str) -> bool:
        """Keep a request that the store has forgotten; return whether its tokens may follow. Raises `MeshError`."""
        if (running := self._running.get(request_id)) is None or not running.owner:
            return True  # it ends
        attempts = self._generation.attempts(_choice_ids(running.prepared))
        known = await self._store.keep_request(running.form, running.owner, attempts)
        if isinstance(known, KeptState) or known is RoomVerdict.KEPT:
            return True
        self._metrics.count_not_kept(Kind.REQUESTS)
        return False

    async def _taken(self, request: Request, kept: KeptState, prepared: PreparedRequest) -> _Running:
        """Take a request over, or its answer where that is whole."""
        request_id, reservation = kept.request.request_id, Reservation()
        if kept.ending is None:
            is_alive = await self._owners.is_alive(kept.owner)
            continued = Continued(kept.saved_tokens, is_alive, turn_of(kept.owner) == 0)
            reservation = await self._preprocessor.reserve(request, prepared, continued)
            try:
                taken = await self._turns.result(self._store.take_request(request_id, self._limits.process))
            except BaseException:
                reservation.cancel()
                raise
            if taken is None or taken.ending is not None:
                reservation.cancel()
            if taken is None:
                raise unknown_request(request_id)
            kept = taken
            if (running := self._running.get(request_id)) is not None:
                self._step_down(running)
        if kept.ending is not None and kept.ending.state == "failed":
            raise GenerationError(kept.ending.status, kept.ending.code, kept.ending.message)
        if kept.ending is not None and kept.ending.state != "finished":
            raise ApiError(409, "This request was cancelled; send it anew.", code="cancelled")
        work, size_bytes = self._preprocessor.work_of(kept.request.scope), sum(map(len, kept.chunks))
        read = tokens_to_go_on if kept.ending is None else read_chunks
        try:
            earlier = await work.read(size_bytes, partial(read, kept.chunks, len(prepared.sequences)))
        except BaseException:
            reservation.cancel()
            raise
        if kept.ending is not None:
            return _Running(kept.request, owned(prepared, "", earlier), Reservation())
        attempts = [kept.attempts.get(choice_id) for choice_id in _choice_ids(prepared)]
        earlier = [after_attempt(*each) for each in zip(earlier, attempts, strict=True)]
        reservation.earlier_tokens = kept.saved_tokens
        return _Running(kept.request, owned(prepared, kept.owner, earlier), reservation)

    def _begin(
        self,
        running: _Running,
        prepared: PreparedRequest,
        position: StreamPosition | None,
        arrived_s: float,
        headers: dict[str, str] | None = None,
    ) -> GenerationResponse:
        form = running.form
        is_over = not running.owner
        if form.is_resumable and running.log is None and not is_over:
            running.log = RequestLog(
                self._generation,
                prepared,
                self._limits.resume_s,
                running.reservation,
                lambda ending: self._end(running, ending),
            )
        if not is_over:
            self._running[form.request_id] = running
        generate: Generate = self._generation.generate if running.log is None else running.log.generate
        if is_over:
            generate = saved_tokens

        def ended(error: BaseException | None) -> None:
            if running.log is None and not is_over:
                self._spawn(self._end(running, ending_of(error)))

        if position is None and prepared.sends_positions:
            position = StreamPosition.start(form.request_id, len(prepared.sequences))
        return self._preprocessor.response(
            form.endpoint,
            prepared,
            generate,
            arrived_s,
            position if prepared.stream else None,
            ended,
            headers,
            running.reservation,
            partial(self._explained, form.request_id),
            outlives_connection=running.log is not None,
        )

    async def _explained(self, request_id: str, error: Exception) -> Exception:
        """Return why a request ended here: one that another owner has was resumed, or cancelled."""
        if not isinstance(error, GenerationError) or error.code != g.FAIL_TAKEN:
            return error
        with suppress(GenerationError):
            kept = await self._turns.result(self._store.get_request(request_id))
            if kept is not None and kept.ending == CANCELLED:
                return cancelled()
        return error

    async def _end(self, running: _Running, ending: KeptEnding) -> None:
        try:
            await self._store_ending(running, ending)
        finally:
            self._generation.forget(_choice_ids(running.prepared), running.owner)

    async def _store_ending(self, running: _Running, ending: KeptEnding) -> None:
        if self._running.get(running.form.request_id) is not running:
            return  # taken over
        if self._generation.is_leaving and ending.state == "cancelled":
            return
        try:
            await self._turns.result(self._generation.save(*_choice_ids(running.prepared)))
            await self._turns.result(
                self._store.end_request(running.form, running.owner, ending, self._kept_s(running.form))
            )
        except GenerationError:
            return  # it expires
        finally:
            if self._running.get(running.form.request_id) is running:
                del self._running[running.form.request_id]

    def _step_down(self, running: _Running) -> None:
        del self._running[running.form.request_id]
        for choice_id in _choice_ids(running.prepared):
            self._generation.step_down(choice_id)

    def _kept_s(self, form: KeptRequest) -> float:
        return self._limits.answer_kept_s if form.is_resumable else ENDED_STREAM_KEPT_S

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def unknown_request(request_id: str) -> ApiError:
    """Return a 404: there is no such request, or it is another's."""
    return ApiError(404, f"There is no request '{request_id}' of yours (any more).", code="request_not_found")


def _too_much_kept() -> ApiError:
    message = (
        "The requests that run for you leave no room in the store for another that outlives its connection; let some end, or "
        "send it without 'Idempotency-Key' and 'X-Spotwise-Resumable'."
    )
    return ApiError(429, message, code="too_much_kept", headers={"Retry-After": "5"})


def _idempotency_key(request: Request) -> str:
    key = str(request.headers.get("idempotency-key", "")).strip()
    if key and not _IDEMPOTENCY_KEY.fullmatch(key):
        raise bad_request(
            "'Idempotency-Key' must have 1 to 255 visible ASCII characters.", code="invalid_idempotency_key"
        )
    return key


def _resumable(request: Request, prepared: PreparedRequest) -> PreparedRequest:
    """Return the request of a stream with positions where the request's headers ask for them."""
    asks = request.headers.get("x-resume", "").strip().lower() in ("true", "1")
    return replace(prepared, sends_positions=True) if asks else prepared


def _choice_ids(prepared: PreparedRequest) -> list[str]:
    return [sequence.choice_id for sequence in prepared.sequences]
