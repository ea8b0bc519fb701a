"""`POST /v1/embeddings`: prompts' embeddings, from the engines that also generate."""

from __future__ import annotations

import time
from functools import partial

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from spotwise.gateway.access.auth import key_name
from spotwise.gateway.apis.embedding_answer import EmbeddingResponse
from spotwise.gateway.apis.embedding_plan import EmbeddingPlan, plan_embeddings
from spotwise.gateway.apis.planning import Planning
from spotwise.gateway.generate.answer import Generate
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.http.body import parse_json_object
from spotwise.http.late_answers import LateAnswer
from spotwise.http.request_ids import client_request_id, name_request
from spotwise.text.chat_text import ChatText


def add_embedding_routes(
    app: FastAPI,
    generate: Generate,
    text: ChatText,
    options: ApiOptions,
    metrics: GatewayMetrics,
    planning: Planning,
) -> None:
    """Add the route to the API."""

    def planned(request: Request, deadline_unix_s: float | None, body: bytearray) -> EmbeddingPlan:
        parsed, names = parse_json_object(body), (key_name(request), client_request_id(request))
        return plan_embeddings(parsed, text, options, *names, deadline_unix_s)

    @app.post("/v1/embeddings")
    async def create_embeddings(request: Request) -> Response:
        arrived_s = time.monotonic()
        deadline_unix_s = planning.admit(request)
        plan = await planning.bodies.of(request, partial(planned, request, deadline_unix_s))
        name_request(request, plan.request_id)
        reservation = await planning.reserve(request, plan)
        return LateAnswer(EmbeddingResponse(plan, generate, metrics, arrived_s, reservation))
