"""The gateway's HTTP interface, OpenAI-compatible, as one app.

Only the `Generation` port connects it to the mesh. Bodies are read, validated and answered here, not by the framework, so that
every error has OpenAI's shape and a streamed token costs no model object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from spotwise.gateway.answer import GenerationResponse
from spotwise.gateway.api_options import ApiOptions
from spotwise.gateway.auth import BearerAuth, key_name
from spotwise.gateway.body import BodyReader, parse_json_object
from spotwise.gateway.chat import ChatFormat, plan_chat
from spotwise.gateway.completions import CompletionFormat, plan_completion
from spotwise.gateway.deadlines import deadline_of
from spotwise.gateway.errors import ErrorEdge, answer_http_exception
from spotwise.gateway.generation import Generation
from spotwise.gateway.metrics import GatewayMetrics
from spotwise.gateway.off_loop import OffLoop, is_small
from spotwise.gateway.plan import GenerationPlan, require_model
from spotwise.gateway.request_ids import RequestIds, TrailingSlashes, client_request_id, name_request
from spotwise.gateway.sse import run_unless_left
from spotwise.gateway.text import ChatText

#: From a parsed body and the name of its key to a plan.
PlanBody = Callable[[Mapping[str, Any], ChatText, ApiOptions, str], GenerationPlan]


def create_app(generation: Generation, text: ChatText, options: ApiOptions, metrics: GatewayMetrics) -> FastAPI:
    """Build the app.

    Args:
        generation: the mesh.
        text: tokenizer and chat template of the model.
        options: names and limits.
        metrics: what `/metrics` shows; its registry may hold more.
    """
    app = FastAPI(title="spotwise", openapi_url=None, redirect_slashes=False)
    app.add_exception_handler(HTTPException, answer_http_exception)
    # Added last is outermost: ErrorEdge answers what BearerAuth raises, too.
    app.add_middleware(BearerAuth, api_keys=options.api_keys)
    app.add_middleware(ErrorEdge, count_error=metrics.count_error)
    app.add_middleware(TrailingSlashes)
    if options.cors_origins:
        # Outside of the keys: a browser's preflight request carries none.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("X-Request-Id", "Retry-After"),
        )
    app.add_middleware(RequestIds)
    bodies = BodyReader(options.max_body_bytes, options.max_held_bytes)
    off_loop = OffLoop()
    model_card = {
        "id": options.model_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "spotwise",
        "root": options.model_name,
        "parent": None,
        "max_model_len": text.context_length,
    }

    @app.get("/v1/models")
    async def list_models() -> Response:
        return _json({"object": "list", "data": [model_card]})

    @app.get("/v1/models/{model_id:path}")
    async def get_model(model_id: str) -> Response:
        require_model(model_id, options)
        return _json(model_card)

    async def plan(request: Request, plan_body: PlanBody) -> GenerationPlan:
        deadline_unix_s = deadline_of(request.headers, time.time())  # before the body: its time counts
        async with bodies.body(request) as body:
            planning = off_loop.run(len(body), _plan, plan_body, body, text, options, key_name(request))
            planned = await (planning if is_small(len(body)) else run_unless_left(request.receive, planning))
        name_request(request, planned.request_id)
        return planned.named(client_request_id(request)).due_by(deadline_unix_s)

    @app.post("/v1/chat/completions")
    async def create_chat_completion(request: Request) -> Response:
        arrived_s = time.monotonic()
        planned = await plan(request, plan_chat)
        response_format = ChatFormat(planned, options.model_name, text.token_bytes)
        return GenerationResponse(planned, response_format, generation, text, metrics, arrived_s)

    @app.post("/v1/completions")
    async def create_completion(request: Request) -> Response:
        arrived_s = time.monotonic()
        planned = await plan(request, plan_completion)
        response_format = CompletionFormat(planned, options.model_name, text.token_bytes)
        return GenerationResponse(planned, response_format, generation, text, metrics, arrived_s)

    @app.get("/health")
    async def get_health() -> Response:
        health = await generation.health()
        status = "ok" if health.ready else "unavailable"
        body = {"status": status, "detail": health.detail, "workers": dict(health.workers)}
        return _json(body, 200 if health.ready else 503)

    @app.get("/metrics")
    async def get_metrics() -> Response:
        return Response(generate_latest(metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return app


def _plan(plan_body: PlanBody, body: bytearray, text: ChatText, options: ApiOptions, key: str) -> GenerationPlan:
    return plan_body(parse_json_object(body), text, options, key)


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
