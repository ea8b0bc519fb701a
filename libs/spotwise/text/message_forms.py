"""Forms of a model's messages: its reasoning, its tool calls, and its content.

A form is a response template of transformers: what the tokenizer declares, one of the names here, or a file. A call that
was asked for is written by a grammar (tool_grammar.py), in the form's own words where it knows them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers.utils.chat_parsing.response_templates import (
    ResponseTemplate,
    ResponseTemplateField,
    load_response_template,
)

CONTENT, CALLS = "content", "tool_calls"
#: What templates call the text that a model thinks before it answers.
REASONING = ("reasoning_content", "reasoning", "thinking")
AUTO, NONE = "auto", "none"
#: Of calls by models whose chat template knows no tools: as tool_text.py asks for them.
TEXT_PARSER = "hermes"


@dataclass(frozen=True, slots=True)
class CallForm:
    """How calls are written, as JSON objects with a name and arguments.

    Attributes:
        before, after: the whole.
        opening, closing: each call.
        separator: between two.
        arguments_key: key of the arguments.
        trigger: begins `opening`, and nothing else that the model says; empty where there is no such text.
    """

    before: str = "["
    after: str = "]"
    opening: str = ""
    closing: str = ""
    separator: str = ", "
    arguments_key: str = "arguments"
    trigger: str = ""


#: Where a model's own form is not known: a list of calls.
LISTED_CALLS = CallForm()
_TAGGED = CallForm("", "", "<tool_call>\n", "\n</tool_call>", "\n", trigger="<tool_call>")
_LLAMA = CallForm("", "", separator="; ", arguments_key="parameters")


@dataclass(frozen=True, slots=True)
class _CallParser:
    """A known way to write calls.

    Attributes:
        field: field of the response template.
        marks: texts that all stand in the chat templates of models that write calls so.
    """

    field: Mapping[str, Any]
    form: CallForm
    marks: tuple[str, ...]
    has_short_ids: bool = False


# JSON is read as text, by a scanner that gives arguments while they are written (call_scanner.py).
_PARSERS = {
    "qwen3_coder": _CallParser(
        {
            "open_pattern": r"(?P<blanks>\s*)<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</tool_call>",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
            "transform": {"name": "{name}", "arguments": "{content}"},
        },
        LISTED_CALLS,
        ("<tool_call>", "<function="),
    ),
    "hermes": _CallParser(
        {"open_pattern": r"(?P<blanks>\s*)<tool_call>", "close": "</tool_call>", "transform": "{content}"},
        _TAGGED,
        ("<tool_call>",),
    ),
    "mistral": _CallParser({"open": "[TOOL_CALLS]"}, LISTED_CALLS, ("[TOOL_CALLS]",), has_short_ids=True),
    "llama3_json": _CallParser(
        {"open_pattern": r"\A\s*(?:<\|python_tag\|>)?\s*(?=\{)"}, _LLAMA, ("ipython", '"parameters"')
    ),
}
_THINK: Mapping[str, Any] = {"open_pattern": r"<think>\s*", "close_pattern": r"\s*</think>\s*"}
TOOL_PARSERS = (AUTO, NONE, *_PARSERS)
REASONING_PARSERS = (AUTO, NONE, "think")


@dataclass(frozen=True, slots=True)
class Thinking:
    """The texts round a model's reasoning."""

    opening: str
    closing: str


@dataclass(frozen=True, slots=True, eq=False)
class MessageForm:
    """How a model writes its messages.

    Attributes:
        template: cuts its text into parts; none of them is understood there, so that none can be wrong.
        calls: understands a part with calls; `None` where it is JSON, for a `CallScanner`.
        call_form: how grammars write calls.
        thinking: the texts round its reasoning; `None` where they are not known.
        has_short_ids: its chat template takes ids of calls of nine characters only.
    """

    template: ResponseTemplate
    calls: ResponseTemplateField | None = None
    call_form: CallForm = LISTED_CALLS
    thinking: Thinking | None = None
    has_short_ids: bool = False

    @property
    def reads_calls(self) -> bool:
        """Whether calls are found in a text that no grammar has shaped."""
        return CALLS in self.template.fields

    @property
    def reads_reasoning(self) -> bool:
        """Whether there is reasoning to split off."""
        return any(name in self.template.fields for name in REASONING)

    def without_calls(self) -> ResponseTemplate:
        """Return the template of a text in which calls are not looked for."""
        fields = {name: field for name, field in self.template.fields.items() if name != CALLS}
        return replace(self.template, fields=fields)

    def looks_for(self, token: str) -> bool:
        """Whether a token's text belongs to the form, and must not be hidden from it."""
        fields = self.template.fields.values()
        patterns = [each.pattern for field in fields for each in (field.open_re, field.close_re) if each is not None]
        return any(token in pattern.replace("\\", "") for pattern in patterns)


def message_form(
    declared: Any, chat_template: str, header: str, tool_parser: str = AUTO, reasoning_parser: str = AUTO
) -> MessageForm | None:
    """Return the form of a model's messages; `None` for one of which nothing but text is known.

    Args:
        declared: the tokenizer's response template, if any.
        chat_template: the source of the model's.
        header: what begins each of the model's messages in it.
        tool_parser: one of `TOOL_PARSERS`, or the path of a response template, which is all of the form.
        reasoning_parser: one of `REASONING_PARSERS`.

    Raises:
        ValueError: no such parser, or a response template that is none.
    """
    if reasoning_parser not in REASONING_PARSERS:
        raise ValueError(f"'{reasoning_parser}' is none of {', '.join(REASONING_PARSERS)}")
    if tool_parser not in TOOL_PARSERS:
        declared, tool_parser = _read(tool_parser), AUTO
    if declared is not None and tool_parser == AUTO:
        return _of_template(declared)
    parser = _PARSERS.get(tool_parser) or (_detected(chat_template) if tool_parser == AUTO else None)
    thinks = reasoning_parser == "think" or (
        reasoning_parser == AUTO and all(mark in chat_template for mark in ("<think>", "</think>"))
    )
    if parser is None and not thinks:
        return None
    fields: dict[str, Any] = {CONTENT: {}}
    if thinks:
        fields[REASONING[0]] = _THINK
    if parser is not None:
        fields[CALLS] = {**parser.field, "repeats": True}
    form = _of_template({"start_anchor": header or "\0", "fields": fields})
    if parser is None:
        return form
    return replace(form, call_form=parser.form, has_short_ids=parser.has_short_ids)


def _detected(chat_template: str) -> _CallParser | None:
    return next((parser for parser in _PARSERS.values() if all(mark in chat_template for mark in parser.marks)), None)


def _read(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        names = ", ".join(TOOL_PARSERS)
        raise ValueError(f"'{path}' is none of {names}, and no readable file ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error


def _of_template(source: Any) -> MessageForm:
    template: ResponseTemplate = load_response_template(source)
    fields = {name: _as_text(field) for name, field in template.fields.items()}
    calls = template.fields.get(CALLS)
    reasoning = next((template.fields[name] for name in REASONING if name in template.fields), None)
    return MessageForm(
        replace(template, defaults={}, fields=fields),
        None if calls is None or _is_json(calls) else calls,
        _TAGGED if calls is not None and calls.close_literals == [_TAGGED.closing.strip()] else LISTED_CALLS,
        None if reasoning is None else _thinking(reasoning),
    )


def _as_text(field: ResponseTemplateField) -> ResponseTemplateField:
    """Return a part that is taken as it is, with what its beginning names."""
    names = {} if field.open_re is None else dict.fromkeys(field.open_re.groupindex)
    return replace(
        field,
        content="text",
        content_args={"strip": False},
        join=None,
        optional=True,
        transform={"content": "{content}", **{name: f"{{{name}}}" for name in names}} if field.name == CALLS else None,
        transform_each=False,
    )


def _is_json(field: ResponseTemplateField) -> bool:
    """Whether a part is a plain object of JSON with the call's name and arguments, or a list of them."""
    plain = (None, "{content}", {"type": "function", "function": "{content}"})
    return field.content in ("json", "text") and not field.content_args and field.transform in plain


def _thinking(field: ResponseTemplateField) -> Thinking | None:
    if field.open_re is not None and field.open_re.pattern == _THINK["open_pattern"]:
        return Thinking("<think>", "</think>")
    if not field.open_literals or not field.close_literals:
        return None
    return Thinking(field.open_literals[0], field.close_literals[0])
