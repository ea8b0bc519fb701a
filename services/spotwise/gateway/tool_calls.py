"""Earlier tool calls of a conversation: in the model's prompt, or refused.

A conversation is rendered with all of its calls or refused: a template without tool calls would leave an empty turn. Rendering
itself shows which: each call gets a name that occurs nowhere else, and the text must contain it.

A message with calls and no content has two spellings, and templates are written for one or the other: without the key, as
transformers documents it, and with an empty string, for those that add it to a text. The first that renders all calls is taken.
Null is none of them: jinja writes it as `None`, and transformers drops it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jinja2 import TemplateError

#: What a template raises over messages that it is not made for.
TEMPLATE_ERRORS = (TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)

_MARK = "spotwise_earlier_call"
_NO_CONTENT: tuple[dict[str, str], ...] = ({}, {"content": ""})


class DroppedCallError(Exception):
    """The template leaves out a call.

    Attributes:
        param: dotted path of the calls that it leaves out.
    """

    def __init__(self, param: str) -> None:
        super().__init__(
            "The model's chat template leaves out the calls of this message. Leave the message out, or write its calls as "
            "text in 'content'."
        )
        self.param = param


def has_calls(message: dict[str, Any]) -> bool:
    """Whether a message holds calls of tools, or of a function by the older name."""
    return bool(message.get("tool_calls") or message.get("function_call"))


def render_with_calls(messages: Sequence[dict[str, Any]], render: Callable[[list[dict[str, Any]]], str]) -> str:
    """Render a conversation with all its calls.

    Args:
        messages: as templates want them; those with calls may lack `content`.
        render: the chat template.

    Raises:
        DroppedCallError: the template leaves calls out.
        Exception: whatever `render` raises.
    """
    if not any(map(has_calls, messages)):
        return render(list(messages))
    marked, params = _marked(messages)
    silent = any(has_calls(message) and "content" not in message for message in messages)
    failure: Exception | None = None
    for content in _NO_CONTENT if silent else _NO_CONTENT[:1]:
        try:
            text = render(_with_content(marked, content))
        except TEMPLATE_ERRORS as error:
            failure = failure or error
            continue
        dropped = next((param for mark, param in params.items() if mark not in text), None)
        if dropped is None:
            return render(_with_content(messages, content))
        if not isinstance(failure, DroppedCallError):
            failure = DroppedCallError(dropped)
    assert failure is not None
    raise failure


def _with_content(messages: Sequence[dict[str, Any]], content: dict[str, str]) -> list[dict[str, Any]]:
    return [content | message if has_calls(message) else message for message in messages]


def _marked(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the messages with a name of its own for each call, and by those names where each call stands."""
    params: dict[str, str] = {}

    def renamed(function: dict[str, Any], param: str) -> dict[str, Any]:
        # The ending keeps one name from being the beginning of another.
        mark = f"{_MARK}_{len(params)}_"
        params[mark] = param
        return function | {"name": mark}

    def with_marks(index: int, message: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for key, value in message.items():
            param = f"messages.{index}.{key}"
            if key == "tool_calls":
                yield key, [call | {"function": renamed(call["function"], param)} for call in value]
            elif key == "function_call":
                yield key, renamed(value, param)
            else:
                yield key, value

    return [dict(with_marks(index, message)) for index, message in enumerate(messages)], params
