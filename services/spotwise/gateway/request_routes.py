"""`/v1/requests/{id}`: the state of a request, its stream from an event on, and its end at the caller's wish."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from spotwise.core.gateway.kept_request import KeptState
from spotwise.core.messages import LedgerEntry
from spotwise.gateway.answer import usage_of
from spotwise.gateway.answer_format import AnswerFormat
from spotwise.gateway.auth import READING
from spotwise.gateway.choice import Choice
from spotwise.gateway.generation import EarlierTokens, GenerationError
from spotwise.gateway.kept_plan import restored
from spotwise.gateway.kept_requests import KeptRequests
from spotwise.gateway.late_answers import LateAnswer
from spotwise.gateway.plan import PlannedSequence
from spotwise.gateway.planning import Planning
from spotwise.gateway.token_saver import read_chunks
from spotwise.gateway.token_stream import saved


def add_request_routes(app: FastAPI, kept: KeptRequests, planning: Planning) -> None:
    """Add the routes to the API."""

    @app.api_route("/v1/requests/{request_id}", methods=[*READING])
    async def get_request(request: Request, request_id: str) -> Response:
        # A HEAD takes no stream from its connection.
        if request.method == "GET" and "text/event-stream" in request.headers.get("accept", ""):
            return LateAnswer(await kept.resume(request, request_id, time.monotonic()))
        return _json(await _described(kept, planning, await kept.state(request, request_id)))

    @app.delete("/v1/requests/{request_id}")
    async def cancel_request(request: Request, request_id: str) -> Response:
        await kept.cancel(request, request_id)
        return _json(await _described(kept, planning, await kept.state(request, request_id)))


async def _described(kept: KeptRequests, planning: Planning, state: KeptState) -> dict[str, Any]:
    form, ending = state.request, state.ending
    plan = restored(await planning.plan_again(form), form)
    earlier = read_chunks(state.chunks, len(plan.sequences))
    ledger = await kept.ledger(form)
    choices = planning.choices(plan)
    answer = planning.answer_format(form.endpoint, plan)
    reasons = [
        _replay(index, *each, answer) for index, each in enumerate(zip(plan.sequences, choices, earlier, strict=True))
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
            for index, (sequence, choice, reason) in enumerate(zip(plan.sequences, choices, reasons, strict=True))
        ],
        "error": None,
        "response": None,
    }
    if ending is not None and ending.state == "failed":
        body["error"] = {"message": ending.message, "code": ending.code}
    if ending is not None and ending.state == "finished":
        body["response"] = orjson.Fragment(answer.whole(usage_of(plan, choices)))
    return body


def _replay(
    index: int, sequence: PlannedSequence, choice: Choice, earlier: EarlierTokens, answer: AnswerFormat
) -> str | None:
    """Add the tokens of a choice to an answer; return how the choice ended."""
    reason = None
    if (tokens := saved(sequence.choice_id, earlier)) is not None:
        with suppress(GenerationError):  # it failed; the ending says so
            for piece in choice.pieces(tokens, by_token=answer.BY_TOKEN):
                answer.collect(index, piece)
                reason = piece.finish_reason
    return reason


def _running_state(earlier: Sequence[EarlierTokens], ledger: Sequence[LedgerEntry]) -> str:
    if any(each.deltas for each in earlier):
        return "decoding"
    return "prefilling" if any(entry.stage == "assigned" for entry in ledger) else "queued"


def _attempts(choice_id: str, state: KeptState, ledger: Sequence[LedgerEntry]) -> int:
    epochs = [entry.epoch for entry in ledger if entry.choice_id == choice_id]
    latest = state.attempts.get(choice_id)
    return max([0 if latest is None else latest.epoch, *epochs])


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
