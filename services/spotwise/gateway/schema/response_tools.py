"""Tools of `POST /v1/responses`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from spotwise.gateway.schema.shared import StrictBody
from spotwise.gateway.schema.tools import CHOICE_WORDS, MAX_TOOLS, FunctionName

#: Of a custom tool's grammar; all of it is in the prompt.
_MAX_GRAMMAR_CHARACTERS = 65_536


class FlatTool(StrictBody):
    """A function that the model may call, as responses have it."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomFormat(StrictBody):
    """What a custom tool's input looks like: any text, or a grammar, which the model is told of and need not follow."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = Field(None, max_length=_MAX_GRAMMAR_CHARACTERS)


class CustomTool(StrictBody):
    """A tool whose input is a text."""

    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: CustomFormat | None = None

    @property
    def has_grammar(self) -> bool:
        """Whether its input has to look like something."""
        return self.format is not None and self.format.type == "grammar"

    @property
    def grammar(self) -> str:
        """What the model is told of its input; empty where it may be any text."""
        if self.format is None or not self.has_grammar:
            return ""
        return f"The input follows this {self.format.syntax or 'lark'} grammar:\n{self.format.definition or ''}"


class LocalShellTool(StrictBody):
    """A shell that the client runs."""

    type: Literal["local_shell"]


class NamespaceTool(StrictBody):
    """Functions under a name that their calls carry."""

    type: Literal["namespace"]
    name: FunctionName
    description: str | None = None
    tools: Annotated[list[FlatTool], Field(max_length=MAX_TOOLS)]


class ServerTool(StrictBody):
    """A tool that a server runs; the model is not told of it."""

    type: str


def _kind(tool: Any) -> str | None:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    if isinstance(kind, str):
        return kind if kind in ("function", "custom", "local_shell", "namespace") else "server"
    return None


ResponseTool = Annotated[
    Annotated[FlatTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[LocalShellTool, Tag("local_shell")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[ServerTool, Tag("server")],
    Discriminator(_kind),
]


class ChosenTool(StrictBody):
    """A `tool_choice` of one function or custom tool, which has to be called."""

    type: Literal["function", "custom"]
    name: FunctionName
    namespace: str | None = None


class ChosenServerTool(StrictBody):
    """A `tool_choice` of another tool."""

    type: str


def _chosen_kind(choice: Any) -> str | None:
    if isinstance(choice, str):
        return "word" if choice in CHOICE_WORDS else None
    kind = choice.get("type") if isinstance(choice, dict) else getattr(choice, "type", None)
    if not isinstance(kind, str):
        return None
    if kind == "allowed_tools":
        return kind
    return "own" if kind in ("function", "custom") else "other"


_CHOSEN_KINDS = Discriminator(
    _chosen_kind,
    custom_error_type="unknown_choice",
    custom_error_message=(
        "must be 'none', 'auto' or 'required', or an object with the 'type' 'function', 'custom', 'local_shell' or "
        "'allowed_tools'"
    ),
)


class ChosenAllowedTools(StrictBody):
    """A `tool_choice` of some tools: the model is told of all, as before, and calls none but these."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[
            Annotated[
                Annotated[ChosenTool, Tag("own")] | Annotated[ChosenServerTool, Tag("other")],
                Discriminator(lambda tool: None if (kind := _chosen_kind(tool)) == "word" else kind),
            ]
        ],
        Field(min_length=1, max_length=MAX_TOOLS),
    ]


ResponseToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[ChosenTool, Tag("own")]
    | Annotated[ChosenAllowedTools, Tag("allowed_tools")]
    | Annotated[ChosenServerTool, Tag("other")],
    _CHOSEN_KINDS,
]


@dataclass(frozen=True, slots=True)
class CalledTool:
    """What a client calls a function of the model's.

    Attributes:
        item: type of the item of a call.
        name: as the client has it.
        namespace: the function's namespace.
    """

    item: Literal["function_call", "custom_tool_call", "local_shell_call"] = "function_call"
    name: str = ""
    namespace: str | None = None
