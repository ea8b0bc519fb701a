"""`POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from spotwise.gateway.access.body_work import BodyWork
from spotwise.gateway.apis.messages import count_tokens
from spotwise.gateway.apis.preprocessor import MESSAGES
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.http.body import parse_json_object
from spotwise.http.message_errors import MESSAGES_PATH
from spotwise.text.chat_text import ChatText


def add_message_routes(
    app: FastAPI,
    respond: Callable[[Request, str], Awaitable[Response]],
    text: ChatText,
    options: ApiOptions,
    bodies: BodyWork,
) -> None:
    """Add the routes to the API; `respond` answers a request of an endpoint."""

    @app.post(MESSAGES_PATH)
    async def create_message(request: Request) -> Response:
        return await respond(request, MESSAGES)

    @app.post(f"{MESSAGES_PATH}/count_tokens")
    async def count_message_tokens(request: Request) -> Response:
        def counted(body: bytearray) -> bytes:
            return orjson.dumps({"input_tokens": count_tokens(parse_json_object(body), text, options)})

        return Response(await bodies.counted(request, counted), media_type="application/json")
