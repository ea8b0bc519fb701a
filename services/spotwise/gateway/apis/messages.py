"""`POST /v1/messages`: from Anthropic's conversation to a chat, whose prompt and sequences it has.

Turns in a row of one role are one turn, as Anthropic has it: templates want roles to alternate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar

from spotwise.gateway.apis.chat import chat_token_ids, prepare_chat_request
from spotwise.gateway.generate.api_options import ApiOptions, require_model
from spotwise.gateway.generate.chat_tools import tool_use
from spotwise.gateway.generate.prepared_request import PreparedRequest, RequestTerms
from spotwise.gateway.schema.chat import ChatRequest
from spotwise.gateway.schema.messages import (
    AnthropicsTool,
    Block,
    InputTool,
    MessagesPrompt,
    MessagesRequest,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    UnreadBlock,
)
from spotwise.gateway.schema.parameters import Endpoint, ignored_in, refuse_unsupported
from spotwise.gateway.schema.shared import parse_body
from spotwise.http.errors import bad_request
from spotwise.text.chat_template import takes_effort, thinking_variables
from spotwise.text.chat_text import ChatText

Parsed = TypeVar("Parsed", bound=MessagesPrompt)

#: What chats call a wish, and messages.
_NAMES = {"reasoning_effort": "output_config.effort"}
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def prepare_message(
    body: Mapping[str, Any], text: ChatText, options: ApiOptions, terms: RequestTerms
) -> PreparedRequest:
    """Check a body and prepare its request.

    Raises:
        ApiError: 400 or 404, with the parameter at fault.
    """
    request = _parsed(MessagesRequest, body)
    chat = {
        **_chat(request, text),
        "max_tokens": request.max_tokens,
        "stop": request.stop_sequences,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stream": request.stream,
        "stream_options": request.stream_options and request.stream_options.model_dump(),
        "user": None if request.metadata is None else request.metadata.user_id,
    }
    parsed = parse_body(ChatRequest, chat)
    prepared = prepare_chat_request(parsed, text, options, terms, "msg_", may_fill_context=True)
    of_chat = [_NAMES.get(name, name) for name in prepared.ignored]
    own = [*ignored_in(Endpoint.MESSAGES, body, MessagesRequest.model_fields), *_ignored(request, text)]
    return replace(prepared, ignored=(*of_chat, *own))


def count_tokens(body: Mapping[str, Any], text: ChatText, options: ApiOptions) -> int:
    """Return how many tokens the prompt of a message has; raises as `prepare_message`."""
    chat = parse_body(ChatRequest, _chat(_parsed(MessagesPrompt, body), text))
    require_model(chat.model, options)
    return len(chat_token_ids(chat, text, tools=tool_use(chat, text).tools))


def _parsed(kind: type[Parsed], body: Mapping[str, Any]) -> Parsed:
    refuse_unsupported(Endpoint.MESSAGES, body)
    return parse_body(kind, body)


def _chat(request: MessagesPrompt, text: ChatText) -> dict[str, Any]:
    """Return the parameters of a chat that its prompt and its output's form are made of."""
    messages = list(_messages(request))
    continues = messages[-1]["role"] == "assistant"
    if continues and messages[-1].get("tool_calls"):
        message = "Invalid value for 'messages': the last one is to be continued, and must not call a tool."
        raise bad_request(message, "messages", "invalid_value")
    if continues and not any(part["text"] for part in messages[-1]["content"]):
        del messages[-1]  # there is nothing to continue
        continues = False
    chat: dict[str, Any] = {"model": request.model, "messages": messages, "continue_final_message": continues}
    if request.tools is not None:
        _require_own_choice(request)
        chat["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.input_schema,
                    "strict": tool.strict,
                },
            }
            for tool in request.tools
            if isinstance(tool, InputTool)
        ]
    if (choice := request.tool_choice) is not None:
        chat["tool_choice"] = _TOOL_CHOICES.get(choice.type) or {"type": "function", "function": {"name": choice.name}}
        chat["parallel_tool_calls"] = False if choice.disable_parallel_tool_use else None
    if request.output_config is not None and (output := request.output_config.format) is not None:
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": output.schema_}}
    if request.output_config is not None and _follows_effort(request, text):
        chat["reasoning_effort"] = request.output_config.effort
    return chat | {"chat_template_kwargs": _thinking(request, text)}


def _require_own_choice(request: MessagesPrompt) -> None:
    """Refuse a choice that leaves the model nothing but a tool that is left out."""
    choice = request.tool_choice
    left_out = [tool for tool in request.tools or () if isinstance(tool, AnthropicsTool)]
    if choice is None or choice.type in ("auto", "none") or not left_out:
        return
    demanded = [tool for tool in left_out if choice.type == "any" or tool.name == choice.name]
    if demanded and not (choice.type == "any" and len(left_out) < len(request.tools or ())):
        kind = demanded[0].type
        message = (
            f"'tool_choice' asks for a tool of type '{kind}', which this server does not have; it has the client's own."
        )
        raise bad_request(message, "tool_choice", "unsupported_parameter")


def _follows_effort(request: MessagesPrompt, text: ChatText) -> bool:
    """Whether the effort reaches the template: alone it starts no thinking, as with Anthropic."""
    return request.thinking is not None or takes_effort(text.template)


def _thinking(request: MessagesPrompt, text: ChatText) -> dict[str, Any]:
    config = request.thinking
    if config is None or config.type == "adaptive":
        return {}
    enabled = config.type == "enabled"
    return dict(thinking_variables(text.template, enabled=enabled, budget_tokens=config.budget_tokens))


def _ignored(request: MessagesPrompt, text: ChatText) -> Iterator[str]:
    """Give the names of what the chat does not say of a request."""
    if request.output_config is not None and request.output_config.effort and not _follows_effort(request, text):
        yield "output_config.effort"
    if request.thinking is not None and request.thinking.type != "adaptive" and not _thinking(request, text):
        is_thinker = text.form is not None and text.form.reads_reasoning
        if is_thinker != (request.thinking.type == "enabled"):
            yield "thinking"
    yield from (f"tools.{tool.type}" for tool in request.tools or () if isinstance(tool, AnthropicsTool))
    for message in request.messages:
        yield from (f"messages.{block.type}" for block in message.content if isinstance(block, UnreadBlock))


def _messages(request: MessagesPrompt) -> Iterator[dict[str, Any]]:
    if request.system:
        yield {"role": "system", "content": _texts(request.system)}
    for role, turn in groupby(request.messages, key=lambda message: message.role):
        blocks = [block for message in turn for block in message.content]
        if role == "assistant":
            yield _assistant(blocks)
        elif role == "system":
            yield {"role": role, "content": _texts(blocks)}
        else:
            yield from _user(blocks)


def _texts(blocks: Sequence[Block]) -> list[dict[str, str]]:
    return [{"type": "text", "text": block.text} for block in blocks if isinstance(block, TextBlock)]


def _user(blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    """Give what tools returned as messages of their own, in order, and the texts between them."""
    for is_result, group in groupby(blocks, key=lambda block: isinstance(block, ToolResultBlock)):
        if is_result:
            yield from map(_result, (block for block in group if isinstance(block, ToolResultBlock)))
        else:
            yield {"role": "user", "content": _texts(list(group))}
    if not blocks:
        yield {"role": "user", "content": ""}


def _result(block: ToolResultBlock) -> dict[str, Any]:
    content = [{"type": "text", "text": _result_text(each)} for each in block.content or ()]
    if block.is_error:
        # Templates have no other way to say it.
        content = [{"type": "text", "text": "Error:"}, *content]
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _result_text(block: TextBlock | ToolReferenceBlock | SearchResultBlock) -> str:
    match block:
        case ToolReferenceBlock():
            return f"The tool {block.tool_name} can be called."
        case SearchResultBlock():
            return "\n".join([f"{block.title} ({block.source})", *(each.text for each in block.content)])
        case _:
            return block.text


def _assistant(blocks: Sequence[Block]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant"}
    if thought := "\n".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock)):
        message["reasoning_content"] = thought
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    if (texts := _texts(blocks)) or not calls:
        message["content"] = texts
    return message | ({"tool_calls": calls} if calls else {})
