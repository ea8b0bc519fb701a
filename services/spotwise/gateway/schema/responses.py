"""The body of `POST /v1/responses`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, FailFast, Field, Tag, model_validator

from spotwise.gateway.schema.chat import MAX_MESSAGES, MAX_TEMPLATE_VARIABLES, text_of_parts
from spotwise.gateway.schema.parameters import Endpoint
from spotwise.gateway.schema.response_tools import ResponseTool, ResponseToolChoice
from spotwise.gateway.schema.shared import PositionOptions, SharedRequest, StrictBody, Wish
from spotwise.gateway.schema.tools import MAX_TOOLS

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

    type: Literal["reasoning_text", "text"]
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
    """A message of the conversation."""

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
    namespace: str | None = None
    arguments: str


class CustomCallItem(Item):
    """A custom tool that the model called."""

    type: Literal["custom_tool_call"]
    call_id: _Id
    name: str
    input: str


class ShellAction(StrictBody):
    """What a shell of the client's runs."""

    type: Literal["exec"] = "exec"
    command: list[str]
    working_directory: str | None = None
    timeout_ms: int | None = None


class ShellCallItem(Item):
    """The client's shell that the model called."""

    type: Literal["local_shell_call"]
    call_id: _Id
    action: ShellAction


class CallOutputItem(Item):
    """What a function or a custom tool returned."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: _Id
    output: _Content


class ShellOutputItem(Item):
    """What the client's shell returned; its `id` may be the call's."""

    type: Literal["local_shell_call_output"]
    call_id: _Id | None = None
    output: _Content


class ReasoningItem(Item):
    """What the model thought; a summary of it does not reach the model."""

    type: Literal["reasoning"]
    summary: list[dict[str, Any]] = []
    content: list[ThoughtPart] | None = None


#: What tools of a server did; left out of the prompt, which holds what the model said of it.
_UNREAD = ("web_search_call", "file_search_call", "tool_search_call", "tool_search_output", "mcp_list_tools")


class UnreadItem(Item):
    """What is left out of the prompt."""

    type: Literal[_UNREAD]  # type: ignore[valid-type]


_KINDS = {
    "message": "message",
    "function_call": "function_call",
    "custom_tool_call": "custom_call",
    "local_shell_call": "shell_call",
    "function_call_output": "output",
    "custom_tool_call_output": "output",
    "local_shell_call_output": "shell_output",
    "reasoning": "reasoning",
    **dict.fromkeys(_UNREAD, "unread"),
}


def _kind(item: Any) -> str | None:
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return "message" if kind is None else kind


def _tag(item: Any) -> str | None:
    kind = _kind(item)
    return _KINDS.get(kind) if isinstance(kind, str) else None


def _known(item: Any) -> Any:
    if not isinstance(item, dict):
        raise ValueError("each item must be an object")
    if _tag(item) is None:
        kind = _kind(item)
        raise ValueError(f"items of type '{kind}' are not supported")
    return item


_AnyItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CustomCallItem, Tag("custom_call")]
    | Annotated[ShellCallItem, Tag("shell_call")]
    | Annotated[CallOutputItem, Tag("output")]
    | Annotated[ShellOutputItem, Tag("shell_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[UnreadItem, Tag("unread")],
    Discriminator(_tag),
]
InputItem = Annotated[_AnyItem, BeforeValidator(_known, json_schema_input_type=_AnyItem)]


def as_items(given: Any) -> Any:
    """Return an `input` as a list of items."""
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given


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
    """`text`.

    Attributes:
        verbosity: as a chat's.
    """

    format: TextFormat | None = None
    verbosity: Wish | None = None


class ReasoningOptions(StrictBody):
    """`reasoning`.

    Attributes:
        effort: as a chat's `reasoning_effort`.
    """

    effort: Wish | None = None


class ResponsesRequest(SharedRequest):
    """OpenAI's parameters of responses, and vLLM's extensions."""

    endpoint: ClassVar = Endpoint.RESPONSES

    input: Annotated[
        list[InputItem], FailFast(), BeforeValidator(as_items, json_schema_input_type=str | list[InputItem])
    ] = Field(max_length=MAX_MESSAGES)
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
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
    stream_options: PositionOptions | None = None
