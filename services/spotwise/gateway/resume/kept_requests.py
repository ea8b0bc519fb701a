"""Requests that outlive their connection or their gateway (ADR 39).

Every stream, and every request with an `Idempotency-Key` or `X-Spotwise-Resumable: true`, is kept in the store: its form at
once, its tokens every second (`token_saver.py`). Any gateway can take it over from there: the store knows one owner at a time,
and a gateway that has lost a request ends its own attempts. A resumable request (the latter two) continues for a while without
its client, and its answer is kept for a while; any other one is cancelled when its client leaves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import Response

from spotwise.core.access.store_budget import Kind, RoomVerdict
from spotwise.core.gateway.commands import FAIL_TAKEN
from spotwise.core.gateway.keeping import Resumption
from spotwise.core.gateway.kept_request import CANCELLED, KeptRequest, KeptState, owner_of, process_of, turn_of
from spotwise.core.messages.mesh import LedgerEntry
from spotwise.gateway.access.auth import caller_scope, key_name
from spotwise.gateway.access.quotas import Continued, Reservation
from spotwise.gateway.generate.answer import AnswerTerms
from spotwise.gateway.generate.generation import EarlierTokens
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
from spotwise.gateway.resume.owned_requests import OwnedRequest, OwnedRequests
from spotwise.gateway.resume.ports import RequestPreprocessor
from spotwise.gateway.resume.request_log import cancelled
from spotwise.gateway.schema.parameters import WARNING_HEADER
from spotwise.http.errors import ApiError, GenerationError, bad_request
from spotwise.http.request_ids import name_request

_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_REPLAYED: Mapping[str, str] = {"Idempotent-Replayed": "true"}


class KeptRequests:
    """The kept requests, as their callers meet them at one gateway.

    Args:
        running: those that this gateway owns.
        metrics: the gateway's.
        preprocessor: from bodies to prepared requests and answers.
    """

    def __init__(self, running: OwnedRequests, metrics: GatewayMetrics, preprocessor: RequestPreprocessor) -> None:
        self._running = running
        self._generation = running.generation
        self._store = running.store
        self._turns = running.turns
        self._process = running.limits.process
        self._owner = owner_of(self._process)
        self._metrics = metrics
        self._preprocessor = preprocessor

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
        not_kept = AnswerTerms(prepared, self._generation.generate, arrived_s, reservation)
        if not prepared.stream and not is_resumable:
            return self._preprocessor.response(prepared_body.endpoint, not_kept)
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
            not_kept = replace(not_kept, headers={WARNING_HEADER: "not kept"})
            return self._preprocessor.response(prepared_body.endpoint, not_kept)
        running = self._running.begin(form, owned(prepared, self._owner), reservation)
        return self._response(running, _with_positions(request, running.prepared), None, arrived_s)

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
        await self._running.save(request_id)
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
        if (running := self._running.joinable(kept)) is not None:
            await self._running.cancel(running)
            kept = await self.state(request, request_id)
        if kept.ending is not None:
            return
        taken = await self._turns.result(self._store.take_request(request_id, self._process))
        attempts = {} if taken is None or taken.ending is not None else taken.attempts
        try:  # the ending first: the gateway that streams it tells its client why it has ended
            if taken is not None and taken.ending is None:
                kept_s = self._running.role.kept_s(is_resumable=kept.request.is_resumable)
                await self._turns.result(self._store.end_request(kept.request, taken.owner, CANCELLED, kept_s))
        finally:
            self._running.lose(request_id)
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
        running = self._running.joinable(kept)
        prepared = await self._preprocessor.prepare_again(kept.request) if running is None else running.prepared
        if position is not None and len(position.choices) != len(prepared.sequences):
            raise bad_request("'Last-Event-ID' is of another request.", code="invalid_event_id")
        if running is None:
            running, prepared = await self._taken(request, kept, prepared)
        prepared = _with_positions(request, replace(prepared, stream=True) if as_stream else prepared)
        self._metrics.count_resumed()
        if running is not None:
            return self._response(running, prepared, position, arrived_s, _REPLAYED)
        at = _position(prepared, position)
        terms = AnswerTerms(prepared, saved_tokens, arrived_s, headers=_REPLAYED, position=at)
        return self._preprocessor.response(kept.request.endpoint, terms)

    async def _taken(
        self, request: Request, kept: KeptState, prepared: PreparedRequest
    ) -> tuple[OwnedRequest | None, PreparedRequest]:
        """Take a request over; return it, or `None` where its answer is whole, and what is prepared with its tokens so far."""
        reservation = Reservation()
        if self._running.role.resumption(kept) is Resumption.TAKE:
            kept, reservation = await self._take(request, kept, prepared)
        resumption = self._running.role.resumption(kept)
        if kept.ending is not None and resumption is Resumption.REFUSE_FAILED:
            raise GenerationError(kept.ending.status, kept.ending.code, kept.ending.message)
        if resumption is Resumption.REFUSE_CANCELLED:
            raise ApiError(409, "This request was cancelled; send it anew.", code="cancelled")
        try:
            earlier = await self._earlier_tokens(kept, prepared)
        except BaseException:
            reservation.cancel()
            raise
        if resumption is Resumption.REPLAY:
            return None, owned(prepared, "", earlier)
        reservation.earlier_tokens = kept.saved_tokens
        running = self._running.begin(kept.request, owned(prepared, kept.owner, earlier), reservation)
        return running, running.prepared

    async def _take(
        self, request: Request, kept: KeptState, prepared: PreparedRequest
    ) -> tuple[KeptState, Reservation]:
        """Become the owner of a request that has not ended; return what is kept of it then, and what it has reserved."""
        request_id = kept.request.request_id
        continued = Continued(kept.saved_tokens, await self._is_alive(kept.owner), turn_of(kept.owner) == 0)
        reservation = await self._preprocessor.reserve(request, prepared, continued)
        try:
            taken = await self._turns.result(self._store.take_request(request_id, self._process))
        except BaseException:
            reservation.cancel()
            raise
        if taken is None or taken.ending is not None:
            reservation.cancel()
        if taken is None:
            raise unknown_request(request_id)
        self._running.lose(request_id)
        return taken, reservation

    async def _is_alive(self, owner: str) -> bool:
        """Tell whether an owner's process lives, as far as is known: a registration outlives it for seconds."""
        process = process_of(owner)
        if process == self._process:
            return True
        member_id, _, incarnation = process.partition("/")
        members = await self._turns.result(self._store.registered([member_id]))
        return any(str(each.incarnation) == incarnation for each in members)

    async def _earlier_tokens(self, kept: KeptState, prepared: PreparedRequest) -> list[EarlierTokens]:
        """Return the tokens that are kept of each choice, with its latest attempt where the request continues."""
        work, size_bytes = self._preprocessor.work_of(kept.request.scope), sum(map(len, kept.chunks))
        read = tokens_to_go_on if kept.ending is None else read_chunks
        earlier = await work.read(size_bytes, partial(read, kept.chunks, len(prepared.sequences)))
        if kept.ending is not None:
            return earlier
        attempts = [kept.attempts.get(sequence.choice_id) for sequence in prepared.sequences]
        return [after_attempt(*each) for each in zip(earlier, attempts, strict=True)]

    def _response(
        self,
        running: OwnedRequest,
        prepared: PreparedRequest,
        position: StreamPosition | None,
        arrived_s: float,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Response:
        terms = AnswerTerms(
            prepared,
            partial(self._running.generate, running),
            arrived_s,
            running.reservation,
            headers,
            _position(prepared, position),
            partial(self._running.connection_ended, running),
            partial(self._explained, running.form.request_id),
            outlives_connection=running.form.is_resumable,
        )
        return self._preprocessor.response(running.form.endpoint, terms)

    async def _explained(self, request_id: str, error: Exception) -> Exception:
        """Return why a request ended here: one that another owner has was resumed, or cancelled."""
        if not isinstance(error, GenerationError) or error.code != FAIL_TAKEN:
            return error
        with suppress(GenerationError):
            kept = await self._turns.result(self._store.get_request(request_id))
            if kept is not None and kept.ending == CANCELLED:
                return cancelled()
        return error


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


def _with_positions(request: Request, prepared: PreparedRequest) -> PreparedRequest:
    """Return the request of a stream with positions where the request's headers ask for them."""
    asks = request.headers.get("x-resume", "").strip().lower() in ("true", "1")
    return replace(prepared, sends_positions=True) if asks else prepared


def _position(prepared: PreparedRequest, position: StreamPosition | None) -> StreamPosition | None:
    """Return where the client is in a stream; `None` where it gets no positions."""
    if position is None and prepared.sends_positions:
        position = StreamPosition.start(prepared.request_id, len(prepared.sequences))
    return position if prepared.stream else None
