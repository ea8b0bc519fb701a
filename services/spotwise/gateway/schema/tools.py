"""Tools of a chat: the functions that the model may call, and which of them it has to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from spotwise.gateway.schema.shared import StrictBody

#: OpenAI's limit.
MAX_TOOLS = 128

FunctionName = Annotated[str, Field(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_.-]+$")]


class ToolFunction(StrictBody):
    """A function that the model may call.

    Attributes:
        parameters: a JSON schema of its arguments, an object; `None` takes none.
        strict: its arguments follow the schema always; those of a call that was asked for do so anyway.
    """

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        """The schema of the arguments."""
        return self.parameters or {"type": "object", "properties": {}, "additionalProperties": False}


class Tool(StrictBody):
    """An entry of `tools`."""

    type: Literal["function"]
    function: ToolFunction

    def for_template(self) -> dict[str, Any]:
        """Return the tool as chat templates take it."""
        function = self.function.model_dump(exclude_none=True, exclude={"strict"})
        parameters = self.function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function | {"parameters": parameters}}


class NamedFunction(StrictBody):
    """The function of a `tool_choice`."""

    name: FunctionName


class NamedTool(StrictBody):
    """A `tool_choice` of one function, which has to be called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(StrictBody):
    """Some of the tools, and whether one of them has to be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(StrictBody):
    """A `tool_choice` of some tools: the model is told of all, as before, and calls none but these."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


CHOICE_WORDS = ("none", "auto", "required")


def _kind_of_choice(choice: Any) -> str | None:
    if isinstance(choice, str):
        return "word" if choice in CHOICE_WORDS else None
    kind = choice.get("type") if isinstance(choice, dict) else getattr(choice, "type", None)
    return kind if kind in ("function", "allowed_tools") else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[NamedTool, Tag("function")]
    | Annotated[AllowedToolsChoice, Tag("allowed_tools")],
    Discriminator(
        _kind_of_choice,
        custom_error_type="unknown_choice",
        custom_error_message=(
            "must be 'none', 'auto' or 'required', or an object with the 'type' 'function' or 'allowed_tools'"
        ),
    ),
]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
