"""Tools of responses as the functions that the model calls, and calls as the items that a client expects of its tools.

A model calls functions with arguments in JSON. A custom tool is one with a text as its `input`, `local_shell` one with a
command; functions of a namespace go by their own names, or with the namespace's before a dot where two are the same. Tools that
a server would run are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from spotwise.gateway.schema.response_tools import (
    CalledTool,
    ChosenAllowedTools,
    ChosenTool,
    CustomTool,
    FlatTool,
    LocalShellTool,
    NamespaceTool,
    ResponseTool,
    ServerTool,
)
from spotwise.http.errors import bad_request

LOCAL_SHELL = "local_shell"
_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
_COMMAND = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}},
        "working_directory": {"type": "string"},
        "timeout_ms": {"type": "integer"},
    },
    "required": ["command"],
    "additionalProperties": False,
}


class ResponseTools:
    """The tools of a request.

    Args:
        tools: as the client gave them.

    Attributes:
        functions: for a chat, in order.
        called: what clients call them, by the functions' names; without those that have the same name there.
        left_out: types of the tools that are left out.
    """

    def __init__(self, tools: Sequence[ResponseTool]) -> None:
        flat = list(_flat(tools))
        count = Counter(name for name, _, _ in flat)
        self.functions: list[dict[str, Any]] = []
        self.called: dict[str, CalledTool] = {}
        self.left_out = [tool.type for tool in tools if isinstance(tool, ServerTool)]
        for name, tool, function in flat:
            own = f"{tool.namespace}.{name}" if count[name] > 1 and tool.namespace else name
            self.functions.append({"type": "function", "function": {"name": own, **function}})
            if tool.item != "function_call" or tool.namespace:
                self.called[own] = tool
        self.formats = any(isinstance(tool, CustomTool) and tool.has_grammar for tool in tools)

    def name_of(self, namespace: str | None, name: str) -> str:
        """Return the model's name of a client's function."""
        own = f"{namespace}.{name}"
        return own if namespace and own in self.called else name

    def ignored(self) -> Iterator[str]:
        """Give the names of what the model is not told of, or need not follow."""
        yield from (f"tools.{kind}" for kind in self.left_out)
        if self.formats:
            yield "tools.format"

    def choice(self, given: Any) -> Any:
        """Return a `tool_choice` as a chat has it.

        Args:
            given: as the client gave it, checked.

        Raises:
            ApiError: 400, it asks for a tool that is left out.
        """
        if isinstance(given, ChosenAllowedTools):
            own = [tool for tool in given.tools if isinstance(tool, ChosenTool) or tool.type == LOCAL_SHELL]
            chosen = [self.choice(tool) for tool in own or given.tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": given.mode, "tools": chosen}}
        kind = None if given is None or isinstance(given, str) else given.type
        if kind not in (None, "function", "custom", LOCAL_SHELL) or (
            given == "required" and self.left_out and not self.functions
        ):
            wanted = self.left_out[0] if kind is None else kind
            message = (
                f"'tool_choice' asks for a tool of type '{wanted}', which this server would have to run; "
                "it runs none. Choose 'none', 'auto' or 'required', or an object with the 'type' 'function', 'custom', "
                "'local_shell' or 'allowed_tools'."
            )
            raise bad_request(message, "tool_choice", "unsupported_parameter")
        if kind is None:
            return given
        name = LOCAL_SHELL if kind == LOCAL_SHELL else self.name_of(given.namespace, given.name)
        return {"type": "function", "function": {"name": name}}


def _flat(tools: Sequence[ResponseTool]) -> Iterator[tuple[str, CalledTool, dict[str, Any]]]:
    for tool in tools:
        match tool:
            case FlatTool():
                yield tool.name, CalledTool(name=tool.name), _function(tool)
            case NamespaceTool():
                for each in tool.tools:
                    yield each.name, CalledTool(name=each.name, namespace=tool.name), _function(each)
            case CustomTool():
                description = "\n\n".join(filter(None, (tool.description, tool.grammar)))
                yield (
                    tool.name,
                    CalledTool("custom_tool_call", tool.name),
                    {"description": description or None, "parameters": _INPUT},
                )
            case LocalShellTool():
                described = {"description": "Run a command, a list of words, in a shell.", "parameters": _COMMAND}
                yield LOCAL_SHELL, CalledTool("local_shell_call", LOCAL_SHELL), described


def _function(tool: FlatTool) -> dict[str, Any]:
    return tool.model_dump(exclude={"type", "name"}, exclude_none=True)


def input_of_call(arguments: str) -> str:
    """Return the input of a custom tool's call: of arguments without one, all of them as they are."""
    given = _object(arguments).get("input")
    return given if isinstance(given, str) else arguments


def action_of_call(arguments: str) -> dict[str, Any]:
    """Return what a call of `local_shell` runs: of arguments without a command, nothing."""
    given = _object(arguments)
    command = given.get("command", [])
    words = ["bash", "-lc", command] if isinstance(command, str) else command
    action: dict[str, Any] = {
        "type": "exec",
        "command": [str(word) for word in words] if isinstance(words, list) else [],
        "env": {},
    }
    for name, kind in (("working_directory", str), ("timeout_ms", int)):
        if isinstance(given.get(name), kind):
            action[name] = given[name]
    return action


def _object(arguments: str) -> Mapping[str, Any]:
    try:
        given = from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}
