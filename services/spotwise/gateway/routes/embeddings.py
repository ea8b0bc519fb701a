"""`POST /v1/embeddings`: prompts' embeddings, from the engines that also generate."""

from __future__ import annotations

import time
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spotwise.gateway.access.auth import key_name
from spotwise.gateway.apis.embedding_answer import EmbeddingResponse
from spotwise.gateway.apis.embedding_request import PreparedEmbeddings, prepare_embeddings
from spotwise.gateway.apis.preprocessor import Preprocessor
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.generation import Generate
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.http.body import parse_json_object
from spotwise.http.late_answers import LateAnswer
from spotwise.http.request_ids import client_request_id, name_request
from spotwise.text.chat_text import ChatText


def embedding_routes(
    generate: Generate,
    text: ChatText,
    options: ApiOptions,
    metrics: GatewayMetrics,
    preprocessor: Preprocessor,
) -> list[Route]:
    """Return the route."""

    def prepared_body(request: Request, deadline_unix_s: float | None, body: bytearray) -> PreparedEmbeddings:
        parsed, names = parse_json_object(body), (key_name(request), client_request_id(request))
        return prepare_embeddings(parsed, text, options, *names, deadline_unix_s)

    async def create_embeddings(request: Request) -> Response:
        arrived_s = time.monotonic()
        deadline_unix_s = preprocessor.admit(request)
        prepared = await preprocessor.bodies.of(request, partial(prepared_body, request, deadline_unix_s))
        name_request(request, prepared.request_id)
        reservation = await preprocessor.reserve(request, prepared)
        return LateAnswer(EmbeddingResponse(prepared, generate, metrics, arrived_s, reservation))

    return [Route("/v1/embeddings", create_embeddings, methods=["POST"])]
