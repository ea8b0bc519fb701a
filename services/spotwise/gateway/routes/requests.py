"""`/v1/requests/{id}`: the state of a request, its stream from an event on, and its end at the caller's wish."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from spotwise.core.gateway.kept_request import KeptState
from spotwise.core.messages.mesh import LedgerEntry
from spotwise.gateway.apis.preprocessor import Preprocessor
from spotwise.gateway.generate.answer import usage_of
from spotwise.gateway.generate.answer_work import AnswerWriter, parts_of
from spotwise.gateway.generate.choice import Choice
from spotwise.gateway.generate.generation import EarlierTokens
from spotwise.gateway.generate.prepared_request import PreparedRequest, PreparedSequence
from spotwise.gateway.generate.token_stream import saved
from spotwise.gateway.resume.kept_forms import read_chunks
from spotwise.gateway.resume.kept_requests import KeptRequests
from spotwise.http.errors import GenerationError
from spotwise.http.event_loop import effort_of_kept
from spotwise.http.json_text import PartsResponse
from spotwise.http.late_answers import LateAnswer


def request_routes(kept: KeptRequests, preprocessor: Preprocessor) -> list[Route]:
    """Return the routes."""

    async def get_request(request: Request) -> Response:
        request_id = request.path_params["request_id"]
        # A HEAD takes no stream from its connection.
        if request.method == "GET" and "text/event-stream" in request.headers.get("accept", ""):
            return LateAnswer(await kept.resume(request, request_id, time.monotonic()))
        return await _described(kept, preprocessor, await kept.state(request, request_id))

    async def cancel_request(request: Request) -> Response:
        request_id = request.path_params["request_id"]
        await kept.cancel(request, request_id)
        return await _described(kept, preprocessor, await kept.state(request, request_id))

    path = "/v1/requests/{request_id}"
    return [Route(path, get_request), Route(path, cancel_request, methods=["DELETE"])]


async def _described(kept: KeptRequests, preprocessor: Preprocessor, state: KeptState) -> Response:
    form = state.request
    prepared = await preprocessor.prepare_again(form)
    return LateAnswer(_Description(preprocessor, state, prepared, await kept.ledger(form)))


class _Description(Response):
    """What is known of a request, its whole answer included.

    Args:
        preprocessor: from bodies to answers.
        state: what is kept of it.
        prepared: the request.
        ledger: ledger of the request, in order of time.
    """

    def __init__(
        self, preprocessor: Preprocessor, state: KeptState, prepared: PreparedRequest, ledger: Sequence[LedgerEntry]
    ) -> None:
        super().__init__()
        self._preprocessor = preprocessor
        self._state = state
        self._prepared = prepared
        self._ledger = ledger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write and send it; see the ASGI specification."""
        preprocessor, state, of_whom = self._preprocessor, self._state, self._prepared.scope
        effort = effort_of_kept(sum(map(len, state.chunks)))
        described = partial(_description, preprocessor, state, self._prepared, self._ledger)
        with preprocessor.room.taken(of_whom, self._prepared.scores):
            parts = await preprocessor.bodies.off_loop.run(of_whom, effort, described)
            await PartsResponse(parts)(scope, receive, send)


def _description(
    preprocessor: Preprocessor, state: KeptState, prepared: PreparedRequest, ledger: Sequence[LedgerEntry]
) -> list[bytes]:
    """Return what is known of a request, in parts; work for a thread where much is kept of it."""
    form, ending = state.request, state.ending
    earlier = read_chunks(state.chunks, len(prepared.sequences))
    choices = preprocessor.choices(prepared)
    answer = preprocessor.answer_writer(form.endpoint, prepared)
    reasons = [
        _replay(index, *each, answer)
        for index, each in enumerate(zip(prepared.sequences, choices, earlier, strict=True))
    ]
    body: dict[str, Any] = {
        "id": form.request_id,
        "object": "request",
        "endpoint": form.endpoint,
        "created": form.created_unix_s,
        "resumable": form.is_resumable,
        "state": _running_state(earlier, ledger) if ending is None else ending.state,
        "choices": [
            {
                "index": index,
                "output_tokens": choice.output_tokens,
                "attempts": _attempts(sequence.choice_id, state, ledger),
                "finish_reason": reason,
            }
            for index, (sequence, choice, reason) in enumerate(zip(prepared.sequences, choices, reasons, strict=True))
        ],
        "error": None,
    }
    if ending is not None and ending.state == "failed":
        body["error"] = {"message": ending.message, "code": ending.code}
    is_finished = ending is not None and ending.state == "finished"
    response = answer.whole(usage_of(prepared, choices)) if is_finished else [b"null"]
    return [orjson.dumps(body)[:-1], b',"response":', *response, b"}"]


def _replay(
    index: int, sequence: PreparedSequence, choice: Choice, earlier: EarlierTokens, answer: AnswerWriter
) -> str | None:
    """Add the tokens of a choice to an answer; return how the choice ended."""
    reason = None
    if (tokens := saved(sequence.choice_id, earlier)) is not None:
        with suppress(GenerationError):  # it failed; the ending says so
            for part in parts_of(tokens):
                for piece in choice.pieces(part, by_token=answer.BY_TOKEN):
                    answer.collect(index, piece)
                    reason = piece.finish_reason
                if reason is not None:
                    break
    return reason


def _running_state(earlier: Sequence[EarlierTokens], ledger: Sequence[LedgerEntry]) -> str:
    if any(each.deltas for each in earlier):
        return "decoding"
    return "prefilling" if any(entry.stage == "assigned" for entry in ledger) else "queued"


def _attempts(choice_id: str, state: KeptState, ledger: Sequence[LedgerEntry]) -> int:
    epochs = [entry.epoch for entry in ledger if entry.choice_id == choice_id]
    latest = state.attempts.get(choice_id)
    return max([0 if latest is None else latest.epoch, *epochs])
