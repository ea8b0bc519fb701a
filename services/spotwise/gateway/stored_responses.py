"""Responses that are stored, and conversations that go on from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from spotwise.core.gateway.stored_response import ResponseLimits, StoredResponse
from spotwise.gateway.errors import ApiError
from spotwise.gateway.items_format import item_id
from spotwise.gateway.plan import GenerationPlan
from spotwise.gateway.schema_responses import as_items
from spotwise.gateway.store_turns import StoreTurns
from spotwise.mesh.response_store import ResponseStore

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
    """A request's body, which is right by itself, and the response that it goes on from."""

    body: Mapping[str, Any]
    response_id: str


class StoredResponses:
    """The responses that callers find again. Every method raises `GenerationError`, a 503, where the store is away.

    Args:
        store: keeps them.
        limits: how much of them.
        timeout_s: wait for the store.
    """

    def __init__(self, store: ResponseStore, limits: ResponseLimits, timeout_s: float) -> None:
        self._store = store
        self._limits = limits
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

    async def keep(self, response: StoredResponse) -> None:
        """Store a response, unless it is stored, or was deleted."""
        await self._turns.result(self._store.put_response(response, self._limits))


def stored_response(plan: GenerationPlan, body: bytes) -> StoredResponse:
    """Return the response of a plan as it is stored, with its conversation; work for a thread where that is long."""
    assert plan.repeated is not None
    items = [_stored_item(plan.request_id, *each) for each in enumerate(plan.repeated.items)]
    return StoredResponse(plan.request_id, plan.scope, body.decode(), orjson.dumps(items).decode())


def continued(stored: StoredResponse, continuation: Continuation) -> bytes:
    """Return a body with the conversation that it goes on from at the beginning of its `input`; work for a thread."""
    own = as_items(continuation.body["input"])
    items = [*orjson.loads(stored.items), *orjson.loads(stored.body)["output"], *own]
    return orjson.dumps({**continuation.body, "input": items})


def unknown_response(response_id: str, param: str | None = None) -> ApiError:
    """Return a 404: there is no such response, or it is another's."""
    message = f"There is no response '{response_id}' of yours (any more)."
    return ApiError(404, message, param=param, code="response_not_found")


def _stored_item(response_id: str, index: int, item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item as OpenAI lists it, with an id."""
    kind = item["type"]
    prefix = _PREFIXES.get(kind, "item")
    written = {"id": item_id(prefix, response_id, "input", index), "status": "completed", **item}
    if kind == "message" and item["role"] == "assistant":
        written["content"] = [{"annotations": [], **part} for part in item["content"]]
    return written
