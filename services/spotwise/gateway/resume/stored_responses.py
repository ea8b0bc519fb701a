"""Responses that are stored, and conversations that continue them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from spotwise.core.access.store_budget import RoomVerdict
from spotwise.core.gateway.kept_request import StoredResponse
from spotwise.gateway.generate.prepared_request import PreparedRequest
from spotwise.gateway.resume.store_turns import StoreTurns
from spotwise.gateway.schema.responses import as_items
from spotwise.http.errors import ApiError, GenerationError
from spotwise.http.request_ids import item_id
from spotwise.mesh.ports.requests import ResponseStore

_log = structlog.get_logger(__name__)

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "reasoning": "rs",
}


@dataclass(frozen=True, slots=True)
class Continuation:
    """A request's body, which is right by itself, and the response that it continues."""

    body: Mapping[str, Any]
    response_id: str


class StoredResponses:
    """The responses that callers find again. Methods raise `GenerationError`, a 503, where the store is away.

    Args:
        store: keeps them.
        kept_s: for how long.
        timeout_s: wait for the store.
    """

    def __init__(self, store: ResponseStore, kept_s: float, timeout_s: float) -> None:
        self._store = store
        self._kept_s = kept_s
        self._turns = StoreTurns(timeout_s)

    async def find(self, scope: str, response_id: str, param: str | None = None) -> StoredResponse:
        """Return a response of the scope's.

        Raises:
            ApiError: 404, there is none.
        """
        stored = await self._turns.result(self._store.get_response(response_id))
        if stored is None or stored.scope != scope:
            raise unknown_response(response_id, param)
        return stored

    async def has(self, scope: str, response_id: str) -> bool:
        """Tell whether there is a response of the scope's."""
        stored = await self._turns.result(self._store.get_response(response_id))
        return stored is not None and stored.scope == scope

    async def delete(self, response_id: str) -> None:
        """Forget a response; no answer that is still read brings it back."""
        await self._turns.result(self._store.delete_response(response_id))

    async def keep(self, prepared: PreparedRequest, body: bytes) -> bool:
        """Store the response of a prepared request, unless it is stored or was deleted; return whether that was done. Its
        tokens are computed: it is answered either way.
        """
        assert prepared.repeated is not None
        stored = StoredResponse(prepared.request_id, prepared.scope, body, prepared.repeated.items)
        try:
            verdict: str = await self._turns.result(self._store.put_response(stored, self._kept_s))
        except GenerationError as error:
            verdict = error.message
        if verdict != RoomVerdict.KEPT:
            _log.warning("response_not_stored", request_id=prepared.request_id, reason=verdict, bytes=stored.size_bytes)
        return verdict == RoomVerdict.KEPT


def unknown_response(response_id: str, param: str | None = None) -> ApiError:
    """Return a 404: there is no such response, or it is another's."""
    message = f"There is no response '{response_id}' of yours (any more)."
    return ApiError(404, message, param=param, code="response_not_found")


def joined(stored: StoredResponse, continuation: Continuation, max_bytes: int) -> bytes:
    """Return a body with the conversation that it goes on from at the beginning of its `input`.

    Raises:
        ApiError: 413, that is more than `max_bytes`.
    """
    own = as_items(continuation.body["input"])
    items = [*orjson.loads(stored.items), *orjson.loads(stored.body)["output"], *own]
    body = orjson.dumps({**continuation.body, "input": items})
    require_bounded(len(body), max_bytes)
    return body


def require_bounded(conversation_bytes: int, max_bytes: int) -> None:
    """Refuse, with a 413, a conversation that is larger than a body may be."""
    if conversation_bytes > max_bytes:
        message = (
            f"The conversation that 'previous_response_id' goes on from and this input have {conversation_bytes} bytes "
            f"together, and a request at most {max_bytes}; begin a new conversation, with a summary of this one."
        )
        raise ApiError(413, message, param="previous_response_id", code="conversation_too_large")


def listed_items(stored: StoredResponse) -> list[dict[str, Any]]:
    """Return the items that a response answers, as OpenAI lists them, with ids."""
    return [_listed_item(stored.response_id, *each) for each in enumerate(orjson.loads(stored.items))]


def _listed_item(response_id: str, index: int, item: Mapping[str, Any]) -> dict[str, Any]:
    kind = item["type"]
    prefix = _PREFIXES.get(kind, "item")
    written = {"id": item_id(prefix, response_id, "input", index), "status": "completed", **item}
    if kind == "message" and item["role"] == "assistant":
        written["content"] = [{"annotations": [], **part} for part in item["content"]]
    return written
