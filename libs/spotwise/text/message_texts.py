"""The texts of messages, tools and earlier calls: all of them in the model's prompt, by the template or as text.

So a request with tools reaches every model, and no call of a conversation is lost in its prompt.

A template that knows no calls would leave an empty turn. Rendering itself shows it: each call gets a name that occurs nowhere
else, and the text must contain it. What a template leaves out, or refuses, is written as text (tool_text.py).

A message with calls and no content has two spellings, and templates are written for one or the other: without the key, as
transformers documents it, and with an empty string, for those that add it to a text. The first that renders all calls is taken.
Null is none of them: jinja writes it as `None`, and transformers drops it.

A template that wants the other form leaves a text out, or fails. Rendering shows it: the prompt has each text, or where a
template changes texts, each mark that is put in a text's place. What neither form brings into the prompt is an error, and no
shorter prompt.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

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


#: What a template raises over messages that it is not made for.
TEMPLATE_ERRORS = (TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)

_CALL_MARK = "spotwise_earlier_call"
_CALL_MARKS = re.compile(f"{_CALL_MARK}_[0-9]+_")
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
        if set(_CALL_MARKS.findall(text)).issuperset(marks):
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
        marks.append(f"{_CALL_MARK}_{len(marks)}_")
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


ChatMessage = dict[str, Any]
_MARK = "spotwisetext"
_MARKS = re.compile(f"{_MARK}([0-9]+)x")


class LostTextError(TemplateError):
    """A chat template leaves out a message's text."""


def text_of(message: ChatMessage) -> str:
    """Return a message's text, of parts one a line."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content or ""


def with_text(message: ChatMessage) -> ChatMessage:
    """Return a message whose content is a string, if it has one."""
    return message | {"content": text_of(message)} if isinstance(message.get("content"), list) else message


def as_parts(message: ChatMessage) -> ChatMessage:
    """Return a message whose content is a list of parts, if it has one."""
    content = message.get("content")
    return message | {"content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def render_whole(
    messages: Sequence[ChatMessage], render: Callable[[list[ChatMessage]], str], *, wants_parts: bool
) -> str:
    """Render a conversation with all its texts.

    Args:
        messages: contents are strings or lists of text parts.
        render: the chat template.
        wants_parts: the form to try first.

    Raises:
        LostTextError: the template leaves a text out in both forms.
        Exception: whatever `render` raises in the first form.
    """
    strings = list(map(with_text, messages))
    forms = [strings, list(map(as_parts, messages))]
    if wants_parts:
        forms.reverse()
    if any(map(has_calls, messages)):
        forms.append(with_calls_as_text(strings))  # of templates that write calls without what was said beside them
    rendered = render(forms[0])
    if (first_lost := _lost_text(forms[0], rendered, render)) is None:
        return rendered
    for form in forms[1:]:
        with contextlib.suppress(*TEMPLATE_ERRORS):
            rendered = render(form)
            if not _has_written_parts(form, rendered) and _lost_text(form, rendered, render) is None:
                return rendered
    role = forms[0][first_lost]["role"]
    raise LostTextError(
        f"it leaves out the text of message {first_lost + 1}, whose role is '{role}'. Put it into a message of another role"
    )


def _lost_text(
    messages: Sequence[ChatMessage], rendered: str, render: Callable[[list[ChatMessage]], str]
) -> int | None:
    """Return the index of a message whose text a prompt lacks; `None`: it has all."""
    texts = {index: text for index, each in enumerate(messages) if (text := text_of(each).strip())}
    if _has_in_order(rendered, [part for index in texts for part in _parts(messages[index])]):
        return None
    marked = [_with_mark(each, f"{_MARK}{index}x") if index in texts else each for index, each in enumerate(messages)]
    try:
        found = {int(mark) for mark in _MARKS.findall(render(marked).lower())}
    except TEMPLATE_ERRORS:
        return None  # it looks into texts, and has rendered these
    return next((index for index in texts if index not in found), None)


def _has_written_parts(form: Sequence[ChatMessage], rendered: str) -> bool:
    """Whether a template that wants strings has written a list of parts as if it were one."""
    written = rendered.count("'type': 'text'") + rendered.count('"type": "text"')
    own = sum(text.count("'type': 'text'") + text.count('"type": "text"') for text in map(text_of, form))
    return written > own


def _parts(message: ChatMessage) -> list[str]:
    content = message["content"]
    texts = [part["text"] for part in content] if isinstance(content, list) else [content]
    return [text.strip() for text in texts]


def _has_in_order(rendered: str, texts: Sequence[str]) -> bool:
    position = 0
    for text in texts:
        position = rendered.find(text, position)
        if position < 0:
            return False
        position += len(text)
    return True


def _with_mark(message: ChatMessage, mark: str) -> ChatMessage:
    marked = [{"type": "text", "text": mark}] if isinstance(message["content"], list) else mark
    return message | {"content": marked}
