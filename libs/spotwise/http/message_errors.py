"""Errors as Anthropic's clients expect them, on the paths of their API."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

MESSAGES_PATH = "/v1/messages"
_KINDS: Mapping[int, str] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}


def is_messages_path(path: str) -> bool:
    """Whether a path is one of Anthropic's API."""
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


def message_error(status: int, told: Mapping[str, object], request_id: str) -> dict[str, object]:
    """Return the body of an error of that status, with what an error tells elsewhere: its message, `param` and `code`."""
    default = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error"
    return {"type": "error", "error": {**told, "type": _KINDS.get(status, default)}, "request_id": request_id}
