"""Tools of a chat: the functions that the model may call, and which of them it has to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from spotwise.gateway.strict_body import StrictBody

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


ToolChoice = Literal["none", "auto", "required"] | NamedTool
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
