"""The texts of messages, all of them in the model's prompt: as strings, or as lists of parts, as the chat template wants them.

A template that wants the other form leaves a text out, or fails. Rendering shows it: the prompt has each text, or where a
template changes texts, each mark that is put in a text's place. What neither form brings into the prompt is an error, and no
shorter prompt.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from jinja2 import TemplateError

from spotwise.text.tool_calls import TEMPLATE_ERRORS, has_calls
from spotwise.text.tool_text import with_calls_as_text

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
