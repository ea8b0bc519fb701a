"""The bodies of `POST /v1/messages` and `POST /v1/messages/count_tokens`, which are Anthropic's."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from spotwise.gateway.schema.chat import MAX_MESSAGES
from spotwise.gateway.schema.shared import MAX_STOP_STRINGS, PositionOptions, StopString, StrictBody, Wish
from spotwise.gateway.schema.tools import MAX_TOOLS, FunctionName

#: Content that the model cannot read (another model's reasoning), and results of a server's own tools: left out of the prompt.
_UNREAD = (
    *("redacted_thinking", "server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result"),
    *("web_fetch_tool_result", "tool_search_tool_result", "code_execution_tool_result"),
    *("bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "compaction"),
)
_BLOCKS = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use", *_UNREAD),
    "system": ("text",),
}
_KNOWN_BLOCKS = frozenset(kind for kinds in _BLOCKS.values() for kind in kinds)


def _as_blocks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _readable(value: Any) -> Any:
    return _of_kind(value, _KNOWN_BLOCKS)


def _readable_result(value: Any) -> Any:
    return _of_kind(value, ("text", "tool_reference", "search_result"))


def _of_kind(value: Any, kinds: Collection[str]) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in kinds:
        raise ValueError(f"blocks of type '{kind}' are not supported; this server reads text only")
    return value


def _tool_kind(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return "custom" if kind in (None, "custom") else "anthropics"


class TextBlock(StrictBody):
    """A text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(StrictBody):
    """What the model thought; its signature is not looked at."""

    type: Literal["thinking"]
    thinking: str


class UnreadBlock(StrictBody):
    """What is left out of the prompt."""

    type: Literal[_UNREAD]  # type: ignore[valid-type]


class ToolUseBlock(StrictBody):
    """A tool that the model called."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


_Text = Annotated[TextBlock, BeforeValidator(_readable)]
Texts = Annotated[
    list[_Text], Field(fail_fast=True), BeforeValidator(_as_blocks, json_schema_input_type=str | list[TextBlock])
]


class ToolReferenceBlock(StrictBody):
    """A tool that the client's search has found."""

    type: Literal["tool_reference"]
    tool_name: str


class SearchResultBlock(StrictBody):
    """A text that the client's search has found, and where."""

    type: Literal["search_result"]
    source: str
    title: str
    content: Texts


_AnyResult = Annotated[TextBlock | ToolReferenceBlock | SearchResultBlock, Field(discriminator="type")]
Results = Annotated[
    list[Annotated[_AnyResult, BeforeValidator(_readable_result)]],
    Field(fail_fast=True),
    BeforeValidator(_as_blocks, json_schema_input_type=str | list[_AnyResult]),
]


class ToolResultBlock(StrictBody):
    """What a tool returned.

    Attributes:
        is_error: it failed; the model is told so.
    """

    type: Literal["tool_result"]
    tool_use_id: str
    content: Results | None = None
    is_error: bool | None = None


_AnyBlock = Annotated[
    TextBlock | ThinkingBlock | UnreadBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")
]
Block = Annotated[_AnyBlock, BeforeValidator(_readable)]
Blocks = Annotated[
    list[Block], Field(fail_fast=True), BeforeValidator(_as_blocks, json_schema_input_type=str | list[_AnyBlock])
]


class InputMessage(StrictBody):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Blocks

    @model_validator(mode="after")
    def _has_its_roles_blocks(self) -> InputMessage:
        for block in self.content:
            if block.type not in _BLOCKS[self.role]:
                raise ValueError(f"a message of the role '{self.role}' has no block of type '{block.type}'")
        return self


class InputTool(StrictBody):
    """A tool that the model may call.

    Attributes:
        input_schema: a JSON schema of its input, an object.
        strict: the input follows the schema always; that of a call that was asked for does so anyway.
    """

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


class AnthropicsTool(StrictBody):
    """A tool that Anthropic runs or defines; the model is not told of it."""

    type: str
    name: str | None = None


_AnyTool = Annotated[
    Annotated[InputTool, Tag("custom")] | Annotated[AnthropicsTool, Tag("anthropics")], Discriminator(_tool_kind)
]


class InputToolChoice(StrictBody):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_its_tool(self) -> InputToolChoice:
        if self.type == "tool" and self.name is None:
            raise ValueError("needs the 'name' of a tool")
        return self


class ThinkingConfig(StrictBody):
    """`thinking`: whether the model thinks before it answers; how much is bounded by `max_tokens` alone."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1)


class Metadata(StrictBody):
    """`metadata`.

    Attributes:
        user_id: as a chat's `user`.
    """

    user_id: str | None = None


class JsonOutput(StrictBody):
    """`output_config.format`."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(StrictBody):
    """`output_config`.

    Attributes:
        effort: as a chat's `reasoning_effort`.
    """

    effort: Wish | None = None
    format: JsonOutput | None = None


class MessagesPrompt(StrictBody):
    """A conversation, and what else its prompt is made of: the body of `count_tokens`."""

    model: str
    messages: list[InputMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    system: Texts | None = None
    tools: Annotated[list[_AnyTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: InputToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(MessagesPrompt):
    """Anthropic's parameters of a message; `None` is the documented default."""

    max_tokens: int = Field(ge=1)
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    stream: bool | None = None
    stream_options: PositionOptions | None = None
    metadata: Metadata | None = None
