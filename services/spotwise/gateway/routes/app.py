"""The gateway's HTTP interface, OpenAI's and Anthropic's, as one app.

Only the `Generation` port connects it to the mesh. Bodies are read, validated and answered here, not by the framework, so that
every error has OpenAI's shape and a streamed token costs no model object.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import orjson
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from spotwise.gateway.access.api_access import ApiAccess
from spotwise.gateway.access.auth import READING, BearerAuth
from spotwise.gateway.access.body_work import BodyWork
from spotwise.gateway.access.quotas import RATE_LIMIT_HEADERS
from spotwise.gateway.apis.preprocessor import CHAT, COMPLETIONS, RESPONSES, Preprocessor
from spotwise.gateway.generate.answer import AnswerTerms
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.generation import Generation
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.resume.kept_requests import KeptRequests
from spotwise.gateway.resume.stored_responses import StoredResponses
from spotwise.gateway.routes.embeddings import add_embedding_routes
from spotwise.gateway.routes.messages import add_message_routes
from spotwise.gateway.routes.openapi import api_description
from spotwise.gateway.routes.requests import add_request_routes
from spotwise.gateway.routes.responses import add_response_routes
from spotwise.gateway.routes.status import add_model_routes, add_status_routes
from spotwise.gateway.routes.tokens import add_token_routes
from spotwise.gateway.schema.parameters import WARNING_HEADER
from spotwise.http.errors import ErrorEdge, answer_http_exception
from spotwise.http.late_answers import LateAnswer, LateAnswers
from spotwise.http.request_ids import RequestIds, TrailingSlashes
from spotwise.text.chat_text import ChatText


def create_app(
    generation: Generation,
    text: ChatText,
    options: ApiOptions,
    metrics: GatewayMetrics,
    access: ApiAccess,
    keep: Callable[[Preprocessor], KeptRequests] | None = None,
    now: Callable[[], float] = time.time,
    stored: StoredResponses | None = None,
) -> FastAPI:
    """Build the app.

    Args:
        generation: the mesh.
        text: tokenizer and chat template of the model.
        options: names and limits.
        metrics: what `/metrics` shows; its registry may hold more.
        access: who may use it, and how much of it.
        keep: makes what keeps requests beyond their connection; without it none is.
        now: the clock by which the mesh judges deadlines, in Unix time.
        stored: stores responses; without it none is.
    """
    app = FastAPI(title="spotwise", openapi_url=None, redirect_slashes=False)
    app.add_exception_handler(HTTPException, answer_http_exception)
    # Added last is outermost: ErrorEdge answers what BearerAuth raises, too.
    app.add_middleware(BearerAuth, keys=access.keys, open_paths=access.open_paths, origins=options.cors_origins)
    app.add_middleware(LateAnswers)
    app.add_middleware(ErrorEdge, count_error=metrics.count_error)
    app.add_middleware(TrailingSlashes)
    if options.cors_origins:
        # Outside of the keys: a browser's preflight request carries none.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.cors_origins,
            allow_methods=(*READING, "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=("X-Request-Id", "Retry-After", WARNING_HEADER, *RATE_LIMIT_HEADERS),
        )
    app.add_middleware(RequestIds)
    options = replace(options, stores_responses=stored is not None)
    bodies = BodyWork(options.max_body_bytes, options.max_held_bytes, access.quotas)
    preprocessor = Preprocessor(text, options, metrics, access.quotas, bodies, now, stored)
    kept = None if keep is None else keep(preprocessor)
    add_model_routes(app, options, text.context_length)

    async def respond(request: Request, endpoint: str) -> Response:
        arrived_s = time.monotonic()
        prepared_body = await preprocessor.prepare(request, endpoint)
        if kept is not None:
            return LateAnswer(await kept.respond(request, prepared_body, arrived_s))
        prepared = prepared_body.prepared
        reservation = await preprocessor.reserve(request, prepared)
        terms = AnswerTerms(prepared, generation.generate, arrived_s, reservation)
        return LateAnswer(preprocessor.response(endpoint, terms))

    @app.post("/v1/chat/completions")
    async def create_chat_completion(request: Request) -> Response:
        return await respond(request, CHAT)

    @app.post("/v1/completions")
    async def create_completion(request: Request) -> Response:
        return await respond(request, COMPLETIONS)

    @app.post("/v1/responses")
    async def create_response(request: Request) -> Response:
        return await respond(request, RESPONSES)

    add_message_routes(app, respond, text, options, bodies)
    add_token_routes(app, text, options, bodies)
    add_embedding_routes(app, generation.generate, text, options, metrics, preprocessor)
    if kept is not None:
        add_request_routes(app, kept, preprocessor)

    if stored is not None:
        add_response_routes(app, stored, kept, bodies.off_loop)

    description = orjson.dumps(api_description(options, keeps_requests=kept is not None))

    @app.api_route("/openapi.json", methods=[*READING])
    async def get_description() -> Response:
        return Response(description, media_type="application/json")

    add_status_routes(app, generation, metrics.registry)
    return app
