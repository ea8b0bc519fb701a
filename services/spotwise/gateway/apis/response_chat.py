"""A response's request as the chat that it is: OpenAI's items as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from spotwise.gateway.apis.response_tools import LOCAL_SHELL, ResponseTools
from spotwise.gateway.schema.chat import ChatRequest
from spotwise.gateway.schema.responses import (
    LOGPROBS,
    CallItem,
    CallOutputItem,
    CustomCallItem,
    InputItem,
    ItemText,
    MessageItem,
    ReasoningItem,
    ResponsesRequest,
    ShellCallItem,
    ShellOutputItem,
)
from spotwise.gateway.schema.shared import SharedRequest, parse_body
from spotwise.http.errors import ApiError, bad_request

#: What chats call a parameter, and responses.
_NAMES = (
    ("response_format.json_schema.", "text.format."),
    ("response_format", "text.format"),
    ("max_completion_tokens", "max_output_tokens"),
    ("messages", "input"),
)


def chat_of(request: ResponsesRequest, tools: ResponseTools) -> ChatRequest:
    """Return the chat that asks for the same; `tools`: the request's.

    Raises:
        ApiError: 400, there is none.
    """
    shared = request.model_dump(include=set(SharedRequest.model_fields), by_alias=True, exclude_none=True)
    wants_logprobs = LOGPROBS in (request.include or ())
    if request.top_logprobs and not wants_logprobs:
        raise bad_request(f"'top_logprobs' needs '{LOGPROBS}' in 'include'.", "top_logprobs", "invalid_value")
    if request.truncation == "auto":
        shared.setdefault("truncate_prompt_tokens", -1)
    system = [] if request.instructions is None else [{"role": "system", "content": request.instructions}]
    body = shared | {
        "messages": system + messages_of(request.input, tools),
        "max_completion_tokens": request.max_output_tokens,
        "tools": None if request.tools is None else tools.functions,
        "tool_choice": tools.choice(request.tool_choice),
        "parallel_tool_calls": request.parallel_tool_calls,
        "response_format": _response_format(request),
        "logprobs": wants_logprobs,
        "top_logprobs": request.top_logprobs if wants_logprobs else None,
        "chat_template_kwargs": request.chat_template_kwargs,
        "reasoning_effort": None if request.reasoning is None else request.reasoning.effort,
        "verbosity": None if request.text is None else request.text.verbosity,
        "stream_options": request.stream_options and request.stream_options.model_dump(),
    }
    return parse_body(ChatRequest, body)


def in_responses_words(error: ApiError) -> ApiError:
    """Return a chat's error with the names that responses have for its parameters."""
    param, message = error.param, error.message
    for chats, own in _NAMES:
        param = param and param.replace(chats, own)
        message = message.replace(f"'{chats}", f"'{own}").replace(f"({chats})", f"({own})")
    if param and param.startswith("tools."):
        message = message.replace(param, param.replace(".function.", "."))
        param = param.replace(".function.", ".")
    return ApiError(error.status, message, param=param, code=error.code, headers=error.headers)


def messages_of(items: Sequence[InputItem], tools: ResponseTools) -> list[dict[str, Any]]:
    """Return items as messages: what the model thought, said and called in one turn is one of them."""
    messages: list[dict[str, Any]] = []
    turn: dict[str, Any] | None = None

    def turn_without(*names: str) -> dict[str, Any]:
        nonlocal turn
        if turn is None or any(name in turn for name in names):
            turn = {"role": "assistant"}
            messages.append(turn)
        return turn

    for item in items:
        match item:
            case ReasoningItem():
                if item.content:
                    thought = "".join(part.text for part in item.content)
                    turn_without("reasoning_content", "content", "tool_calls")["reasoning_content"] = thought
            case MessageItem(role="assistant"):
                turn_without("content")["content"] = _text(item.content)
            case CallItem() | CustomCallItem() | ShellCallItem():
                turn_without().setdefault("tool_calls", []).append(_chat_call(item, tools))
            case MessageItem():
                turn = None
                messages.append({"role": item.role, "content": _text(item.content)})
            case CallOutputItem():
                turn = None
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
            case ShellOutputItem():
                turn = None
                call_id = item.call_id or item.id or ""
                messages.append({"role": "tool", "tool_call_id": call_id, "content": _text(item.output)})
    return [_with_content(message) for message in messages]


def _with_content(message: dict[str, Any]) -> dict[str, Any]:
    return message if "tool_calls" in message else {"content": "", **message}


def _text(parts: Sequence[ItemText]) -> str:
    return "\n".join(part.text for part in parts)


def _chat_call(item: CallItem | CustomCallItem | ShellCallItem, tools: ResponseTools) -> dict[str, Any]:
    match item:
        case CallItem():
            name, arguments = tools.name_of(item.namespace, item.name), item.arguments
        case CustomCallItem():
            name, arguments = item.name, orjson.dumps({"input": item.input}).decode()
        case ShellCallItem():
            action = item.action.model_dump(exclude={"type"}, exclude_none=True)
            name, arguments = LOCAL_SHELL, orjson.dumps(action).decode()
    return {"id": item.call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _response_format(request: ResponsesRequest) -> Mapping[str, Any] | None:
    given = None if request.text is None else request.text.format
    if given is None or given.type != "json_schema":
        return None if given is None else {"type": given.type}
    schema = given.model_dump(exclude={"type"}, exclude_none=True, by_alias=True)
    return {"type": "json_schema", "json_schema": schema}
