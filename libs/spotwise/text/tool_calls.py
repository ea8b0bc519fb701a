"""Earlier tool calls of a conversation: all of them in the model's prompt, by the template or as text.

A template that knows no calls would leave an empty turn. Rendering itself shows it: each call gets a name that occurs nowhere
else, and the text must contain it. What a template leaves out, or refuses, is written as text (tool_text.py).

A message with calls and no content has two spellings, and templates are written for one or the other: without the key, as
transformers documents it, and with an empty string, for those that add it to a text. The first that renders all calls is taken.
Null is none of them: jinja writes it as `None`, and transformers drops it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jinja2 import TemplateError

from spotwise.text.tool_text import with_calls_as_text

#: What a template raises over messages that it is not made for.
TEMPLATE_ERRORS = (TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)

_MARK = "spotwise_earlier_call"
_MARKS = re.compile(f"{_MARK}_[0-9]+_")
_NO_CONTENT: tuple[dict[str, str], ...] = ({}, {"content": ""})


def has_calls(message: dict[str, Any]) -> bool:
    """Whether a message holds calls of tools, or of a function by the older name."""
    return bool(message.get("tool_calls") or message.get("function_call"))


def render_with_calls(messages: Sequence[dict[str, Any]], render: Callable[[list[dict[str, Any]]], str]) -> str:
    """Render a conversation with all its calls.

    Args:
        messages: as templates want them; those with calls may lack `content`.
        render: the chat template.

    Raises:
        Exception: whatever `render` raises.
    """
    if not any(map(has_calls, messages)):
        return render(list(messages))
    marked, marks = _marked(messages)
    silent = any(has_calls(message) and "content" not in message for message in messages)
    failure: Exception | None = None
    for content in _NO_CONTENT if silent else _NO_CONTENT[:1]:
        try:
            text = render(_with_content(marked, content))
        except TEMPLATE_ERRORS as error:
            failure = failure or error
            continue
        if set(_MARKS.findall(text)).issuperset(marks):
            return render(_with_content(messages, content))
    try:
        return render(with_calls_as_text(messages))
    except TEMPLATE_ERRORS as error:
        raise failure or error from None


def _with_content(messages: Sequence[dict[str, Any]], content: dict[str, str]) -> list[dict[str, Any]]:
    return [content | message if has_calls(message) else message for message in messages]


def _marked(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the messages with a name of its own for each call, and those names."""
    marks: list[str] = []

    def renamed(function: dict[str, Any]) -> dict[str, Any]:
        # The ending keeps one name from being the beginning of another.
        marks.append(f"{_MARK}_{len(marks)}_")
        return function | {"name": marks[-1]}

    def with_marks(message: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for key, value in message.items():
            if key == "tool_calls":
                yield key, [call | {"function": renamed(call["function"])} for call in value]
            elif key == "function_call":
                yield key, renamed(value)
            else:
                yield key, value

    return [dict(with_marks(message)) for message in messages], marks
