"""`POST /v1/responses`: from items to a chat's prepared request, and what the answer says again of the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from spotwise.gateway.apis.chat import prepare_chat_request
from spotwise.gateway.apis.response_chat import chat_of, in_responses_words
from spotwise.gateway.apis.response_tools import ResponseTools
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.prepared_request import PreparedRequest, RepeatedRequest, RequestTerms
from spotwise.gateway.schema.parameters import Endpoint, ignored_in
from spotwise.gateway.schema.response_tools import FlatTool
from spotwise.gateway.schema.responses import ResponsesRequest, UnreadItem
from spotwise.gateway.schema.shared import parse_request
from spotwise.http.errors import ApiError
from spotwise.text.chat_text import ChatText

#: What chats call a wish, and responses.
_NAMES = {"reasoning_effort": "reasoning.effort", "verbosity": "text.verbosity"}


def prepare_response(
    body: Mapping[str, Any], text: ChatText, options: ApiOptions, terms: RequestTerms
) -> PreparedRequest:
    """Check a body and prepare its request. Its `input` has the items of earlier responses, too.

    Raises:
        ApiError: 400 or 404, with the parameter at fault.
    """
    request = parse_request(ResponsesRequest, body)
    tools = ResponseTools(request.tools or ())
    try:
        prepared = prepare_chat_request(chat_of(request, tools), text, options, terms, "resp_")
    except ApiError as error:
        raise in_responses_words(error) from error
    is_stored = options.stores_responses and request.store is not False
    items = [item.model_dump(exclude_none=True) for item in request.input] if is_stored else []
    repeated = RepeatedRequest(
        _repeated(request, prepared, is_stored=is_stored), orjson.dumps(items), is_stored, tools.called
    )
    ignored = [
        *(_NAMES.get(name, name) for name in prepared.ignored),
        *ignored_in(Endpoint.RESPONSES, body, ResponsesRequest.model_fields),
        *tools.ignored(),
        *(f"input.{item.type}" for item in request.input if isinstance(item, UnreadItem)),
    ]
    return replace(prepared, repeated=repeated, ignored=tuple(ignored))


def previous_response(body: Mapping[str, Any]) -> str | None:
    """Return the response that a body goes on from, if any; raises as `prepare_response` where the body is wrong."""
    if body.get("previous_response_id") is None:
        return None
    return parse_request(ResponsesRequest, body).previous_response_id


def _repeated(request: ResponsesRequest, prepared: PreparedRequest, *, is_stored: bool) -> dict[str, Any]:
    sampling = prepared.sequences[0].spec.sampling
    tools = [
        ({"strict": None, "parameters": {}} if isinstance(tool, FlatTool) else {}) | tool.model_dump(exclude_none=True)
        for tool in request.tools or ()
    ]
    choice = request.tool_choice or "auto"
    given = None if request.text is None else request.text.format
    text_format = {"type": "text"} if given is None else given.model_dump(exclude_none=True, by_alias=True)
    return {
        "background": False,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": None if request.reasoning is None else request.reasoning.effort, "summary": None},
        "store": is_stored,
        "temperature": sampling.temperature,
        "text": {"format": text_format},
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(exclude_none=True),
        "tools": tools,
        "top_logprobs": request.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": request.truncation or "disabled",
        "user": request.user,
    }
