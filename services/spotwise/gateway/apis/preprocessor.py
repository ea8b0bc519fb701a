"""From bodies to prepared requests, and from those to responses, of all endpoints that generate.

`X-Request-Timeout`, seconds from the request's arrival at the gateway.

`X-Stainless-Read-Timeout`, which OpenAI's clients send by themselves, is none: it bounds the silence between two events of a
stream, and not the answer. A client that gives up for it disconnects, which cancels its request anyway.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.requests import Request

from spotwise.core.access.store_budget import Kind
from spotwise.core.gateway.kept_request import KeptRequest
from spotwise.gateway.access.auth import caller_of, caller_scope, key_name
from spotwise.gateway.access.body_work import BodyWork
from spotwise.gateway.access.quotas import Continued, Quotas, Reservation
from spotwise.gateway.apis.chat import ChatWriter, prepare_chat
from spotwise.gateway.apis.completions import CompletionWriter, prepare_completion
from spotwise.gateway.apis.items_writer import ItemsWriter
from spotwise.gateway.apis.messages import prepare_message
from spotwise.gateway.apis.messages_writer import MessagesWriter
from spotwise.gateway.apis.responses import prepare_response, previous_response
from spotwise.gateway.generate.answer import AnswerTerms, GenerationResponse, choices_of
from spotwise.gateway.generate.answer_work import AnswerWork, AnswerWriter
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.choice import Choice
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.generate.prepared_request import PreparedBody, PreparedRequest, PreparedSequence, RequestTerms
from spotwise.gateway.generate.score_limits import ScoreRoom
from spotwise.gateway.resume.kept_forms import KEEPING_HEADERS, hash_of_body
from spotwise.gateway.resume.stored_responses import (
    Continuation,
    StoredResponses,
    joined,
    require_bounded,
    unknown_response,
)
from spotwise.gateway.schema.parameters import Endpoint, noted
from spotwise.http.body import parse_json_object
from spotwise.http.errors import bad_request
from spotwise.http.event_loop import effort_of_size
from spotwise.http.request_ids import client_request_id, name_request
from spotwise.text.chat_text import ChatText
from spotwise.text.detokenize import TokenBytes

HEADER = "x-request-timeout"
#: Nine digits: thirty years.
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def deadline_of(headers: Headers, arrived_unix_s: float) -> float | None:
    """Return the Unix time at which a request's client gives up; `None` without the header.

    Raises:
        ApiError: 400, the header is no positive number of seconds, or there are several.
    """
    given = headers.getlist(HEADER)
    if not given:
        return None
    seconds = float(given[0]) if len(given) == 1 and _SECONDS.fullmatch(given[0].strip()) else 0.0
    if seconds <= 0.0:
        raise bad_request(
            f"Invalid value for the header '{HEADER}': must be one positive number of seconds, such as 30 or 2.5.",
            HEADER,
            "invalid_value",
        )
    return arrived_unix_s + seconds


#: From a parsed body, and what is known of the request beside it, to a prepared request.
PrepareBody = Callable[[Mapping[str, Any], ChatText, ApiOptions, RequestTerms], PreparedRequest]

#: From a prepared request and the model's tokens to what writes the answer.
NewWriter = Callable[[PreparedRequest, TokenBytes], AnswerWriter]

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (endpoint.value for endpoint in Endpoint)
_ENDPOINTS: Mapping[str, tuple[PrepareBody, NewWriter]] = {
    CHAT: (prepare_chat, ChatWriter),
    COMPLETIONS: (prepare_completion, CompletionWriter),
    RESPONSES: (prepare_response, ItemsWriter),
    MESSAGES: (prepare_message, MessagesWriter),
}


class CountedRequest(Protocol):
    """What is counted of a request."""

    @property
    def sequences(self) -> tuple[PreparedSequence, ...]:
        """What it makes the mesh compute."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompts, each counted once."""


class Preprocessor:
    """Prepares requests, large ones on another thread; see `create_app` for the arguments.

    Attributes:
        bodies: reads them.
        room: for the log-probabilities of answers.
    """

    def __init__(
        self,
        text: ChatText,
        options: ApiOptions,
        metrics: GatewayMetrics,
        quotas: Quotas,
        bodies: BodyWork,
        now: Callable[[], float],
        stored: StoredResponses | None = None,
    ) -> None:
        self._text = text
        self._options = options
        self._metrics = metrics
        self._quotas = quotas
        self._now = now
        self.bodies = bodies
        self.room = ScoreRoom(options.max_answer_logprobs)
        self._stored = stored

    async def prepare(self, request: Request, endpoint: str) -> PreparedBody:
        """Read and prepare a request; raises `ApiError` where it cannot be served as it is."""
        deadline_unix_s = self.admit(request)
        terms = RequestTerms(key_name(request), caller_scope(request), client_request_id(request), deadline_unix_s)
        reading = partial(self._read, endpoint, terms, KEEPING_HEADERS.isdisjoint(request.headers))
        read, body, body_hash = await self.bodies.of(request, reading)
        if isinstance(read, Continuation):
            async with self.bodies.counting_refusals(request):
                body, prepared = await self._continued(terms, read, len(body))
        else:
            prepared = read
        name_request(request, prepared.request_id)
        self._metrics.count_ignored(prepared.ignored)
        return PreparedBody(prepared, endpoint, body, body_hash)

    def admit(self, request: Request) -> float | None:
        """Return the Unix time at which the client of a request gives up, whose body's time counts already.

        Raises:
            ApiError: 400, the time is wrong; 429, its key had too many requests a moment ago.
        """
        deadline_unix_s = deadline_of(request.headers, self._now())
        self._quotas.require_room(caller_of(request))
        return deadline_unix_s

    async def reserve(
        self, request: Request, prepared: CountedRequest, continued: Continued | None = None
    ) -> Reservation:
        """Take what a request needs of its key's limits; see `Quotas.reserve`."""
        outputs = [(each.spec.stop.max_new_tokens, each.spec.unbounded) for each in prepared.sequences]
        return await self._quotas.reserve(caller_of(request), prepared.prompt_tokens, outputs, continued)

    async def prepare_again(self, form: KeptRequest) -> PreparedRequest:
        """Prepare a kept request again, with its ids and seeds; raises `ApiError`, a 409, where it has other prompts here."""
        return await self._prepare_body(form.endpoint, RequestTerms.of_kept(form), form.body.encode())

    def response(self, endpoint: str, terms: AnswerTerms) -> GenerationResponse:
        """Return the response of a prepared request."""
        prepared = terms.prepared
        return GenerationResponse(
            terms,
            self.answer_writer(endpoint, prepared),
            self._text,
            self._metrics,
            self._keeping(prepared),
            work=self.work_of(prepared.scope),
            room=self.room,
            silence_s=self._options.stream_keep_alive_s,
        )

    def work_of(self, scope: str) -> AnswerWork:
        """Return where an answer of a caller's is written."""
        return AnswerWork(self.bodies.off_loop, scope)

    def _keeping(self, prepared: PreparedRequest) -> Callable[[bytes], Awaitable[bool]] | None:
        stored = self._stored
        if stored is None or prepared.repeated is None or not prepared.repeated.is_stored:
            return None

        async def keep(body: bytes) -> bool:
            is_stored = await stored.keep(prepared, body)
            if not is_stored:
                self._metrics.count_not_kept(Kind.RESPONSES)
            return is_stored

        return keep

    def answer_writer(self, endpoint: str, prepared: PreparedRequest) -> AnswerWriter:
        """Return what writes an endpoint's answers."""
        _, write = _ENDPOINTS[endpoint]
        return write(prepared, self._text.token_bytes)

    def choices(self, prepared: PreparedRequest) -> list[Choice]:
        """Return the choices of a prepared request, before their first tokens."""
        return choices_of(prepared, self._text)

    def _read(
        self, endpoint: str, terms: RequestTerms, only_streams_are_kept: bool, body: bytearray
    ) -> tuple[PreparedRequest | Continuation, bytes, str]:
        parsed = parse_json_object(body)
        body_hash = "" if only_streams_are_kept and not parsed.get("stream") else hash_of_body(endpoint, parsed)
        if endpoint == RESPONSES and (response_id := previous_response(parsed)) is not None:
            return Continuation(parsed, response_id), bytes(body), body_hash
        return self._prepare(endpoint, terms, parsed), bytes(body), body_hash

    async def _continued(
        self, terms: RequestTerms, read: Continuation, body_bytes: int
    ) -> tuple[bytes, PreparedRequest]:
        """Return the body with the conversation that it continues, which is no larger than a body, and its prepared request."""
        if self._stored is None:
            raise unknown_response(read.response_id, "previous_response_id")
        stored = await self._stored.find(terms.scope, read.response_id, "previous_response_id")
        most_bytes = self.bodies.max_body_bytes
        require_bounded(len(stored.items) + body_bytes, most_bytes)
        size_bytes = len(stored.items) + len(stored.body) + body_bytes
        with self.bodies.holding(terms.scope, size_bytes):
            effort = effort_of_size(size_bytes)
            body = await self.bodies.off_loop.run(terms.scope, effort, partial(joined, stored, read, most_bytes))
            return body, await self._prepare_body(RESPONSES, terms, body)

    async def _prepare_body(self, endpoint: str, terms: RequestTerms, body: bytes) -> PreparedRequest:
        """Prepare a body that goes on from no other answer, or has all of that by now."""

        def prepared_body() -> PreparedRequest:
            return self._prepare(endpoint, terms, parse_json_object(body))

        return await self.bodies.off_loop.run(terms.scope, effort_of_size(len(body)), prepared_body)

    def _prepare(self, endpoint: str, terms: RequestTerms, parsed: Mapping[str, Any]) -> PreparedRequest:
        prepare_body, _ = _ENDPOINTS[endpoint]
        prepared = prepare_body(parsed, self._text, self._options, terms)
        return replace(prepared, ignored=noted(prepared.ignored)) if prepared.ignored else prepared
