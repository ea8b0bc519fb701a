"""From bodies to plans, and from plans to responses, of all endpoints that generate.

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
from spotwise.gateway.apis.chat import ChatFormat, plan_chat
from spotwise.gateway.apis.completions import CompletionFormat, plan_completion
from spotwise.gateway.apis.items_format import ItemsFormat
from spotwise.gateway.apis.messages import plan_message
from spotwise.gateway.apis.messages_format import MessagesFormat
from spotwise.gateway.apis.responses import plan_response, previous_response
from spotwise.gateway.generate.answer import Generate, GenerationResponse, choices_of
from spotwise.gateway.generate.answer_work import AnswerFormat, AnswerWork
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.choice import Choice
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.generate.plan import GenerationPlan, PlannedBody, PlannedSequence, RequestTerms
from spotwise.gateway.generate.score_limits import ScoreRoom
from spotwise.gateway.generate.stream_position import StreamPosition
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


#: From a parsed body, and what is known of the request beside it, to a plan.
PlanBody = Callable[[Mapping[str, Any], ChatText, ApiOptions, RequestTerms], GenerationPlan]

#: From a plan and the model's tokens to what writes the answer.
NewFormat = Callable[[GenerationPlan, TokenBytes], AnswerFormat]

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (endpoint.value for endpoint in Endpoint)
_ENDPOINTS: Mapping[str, tuple[PlanBody, NewFormat]] = {
    CHAT: (plan_chat, ChatFormat),
    COMPLETIONS: (plan_completion, CompletionFormat),
    RESPONSES: (plan_response, ItemsFormat),
    MESSAGES: (plan_message, MessagesFormat),
}


class CountedPlan(Protocol):
    """What is counted of a request."""

    @property
    def sequences(self) -> tuple[PlannedSequence, ...]:
        """What it makes the mesh compute."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompts, each counted once."""


class Planning:
    """Plans requests, large ones on another thread; see `create_app` for the arguments.

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

    async def plan(self, request: Request, endpoint: str) -> PlannedBody:
        """Read and plan a request; raises `ApiError` where it cannot be served as it is."""
        deadline_unix_s = self.admit(request)
        terms = RequestTerms(key_name(request), caller_scope(request), client_request_id(request), deadline_unix_s)
        reading = partial(self._read, endpoint, terms, KEEPING_HEADERS.isdisjoint(request.headers))
        read, body, body_hash = await self.bodies.of(request, reading)
        if isinstance(read, Continuation):
            async with self.bodies.counting_refusals(request):
                body, plan = await self._continued(terms, read, len(body))
        else:
            plan = read
        name_request(request, plan.request_id)
        self._metrics.count_ignored(plan.ignored)
        return PlannedBody(plan, endpoint, body, body_hash)

    def admit(self, request: Request) -> float | None:
        """Return the Unix time at which the client of a request gives up, whose body's time counts already.

        Raises:
            ApiError: 400, the time is wrong; 429, its key had too many requests a moment ago.
        """
        deadline_unix_s = deadline_of(request.headers, self._now())
        self._quotas.require_room(caller_of(request))
        return deadline_unix_s

    async def reserve(self, request: Request, plan: CountedPlan, continued: Continued | None = None) -> Reservation:
        """Take what a request needs of its key's limits; see `Quotas.reserve`."""
        outputs = [(each.spec.stop.max_new_tokens, each.spec.unbounded) for each in plan.sequences]
        return await self._quotas.reserve(caller_of(request), plan.prompt_tokens, outputs, continued)

    async def plan_again(self, form: KeptRequest) -> GenerationPlan:
        """Plan a kept request again, with its ids and seeds; raises `ApiError`, a 409, where it has other prompts here."""
        return await self._plan_body(form.endpoint, RequestTerms.of_kept(form), form.body.encode())

    def response(
        self,
        endpoint: str,
        plan: GenerationPlan,
        generate: Generate,
        arrived_s: float,
        position: StreamPosition | None = None,
        ended: Callable[[BaseException | None], None] = lambda error: None,
        headers: Mapping[str, str] | None = None,
        reservation: Reservation | None = None,
        explained: Callable[[Exception], Awaitable[Exception]] | None = None,
        *,
        outlives_connection: bool = False,
    ) -> GenerationResponse:
        """Return the response of a plan; see `GenerationResponse`."""
        return GenerationResponse(
            plan,
            self.answer_format(endpoint, plan),
            generate,
            self._text,
            self._metrics,
            arrived_s,
            position,
            ended,
            headers,
            reservation,
            self._keeping(plan),
            explained,
            outlives_connection=outlives_connection,
            work=self.work_of(plan.scope),
            room=self.room,
            silence_s=self._options.stream_keep_alive_s,
        )

    def work_of(self, scope: str) -> AnswerWork:
        """Return where an answer of a caller's is written."""
        return AnswerWork(self.bodies.off_loop, scope)

    def _keeping(self, plan: GenerationPlan) -> Callable[[bytes], Awaitable[bool]] | None:
        stored = self._stored
        if stored is None or plan.repeated is None or not plan.repeated.is_stored:
            return None

        async def keep(body: bytes) -> bool:
            is_stored = await stored.keep(plan, body)
            if not is_stored:
                self._metrics.count_not_kept(Kind.RESPONSES)
            return is_stored

        return keep

    def answer_format(self, endpoint: str, plan: GenerationPlan) -> AnswerFormat:
        """Return what writes an endpoint's answers."""
        _, write = _ENDPOINTS[endpoint]
        return write(plan, self._text.token_bytes)

    def choices(self, plan: GenerationPlan) -> list[Choice]:
        """Return the choices of a plan, before their first tokens."""
        return choices_of(plan, self._text)

    def _read(
        self, endpoint: str, terms: RequestTerms, only_streams_are_kept: bool, body: bytearray
    ) -> tuple[GenerationPlan | Continuation, bytes, str]:
        parsed = parse_json_object(body)
        body_hash = "" if only_streams_are_kept and not parsed.get("stream") else hash_of_body(endpoint, parsed)
        if endpoint == RESPONSES and (response_id := previous_response(parsed)) is not None:
            return Continuation(parsed, response_id), bytes(body), body_hash
        return self._planned(endpoint, terms, parsed), bytes(body), body_hash

    async def _continued(
        self, terms: RequestTerms, read: Continuation, body_bytes: int
    ) -> tuple[bytes, GenerationPlan]:
        """Return the body with the conversation that it goes on from, which is no larger than a body, and its plan."""
        if self._stored is None:
            raise unknown_response(read.response_id, "previous_response_id")
        stored = await self._stored.find(terms.scope, read.response_id, "previous_response_id")
        most_bytes = self.bodies.max_body_bytes
        require_bounded(len(stored.items) + body_bytes, most_bytes)
        size_bytes = len(stored.items) + len(stored.body) + body_bytes
        with self.bodies.holding(terms.scope, size_bytes):
            effort = effort_of_size(size_bytes)
            body = await self.bodies.off_loop.run(terms.scope, effort, partial(joined, stored, read, most_bytes))
            return body, await self._plan_body(RESPONSES, terms, body)

    async def _plan_body(self, endpoint: str, terms: RequestTerms, body: bytes) -> GenerationPlan:
        """Plan a body that goes on from no other answer, or has all of that by now."""

        def planned() -> GenerationPlan:
            return self._planned(endpoint, terms, parse_json_object(body))

        return await self.bodies.off_loop.run(terms.scope, effort_of_size(len(body)), planned)

    def _planned(self, endpoint: str, terms: RequestTerms, parsed: Mapping[str, Any]) -> GenerationPlan:
        plan_body, _ = _ENDPOINTS[endpoint]
        plan = plan_body(parsed, self._text, self._options, terms)
        return replace(plan, ignored=noted(plan.ignored)) if plan.ignored else plan
