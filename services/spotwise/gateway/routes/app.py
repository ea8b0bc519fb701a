"""The gateway's HTTP interface, OpenAI's and Anthropic's, as one app.

Only the `Generation` port connects it to the mesh. Starlette routes; bodies are read, validated and answered by the gateway, so
that a body has bounds while it is read, every error has its API's shape and a streamed token costs no model object.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spotwise.gateway.access.api_access import ApiAccess
from spotwise.gateway.access.auth import READING, BearerAuth
from spotwise.gateway.access.body_work import BodyWork
from spotwise.gateway.access.quotas import RATE_LIMIT_HEADERS
from spotwise.gateway.apis.preprocessor import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Preprocessor
from spotwise.gateway.generate.answer import AnswerTerms
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.generation import Generation
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.resume.kept_requests import KeptRequests
from spotwise.gateway.resume.stored_responses import StoredResponses
from spotwise.gateway.routes.embeddings import embedding_routes
from spotwise.gateway.routes.openapi import api_description
from spotwise.gateway.routes.requests import request_routes
from spotwise.gateway.routes.responses import response_routes
from spotwise.gateway.routes.status import model_routes, status_routes
from spotwise.gateway.routes.tokens import token_routes
from spotwise.gateway.schema.parameters import WARNING_HEADER
from spotwise.http.errors import ErrorEdge, answer_http_exception
from spotwise.http.late_answers import LateAnswer, LateAnswers
from spotwise.http.message_errors import MESSAGES_PATH
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
) -> Starlette:
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
    options = replace(options, stores_responses=stored is not None)
    bodies = BodyWork(options.max_body_bytes, options.max_held_bytes, access.quotas)
    preprocessor = Preprocessor(text, options, metrics, access.quotas, bodies, now, stored)
    kept = None if keep is None else keep(preprocessor)
    description = orjson.dumps(api_description(options, keeps_requests=kept is not None))

    async def respond(endpoint: str, request: Request) -> Response:
        arrived_s = time.monotonic()
        prepared_body = await preprocessor.prepare(request, endpoint)
        if kept is not None:
            return LateAnswer(await kept.respond(request, prepared_body, arrived_s))
        prepared = prepared_body.prepared
        reservation = await preprocessor.reserve(request, prepared)
        terms = AnswerTerms(prepared, generation.generate, arrived_s, reservation)
        return LateAnswer(preprocessor.response(endpoint, terms))

    async def get_description(request: Request) -> Response:
        return Response(description, media_type="application/json")

    app = Starlette(
        routes=[
            *model_routes(options, text.context_length),
            Route("/v1/chat/completions", partial(respond, CHAT), methods=["POST"]),
            Route("/v1/completions", partial(respond, COMPLETIONS), methods=["POST"]),
            Route("/v1/responses", partial(respond, RESPONSES), methods=["POST"]),
            Route(MESSAGES_PATH, partial(respond, MESSAGES), methods=["POST"]),
            *token_routes(text, options, bodies),
            *embedding_routes(generation.generate, text, options, metrics, preprocessor),
            *([] if kept is None else request_routes(kept, preprocessor)),
            *([] if stored is None else response_routes(stored, kept, bodies.off_loop)),
            Route("/openapi.json", get_description),
            *status_routes(generation, metrics.registry),
        ],
        middleware=_middleware(options, metrics, access),
        exception_handlers={HTTPException: answer_http_exception},
    )
    app.router.redirect_slashes = False
    return app


def _middleware(options: ApiOptions, metrics: GatewayMetrics, access: ApiAccess) -> list[Middleware]:
    """Return what surrounds the routes, from the outside in."""
    exposed = ("X-Request-Id", "Retry-After", WARNING_HEADER, *RATE_LIMIT_HEADERS)
    # Outside of the keys: a browser's preflight request carries none.
    cors = Middleware(
        CORSMiddleware,
        allow_origins=options.cors_origins,
        allow_methods=(*READING, "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=exposed,
    )
    return [
        Middleware(RequestIds),
        *([cors] if options.cors_origins else []),
        Middleware(TrailingSlashes),
        Middleware(ErrorEdge, count_error=metrics.count_error),  # answers what BearerAuth raises, too
        Middleware(LateAnswers),
        Middleware(BearerAuth, keys=access.keys, open_paths=access.open_paths, origins=options.cors_origins),
    ]
