"""The body of `POST /v1/responses`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, FailFast, Field, Tag, model_validator

from spotwise.gateway.parameters import Endpoint
from spotwise.gateway.schema import SharedRequest
from spotwise.gateway.schema_chat import MAX_MESSAGES, MAX_TEMPLATE_VARIABLES, text_of_parts
from spotwise.gateway.schema_tools import MAX_TOOLS, FunctionName
from spotwise.gateway.strict_body import StrictBody

#: OpenAI's limits of `metadata`.
MAX_LABELS, MAX_LABEL_CHARACTERS, MAX_LABEL_VALUE_CHARACTERS = 16, 64, 512
#: Of a call's id; it travels into prompts only where a template writes it.
_MAX_ID_CHARACTERS = 512
#: The only part of `include` that changes an answer here; the others are of what no answer here has.
LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]

_Id = Annotated[str, Field(min_length=1, max_length=_MAX_ID_CHARACTERS)]


class ItemText(StrictBody):
    """A part of an item's content."""

    type: Literal["input_text", "output_text"]
    text: str


class ThoughtPart(StrictBody):
    """A part of the model's reasoning."""

    type: Literal["reasoning_text"]
    text: str


def _as_parts(value: Any) -> Any:
    """Return a content as its text parts; refuse others by name."""
    if isinstance(value, str):
        return [{"type": "input_text", "text": value}]
    if isinstance(value, list):
        text_of_parts(value, ("input_text", "output_text"))
    return value


_Content = Annotated[list[ItemText], BeforeValidator(_as_parts, json_schema_input_type=str | list[ItemText])]


class Item(StrictBody):
    """Something that was said or done before, or is said now."""

    id: _Id | None = None


class MessageItem(Item):
    """What somebody said."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content

    @model_validator(mode="after")
    def _has_parts_of_its_role(self) -> MessageItem:
        for part in self.content:
            part.type = "output_text" if self.role == "assistant" else "input_text"
        return self


class CallItem(Item):
    """A function that the model called."""

    type: Literal["function_call"]
    call_id: _Id
    name: str
    arguments: str


class CallOutputItem(Item):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: _Id
    output: _Content


class ReasoningItem(Item):
    """What the model thought; a summary of it does not reach the model."""

    type: Literal["reasoning"]
    summary: list[dict[str, Any]] = []
    content: list[ThoughtPart] | None = None


_KINDS = {"message", "function_call", "function_call_output", "reasoning"}


def _kind(item: Any) -> str | None:
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return "message" if kind is None else kind


def _known(item: Any) -> Any:
    if not isinstance(item, dict):
        raise ValueError("each item must be an object")
    if (kind := _kind(item)) not in _KINDS:
        raise ValueError(f"items of type '{kind}' are not supported")
    return item


_AnyItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
]
InputItem = Annotated[_AnyItem, BeforeValidator(_known, json_schema_input_type=_AnyItem)]


def as_items(given: Any) -> Any:
    """Return an `input` as a list of items."""
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given


class FlatTool(StrictBody):
    """A function that the model may call, as responses have it."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def _function(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise ValueError(f"tools of type '{kind}' are not supported; this server has functions only")
    return tool


class FlatNamedTool(StrictBody):
    """A `tool_choice` of one function, which has to be called."""

    type: Literal["function"]
    name: FunctionName


class TextFormat(StrictBody):
    """`text.format`; all its schemas are followed strictly, whether `strict` or not."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_-]+$")] | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> TextFormat:
        if self.type == "json_schema" and (self.name is None or self.schema_ is None):
            raise ValueError("needs 'name' and 'schema'")
        return self


class TextOptions(StrictBody):
    """`text`."""

    format: TextFormat | None = None


class ResponsesRequest(SharedRequest):
    """OpenAI's parameters of responses, and vLLM's extensions."""

    endpoint: ClassVar = Endpoint.RESPONSES

    input: Annotated[
        list[InputItem], FailFast(), BeforeValidator(as_items, json_schema_input_type=str | list[InputItem])
    ] = Field(max_length=MAX_MESSAGES)
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    tools: (
        Annotated[
            list[Annotated[FlatTool, BeforeValidator(_function, json_schema_input_type=FlatTool)]],
            Field(max_length=MAX_TOOLS),
        ]
        | None
    ) = None
    tool_choice: Literal["none", "auto", "required"] | FlatNamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: dict[str, Any] | None = None
    include: list[_INCLUDABLE] | None = None
    top_logprobs: int | None = Field(None, ge=0)
    store: bool | None = None
    previous_response_id: _Id | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: (
        Annotated[
            dict[
                Annotated[str, Field(max_length=MAX_LABEL_CHARACTERS)],
                Annotated[str, Field(max_length=MAX_LABEL_VALUE_CHARACTERS)],
            ],
            Field(max_length=MAX_LABELS),
        ]
        | None
    ) = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, max_length=MAX_TEMPLATE_VARIABLES)
