"""The body of `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import BeforeValidator, ConfigDict, FailFast, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from spotwise.gateway.schema.parameters import Endpoint
from spotwise.gateway.schema.shared import GenerationRequest, StrictBody, Wish
from spotwise.gateway.schema.tools import AllowedToolsChoice, NamedTool, Tool, ToolChoice, Tools
from spotwise.http.errors import bad_request
from spotwise.http.json_text import JsonTooComplexError, require_bounded_json
from spotwise.text.chat_template import ChatMessage

#: Some templates look at every message again for each.
MAX_MESSAGES = 16_384
#: Of one message.
MAX_TOOL_CALLS = 1024
#: Of `chat_template_kwargs`.
MAX_TEMPLATE_VARIABLES = 64


def text_of_parts(parts: list[Any], kinds: Collection[str]) -> list[str]:
    """Return the texts of a content's parts, which are of some kinds; raises `ValueError`."""
    texts: list[str] = []
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError("each content part must be an object with a type")
        if part["type"] not in kinds:
            raise ValueError(f"content parts of type '{part['type']}' are not supported; this server reads text only")
        if not isinstance(part.get("text"), str):
            raise ValueError(f"a content part of type '{part['type']}' needs a string 'text'")
        texts.append(part["text"])
    return texts


def _as_texts(value: Any) -> Any:
    """Return a content whose parts are texts and nothing else."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("content_type", "Input should be a valid string, or a list of content parts")
    return [{"type": "text", "text": text} for text in text_of_parts(value, ("text",))]


def _as_arguments(value: Any) -> Any:
    """Read the JSON that the model wrote as arguments, for templates that want an object; what is no JSON stays as it is."""
    if value is not None and not isinstance(value, str | dict):
        raise ValueError("must be a string of JSON")
    if not isinstance(value, str):
        return value
    try:
        require_bounded_json(value.encode())
        return orjson.loads(value or "{}")
    except JsonTooComplexError as error:
        words = f"Invalid value for 'messages': the arguments of a tool call are too complex: {error}."
        raise bad_request(words, "messages", "body_too_complex") from error
    except orjson.JSONDecodeError:
        return value


class TextPart(StrictBody):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class FunctionCall(StrictBody):
    """A function that the model called."""

    model_config = ConfigDict(extra="allow")

    name: str
    arguments: Annotated[Any, BeforeValidator(_as_arguments, json_schema_input_type=str | dict[str, Any] | None)] = None


class ToolCall(StrictBody):
    """A tool that the model called."""

    model_config = ConfigDict(extra="allow")

    function: FunctionCall


class ChatRequestMessage(StrictBody):
    """One message of a chat. Fields that only some templates know (`name`, `tool_call_id`, ...) reach the template."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | list[TextPart] | None, BeforeValidator(_as_texts, json_schema_input_type=str | list[TextPart] | None)
    ] = None
    tool_calls: list[ToolCall] | None = Field(None, max_length=MAX_TOOL_CALLS)
    function_call: FunctionCall | None = None

    @model_validator(mode="after")
    def _has_content(self) -> ChatRequestMessage:
        if self.content is None and not (self.role == "assistant" and (self.tool_calls or self.function_call)):
            raise ValueError("a message needs 'content'")
        return self

    def for_template(self) -> ChatMessage:
        """Return the message as templates want it: no nulls, no empty list of calls."""
        message: ChatMessage = self.model_dump(exclude_none=True)
        if not self.tool_calls:
            message.pop("tool_calls", None)
        return message


class ChatPrompt(StrictBody):
    """A chat, and how its template renders it: OpenAI's `messages` and `tools`, and what vLLM adds."""

    messages: Annotated[list[ChatRequestMessage], FailFast()] = Field(min_length=1, max_length=MAX_MESSAGES)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, max_length=MAX_TEMPLATE_VARIABLES)
    tools: Tools | None = None
    reasoning_effort: Wish | None = None
    verbosity: Wish | None = None

    @field_validator("tools")
    @classmethod
    def _has_each_tool_once(cls, tools: list[Tool] | None) -> list[Tool] | None:
        names = [tool.function.name for tool in tools or ()]
        if len(set(names)) < len(names):
            raise ValueError("two tools have the same name")
        return tools


class ChatRequest(ChatPrompt, GenerationRequest):
    """OpenAI's chat completion parameters."""

    endpoint: ClassVar = Endpoint.CHAT

    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = Field(None, ge=0)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)

    @property
    def named_tool(self) -> str | None:
        """The function that has to be called."""
        return self.tool_choice.function.name if isinstance(self.tool_choice, NamedTool) else None

    @property
    def allowed_tools(self) -> list[str] | None:
        """The functions that may be called, where these are not all."""
        if not isinstance(self.tool_choice, AllowedToolsChoice):
            return None
        return [tool.function.name for tool in self.tool_choice.allowed_tools.tools]
