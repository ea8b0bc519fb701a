"""Tools and calls as text, for chat templates that know none: what Hermes models were taught, and many others since.

So a request with tools reaches every model, and no call of a conversation is lost in its prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_INTRODUCTION = (
    "You can call functions. A call is a JSON object with the function's name and its arguments, between two tags:\n"
    '<tool_call>\n{{"name": "...", "arguments": {{...}}}}\n</tool_call>\n'
    "The functions and the JSON schemas of their arguments:\n{functions}"
)


def with_tools_as_text(messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation whose system message ends with the tools."""
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    introduction = _INTRODUCTION.format(functions=functions)
    if messages and messages[0]["role"] in ("system", "developer"):
        first = dict(messages[0])
        first["content"] = f"{first.get('content') or ''}\n\n{introduction}".lstrip()
        return [first, *messages[1:]]
    return [{"role": "system", "content": introduction}, *messages]


def with_calls_as_text(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation whose calls, and what they returned, are texts of the assistant and the user."""
    return [_as_text(message) for message in messages]


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"}
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    if message.get("function_call"):
        functions.append(message["function_call"])
    if not functions:
        return message
    calls = (
        json.dumps({"name": each["name"], "arguments": each.get("arguments") or {}}, ensure_ascii=False)
        for each in functions
    )
    texts = [message.get("content") or "", *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)]
    rest = {key: value for key, value in message.items() if key not in ("tool_calls", "function_call")}
    return rest | {"content": "\n".join(text for text in texts if text)}
