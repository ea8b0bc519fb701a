"""`/v1/responses/{id}`: a stored response, the items that it answers, and its end."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spotwise.gateway.access.auth import caller_scope
from spotwise.gateway.apis.preprocessor import RESPONSES
from spotwise.gateway.resume.kept_requests import KeptRequests
from spotwise.gateway.resume.stored_responses import StoredResponses, listed_items, unknown_response
from spotwise.http.errors import bad_request
from spotwise.http.event_loop import OffLoop, effort_of_size

#: Items of a page: by default, and at most.
_PAGE_ITEMS, MOST_ITEMS = 20, 100


def response_routes(stored: StoredResponses, kept: KeptRequests | None, off_loop: OffLoop) -> list[Route]:
    """Return the routes; `kept` has the requests of responses."""

    async def get_response(request: Request) -> Response:
        if request.query_params.get("stream", "").lower() in ("true", "1"):
            message = "A stored response is no stream; GET /v1/requests/{id} goes on with one."
            raise bad_request(message, "stream", "unsupported_parameter")
        found = await stored.find(caller_scope(request), request.path_params["response_id"])
        return Response(found.body, media_type="application/json")

    async def delete_response(request: Request) -> Response:
        response_id = request.path_params["response_id"]
        is_stored = await stored.has(caller_scope(request), response_id)
        is_kept = kept is not None and await kept.has(request, response_id, RESPONSES)
        if not is_stored and not is_kept:
            raise unknown_response(response_id)
        await stored.delete(response_id)
        if kept is not None and is_kept:
            await kept.forget(request, response_id)
        return _json({"id": response_id, "object": "response", "deleted": True})

    async def list_input_items(request: Request) -> Response:
        page, scope = _page_of(request), caller_scope(request)
        found = await stored.find(scope, request.path_params["response_id"])
        return await off_loop.run(scope, effort_of_size(len(found.items)), lambda: _json(page(listed_items(found))))

    path = "/v1/responses/{response_id}"
    return [
        Route(path, get_response),
        Route(path, delete_response, methods=["DELETE"]),
        Route(f"{path}/input_items", list_input_items),
    ]


class _Page:
    """Some items of a list: `limit` of them `after` one, the last first unless `order` is `asc`."""

    def __init__(self, limit: int, after: str | None, *, is_ascending: bool) -> None:
        self._limit = limit
        self._after = after
        self._is_ascending = is_ascending

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        ordered = items if self._is_ascending else items[::-1]
        if self._after is not None:
            places = [place for place, item in enumerate(ordered, 1) if item["id"] == self._after]
            if not places:
                raise bad_request(f"There is no item '{self._after}'.", "after", "invalid_value")
            ordered = ordered[places[0] :]
        page = ordered[: self._limit]
        ends = (page[0]["id"], page[-1]["id"]) if page else (None, None)
        has_more = len(ordered) > len(page)
        return {"object": "list", "data": page, "first_id": ends[0], "last_id": ends[1], "has_more": has_more}


def _page_of(request: Request) -> _Page:
    given = request.query_params
    limit, order = given.get("limit", str(_PAGE_ITEMS)), given.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= MOST_ITEMS):
        raise bad_request(f"Invalid value for 'limit': must be 1 to {MOST_ITEMS}.", "limit", "invalid_value")
    if order not in ("asc", "desc"):
        raise bad_request("Invalid value for 'order': must be 'asc' or 'desc'.", "order", "invalid_value")
    return _Page(int(limit), given.get("after"), is_ascending=order == "asc")


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
