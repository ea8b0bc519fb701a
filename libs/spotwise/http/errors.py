"""Errors as clients expect them: one JSON shape, the right status, nothing internal.

Every error is OpenAI's `{"error": {"message", "type", "param", "code"}}`, or Anthropic's on the paths of its API
(message_errors.py). An unexpected exception is logged with its traceback and answered as a bare 500. `ErrorEdge` holds the HTTP
layer's one broad `except` for whole responses; `describe` serves it and streams that have begun.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import orjson
import structlog
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spotwise.http.message_errors import is_messages_path, message_error
from spotwise.http.request_ids import request_id

#: Errors quote names and values of clients, which may be megabytes.
_MAX_MESSAGE_CHARACTERS, _MAX_PARAM_CHARACTERS = 1000, 200

log = structlog.get_logger("spotwise.gateway")


class ApiError(Exception):
    """A request that cannot be served as it is.

    Attributes:
        status: HTTP status.
        message: what is wrong and what to do.
        param: dotted path of the parameter at fault.
        code: machine-readable reason.
        headers: extra response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, dict[str, object]]:
        """Return the JSON body."""
        client_fault = "rate_limit_error" if self.status == 429 else "invalid_request_error"
        kind = client_fault if self.status < 500 else "server_error"
        param = self.param and _shortened(self.param, _MAX_PARAM_CHARACTERS)
        message = _shortened(self.message, _MAX_MESSAGE_CHARACTERS)
        return {"error": {"message": message, "type": kind, "param": param, "code": self.code}}

    def message_body(self, request_id: str) -> dict[str, object]:
        """Return the JSON body in Anthropic's form."""
        return message_error(self.status, self.body()["error"], request_id)

    def response(self, scope: Scope | None = None) -> Response:
        """Return the HTTP response to a request, in the form of its path's API; OpenAI's where the path is not known."""
        body: dict[str, Any] = self.body()
        if scope is not None and is_messages_path(scope["path"]):
            body = self.message_body(request_id(scope))
        return Response(orjson.dumps(body), self.status, self.headers, "application/json")


class GenerationError(Exception):
    """The mesh cannot serve a sequence, or cannot finish it.

    Attributes:
        status: HTTP status: 429 (try later, yours are too many), 503 (no capacity, no workers), 504 (its deadline came),
            500.
        code: machine-readable reason, snake case.
        message: what happened and what the user can do.
        retry_after_s: when a retry makes sense; `None` where it does not.
        is_charged: workers computed for it, and it ended for a reason of its own.
    """

    def __init__(
        self, status: int, code: str, message: str, retry_after_s: float | None = None, *, is_charged: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
        self.is_charged = is_charged


def _shortened(text: str, max_characters: int) -> str:
    return text if len(text) <= max_characters else text[:max_characters] + "…"


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return a 400."""
    return ApiError(400, message, param=param, code=code)


def describe(error: Exception, request_id: str) -> ApiError:
    """Return the error that a client receives for an exception; an unexpected one is logged with the request's id."""
    match error:
        case ApiError():
            return error
        case GenerationError():
            headers = {}
            if error.retry_after_s is not None:
                headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
            if error.status == HTTPStatus.GATEWAY_TIMEOUT:
                headers["X-Should-Retry"] = "false"  # OpenAI's clients would send it again, with the time that is over
            return ApiError(error.status, error.message, code=error.code, headers=headers)
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=error.headers)
        case _:
            log.error("request failed unexpectedly", request_id=request_id, exc_info=error)
            return ApiError(500, "The server failed unexpectedly; see its log.", code="internal_error")


def from_validation(error: ValidationError) -> ApiError:
    """Turn the first finding of a schema check into a 400 that names the parameter."""
    finding = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(str(part) for part in finding["loc"])
    message = finding["msg"].removeprefix("Value error, ")
    if finding["type"] == "missing":
        return bad_request(f"You must provide a {path} parameter.", path, "missing_required_parameter")
    code = "invalid_type" if finding["type"].endswith("_type") else "invalid_value"
    return bad_request(f"Invalid value for '{path}': {message}.", path or None, code)


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler of the app for what the router itself refuses: unknown routes and methods."""
    if isinstance(error, HTTPException) and error.status_code == HTTPStatus.NOT_FOUND:
        message = f"Unknown URL: {request.method} {request.url.path}. The API lies under /v1."
        return ApiError(404, message, code="unknown_url").response(request.scope)
    if isinstance(error, HTTPException) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = ", ".join(sorted(Headers(error.headers).get("allow", "another method").split(", ")))
        message = f"Not allowed to {request.method} on {request.url.path}; use {allowed}."
        return ApiError(405, message, code="method_not_allowed", headers={"Allow": allowed}).response(request.scope)
    return describe(error, request_id(request.scope)).response(request.scope)


def _stopping() -> ApiError:
    message = "This gateway is being stopped, and had not answered yet; send the request again."
    return ApiError(503, message, code="gateway_stopping", headers={"Retry-After": "1"})


def _cut_off(error: BaseException) -> None:
    """Cut an error off the frames that it went through, one of which keeps it: what they hold, as a body, would stay until the
    collector comes.
    """
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        each = chain.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            chain += (each.__cause__, each.__context__)


class ErrorEdge:
    """Middleware round everything of ours: an exception becomes a response, if none has begun, and so does the server's stop.

    Args:
        app: what it surrounds.
        count_error: receives the code of every error that it answers.
    """

    def __init__(self, app: ASGIApp, count_error: Callable[[str], None]) -> None:
        self._app = app
        self._count_error = count_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; see the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except ClientDisconnect as error:  # the client left while it sent its body
            _cut_off(error)
        except asyncio.CancelledError:  # the server cancels what has not ended when it has to stop
            if started:
                raise  # a stream is cut off: it can go on at another gateway
            stopping = _stopping()
            self._count_error(str(stopping.code))
            await stopping.response(scope)(scope, receive, send)
        except Exception as error:
            described = describe(error, request_id(scope))
            self._count_error(described.code or str(described.status))
            if started:
                raise  # the server then cuts the connection: the client must not take the half for the whole
            _cut_off(error)
            await described.response(scope)(scope, receive, send)
